//! Counts the instructions of a 4 KiB read in the layers beneath a volume: LVM, MD and qcow2. The program fails if a count exceeds its
//! limit.
//!
//! `cargo bench --features images,lvm,md --bench layers` needs valgrind. Each layer is compared with a raw file in memory. The devices below
//! the layer are files in memory too. The engine psync executes the same instructions for a transfer with and without the layer. Two runs of
//! callgrind make different numbers of reads. A count is the difference of their instructions, divided by the difference of their reads.

#[path = "../tests/md/shape.rs"]
#[allow(dead_code, reason = "the bench uses only a part of the module")]
mod shape;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ironmap::Engine;
use ironmap::device::{BlockFile, Device, OpenMode, Psync, Ram, Segment, Segmented};
use ironmap::dio::Stats;
use ironmap::fs::Clock;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::md::{Member, assemble};
use ironmap::prelude::*;
use shape::Shape;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BLOCK: u64 = 4096;
const FILE: u64 = 16 << 20;
const DEVICE: u64 = 24 << 20;
const CHUNK: usize = 64 << 10;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
/// The number of reads of the shorter run. The longer run makes twice as many.
const READS: u64 = 20_000;
/// The number of queued reads in flight.
const DEPTH: u64 = 32;

/// The layer or device beneath the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    /// A logical volume with the given number of segments.
    Linear(usize),
    /// A logical volume with two stripes.
    Striped,
    /// An array with the given level and number of members.
    Md(i32, u32),
    /// A raw image.
    Raw,
    /// An image in the format qcow2.
    Qcow2,
}

/// A layer: its name, the device with the layer, the device without it, and two limits. The limits are the numbers of instructions that the
/// layer may add to a read by `read_at` and to a queued read.
type Row = (&'static str, Below, Below, Option<(f64, f64)>);

/// Each layer with its devices and limits.
const LAYERS: [Row; 9] = [
    ("LVM linear, 3 segments", Below::Linear(3), Below::Raw, Some((30.0, 30.0))),
    ("LVM linear, 100 segments", Below::Linear(100), Below::Raw, None),
    ("LVM striped", Below::Striped, Below::Raw, None),
    ("MD linear", Below::Md(-1, 3), Below::Raw, Some((30.0, 30.0))),
    ("MD RAID 0", Below::Md(0, 3), Below::Raw, Some((80.0, 85.0))),
    ("MD RAID 1", Below::Md(1, 2), Below::Raw, Some((30.0, 30.0))),
    ("MD RAID 10", Below::Md(10, 4), Below::Raw, None),
    ("MD RAID 5", Below::Md(5, 3), Below::Raw, None),
    ("qcow2", Below::Qcow2, Below::Raw, Some((100.0, 135.0))),
];

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [run, image, layer, which, depth, reads] = &args[..]
        && run == "run"
    {
        let (_, above, below, _) = LAYERS[layer.parse::<usize>()?];
        let below = if which == "above" { above } else { below };
        let stats = read(&below.volume(Path::new(image))?, depth.parse()?, reads.parse()?)?;
        println!("{}", stats.simple_hits);
        return Ok(());
    }
    let dir = tempfile::Builder::new().prefix("ironmap-test-").tempdir_in("/dev/shm")?;
    let image = dir.path().join("image");
    make(&image)?;
    println!("| layer | `read_at` | queued | simple path |\n|---|--:|--:|--:|");
    let mut exceeded = false;
    for (index, (name, _, _, limits)) in LAYERS.iter().enumerate() {
        if !args.is_empty() && !args.iter().any(|arg| name.contains(&**arg)) {
            continue;
        }
        let (called, hits) = above(&image, index, 1)?;
        let (queued, queued_hits) = above(&image, index, DEPTH)?;
        exceeded |= limits.is_some_and(|(most, most_queued)| called > most || queued > most_queued);
        println!("| {name} | {called:.1} | {queued:.1} | {:.0} % |", hits.min(queued_hits) * 100.0);
    }
    if exceeded { Err("a count exceeds its limit".into()) } else { Ok(()) }
}

/// The number of instructions that a layer adds to a read, and the fraction of the reads that take the simple path (one bio, without
/// further steps).
fn above(image: &Path, layer: usize, depth: u64) -> Result<(f64, f64)> {
    let of = |which| -> Result<(f64, f64)> {
        let (twice, hits) = collected(image, layer, which, depth, 2 * READS)?;
        let (once, _) = collected(image, layer, which, depth, READS)?;
        Ok(((twice - once) as f64 / READS as f64, hits as f64 / (2 * READS) as f64))
    };
    let (above, hits) = of("above")?;
    Ok((above - of("below")?.0, hits))
}

fn collected(
    image: &Path,
    layer: usize,
    which: &str,
    depth: u64,
    reads: u64,
) -> Result<(i64, u64)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .arg("run")
        .arg(image)
        .args([&layer.to_string(), which, &depth.to_string(), &reads.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    let hits = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
    count.zip(hits).ok_or_else(|| format!("callgrind: {text}").into())
}

/// Makes a volume with one file in a raw image, and a qcow2 image with the same content.
fn make(image: &Path) -> Result<()> {
    let ram: Arc<dyn Device> = Arc::new(Ram::new(DEVICE));
    ironmap::tools::make(&*ram, &MkfsOptions::new().block_size(4096))?;
    let volume = Volume::writable_on(Arc::clone(&ram), Clock::default())?;
    let content: Vec<u8> = (0..FILE / 8).flat_map(u64::to_le_bytes).collect();
    volume.write("/data", content)?;
    volume.close()?;
    let mut bytes = vec![0; DEVICE as usize];
    ram.read_exact_at(&mut bytes, ironmap::units::DevOffset(0))?;
    std::fs::write(image, bytes)?;
    let converted = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([image, &qcow2(image)])
        .status()?;
    if converted.success() { Ok(()) } else { Err("qemu-img convert has failed".into()) }
}

fn qcow2(image: &Path) -> PathBuf {
    image.with_extension("qcow2")
}

/// A file beside `image` that contains these bytes. `name` is the extension of the file's name.
fn disk(image: &Path, name: &str, bytes: &[u8]) -> Result<Arc<dyn Device>> {
    let path = image.with_extension(name);
    std::fs::write(&path, bytes)?;
    Ok(Arc::new(Psync::new(Arc::new(BlockFile::open(&path, &OpenMode::default())?))))
}

/// Distributes the chunks of the image to the members in turn.
fn dealt(image: &[u8], members: usize) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new(); members];
    for (number, chunk) in image.chunks(CHUNK).enumerate() {
        all[number % members].extend_from_slice(chunk);
    }
    all
}

impl Below {
    fn volume(self, image: &Path) -> Result<Volume> {
        let psync = VolumeOptions::new().engine(Engine::Psync);
        let volume = match self {
            Self::Raw => psync.open(image)?,
            Self::Qcow2 => psync.open(format!("qcow2:{}", qcow2(image).display()))?,
            _ => Volume::on(self.device(image)?)?,
        };
        Ok(volume)
    }

    fn device(self, path: &Path) -> Result<Arc<dyn Device>> {
        let image = std::fs::read(path)?;
        match self {
            Self::Linear(segments) => {
                // The parts of the image are stored on the device in reverse order.
                let len = image.len() / segments / 4096 * 4096;
                let len = if len * segments < image.len() { len + 4096 } else { len };
                let mut parts: Vec<&[u8]> = image.chunks(len).collect();
                parts.reverse();
                let starts = parts.iter().scan(0, |end, part| {
                    *end += part.len() as u64;
                    Some((*end - part.len() as u64, part.len() as u64))
                });
                let segment = |(start, len)| Segment { len, stripe: len, starts: [start].into() };
                let mut segments: Vec<Segment> = starts.map(segment).collect();
                segments.reverse();
                Ok(Arc::new(Segmented::new(disk(path, "pv", &parts.concat())?, &segments)?))
            }
            Self::Striped => {
                let parts = dealt(&image, 2);
                let (len, starts) = (image.len() as u64, [0, parts[0].len() as u64]);
                let segment = Segment { len, stripe: CHUNK as u64, starts: starts[..].into() };
                Ok(Arc::new(Segmented::new(disk(path, "pv", &parts.concat())?, &[segment])?))
            }
            Self::Md(level, disks) => {
                let data = match level {
                    -1 => image.chunks(image.len() / disks as usize).map(<[u8]>::to_vec).collect(),
                    1 => vec![image.to_vec(); disks as usize],
                    10 => dealt(&image, 2).into_iter().flat_map(|it| [it.clone(), it]).collect(),
                    5 => return Self::parity(path, &image),
                    _ => dealt(&image, disks as usize),
                };
                assembled(path, level, &data)
            }
            _ => disk(path, "raw", &image),
        }
    }

    /// RAID 5 with three members and the layout left-symmetric.
    fn parity(path: &Path, image: &[u8]) -> Result<Arc<dyn Device>> {
        let mut members = vec![Vec::new(); 3];
        for (row, chunks) in image.chunks(2 * CHUNK).enumerate() {
            let (one, two) = chunks.split_at(CHUNK);
            let parity = 2 - row % 3;
            members[parity].extend(one.iter().zip(two).map(|(one, two)| one ^ two));
            members[(parity + 1) % 3].extend(one);
            members[(parity + 2) % 3].extend(two);
        }
        assembled(path, 5, &members)
    }
}

/// An array whose members contain these data.
fn assembled(path: &Path, level: i32, data: &[Vec<u8>]) -> Result<Arc<dyn Device>> {
    let layout = match level {
        10 => 0x102,
        5 => 2,
        _ => 1,
    };
    let shape = Shape {
        chunk: (CHUNK / 512) as u32,
        ..Shape::new(2, level, layout, data.len() as u32, (data[0].len() / 512) as u64)
    };
    let member = |(number, data): (u32, &Vec<u8>)| -> Result<Member> {
        let name = number.to_string();
        Ok(Member { device: disk(path, &name, &shape.image(number, data))?, name })
    };
    Ok(assemble((0..).zip(data).map(member).collect::<Result<_>>()?)?.device())
}

/// Makes random reads of one block, and returns the statistics of their queue.
fn read(volume: &Volume, depth: u64, reads: u64) -> Result<Stats> {
    let file = volume.open_with("/data", FileOptions::new().direct(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(depth as u32))?;
    let buffers = (0..depth).map(|_| Buffer::aligned(BLOCK as usize));
    let mut free: Vec<Buffer> = buffers.collect::<ironmap::Result<_>>()?;
    let mut state = SEED;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % (FILE / BLOCK) * BLOCK
    };
    if depth == 1 {
        for _ in 0..reads {
            assert_eq!(file.read_at(&mut queue, &mut free[0], next())?, BLOCK as usize);
        }
        return Ok(*queue.stats());
    }
    for batch in (0..reads).step_by(depth as usize) {
        for _ in batch..(batch + depth).min(reads) {
            let Some(buffer) = free.pop() else { break };
            file.submit_read(&mut queue, buffer, next(), DioFlags::empty(), 0)?;
        }
        queue.wait(queue.outstanding())?;
        while let Some(completion) = queue.pop() {
            free.push(completion.into_buffer()?.1);
        }
    }
    Ok(*queue.stats())
}
