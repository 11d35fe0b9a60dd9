//! Compares a handle of a pool with a queue that is used directly. Both make random reads of 4 KiB, with 64 in flight.
//!
//! `cargo bench -p ironmap-async --bench handle` measures all devices. Names after `--` select devices:
//!
//! - `count`: instructions for each request to the engine null, counted by callgrind; needs valgrind
//! - `null`: the engine null, whose requests complete at once
//! - `loop`: a loop device over a file in /dev/shm, with io_uring; needs root
//! - `psync`: the same loop device, with psync, as in a container without io_uring
//! - `zram`: a compressed RAM disk, with psync, because zram does not support NOWAIT; needs root
//! - `disk`: an image in the temporary directory, with io_uring; the directory must be on a disk
//!
//! Each round measures each way of making requests once, and computes the ratios between the ways. A result row contains the median of each
//! ratio over all rounds. The CPU time includes all threads of this process; the load of other programs hardly affects it. `IRONMAP_ROUNDS`
//! sets the number of rounds.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ironmap::Engine;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::location::LocationOptions;
use ironmap::prelude::*;
use ironmap_async::{AsyncFile, Pool, PoolOptions};
use tokio::runtime::{Builder, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BLOCK: u64 = 4096;
const DEPTH: usize = 64;
const FILE_BYTES: u64 = 256 << 20;
const DEVICE_BYTES: u64 = 320 << 20;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
/// The devices, each with the number of requests that one way makes in a round.
const DEVICES: [(&str, Engine, u64); 5] = [
    ("null", Engine::Null, 100_000),
    ("loop", Engine::Auto, 10_000),
    ("psync", Engine::Psync, 10_000),
    ("zram", Engine::Auto, 40_000),
    ("disk", Engine::Auto, 10_000),
];
/// callgrind counts two runs. The shorter run makes this number of requests, and the longer run makes twice as many.
const COUNTED: u64 = 20_000;

/// A way to make the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One thread with a queue makes the requests.
    Bare,
    /// One task with 64 futures makes the requests, through a pool.
    OneTask { threads: usize },
    /// 64 tasks with one future each make the requests, through a pool.
    Tasks { threads: usize },
}

impl Way {
    /// Returns the ways of making requests to compare. With psync, each thread of a pool has one request in flight.
    fn all(engine: Engine) -> Vec<Self> {
        let psync = [1, 4, 8, 16, 32].map(|threads| Self::Tasks { threads });
        let one = |threads| [Self::OneTask { threads }, Self::Tasks { threads }];
        let ways = match engine {
            Engine::Psync => psync.to_vec(),
            _ => [one(1), one(2)].concat(),
        };
        [vec![Self::Bare], ways].concat()
    }

    fn name(self) -> String {
        match self {
            Self::Bare => "bare queue".to_owned(),
            Self::OneTask { threads } => format!("one task, pool of {threads}"),
            Self::Tasks { threads } => format!("64 tasks, pool of {threads}"),
        }
    }
}

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [run, image, way, requests] = &args[..]
        && run == "run"
    {
        let way = Way::all(Engine::Null)[way.parse::<usize>()?];
        let volume = VolumeOptions::new().engine(Engine::Null).open(image.as_str())?;
        return Measured::new(&volume, way)?.run(requests.parse()?);
    }
    let wanted = |name: &str| args.is_empty() || args.iter().any(|arg| arg == name);
    let scratch = tempfile::Builder::new().prefix("ironmap-test-").tempdir_in("/dev/shm")?;
    let on_disk = tempfile::Builder::new().prefix("ironmap-test-").tempdir()?;
    let image = scratch.path().join("image");
    fill_image(&image)?;
    if wanted("count") {
        count(&image)?;
    }
    println!(
        "| device | engine | way | IOPS | rate relative to the bare queue (quartiles) | CPU time of a request |"
    );
    println!("|---|---|---|--:|--:|--:|");
    for (device, engine, requests) in DEVICES.into_iter().filter(|(name, ..)| wanted(name)) {
        let node = match device {
            "loop" | "psync" => Node::over(&image)?,
            "zram" => Node::zram()?,
            "disk" => Node { path: on_disk.path().join("image"), kind: Kind::Image },
            _ => Node { path: image.clone(), kind: Kind::Image },
        };
        match device {
            "zram" => fill(&node.path)?,
            "disk" => fill_image(&node.path)?,
            _ => {}
        }
        measure(device, &VolumeOptions::new().engine(engine).open(&*node.path)?, requests)?;
    }
    Ok(())
}

fn fill_image(image: &Path) -> Result<()> {
    fs::File::create(image)?.set_len(DEVICE_BYTES)?;
    fill(image)
}

/// Makes a volume with one file. The file contains random bytes, which cannot be compressed.
fn fill(device: &Path) -> Result<()> {
    let location: ironmap::Location = device.display().to_string().parse()?;
    let opened = location.open(&LocationOptions::new().write(true))?;
    ironmap::tools::make(&*opened.device, &MkfsOptions::new().block_size(4096))?;
    drop(opened);
    let volume = VolumeOptions::new().write(true).open(device)?;
    let file = volume.open_with("/data", FileOptions::new().write(true).create(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(1))?;
    let (mut state, mut piece) = (SEED, Buffer::aligned(1 << 20)?);
    for pos in (0..FILE_BYTES).step_by(1 << 20) {
        for bytes in piece.chunks_exact_mut(8) {
            bytes.copy_from_slice(&next(&mut state).to_ne_bytes());
        }
        file.write_at(&mut queue, &piece, pos)?;
    }
    drop((queue, file));
    Ok(volume.close()?)
}

/// Returns the next number of a pseudorandom generator (xorshift).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Random positions of blocks.
#[derive(Clone)]
struct Positions(u64);

impl Iterator for Positions {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(next(&mut self.0) % (FILE_BYTES / BLOCK) * BLOCK)
    }
}

/// A way to make requests, with its queue or pool, and the memory of the requests.
enum Measured {
    Bare { queue: Box<Queue>, file: File, free: Vec<Buffer> },
    Pool { way: Way, runtime: Runtime, file: AsyncFile, free: Vec<Buffer> },
}

impl Measured {
    fn new(volume: &Volume, way: Way) -> Result<Self> {
        let file = volume.open_with("/data", FileOptions::new().direct(true))?;
        let free = (0..DEPTH).map(|_| Buffer::aligned(BLOCK as usize));
        let free = free.collect::<ironmap::Result<_>>()?;
        let (Way::OneTask { threads } | Way::Tasks { threads }) = way else {
            let queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32))?;
            return Ok(Self::Bare { queue: Box::new(queue), file, free });
        };
        let options = PoolOptions::new().threads(threads).depth(DEPTH as u32);
        let pool = Pool::new(volume.clone(), options)?;
        let runtime = Builder::new_current_thread().build()?;
        Ok(Self::Pool { way, runtime, file: pool.file(file), free })
    }

    fn run(&mut self, requests: u64) -> Result<()> {
        match self {
            Self::Bare { queue, file, free } => bare(queue, file, free, requests),
            Self::Pool { way: Way::Tasks { .. }, runtime, file, free } => {
                let each = requests / DEPTH as u64;
                *free = runtime.block_on(tasks(file, std::mem::take(free), each))?;
                Ok(())
            }
            Self::Pool { runtime, file, free, .. } => {
                runtime.block_on(one_task(file, free, requests))
            }
        }
    }
}

fn bare(queue: &mut Queue, file: &File, free: &mut Vec<Buffer>, requests: u64) -> Result<()> {
    let mut left = requests;
    let mut positions = Positions(SEED);
    while left > 0 || queue.outstanding() > 0 {
        while left > 0
            && let Some(buffer) = free.pop()
            && let Some(pos) = positions.next()
        {
            file.submit_read(queue, buffer, pos, DioFlags::empty(), 0)?;
            left -= 1;
        }
        queue.wait(1)?;
        while let Some(completion) = queue.pop() {
            let (count, buffer) = completion.into_buffer()?;
            assert_eq!(count, BLOCK as usize);
            free.push(buffer);
        }
    }
    Ok(())
}

async fn one_task(file: &AsyncFile, free: &mut Vec<Buffer>, requests: u64) -> Result<()> {
    let mut positions = Positions(SEED).take(requests as usize);
    let mut reads: FuturesUnordered<_> =
        free.drain(..).zip(&mut positions).map(|(buffer, pos)| file.read_at(buffer, pos)).collect();
    while let Some(read) = reads.next().await {
        let (count, buffer) = read?;
        assert_eq!(count, BLOCK as usize);
        match positions.next() {
            Some(pos) => reads.push(file.read_at(buffer, pos)),
            None => free.push(buffer),
        }
    }
    Ok(())
}

async fn tasks(file: &AsyncFile, free: Vec<Buffer>, each: u64) -> Result<Vec<Buffer>> {
    let tasks = free.into_iter().zip(1..).map(|(mut buffer, task)| {
        let file = file.clone();
        tokio::spawn(async move {
            for pos in Positions(SEED.wrapping_mul(task)).take(each as usize) {
                let (count, back) = file.read_at(buffer, pos).await?;
                assert_eq!(count, BLOCK as usize);
                buffer = back;
            }
            Result::<Buffer>::Ok(buffer)
        })
    });
    let mut free = Vec::with_capacity(DEPTH);
    for task in tasks.collect::<Vec<_>>() {
        free.push(task.await??);
    }
    Ok(free)
}

fn measure(device: &str, volume: &Volume, requests: u64) -> Result<()> {
    let rounds = std::env::var("IRONMAP_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut ways = Vec::new();
    for way in Way::all(volume.engine()) {
        let mut measured = Measured::new(volume, way)?;
        measured.run(requests / 10)?;
        ways.push((way, measured, Vec::new(), Vec::new()));
    }
    for _ in 0..rounds.unwrap_or(21) {
        for (_, measured, seconds, cpu) in &mut ways {
            let (start, cpu_start) = (Instant::now(), cpu_us());
            measured.run(requests)?;
            seconds.push(start.elapsed().as_secs_f64());
            cpu.push((cpu_us() - cpu_start) / requests as f64);
        }
    }
    let first = ways[0].2.clone();
    for (way, _, seconds, cpu) in ways {
        let ratios = first.iter().zip(&seconds).map(|(bare, own)| bare / own).collect();
        let [low, ratio, high] = quartiles(ratios);
        println!(
            "| {device} | {} | {} | {:.0} | {ratio:.2} ({low:.2} to {high:.2}) | {:.2} us |",
            volume.engine(),
            way.name(),
            requests as f64 / quartiles(seconds)[1],
            quartiles(cpu)[1],
        );
    }
    Ok(())
}

/// Returns the CPU time of this process in microseconds.
fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// Counts instructions per request. One run makes twice as many requests as the other, and the difference of their counts is the cost of
/// the additional requests. The counts include all threads of the process.
fn count(image: &Path) -> Result<()> {
    println!("| way | instructions for each request, engine null |");
    println!("|---|--:|");
    for (index, way) in Way::all(Engine::Null).into_iter().enumerate() {
        let twice = collected(image, index, 2 * COUNTED)?;
        let instructions = (twice - collected(image, index, COUNTED)?) as f64 / COUNTED as f64;
        println!("| {} | {instructions:.0} |", way.name());
    }
    println!();
    Ok(())
}

fn collected(image: &Path, way: usize, requests: u64) -> Result<i64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .arg("run")
        .arg(image)
        .args([way.to_string(), requests.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| format!("callgrind: {}", text.lines().last().unwrap_or_default()).into())
}

/// A block device or an image. Dropping this value removes the block device.
struct Node {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    Image,
    Loop,
    /// The number of the device, and its mark file. With this file, `./x clean-up` can find the device.
    Zram(String, PathBuf),
}

impl Node {
    fn over(image: &Path) -> Result<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let path = String::from_utf8(output.stdout)?.trim().into();
        Ok(Self { path, kind: Kind::Loop })
    }

    fn zram() -> Result<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")?.trim().to_owned();
        let marks = Path::new("/run/ironmap-bench-zram");
        let mark = marks.join(format!("zram{number}"));
        fs::create_dir_all(marks)?;
        fs::write(&mark, std::process::id().to_string())?;
        fs::write(format!("/sys/block/zram{number}/disksize"), DEVICE_BYTES.to_string())?;
        Ok(Self { path: format!("/dev/zram{number}").into(), kind: Kind::Zram(number, mark) })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Image => {}
            Kind::Loop => drop(Command::new("losetup").arg("--detach").arg(&self.path).status()),
            Kind::Zram(number, mark) => {
                let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
                if fs::write("/sys/class/zram-control/hot_remove", number).is_ok() {
                    let _ = fs::remove_file(mark);
                }
            }
        }
    }
}
