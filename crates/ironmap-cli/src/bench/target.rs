//! What a bench can be pointed at, and how one target is driven.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{
    AnyQueue, BlockFile, Device, DeviceQueue, Null, OpenMode, Opened, open_engine,
};
use ironmap::dio::{DioFlags, NotSimple};
use ironmap::fs::ext4::Follow;
use ironmap::iomap::IomapType;
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{
    Engine, Error, File, FileOptions, Location, OpenOptions, Queue, QueueOptions, Result, Volume,
};
use serde::{Deserialize, Serialize};

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TargetSpec {
    /// A block device or image itself, from this byte on where one is named.
    Raw { path: PathBuf, offset: Option<u64> },
    /// A file through the kernel's file system.
    Kernel { path: PathBuf },
    /// A file of a volume through ironmap.
    Vol { volume: String, path: String, simple: bool },
    /// A device that completes at once.
    Null { size: u64 },
}

impl TargetSpec {
    /// The same target with the simple path on or off, where it has one.
    pub(super) fn with_simple(&self, on: bool) -> Option<Self> {
        match self {
            Self::Vol { volume, path, .. } => {
                Some(Self::Vol { volume: volume.clone(), path: path.clone(), simple: on })
            }
            _ => None,
        }
    }

    /// Whether the simple path is on, where there is one.
    pub(super) fn simple(&self) -> Option<bool> {
        match self {
            Self::Vol { simple, .. } => Some(*simple),
            _ => None,
        }
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw { path, offset: None } => write!(f, "raw:{}", path.display()),
            Self::Raw { path, offset: Some(offset) } => {
                write!(f, "raw:{}@{offset}", path.display())
            }
            Self::Kernel { path } => write!(f, "kernel:{}", path.display()),
            Self::Vol { volume, path, .. } => write!(f, "vol:{volume}:{path}"),
            Self::Null { size } => write!(f, "null:{size}"),
        }
    }
}

impl FromStr for TargetSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::invalid(format!("{text}: {what}"));
        let (kind, rest) = text
            .split_once(':')
            .ok_or_else(|| wrong("a target is raw:, kernel:, vol: or null:"))?;
        match kind {
            "raw" => match rest.rsplit_once('@') {
                Some((path, offset)) => {
                    let offset = super::size(offset).map_err(|error| wrong(&error))?;
                    Ok(Self::Raw { path: path.into(), offset: Some(offset) })
                }
                None => Ok(Self::Raw { path: rest.into(), offset: None }),
            },
            "kernel" => Ok(Self::Kernel { path: rest.into() }),
            "vol" => {
                let (volume, path) =
                    rest.split_once(":/").ok_or_else(|| wrong("want vol:VOLUME:/PATH"))?;
                Ok(Self::Vol { volume: volume.to_owned(), path: format!("/{path}"), simple: true })
            }
            "null" => Ok(Self::Null { size: super::size(rest).map_err(|error| wrong(&error))? }),
            _ => Err(wrong("a target is raw:, kernel:, vol: or null:")),
        }
    }
}

/// An open target, shared by the threads: where its requests go, and the range that they hit.
#[derive(Clone)]
pub(super) struct Source {
    pub spec: TargetSpec,
    way: Shared,
    /// First byte of the range, in the target's own terms.
    pub base: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// For a volume's file: where the range lies on the device.
    pub physical: Option<u64>,
    pub engine: Engine,
    pub notices: Vec<String>,
}

#[derive(Clone)]
enum Shared {
    Device(Arc<dyn Device>),
    File(Volume, File),
}

/// Opens all targets. A volume is exclusive, so targets of one volume share it.
pub(super) fn open_all(specs: &[TargetSpec], engine: Engine) -> Result<Vec<Source>> {
    let mut volumes: Vec<(String, Volume)> = Vec::new();
    let mut sources = specs
        .iter()
        .map(|spec| Source::open(spec, engine, &mut volumes))
        .collect::<Result<Vec<_>>>()?;
    // A raw target without an offset of its own hits the very blocks of the volume's file.
    let file = sources.iter().find_map(|source| Some((source.physical?, source.len)));
    if let Some((physical, len)) = file {
        for source in &mut sources {
            if matches!(source.spec, TargetSpec::Raw { offset: None, .. })
                && source.len >= physical + len
            {
                (source.base, source.len) = (physical, len);
            }
        }
    }
    Ok(sources)
}

impl Source {
    /// The range is the longest extent of a volume's file, so that a raw target can be laid over the same blocks.
    fn open(
        spec: &TargetSpec,
        engine: Engine,
        volumes: &mut Vec<(String, Volume)>,
    ) -> Result<Self> {
        let spec = spec.clone();
        match &spec {
            TargetSpec::Raw { path, .. } | TargetSpec::Kernel { path } => {
                let mode = OpenMode { exclusive: false, ..OpenMode::default() };
                let Opened { device, engine, notices } =
                    open_engine(BlockFile::open(path, &mode)?, engine)?;
                let base = if let TargetSpec::Raw { offset: Some(offset), .. } = spec {
                    offset
                } else {
                    0
                };
                let len = device.size().saturating_sub(base);
                Ok(Self {
                    spec,
                    way: Shared::Device(device),
                    base,
                    len,
                    physical: None,
                    engine,
                    notices,
                })
            }
            TargetSpec::Null { size } => {
                let (way, len) = (Shared::Device(Arc::new(Null::new(*size))), *size);
                Ok(Self {
                    spec,
                    way,
                    base: 0,
                    len,
                    physical: None,
                    engine: Engine::Null,
                    notices: Vec::new(),
                })
            }
            TargetSpec::Vol { volume: name, path, .. } => {
                let volume = match volumes.iter().find(|(open, _)| open == name) {
                    Some((_, volume)) => volume.clone(),
                    None => {
                        let options = OpenOptions { engine };
                        let volume = Volume::open(&name.parse::<Location>()?, &options)?;
                        volumes.push((name.clone(), volume.clone()));
                        volume
                    }
                };
                let inode = volume.fs().resolve(path.as_bytes(), Follow::All)?;
                let file = volume
                    .open_inode(inode, FileOptions { strict: true, ..FileOptions::default() })?;
                let (base, len, physical) = longest_extent(&file)?;
                let (engine, notices) = (volume.engine(), volume.notices().to_vec());
                let way = Shared::File(volume, file);
                Ok(Self { spec, way, base, len, physical: Some(physical), engine, notices })
            }
        }
    }
}

/// A target as one thread drives it.
pub(super) struct Target {
    way: Way,
    base: u64,
}

#[allow(clippy::large_enum_variant, reason = "a thread has one of each target")]
enum Way {
    Device(AnyQueue),
    File(File, Queue),
}

impl Target {
    /// The calling thread's queue to a target.
    pub(super) fn attach(source: &Source, depth: u32) -> Result<Self> {
        let options = QueueOptions { depth };
        let way = match &source.way {
            Shared::Device(device) => Way::Device(device.queue(&options)?),
            Shared::File(volume, file) => {
                let mut queue = volume.queue(&options)?;
                queue.set_simple(source.spec.simple().unwrap_or(true));
                Way::File(file.clone(), queue)
            }
        };
        Ok(Self { way, base: source.base })
    }

    /// Buffers for requests of `size` bytes, registered with the kernel.
    pub(super) fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        match &mut self.way {
            Way::Device(queue) => queue
                .register_buffers(count, size)
                .map_err(|errno| Error::io(errno, "register buffers")),
            Way::File(_, queue) => queue.register_buffers(count, size),
        }
    }

    /// What the target has counted: simple hits and misses by reason.
    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Way::File(_, queue) = &self.way else { return Vec::new() };
        let stats = queue.stats();
        let misses = NotSimple::ALL.iter().map(|reason| (reason.name(), stats.misses(*reason)));
        let other = [
            ("simple_hits", stats.simple_hits),
            ("bounced", stats.bounced),
            ("short", stats.short),
        ];
        other
            .into_iter()
            .chain(misses)
            .filter(|(name, count)| *count > 0 || *name == "simple_hits")
            .collect()
    }

    /// Runs one request at a time. `next` gives positions within the range.
    #[inline(always)]
    pub(super) fn run_sync(
        &mut self,
        count: u64,
        buf: &mut [u8],
        next: &mut impl FnMut() -> u64,
        seen: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let base = self.base;
        match &mut self.way {
            Way::Device(queue) => sync_loop(&mut DeviceLane(queue), count, buf, base, next, seen),
            Way::File(file, queue) => {
                sync_loop(&mut FileLane(file, queue), count, buf, base, next, seen)
            }
        }
    }

    /// Keeps up to as many requests in flight as there are buffers.
    pub(super) fn run_async(
        &mut self,
        count: u64,
        buffers: &mut Vec<Buffer>,
        batch: Batch,
        next: &mut impl FnMut() -> u64,
        seen: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let base = self.base;
        match &mut self.way {
            Way::Device(queue) => {
                async_loop(&mut DeviceLane(queue), count, buffers, batch, base, next, seen)
            }
            Way::File(file, queue) => {
                async_loop(&mut FileLane(file, queue), count, buffers, batch, base, next, seen)
            }
        }
    }
}

fn longest_extent(file: &File) -> Result<(u64, u64, u64)> {
    let mut longest = (0, 0, 0);
    for iomap in file.mappings() {
        let iomap = iomap?;
        if iomap.kind == IomapType::Mapped && iomap.len > longest.1 {
            longest = (iomap.pos.0, iomap.len, iomap.addr.0);
        }
    }
    if longest.1 == 0 {
        return Err(Error::invalid("the file has no written extent to be measured on"));
    }
    Ok(longest)
}

/// How many requests are handed over and waited for together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub submit: usize,
    pub complete: usize,
}

/// One thread's way through a target.
trait Lane {
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize>;
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()>;
    fn poll(&mut self) -> Result<()>;
    fn wait(&mut self, min: usize) -> Result<()>;
    fn pop(&mut self) -> Option<Result<(Memory, usize)>>;
}

struct DeviceLane<'a>(&'a mut AnyQueue);

impl Lane for DeviceLane<'_> {
    #[inline(always)]
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize> {
        let result = self.0.read_now(Dev::OWN, buf, DevOffset(at), BioFlags::empty());
        result.map_err(|errno| Error::io(errno, format!("read at {at}")))
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()> {
        let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(at) };
        let (op, flags, memory) = (BioOp::Read, BioFlags::empty(), Memory::Flat(buffer));
        let bio = Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory, end };
        self.0.submit(bio).map_err(|_| Error::invalid("no slot is free"))
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.0.commit().map_err(|errno| Error::io(errno, "submit"))
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.0.wait(min).map_err(|errno| Error::io(errno, "wait"))
    }

    #[inline]
    fn pop(&mut self) -> Option<Result<(Memory, usize)>> {
        let done = self.0.pop()?;
        Some(match done.result {
            Ok(count) => Ok((done.bio.memory, count)),
            Err(errno) => Err(Error::io(errno, "read")),
        })
    }
}

struct FileLane<'a>(&'a File, &'a mut Queue);

impl Lane for FileLane<'_> {
    #[inline(always)]
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize> {
        self.0.read_at(self.1, buf, FilePos(at))
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()> {
        self.0
            .submit_read(self.1, buffer, FilePos(at), DioFlags::empty(), 0)
            .map_err(|rejected| rejected.error)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.1.poll()
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.1.wait(min)
    }

    #[inline]
    fn pop(&mut self) -> Option<Result<(Memory, usize)>> {
        let completion = self.1.pop()?;
        Some(completion.result.map(|count| (completion.memory, count)))
    }
}

/// Nothing in it may return across a system call, which can cost more than what is measured.
#[inline(always)]
fn sync_loop<L: Lane>(
    lane: &mut L,
    count: u64,
    buf: &mut [u8],
    base: u64,
    next: &mut impl FnMut() -> u64,
    seen: &mut impl FnMut(&[u8]),
) -> Result<()> {
    for _ in 0..count {
        let at = base + next();
        if lane.read_now(buf, at)? != buf.len() {
            return Err(Error::invalid(format!("short read at {at}")));
        }
        seen(buf);
    }
    Ok(())
}

#[inline(always)]
fn async_loop<L: Lane>(
    lane: &mut L,
    count: u64,
    buffers: &mut Vec<Buffer>,
    batch: Batch,
    base: u64,
    next: &mut impl FnMut() -> u64,
    seen: &mut impl FnMut(&[u8]),
) -> Result<()> {
    let (mut issued, mut done) = (0, 0);
    while done < count {
        let ready = (count - issued).min(batch.submit as u64).min(buffers.len() as u64);
        for _ in 0..ready {
            let Some(buffer) = buffers.pop() else { break };
            lane.submit(buffer, base + next())?;
        }
        issued += ready;
        if buffers.is_empty() || issued == count {
            lane.wait(batch.complete.min((issued - done) as usize))?;
        } else {
            lane.poll()?;
        }
        while let Some(completion) = lane.pop() {
            let (memory, bytes) = completion?;
            let Memory::Flat(buffer) = memory else {
                return Err(Error::invalid("the memory changed its shape"));
            };
            if bytes != buffer.len() {
                return Err(Error::invalid("short read"));
            }
            seen(&buffer);
            buffers.push(buffer);
            done += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_what_they_print() {
        for text in [
            "raw:/dev/ram0",
            "raw:/dev/ram0@8192",
            "kernel:/mnt/f",
            "vol:disk.img@p2:/a:/b",
            "null:4096",
        ] {
            assert_eq!(text.parse::<TargetSpec>().unwrap().to_string(), text);
        }
        let spec: TargetSpec = "raw:/dev/ram0@8k".parse().unwrap();
        assert_eq!(spec, TargetSpec::Raw { path: "/dev/ram0".into(), offset: Some(8192) });
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in ["", "disk.img", "tape:/dev/st0", "raw:/dev/ram0@x", "vol:disk.img", "null:big"]
        {
            assert!(text.parse::<TargetSpec>().is_err(), "{text}");
        }
    }
}
