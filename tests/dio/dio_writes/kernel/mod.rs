//! Sends the same requests to two sides. One side is the kernel's O_DIRECT on a mounted volume with sectors of 512 bytes. The other side is
//! ironmap, on an unmounted copy of this volume, with a handle that accepts only the alignment of O_DIRECT. The counts and errors of each
//! request must be equal. At the end, the bytes, sizes and maps must be equal too.
//!
//! [`Difference`] names the intended differences.

mod edges;
mod sides;
mod step;

use std::collections::BTreeMap;
use std::path::Path;

use ironmap::Engine;

use self::sides::{Block, Kernel, Ours, Outcome, blocks};
use self::step::{LARGEST, Step, Write};
use crate::common::image::{Image, LoopMount, words};
use crate::common::kernel::maps;
use crate::common::loop_device::LoopDevice;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::dio_writes::model::{open, seed};
use crate::require;

const SEED: u64 = 0x0d10_2026;
const STEPS: usize = 1200;
/// Maps are compared up to this position. No request writes past it.
const MAPPED: u64 = 2 * LARGEST;
const FILES: [&str; 4] = ["written", "hole", "unwritten", "mixed"];
const SIZE: u64 = 300 << 10;

/// The number of extents that fit into an inode.
const IN_INODE: usize = 4;

const EINVAL: Outcome = Err(22);
const EAGAIN: Outcome = Err(11);

/// A difference between the results of the kernel and of ironmap that is not a fault of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// Linux checks each part of a request separately, and lets the driver check addresses. So Linux may serve a request that ironmap
    /// refuses with a handle that accepts only the alignment of O_DIRECT. Linux may also write a part of a request before it returns the
    /// error.
    Misaligned,
    /// To fill the rest of a partially written block with zeros, Linux needs exclusive access. So Linux refuses a NOWAIT write of a partial
    /// block. ironmap writes partial blocks without exclusive access, and accepts the request.
    NowaitPads,
    /// If a map does not fit into the inode, Linux keeps recent changes of the map in memory. ironmap must read the changed map from the
    /// device, so ironmap refuses a NOWAIT request.
    NowaitMap,
}

impl Difference {
    /// The known difference that explains the result of the kernel and the result of ironmap. `None` if no known difference explains them.
    fn between(write: &Write, kernel: Outcome, ours: Outcome, indexed: bool) -> Option<Self> {
        let len = write.len();
        match (kernel, ours) {
            (_, EINVAL) if !write.is_aligned() => Some(Self::Misaligned),
            (EAGAIN, Ok(count)) if write.is_nowait() && count == len => Some(Self::NowaitPads),
            (Ok(_), EAGAIN) if write.is_nowait() && indexed => Some(Self::NowaitMap),
            _ => None,
        }
    }
}

/// Two volumes with the same content, on devices with the same limits.
struct Twins {
    mount: LoopMount,
    device: LoopDevice,
    kernel: Image,
    ours: Image,
}

impl Twins {
    fn new(mkfs: &str) -> Self {
        let kernel = Image::in_memory("32M", &words(mkfs));
        {
            let mount = kernel.mount("noatime");
            prepare(mount.dir(), mkfs.contains("ext4"));
        }
        let ours = Image::in_memory("32M", &words(mkfs));
        std::fs::copy(kernel.path(), ours.path()).unwrap();
        let mount = kernel.mount("noatime");
        // By default, Linux writes zeros into a small unwritten extent instead of splitting it. With 0 in `extent_max_zeroout_kb`, Linux
        // always splits the extent.
        let device = mount.device().trim_start_matches("/dev/");
        let setting = format!("/sys/fs/ext4/{device}/extent_max_zeroout_kb");
        std::fs::write(setting, "0").unwrap();
        Self { mount, device: LoopDevice::new(ours.path()), kernel, ours }
    }
}

/// Makes files with written blocks, with holes, with unwritten blocks, and with a mixture.
fn prepare(dir: &Path, extents: bool) {
    let mut rng = Rng::new(SEED);
    for (name, block) in FILES.iter().zip(0..) {
        let file = std::fs::File::create(dir.join(name)).unwrap();
        file.set_len(SIZE).unwrap();
        for at in (0..SIZE).step_by(20 << 10) {
            let bytes = rng.bytes(12 << 10);
            let kind = if block < 3 { block } else { rng.below(3) };
            match kind {
                0 => {
                    let all = if block < 3 { rng.bytes(20 << 10) } else { bytes };
                    std::os::unix::fs::FileExt::write_all_at(&file, &all, at).unwrap();
                }
                2 if extents => {
                    let flags = rustix::fs::FallocateFlags::empty();
                    rustix::fs::fallocate(&file, flags, at, 20 << 10).unwrap();
                }
                _ => {}
            }
        }
        file.sync_all().unwrap();
    }
}

struct Lockstep<'a> {
    what: String,
    kernel: Kernel,
    ours: Ours<'a>,
    rng: Rng,
    /// Whether the map of the file has, or once had, blocks outside the inode.
    indexed: bool,
    differences: BTreeMap<Difference, usize>,
}

impl Lockstep<'_> {
    fn step(&mut self, number: usize, extents: bool) {
        let step = Step::random(&mut self.rng, self.kernel.size());
        let what = format!("{}, step {number}: {step:?}", self.what);
        match &step {
            Step::Write(write) => self.write(write, &what),
            // Files with indirect blocks cannot be preallocated. Other tests cover collapse and insert.
            Step::Allocate { .. } | Step::Zero(..) if !extents => {}
            step => {
                let (kernel, ours) = (self.kernel.change(step), self.ours.change(step));
                assert_eq!(ours, kernel, "{what}");
            }
        }
        assert_eq!(self.ours.size(), self.kernel.size(), "{what}: size");
        self.indexed |= self.ours.extents(MAPPED) > IN_INODE;
        if number.is_multiple_of(20) {
            self.compare_content(&what);
        }
    }

    fn write(&mut self, write: &Write, what: &str) {
        let bytes = self.rng.bytes(write.len());
        let size = self.kernel.size();
        // If a misaligned write fails, Linux frees all blocks that were preallocated past the end. So the test sends no misaligned write
        // past the end.
        if !write.is_aligned() && write.pos + write.len() as u64 > size {
            return;
        }
        let (kernel, ours) = (self.kernel.write(write, &bytes), self.ours.write(write, &bytes));
        if kernel == ours && (write.is_aligned() || kernel.is_ok()) {
            return;
        }
        if kernel != ours {
            let difference = Difference::between(write, kernel, ours, self.indexed);
            let Some(difference) = difference else {
                panic!("{what}: {ours:?}, the kernel {kernel:?}; the size was {size}");
            };
            *self.differences.entry(difference).or_default() += 1;
        }
        // The kernel or ironmap may have written the range while the other refused the request. So the test overwrites the range on both
        // volumes, to make them equal again.
        let pos = write.pos / 4096 * 4096;
        let end = (write.pos + write.len() as u64).next_multiple_of(4096);
        let healing = Write::plain(pos, end - pos);
        let bytes = self.rng.bytes(healing.len());
        assert_eq!(self.kernel.write(&healing, &bytes), Ok(bytes.len()), "{what}");
        self.ours.write_anyhow(&healing, &bytes);
    }

    fn compare_content(&mut self, what: &str) {
        let (kernel, ours) = (self.kernel.content(), self.ours.content());
        assert_eq!(ours.len(), kernel.len(), "{what}: size");
        let wrong = ours.iter().zip(&kernel).position(|(ours, kernel)| ours != kernel);
        assert_eq!(wrong, None, "{what}: content");
    }

    fn compare_map(&self, block: u64) {
        let kernel = blocks(&maps(std::slice::from_ref(&self.kernel.path))[0], block, MAPPED);
        let ours = self.ours.map(block, MAPPED);
        let differ = |at: &usize| kernel[*at] != ours[*at];
        let wrong: Vec<(usize, Block, Block)> =
            (0..ours.len()).filter(differ).map(|at| (at, ours[at], kernel[at])).collect();
        assert!(wrong.is_empty(), "{}: block, ours, the kernel's: {wrong:?}", self.what);
    }
}

fn compare(mkfs: &str, engine: Engine, seed: u64) -> BTreeMap<Difference, usize> {
    let extents = mkfs.contains("ext4");
    let Twins { mount, device, kernel, ours } = Twins::new(mkfs);
    let block = kernel.block_size();
    let volume = open(device.node().as_ref(), engine);
    assert_eq!(u64::from(volume.device().limits().logical_block), step::SECTOR);
    let mut differences = BTreeMap::new();
    for (name, at) in FILES.iter().zip(0..) {
        let mut lockstep = Lockstep {
            what: format!("{mkfs}, {engine:?}, {name}, seed {seed:#x}"),
            kernel: Kernel::open(mount.dir(), name),
            ours: Ours::open(&volume, name),
            rng: Rng::new(seed ^ at),
            indexed: !extents,
            differences: std::mem::take(&mut differences),
        };
        for number in 0..STEPS / FILES.len() {
            lockstep.step(number, extents);
        }
        for side in [lockstep.kernel.change(&Step::Sync), lockstep.ours.change(&Step::Sync)] {
            assert_eq!(side, Ok(0));
        }
        lockstep.compare_content("in the end");
        lockstep.compare_map(block);
        differences = lockstep.differences;
    }
    volume.close().unwrap();
    drop(volume);
    drop((mount, device));
    ours.check();
    kernel.check();
    // The kernel reads the same content from each volume.
    let read = |image: &Image| {
        let mount = image.mount("ro");
        FILES.map(|name| std::fs::read(mount.dir().join(name)).unwrap())
    };
    assert!(read(&ours) == read(&kernel), "{mkfs}, {engine:?}: as the kernel reads it");
    differences
}

#[test]
fn writes_do_what_the_kernels_do() {
    require!([Need::Root]);
    let layouts = [
        "-t ext4 -b 4096",
        "-t ext4 -b 1024",
        "-t ext4 -b 2048 -O ^has_journal",
        "-t ext3 -b 4096",
    ];
    let seed = seed(SEED);
    let mut differences = BTreeMap::<Difference, usize>::new();
    for (layout, at) in layouts.iter().zip(0..) {
        for engine in [Engine::Psync, Engine::IoUring] {
            for (difference, count) in compare(layout, engine, seed ^ at << 8) {
                *differences.entry(difference).or_default() += count;
            }
        }
    }
    println!("{differences:?}");
}
