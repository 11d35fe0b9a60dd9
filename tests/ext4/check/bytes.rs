//! Single bytes and words of metadata are changed, with correct or wrong checksums.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::check::repair::repair;
use crate::check::scratch::Scratch;
use crate::check::spots::{Spot, Sum};
use crate::check::verdict::{Tally, e2fsck, ironmap};
use crate::check::volume::Base;
use crate::common::image::{Image, scratch_in, words};
use crate::common::rng::Rng;

const SEED: u64 = 0x0020_2611;
/// The number of damaged volumes that are made from each undamaged volume.
const IMAGES: u64 = 250;

const BASES: [(&str, &str, &str); 6] = [
    ("ext4", "6M", "-t ext4 -b 1024 -I 256 -N 320 -J size=1"),
    ("no checksums", "6M", "-t ext4 -b 1024 -I 256 -N 320 -O ^metadata_csum,^has_journal"),
    ("uninit_bg", "12M", "-t ext4 -b 1024 -I 256 -N 640 -O uninit_bg,^metadata_csum,^has_journal"),
    ("ext3", "6M", "-t ext3 -b 1024 -I 256 -N 320 -J size=1"),
    (
        "inline",
        "8M",
        "-t ext4 -b 1024 -I 256 -N 320 -O inline_data,ea_inode,orphan_file,^metadata_csum -J size=1",
    ),
    (
        "bigalloc",
        "16M",
        "-t ext4 -b 1024 -I 256 -N 320 -O bigalloc,^metadata_csum,^has_journal -C 4096",
    ),
];

fn plant(tree: &Path) {
    for dir in ["linear", "hashed", "a/b/c"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for number in 0..20 {
        std::fs::write(tree.join(format!("linear/file-{number:02}")), "x").unwrap();
    }
    for number in 0..150 {
        let name = format!("hashed/a-long-name-of-many-{number:030}");
        std::fs::hard_link(tree.join("linear/file-00"), tree.join(name)).unwrap();
    }
    std::fs::write(tree.join("small"), "x".repeat(40)).unwrap();
    std::fs::write(tree.join("inline"), "y".repeat(100)).unwrap();
    std::os::unix::fs::symlink("linear/file-01", tree.join("short")).unwrap();
    std::os::unix::fs::symlink("/".repeat(100), tree.join("middle")).unwrap();
    std::os::unix::fs::symlink("/".repeat(400), tree.join("long")).unwrap();
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    for number in (0..24).chain([100, 200]) {
        FileExt::write_all_at(&sparse, &[0x5A; 4096], number * 12288).unwrap();
    }
}

fn base(name: &'static str, size: &str, options: &str) -> Base {
    // The source files are in tmpfs, which lists files in the order of their creation. So the volume has the same layout each time.
    let tree = scratch_in(Path::new("/dev/shm"));
    plant(tree.path());
    let options = format!("{options} -E hash_seed=8f8e3a6d-3dad-4a3a-9990-0b7c5e21f0e3");
    let image = Image::populated(size, &words(&options), tree.path());
    let long = image.beside("value");
    std::fs::write(&long, "v".repeat(700)).unwrap();
    let long = long.display();
    image.debugfs(&format!(
        "ea_set small user.short abc\nea_set -f {long} small user.long\nea_set a user.dir x\n"
    ));
    image.rebuild_directories();
    image.check();
    let bytes = std::fs::read(image.path()).unwrap();
    let spots = Spot::all(&bytes);
    Base { name, bytes, spots }
}

/// Changes one byte of a structure. Returns a description of the change.
fn damage(volume: &mut Scratch, rng: &mut Rng) -> String {
    let spots = &volume.base().spots;
    let spot = spots[rng.below(spots.len() as u64) as usize];
    let near = rng.below(2) == 0;
    let offset = rng.below(if near { 64.min(spot.len as u64) } else { spot.len as u64 }) as usize;
    let old = volume.bytes()[spot.at + offset];
    let new = match rng.below(3) {
        0 => old ^ 1 << rng.below(8),
        1 => rng.below(256) as u8,
        _ => old.wrapping_add(1),
    };
    volume.write(spot.at + offset, &[new]);
    format!("{:?} of inode {}, byte {offset}: {old:#x} to {new:#x}", spot.sum, spot.inode)
}

#[test]
fn changed_bytes_are_found_as_e2fsck_finds_them() {
    let chosen = std::env::var("IRONMAP_CHECK").unwrap_or_default();
    let seed = chosen.parse().unwrap_or(SEED);
    let mut tally = Tally::default();
    for (name, size, options) in BASES {
        let dir = scratch_in(Path::new("/dev/shm"));
        let path = dir.path().join("image");
        let mut volume = Scratch::new(base(name, size, options));
        // The repair of checksums sets the hashes of attributes to zero. e2fsck reports this as a fault. So the test does not damage
        // attributes.
        let mut spots = volume.base().spots.clone();
        spots.retain(|spot| !matches!(spot.sum, Sum::XattrBlock | Sum::XattrList));
        std::fs::write(&path, volume.bytes()).unwrap();
        // The image is large, so only the ranges that differ from the undamaged volume are written to it.
        let image = std::fs::File::options().write(true).open(&path).unwrap();
        let put = |dirty: &[(usize, usize)], bytes: &[u8]| {
            for (at, len) in dirty {
                image.write_all_at(&bytes[*at..][..*len], *at as u64).unwrap();
            }
        };
        for sound in [e2fsck(&path), ironmap(&path)] {
            assert!(sound.clean, "{name}, not damaged: {}", sound.text);
        }
        for number in 0..IMAGES {
            let mut rng = Rng::new(seed ^ number << 20);
            volume.restore();
            let mut what = damage(&mut volume, &mut rng);
            if rng.below(3) > 0 {
                repair(&mut volume, &spots);
                what.push_str(", checksums repaired");
            }
            put(volume.dirty(), volume.bytes());
            let what = format!("{name} {seed}:{number}: {what}");
            tally.compare(&what, &e2fsck(&path), &ironmap(&path));
            put(volume.dirty(), &volume.base().bytes);
        }
    }
    tally.end(seed);
}
