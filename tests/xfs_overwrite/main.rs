//! Overwrites of files on XFS volumes. The kernel reads the written data, and no other byte of the volume changes. A failure names the
//! options of mkfs.xfs and the seed.

#[path = "../common/mod.rs"]
mod common;

mod content;
mod faults;
mod hostile;
mod power_cuts;
mod random;
mod refusals;
mod threads;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::beneath;
use common::command::run;
use common::image::Image;
use common::rng::Rng;
use ironmap::{FileOptions, Result, Volume, VolumeOptions};
use rustix::fs::{FallocateFlags, fallocate};

const SIZE: &str = "512M";
const SEED: u64 = 0x006f_7665_7277;

/// A file as the kernel reports it: its content, and the positions of its data on the device.
struct Known {
    content: Vec<u8>,
    /// The ranges of the file that share no blocks, each with its position on the device.
    own: Vec<(Range<u64>, u64)>,
}

impl Known {
    /// Whether the entire range may be overwritten.
    fn takes(&self, range: Range<u64>) -> bool {
        if range.end > self.content.len() as u64 {
            return false;
        }
        let mut at = range.start;
        for (own, _) in &self.own {
            if own.contains(&at) {
                at = own.end;
            }
        }
        at >= range.end
    }
}

/// An unmounted image with files of every kind. `None` if mkfs.xfs or the kernel does not support these options.
fn filled(options: &[&str], block: u64) -> Option<Image> {
    let image = match Image::mkfs_xfs(SIZE, options) {
        Ok(image) => image,
        Err(refusal) => return skip(options, &refusal),
    };
    match image.try_mount("noatime") {
        Ok(mount) => fill(mount.dir(), block),
        Err(refusal) => return skip(options, &refusal),
    }
    Some(image)
}

fn skip(options: &[&str], refusal: &str) -> Option<Image> {
    common::skip::note("xfs_overwrite", &format!("{options:?}: {}", refusal.replace('\n', " ")));
    None
}

fn fill(dir: &Path, block: u64) {
    let rng = &mut Rng::new(SEED ^ block);
    let create = |name: &str| File::create_new(dir.join(name)).unwrap();
    create("whole").write_all_at(&rng.bytes(1 << 20), 0).unwrap();
    create("odd-end").write_all_at(&rng.bytes(3 * block as usize + 77), 0).unwrap();
    create("small").write_all_at(b"seven b", 0).unwrap();
    // The test extends the two files in turns. So no two blocks of a file are adjacent.
    let (one, other) = (create("pieces"), create("other-pieces"));
    for index in 0..300 {
        one.write_all_at(&rng.bytes(block as usize), index * block).unwrap();
        one.sync_data().unwrap();
        other.write_all_at(&rng.bytes(block as usize), index * block).unwrap();
        other.sync_data().unwrap();
    }
    let mixed = create("mixed");
    fallocate(&mixed, FallocateFlags::empty(), 0, 64 * block).unwrap();
    for index in (0..64).step_by(3) {
        mixed.write_all_at(&rng.bytes(block as usize), index * block).unwrap();
    }
    mixed.write_all_at(&rng.bytes(block as usize), 100 * block).unwrap();
    // These 8 blocks are past the end of the file.
    fallocate(&mixed, FallocateFlags::KEEP_SIZE, 101 * block, 8 * block).unwrap();
    std::fs::write(dir.join("shared"), rng.bytes(64 * block as usize)).unwrap();
    let share = |to: &str| {
        let (from, to) = (dir.join("shared"), dir.join(to));
        let args = ["--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()];
        common::command::output("cp", &args).status.success()
    };
    if share("copy") {
        // Overwrites in the copy make some blocks unshared. The two files still share the other blocks.
        let copy = File::options().write(true).open(dir.join("copy")).unwrap();
        for index in [0, 1, 9, 30, 63] {
            copy.write_all_at(&rng.bytes(block as usize), index * block).unwrap();
        }
        // After these writes, the file shares no block.
        assert!(share("once-shared"));
        let alone = File::options().write(true).open(dir.join("once-shared")).unwrap();
        alone.write_all_at(&rng.bytes(64 * block as usize), 0).unwrap();
    }
}

/// All files in the root, as the kernel reports them.
fn known(image: &Image) -> BTreeMap<String, Known> {
    let mount = image.mount("ro,norecovery");
    let entries = std::fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let of = |entry: std::fs::DirEntry| {
        let content = std::fs::read(entry.path()).unwrap();
        let own = own_ranges(&entry.path());
        (entry.file_name().into_string().unwrap(), Known { content, own })
    };
    files.map(of).collect()
}

/// The ranges of a file that share no blocks, from FIEMAP.
fn own_ranges(path: &Path) -> Vec<(Range<u64>, u64)> {
    let output = run("filefrag", &["-v".as_ref(), "-b1".as_ref(), path.as_os_str()]);
    let text = String::from_utf8(output).unwrap();
    let extent = |line: &str| {
        let fields: Vec<_> = line.split(':').map(str::trim).collect();
        let first = |field: &str| field.split("..").next()?.trim().parse::<u64>().ok();
        let [index, logical, physical, len, .., flags] = fields[..] else { return None };
        index.parse::<u64>().ok()?;
        let (start, len) = (first(logical)?, len.parse::<u64>().ok()?);
        let other = flags.contains("unwritten") || flags.contains("shared");
        (!other).then_some((start..start + len, first(physical)?))
    };
    text.lines().filter_map(extent).collect()
}

fn open(image: &Image) -> Result<Volume> {
    beneath::open(&image.location(), &VolumeOptions::default().write(true))
}

fn for_writing() -> FileOptions {
    FileOptions::new().write(true)
}

/// Asserts that the image differs from `before` only where data were written.
fn assert_only_data(image: &Image, before: &[u8], known: &BTreeMap<String, Known>, what: &str) {
    let mut after = std::fs::read(image.path()).unwrap();
    for (file, known) in known {
        for (range, at) in &known.own {
            let end = range.end.min(known.content.len() as u64);
            let (at, len) = (*at as usize, end.saturating_sub(range.start) as usize);
            let content = &known.content[range.start as usize..range.start as usize + len];
            assert!(after[at..at + len] == *content, "{what}: {file} from {} on", range.start);
            after[at..at + len].copy_from_slice(&before[at..at + len]);
        }
    }
    let differs = after.iter().zip(before).position(|(after, before)| after != before);
    assert_eq!(differs, None, "{what}: a byte outside of all overwritten ranges");
}
