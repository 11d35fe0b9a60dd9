//! Volumes with one fault, which debugfs makes. Each volume exists with and without checksums.

use std::path::Path;

use crate::check::verdict::{Tally, e2fsck, ironmap};
use crate::common::image::{Image, scratch, words};
use crate::common::rng::Rng;

const SEED: u64 = 0x0020_2626;
/// The number of random faults of each kind on each volume.
const DRAWS: u64 = 2;

const BASES: [(&str, &str); 6] = [
    ("ext4", "-t ext4 -b 1024 -I 256"),
    ("ext3", "-t ext3 -b 1024 -I 256"),
    ("bigalloc", "-t ext4 -b 1024 -I 256 -O bigalloc -C 4096"),
    ("inline data", "-t ext4 -b 1024 -I 256 -O inline_data"),
    ("uninit_bg", "-t ext4 -b 1024 -I 256 -O uninit_bg,^metadata_csum"),
    ("orphan file", "-t ext4 -b 1024 -I 256 -O orphan_file,ea_inode"),
];

/// The files that the faults damage.
const FILES: [&str; 10] =
    ["linear", "hashed", "a", "a/b", "small", "sparse", "short", "long", "fifo", "linear/file-03"];

fn plant(tree: &Path) {
    for dir in ["linear", "hashed", "a/b/c"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for number in 0..20 {
        std::fs::write(tree.join(format!("linear/file-{number:02}")), "x".repeat(number)).unwrap();
    }
    for number in 0..150 {
        let name = format!("hashed/a-long-name-of-many-{number:030}");
        std::fs::hard_link(tree.join("linear/file-00"), tree.join(name)).unwrap();
    }
    std::fs::write(tree.join("small"), "x".repeat(40)).unwrap();
    std::os::unix::fs::symlink("linear/file-01", tree.join("short")).unwrap();
    std::os::unix::fs::symlink("/".repeat(400), tree.join("long")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), 0o644.into()).unwrap();
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    for number in (0..24).chain([100, 200]) {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[0x5A; 4096], number * 12288).unwrap();
    }
}

/// The debugfs commands for one fault of each kind.
fn damages(rng: &mut Rng, image: &Image) -> Vec<String> {
    let file = FILES[rng.below(FILES.len() as u64) as usize];
    let other = FILES[rng.below(FILES.len() as u64) as usize];
    let block = 1 + rng.below(8191);
    let inode = 11 + rng.below(60);
    let number = rng.below(1 << 16);
    let used = image.bmap("sparse", std::iter::once(0))[0];
    let mut all = vec![
        format!("freeb {block}"),
        format!("freeb {used}"),
        format!("setb {block}"),
        format!("freei <{inode}>"),
        format!("seti <{}>", 100 + rng.below(400)),
        format!("clri {file}"),
        format!("unlink {file}"),
        format!("kill_file {file}"),
        format!("link {file} {other}-again"),
        format!("link {file} linear/second"),
        format!("set_inode_field {file} links_count {}", rng.below(5)),
        format!("set_inode_field {file} mode 0{:o}", rng.below(16) << 12 | 0o644),
        format!("set_inode_field {file} size {number}"),
        format!("set_inode_field {file} blocks {number}"),
        format!("set_inode_field {file} dtime {number}"),
        format!("set_inode_field {file} flags {:#x}", 1_u64 << rng.below(32)),
        format!("set_inode_field {file} file_acl {block}"),
        format!("set_inode_field {file} block[{}] {block}", rng.below(15)),
        format!("set_inode_field {file} generation {number}"),
        format!("set_inode_field {file} extra_isize {}", rng.below(200)),
        format!("set_inode_field {file} uid {number}"),
        format!("set_inode_field {file} checksum {number}"),
        format!("set_inode_field <2> mode 0100644"),
        format!("set_inode_field <7> block[13] {block}"),
        format!("set_inode_field <8> mode 0"),
        format!("set_super_value free_inodes_count {number}"),
        format!("set_super_value free_blocks_count {number}"),
        format!("set_super_value r_blocks_count {number}"),
        format!("set_super_value last_orphan {inode}"),
        format!("set_super_value inodes_per_group {number}"),
        format!("set_super_value first_ino {}", rng.below(40)),
        format!("set_super_value journal_inum {inode}"),
        format!("set_super_value reserved_gdt_blocks {}", rng.below(512)),
        format!("set_super_value hash_seed 00112233-4455-6677-8899-aabbccddeeff"),
        format!("set_super_value log_groups_per_flex {}", rng.below(8)),
        format!("set_super_value min_extra_isize {}", rng.below(200)),
    ];
    let reserved = [1, 3, 4, 5, 6, 9, 10];
    all.extend(reserved.map(|inode| format!("set_inode_field <{inode}> checksum {number}")));
    let group = rng.below(2);
    for field in [
        "block_bitmap",
        "inode_bitmap",
        "inode_table",
        "free_blocks_count",
        "free_inodes_count",
        "used_dirs_count",
        "flags",
        "itable_unused",
        "block_bitmap_csum",
        "inode_bitmap_csum",
    ] {
        let value = if field == "flags" { rng.below(8) } else { rng.below(2000) };
        let sum = format!("set_block_group {group} checksum calc");
        all.push(format!("set_block_group {group} {field} {value}\n{sum}"));
    }
    all
}

#[test]
fn single_damages_are_found_as_e2fsck_finds_them() {
    let chosen = std::env::var("IRONMAP_CHECK").unwrap_or_default();
    let seed = chosen.parse().unwrap_or(SEED);
    let tree = scratch();
    plant(tree.path());
    let mut tally = Tally::default();
    for (name, options) in BASES {
        let image = Image::populated("16M", &words(options), tree.path());
        let long = image.beside("value");
        std::fs::write(&long, "v".repeat(700)).unwrap();
        image.debugfs(&format!(
            "ea_set small user.short abc\nea_set -f {} small user.long\nea_set a user.dir x\n",
            long.display()
        ));
        image.rebuild_directories();
        image.check();
        for draw in 0..DRAWS {
            let mut rng = Rng::new(seed ^ draw << 20);
            let kinds = damages(&mut rng, &image);
            for what in kinds {
                let copy = image.copy();
                copy.debugfs(&format!("{what}\n"));
                let what = format!("{name} {seed}:{draw}: {what}");
                tally.compare(&what, &e2fsck(&copy.path()), &ironmap(&copy.path()));
            }
        }
    }
    tally.end(seed);
}

/// The tree of a quota file does not lead to some slots of the file. e2fsck and the kernel still accept a nonzero slot there as an entry. A
/// check must find faults in these slots.
#[test]
fn entries_of_quota_files_to_which_no_tree_leads_are_found() {
    let image = Image::mke2fs("16M", &words("-t ext4 -b 1024 -I 256 -O quota"));
    let mut tally = Tally::default();
    for file in ["<3>", "<4>"] {
        // Block 5 contains 14 entries. The first entry is for id 0.
        for slot in 0..14 {
            for at in [0, 4, 24, 48, 71] {
                let copy = image.copy();
                copy.poke(file, 5, 16 + slot * 72 + at, &[7]);
                let what = format!("{file} slot {slot} byte {at}");
                tally.compare(&what, &e2fsck(&copy.path()), &ironmap(&copy.path()));
            }
        }
    }
    tally.end(0);
}
