//! Measures how costs grow with the size of a file and of a volume:
//!
//! - the cost of a read in a file with 1, 1k and 1M extents;
//! - the memory of the extent map;
//! - the time to open a volume of 1 GiB, 100 GiB and 16 TiB.
//!
//! `cargo bench --bench growth`, as root. The kernel writes the file system on a zram device. The device is removed at the end. All files
//! have the same number of blocks, so random reads in each file spread over the same amount of data.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ironmap::bio::Buffer;
use ironmap::fs::Follow;
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{Engine, File, FileOptions, Queue, QueueOptions, Volume};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCK: u64 = 4096;
/// The number of data blocks in each file.
const BLOCKS: u64 = 1 << 20;
const EXTENTS: [u64; 3] = [1, 1 << 10, 1 << 20];
const DEVICE_BYTES: u64 = 16 << 30;
/// In each round, the bench reads one chunk of each file. A chunk consists of `READS` reads, which take about two milliseconds.
const ROUNDS: usize = 300;
const READS: u64 = 2000;
const OPENINGS: usize = 11;

fn main() -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("ironmap-test-").tempdir_in("/dev/shm")?;
    reads(scratch.path())?;
    openings(scratch.path())
}

/// The position of a data block in a file with `extents` extents. All extents have the same length. A hole of one block follows each
/// extent.
fn pos(block: u64, extents: u64) -> u64 {
    let length = BLOCKS / extents;
    (block + block / length) * BLOCK
}

fn reads(scratch: &Path) -> Result<()> {
    let device = Zram::new()?;
    // A file with one extent needs free blocks without a gap. Backup superblocks and bitmaps among these blocks would be gaps. Therefore
    // the volume has no backup superblocks, and all bitmaps are at its beginning.
    let options =
        "-q -F -t ext4 -b 4096 -O sparse_super2,^resize_inode -E num_backup_sb=0,nodiscard -G 128";
    run("mke2fs", options.split(' ').chain([device.path().as_str()]))?;
    let dir = scratch.join("mounted");
    fs::create_dir(&dir)?;
    {
        let mount = Mount::new(&device.path(), &dir)?;
        for extents in EXTENTS {
            write(&mount.0.join(extents.to_string()), extents)?;
        }
    }
    println!("| engine | extents | CPU ns a read | relative | map loaded in | memory of the map |");
    println!("|---|--:|--:|--:|--:|--:|");
    for engine in [Engine::Psync, Engine::Null] {
        let options = ironmap::VolumeOptions::new().engine(engine);
        let volume = options.open(device.path())?;
        let mut files = Vec::new();
        for extents in EXTENTS {
            files.push(Measured::open(&volume, extents)?);
        }
        for _ in 0..ROUNDS {
            for file in &mut files {
                file.chunk()?;
            }
        }
        let first = files[0].ns.clone();
        for file in &mut files {
            let relative = file.ns.iter().zip(&first).map(|(own, first)| own / first).collect();
            println!(
                "| {engine} | {} | {:.1} | {:.3} | {:.1} ms | {} KiB |",
                file.pieces,
                median(file.ns.clone()),
                median(relative),
                file.load_ms,
                file.memory >> 10
            );
        }
    }
    Ok(())
}

/// Writes a file with the given number of extents.
fn write(path: &Path, extents: u64) -> Result<()> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).create_new(true).custom_flags(direct).open(path)?;
    file.set_len(pos(BLOCKS - 1, extents) + BLOCK)?;
    let blocks = (BLOCKS / extents).min(256);
    let piece = Buffer::aligned((blocks * BLOCK) as usize)?;
    for block in (0..BLOCKS).step_by(blocks as usize) {
        file.write_all_at(&piece, pos(block, extents))?;
    }
    Ok(())
}

/// An open file, and its measurements.
struct Measured {
    file: File,
    queue: Queue,
    buffer: Buffer,
    extents: u64,
    /// The number of extents, as the extent map itself reports it.
    pieces: usize,
    load_ms: f64,
    memory: u64,
    state: u64,
    ns: Vec<f64>,
}

impl Measured {
    fn open(volume: &Volume, extents: u64) -> Result<Self> {
        let inode = volume.fs().resolve(format!("/{extents}").as_bytes(), Follow::All)?;
        let file = volume.open_inode(inode, FileOptions::new().direct(true))?;
        let mut queue = volume.queue(&QueueOptions::new().depth(1))?;
        let mut buffer = Buffer::aligned(BLOCK as usize)?;
        let (before, start) = (resident(), Instant::now());
        file.read_at(&mut queue, &mut buffer, FilePos(0))?;
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        let memory = resident().saturating_sub(before);
        let mut pieces = 0;
        for iomap in file.mappings() {
            pieces += usize::from(iomap?.kind == IomapType::Mapped);
        }
        let state = 0x9E37_79B9_7F4A_7C15;
        Ok(Self { file, queue, buffer, extents, pieces, load_ms, memory, state, ns: Vec::new() })
    }

    fn chunk(&mut self) -> Result<()> {
        let start = cpu_ns();
        for _ in 0..READS {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let pos = FilePos(pos(self.state % BLOCKS, self.extents));
            self.file.read_at(&mut self.queue, &mut self.buffer, pos)?;
        }
        self.ns.push((cpu_ns() - start) as f64 / READS as f64);
        let simple = self.ns.len() as u64 * READS;
        assert!(
            self.queue.stats().simple_hits >= simple,
            "all reads except the first take the simple path"
        );
        Ok(())
    }
}

fn openings(scratch: &Path) -> Result<()> {
    println!("\n| volume | opened in |");
    println!("|---|--:|");
    for size in ["1G", "100G", "16T"] {
        let image = scratch.join(size).display().to_string();
        let options = "-q -F -t ext4 -O 64bit -E lazy_itable_init=1,lazy_journal_init=1,nodiscard";
        run("mke2fs", options.split(' ').chain([image.as_str(), size]))?;
        let mut times = Vec::new();
        for _ in 0..OPENINGS {
            let start = Instant::now();
            let volume = Volume::open(&image)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            drop(volume);
        }
        println!("| {size} | {:.0} us |", median(times));
        fs::remove_file(&image)?;
    }
    Ok(())
}

/// The CPU time of this thread, in nanoseconds. The load by other programs hardly affects it.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The resident memory of the process in bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

fn run<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let output = Command::new(program).args(args).output()?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}

/// A compressed RAM disk. A mark file contains the name of the disk, so that `./x clean-up` can find the disk.
struct Zram {
    number: String,
    mark: PathBuf,
}

impl Zram {
    fn new() -> Result<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")?.trim().to_owned();
        let marks = Path::new("/run/ironmap-test-zram");
        let zram = Self { mark: marks.join(format!("zram{number}")), number };
        fs::create_dir_all(marks)?;
        fs::write(&zram.mark, std::process::id().to_string())?;
        fs::write(format!("/sys/block/zram{}/disksize", zram.number), DEVICE_BYTES.to_string())?;
        Ok(zram)
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
        if fs::write("/sys/class/zram-control/hot_remove", &self.number).is_ok() {
            let _ = fs::remove_file(&self.mark);
        }
    }
}

struct Mount(PathBuf);

impl Mount {
    fn new(device: &str, dir: &Path) -> Result<Self> {
        let dir = dir.to_owned();
        run("mount", ["-t", "ext4", device, &dir.display().to_string()])?;
        Ok(Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", [self.0.display().to_string().as_str()]);
    }
}
