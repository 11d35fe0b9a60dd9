//! Runs all operations on the content of one file, as the program fsx does, and compares the content of the file with a copy in memory. The
//! operations are reads and writes through the page cache and with O_DIRECT, truncation, all modes of `fallocate`, copies within the file,
//! syncs, close and open. Two modes of `fallocate`, COLLAPSE_RANGE and INSERT_RANGE, fail on the mount, because FUSE does not pass them to
//! the server. The test runs these two modes with `ironmap fallocate` while the volume is not mounted.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::aligned::aligned;
use crate::rng::Rng;
use crate::sides::{Kernels, Ours, check, long, require_mounts};
use crate::support::{Bench, succeed, tool};

/// The maximum length of the file.
const MOST: u64 = 1 << 20;
/// The maximum length of a request.
const LONGEST: u64 = 1 << 17;
/// The number of operations between two mounts.
const PERIOD: u64 = 5000;

/// The cache mode of the open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Buffered,
    Direct,
    /// Two handles of the file: one is buffered, and the other is direct.
    Both,
}

struct Fsx {
    rng: Rng,
    way: Mode,
    content: Vec<u8>,
    block: u64,
}

/// Two handles of the open file. In the mode `Both`, the first handle is buffered and the second is direct. In the other modes, the two
/// handles have the same mode.
struct Handles([File; 2]);

impl Handles {
    fn open(path: &Path, way: Mode) -> Self {
        let open = |direct: bool| {
            let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(flags.bits() as i32).open(path).unwrap()
        };
        Self([open(way == Mode::Direct), open(way != Mode::Buffered)])
    }
}

impl Fsx {
    /// A random position and length of a range that ends at or before `most`. For a direct request, the position and the length are
    /// multiples of 512.
    fn range(&mut self, most: u64, direct: bool) -> (u64, u64) {
        let pos = self.rng.below(most);
        let len = 1 + self.rng.below(LONGEST.min(most - pos).max(1));
        let len = len.min(most - pos);
        if direct { (pos / 512 * 512, len / 512 * 512) } else { (pos, len) }
    }

    fn grow(&mut self, end: u64) {
        if self.content.len() < end as usize {
            self.content.resize(end as usize, 0);
        }
    }

    fn step(&mut self, handles: &mut Handles, path: &Path) {
        let which = self.rng.below(2) as usize;
        let direct = match self.way {
            Mode::Buffered => false,
            Mode::Direct => true,
            Mode::Both => which == 1,
        };
        let file = &handles.0[which];
        match self.rng.below(32) {
            0..=8 => {
                let (pos, len) = self.range(MOST, direct);
                self.read(file, pos, len);
            }
            9..=17 => {
                let (pos, len) = self.range(MOST, direct);
                let data = self.rng.bytes(len as usize);
                aligned(len as usize, |bytes| {
                    bytes.copy_from_slice(&data);
                    file.write_all_at(bytes, pos).unwrap();
                });
                if len > 0 {
                    self.grow(pos + len);
                    self.content[pos as usize..][..data.len()].copy_from_slice(&data);
                }
            }
            18..=20 => {
                let len = self.rng.below(MOST);
                file.set_len(len).unwrap();
                self.content.resize(len as usize, 0);
            }
            21..=26 => self.fallocate(file),
            27..=28 => self.copy(file),
            29 => file.sync_all().unwrap(),
            30 => file.sync_data().unwrap(),
            _ => *handles = Handles::open(path, self.way),
        }
        let len = handles.0[which].metadata().unwrap().len();
        assert_eq!(len, self.content.len() as u64, "the file's length");
    }

    fn read(&self, file: &File, pos: u64, len: u64) {
        aligned(len as usize, |bytes| {
            let mut count = 0;
            while let got @ 1.. = file.read_at(&mut bytes[count..], pos + count as u64).unwrap() {
                count += got;
            }
            let rest = self.content.get(pos as usize..).unwrap_or_default();
            let expected = &rest[..rest.len().min(len as usize)];
            let same = bytes[..count].iter().zip(expected).take_while(|(a, b)| a == b).count();
            assert!(
                bytes[..count] == *expected,
                "read of {len} at {pos}: {count} bytes, wrong from {same} on"
            );
        });
    }

    fn fallocate(&mut self, file: &File) {
        let keep = FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE;
        let punch = FallocateFlags::PUNCH_HOLE | keep;
        let how = [FallocateFlags::empty(), keep, zero, zero | keep, punch, punch];
        let how = how[self.rng.below(6) as usize];
        let (pos, len) = self.range(MOST, false);
        rustix::fs::fallocate(file, how, pos, len).unwrap();
        if !how.contains(keep) {
            self.grow(pos + len);
        }
        if how.intersects(punch | zero) && how != keep {
            let end = self.content.len().min((pos + len) as usize);
            if let Some(gone) = self.content.get_mut(pos as usize..end) {
                gone.fill(0);
            }
        }
    }

    // The kernel does not pass COLLAPSE_RANGE and INSERT_RANGE to a FUSE server, so both must fail. If one succeeded, the content of the
    // file would differ from the copy in memory.
    fn shift_refused(&self, file: &File) {
        for how in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            let done = rustix::fs::fallocate(file, how, 0, self.block);
            assert_eq!(done, Err(rustix::io::Errno::OPNOTSUPP), "{how:?}");
        }
    }

    /// Copies within the file. The two ranges do not overlap.
    fn copy(&mut self, file: &File) {
        let (from, len) = self.range(MOST, false);
        let len = len.min((self.content.len() as u64).saturating_sub(from));
        let to = self.rng.below(MOST - len);
        if len == 0 || from < to + len && to < from + len {
            return;
        }
        let mut done = 0;
        while done < len {
            let (mut source, mut target) = (from + done, to + done);
            let left = (len - done) as usize;
            let copied =
                rustix::fs::copy_file_range(file, Some(&mut source), file, Some(&mut target), left);
            done += copied.unwrap() as u64;
        }
        self.grow(to + len);
        self.content.copy_within(from as usize..(from + len) as usize, to as usize);
    }

    /// Removes blocks from the middle of the file, or inserts blocks, while the volume is not mounted.
    fn shift(&mut self, bench: &Bench) {
        let blocks = self.content.len() as u64 / self.block;
        if blocks < 4 {
            return;
        }
        let (first, count) = (1 + self.rng.below(blocks / 2), 1 + self.rng.below(blocks / 4));
        let (pos, len) = (first * self.block, count * self.block);
        let (at, target) = (pos as usize, bench.target("/file"));
        let (pos, len_text) = (pos.to_string(), len.to_string());
        let run = |how: &str| {
            let args = ["fallocate", &target, how, "--offset", &pos, "--length", &len_text];
            bench.succeed(args);
        };
        if self.rng.below(2) == 0 && self.content.len() as u64 + len <= MOST {
            run("--insert-range");
            self.content.splice(at..at, std::iter::repeat_n(0, len as usize));
        } else {
            run("--collapse-range");
            self.content.drain(at..at + len as usize);
        }
    }
}

fn run(seed: u64, count: u64, block: u64, way: Mode, options: &str) {
    let bench = Bench::empty();
    let (image, dir) = (bench.image(), bench.path("mounted"));
    let block_size = block.to_string();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4", "-b", &block_size]).arg(&image).arg("32M"));
    let path = dir.join("file");
    let mut fsx = Fsx { rng: Rng::new(seed), way, content: Vec::new(), block };
    let mut number = 0;
    while number < count {
        let ours = Ours::mount(&image, &dir, options);
        // Describes the run in the message of a failure.
        let when = format!("seed {seed}, blocks of {block}, {way:?}, -o {options}");
        let mut handles = Handles::open(&path, way);
        let end = count.min(number + PERIOD);
        for number in number..end {
            let step = std::panic::AssertUnwindSafe(|| fsx.step(&mut handles, &path));
            if let Err(panic) = std::panic::catch_unwind(step) {
                eprintln!("{when}, operation {number}");
                std::panic::resume_unwind(panic);
            }
        }
        number = end;
        fsx.shift_refused(&handles.0[0]);
        drop(handles);
        assert!(fs::read(&path).unwrap() == fsx.content, "{when}, at {number}: the content");
        ours.unmount();
        check(&image);
        fsx.shift(&bench);
    }
    check(&image);
    let kernels = Kernels::mount(&image, &bench.path("kernel"), "ro");
    let content = fs::read(kernels.dir.join("file")).unwrap();
    assert!(content == fsx.content, "seed {seed}: the content as the kernel reads it");
}

fn each(name: &str, way: Mode, options: &str) {
    let count = if long() { 100_000 } else { 1000 };
    let seed = std::env::var("IRONMAP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for block in [4096, 1024] {
        eprintln!("{name}: blocks of {block}");
        run(seed, count, block, way, options);
    }
}

/// Through the page cache, reads return the last written data.
#[test]
fn a_file_used_through_the_page_cache() {
    require_mounts!("a_file_used_through_the_page_cache");
    each("buffered", Mode::Buffered, "rw");
}

/// Reads return the last written data, with O_DIRECT.
#[test]
fn a_file_used_directly() {
    require_mounts!("a_file_used_directly");
    each("direct", Mode::Direct, "rw");
}

/// Buffered and direct requests on one file are coherent.
#[test]
fn a_file_used_both_ways() {
    require_mounts!("a_file_used_both_ways");
    each("both", Mode::Both, "rw");
}

/// With a writeback cache, reads return the last written data. Direct requests are not coherent with this cache (docs/MOUNT.md), so they
/// are not tested.
#[test]
fn a_file_used_with_a_writeback_cache() {
    require_mounts!("a_file_used_with_a_writeback_cache");
    each("buffered, writeback cache", Mode::Buffered, "writeback_cache");
    each("direct, writeback cache", Mode::Direct, "writeback_cache");
}
