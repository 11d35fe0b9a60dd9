//! Open targets: the object that serves the requests, and the range that the requests use.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::image;
use ironmap::device::nbd::Address;
use ironmap::device::path::{self, DevicePathKind};
use ironmap::device::{BlockFile, Device, Null, OpenMode, OpenedEngine, open_engine};
use ironmap::fs::{Follow, WriteCounts};
use ironmap::iomap::IomapType;
use ironmap::location::{INTEGRITY, LocationOptions, Site};
use ironmap::{
    Engine, Error, File, FileOptions, Host, HostOptions, HostReport, Location, Result, Volume,
    VolumeOptions,
};

use crate::errors::io;
use crate::plan::{Content, Plan};
use crate::prepare::paths;
use crate::target::{TargetSpec, Variant};

/// An open target, which the threads share: the object that serves its requests, and the range that the requests use.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) spec: TargetSpec,
    pub(crate) route: Shared,
    /// The start of each file's range in bytes: the offset in the file, or on the device for a raw target.
    pub(crate) bases: Vec<u64>,
    /// The length of each range in bytes.
    pub(crate) len: u64,
    /// The positions of the ranges on the device, if ironmap has mapped the files.
    placements: Vec<Placement>,
    pub(crate) engine: Engine,
    pub(crate) notices: Vec<String>,
}

#[derive(Clone)]
pub(crate) enum Shared {
    /// The device of a raw target, or the first file of a `kernel:` target. The list contains the further files of a `kernel:` target. A
    /// queue of the device or first file also serves the further files.
    Device(Arc<dyn Device>, Vec<Arc<BlockFile>>),
    Volume(Volume, Vec<File>),
    Host(Host, File),
}

/// The position of a file's range on the device.
#[derive(Clone, Copy)]
struct Placement {
    /// The byte offset of the file's range on the device that contains the file system.
    physical: u64,
    /// If the device is a partition: the size of the device, and the start of the partition on the disk.
    partition: Option<(u64, u64)>,
}

impl Placement {
    /// Returns the position of this range on another device of `device` bytes, which a raw target names. This device is the partition that
    /// contains the file system, the disk of the partition, or a copy of one of them.
    fn on(self, device: u64) -> u64 {
        match self.partition {
            Some((size, start)) if size != device => start + self.physical,
            _ => self.physical,
        }
    }
}

/// Opens targets. A volume can be opened only once, and a `Host` opens each device only once. So several targets can share a volume or a
/// `Host`.
pub(crate) struct Opener<'a> {
    plan: &'a Plan,
    engine: Engine,
    volumes: Vec<(String, Volume)>,
    hosts: Vec<(Engine, Host)>,
}

impl<'a> Opener<'a> {
    /// Creates an opener. Each of the already open `volumes` serves the targets that have its name.
    pub(crate) fn new(plan: &'a Plan, volumes: Vec<(String, Volume)>) -> Result<Self> {
        let engine = plan.engine.parse()?;
        Ok(Self { plan, engine, volumes, hosts: Vec::new() })
    }

    /// Opens all targets. They use the same blocks if possible.
    pub(crate) fn open_all(mut self) -> Result<Vec<Source>> {
        let specs = &self.plan.targets;
        let mut sources = specs.iter().map(|spec| self.open(spec)).collect::<Result<Vec<_>>>()?;
        // A raw target without an offset uses the blocks of the files.
        let mapped = sources.iter().find(|source| !source.placements.is_empty());
        if let Some((placements, len)) =
            mapped.map(|source| (source.placements.clone(), source.len))
        {
            for source in &mut sources {
                let bases: Vec<u64> =
                    placements.iter().map(|placement| placement.on(source.len)).collect();
                if matches!(source.spec, TargetSpec::Raw { offset: None, .. })
                    && bases.iter().all(|base| source.len >= base + len)
                {
                    (source.bases, source.len) = (bases, len);
                }
            }
        }
        // The target `kernel:` uses the range of the file that the target `host:` uses, if both name the same file.
        let hosts: Vec<Source> =
            sources.iter().filter(|source| source.is_host()).cloned().collect();
        for source in &mut sources {
            if let TargetSpec::Kernel { path } = &source.spec
                && let Some(host) = hosts.iter().find(|host| host.is_of(path))
            {
                (source.bases, source.len) = (host.bases.clone(), host.len);
            }
        }
        // A target without files is divided into one range for each file.
        let files = self.plan.files as u64;
        for source in sources.iter_mut().filter(|source| source.bases.len() == 1 && files > 1) {
            let (base, len) = (source.bases[0], source.len / files / PAGE * PAGE);
            source.bases = (0..files).map(|file| base + file * len).collect();
            source.len = len;
        }
        Ok(sources)
    }

    /// Opens a target. If the extents of a file are known, the range of the target is the longest extent, so that a raw target can use the
    /// same blocks of the device.
    fn open(&mut self, spec: &TargetSpec) -> Result<Source> {
        match spec {
            TargetSpec::Raw { path, offset } => self.open_raw(spec, path, offset.unwrap_or(0)),
            TargetSpec::Kernel { path } => self.open_kernel(spec, path),
            TargetSpec::Vol { volume, path, .. } => self.open_volume(spec, volume, path),
            TargetSpec::Host { .. } if self.plan.rw.writes() => {
                Err(Error::invalid("host files can be read but not written"))
            }
            TargetSpec::Host { .. } if self.plan.files > 1 => {
                Err(Error::invalid("only one host file can be measured at a time"))
            }
            TargetSpec::Host { path, .. } => self.open_host(spec, path),
            TargetSpec::Null { size } => {
                let route = Shared::Device(Arc::new(Null::new(*size)), Vec::new());
                Ok(Source { len: *size, engine: Engine::Null, ..Source::new(spec, route) })
            }
        }
    }

    fn open_raw(&mut self, spec: &TargetSpec, path: &Path, base: u64) -> Result<Source> {
        let name = path.as_os_str().as_encoded_bytes();
        let is_image = image::Address::prefix_of(name).is_some();
        if name.starts_with(INTEGRITY.as_bytes()) || Address::is_one(name) || is_image {
            return self.open_location(spec, path, base);
        }
        // A raw device that is written must be opened exclusively. If a volume of this bench has the device open, the volume has already
        // locked it.
        let exclusive = self.plan.rw.writes()
            && !self.plan.targets.iter().any(|other| {
                let TargetSpec::Vol { volume, .. } = other else { return false };
                volume.parse::<Location>().is_ok_and(|volume| stands_on(&volume, path))
            });
        self.raw(spec, base, self.engine_over(self.block_file(path, exclusive)?)?)
    }

    /// Prepares an open device for raw access. Its range contains only complete logical blocks.
    fn raw(&self, spec: &TargetSpec, base: u64, opened: OpenedEngine) -> Result<Source> {
        let OpenedEngine { device, engine, notices, .. } = opened;
        let unit = device.limits().logical_block;
        if !self.plan.block.is_multiple_of(unit as usize) || !base.is_multiple_of(u64::from(unit)) {
            return Err(Error::invalid(format!(
                "requests to {spec} must consist of whole blocks of {unit} bytes: change --bs"
            )));
        }
        let len = device.size().saturating_sub(base);
        let route = Shared::Device(device, Vec::new());
        Ok(Source { bases: vec![base], len, engine, notices, ..Source::new(spec, route) })
    }

    /// Opens an integrity device or an export. A volume target at the same location shares the opened device.
    fn open_location(&mut self, spec: &TargetSpec, name: &Path, base: u64) -> Result<Source> {
        let above = self.plan.targets.iter().find_map(|other| match other {
            TargetSpec::Vol { volume, .. } if Path::new(volume) == name => Some(volume),
            _ => None,
        });
        let (device, engine, notices) = if let Some(volume) = above {
            let volume = self.volume(volume)?;
            (Arc::clone(volume.device()), volume.engine(), volume.notices().to_vec())
        } else {
            let how = LocationOptions::new().engine(self.engine).write(self.plan.rw.writes());
            let opened = Location::parse(name.as_os_str())?.open(&how)?;
            (opened.device, opened.engine, opened.notices)
        };
        self.raw(spec, base, OpenedEngine { device, engine, no_io_uring: None, notices })
    }

    fn open_kernel(&self, spec: &TargetSpec, path: &Path) -> Result<Source> {
        let paths = paths(path, self.plan.files);
        let OpenedEngine { device, engine, notices, .. } =
            self.engine_over(self.block_file(&paths[0], false)?)?;
        let more = paths[1..].iter().map(|path| self.block_file(path, false).map(Arc::new));
        let more: Vec<_> = more.collect::<Result<_>>()?;
        let bases = vec![0; self.plan.files];
        let len = more.iter().map(|file| file.size()).fold(device.size(), u64::min);
        let route = Shared::Device(device, more);
        Ok(Source { bases, len, engine, notices, ..Source::new(spec, route) })
    }

    fn block_file(&self, path: &Path, exclusive: bool) -> Result<BlockFile> {
        let write = self.plan.rw.writes();
        BlockFile::open(path, &OpenMode { exclusive, write, ..OpenMode::default() })
    }

    fn engine_over(&self, file: BlockFile) -> Result<OpenedEngine> {
        open_engine(file, self.engine)
    }

    fn volume(&mut self, name: &str) -> Result<Volume> {
        if let Some((_, volume)) = self.volumes.iter().find(|(open, _)| open == name) {
            return Ok(volume.clone());
        }
        let write = self.plan.rw.writes();
        let options = VolumeOptions::new().engine(self.engine).write(write);
        let volume = options.open(name)?;
        self.volumes.push((name.to_owned(), volume.clone()));
        Ok(volume)
    }

    fn open_volume(&mut self, spec: &TargetSpec, name: &str, path: &str) -> Result<Source> {
        let volume = self.volume(name)?;
        let kind = match self.plan.content {
            Some(Content::Unwritten) => IomapType::Unwritten,
            _ => IomapType::Mapped,
        };
        let (mut files, mut bases, mut placements) = (Vec::new(), Vec::new(), Vec::new());
        let mut len = u64::MAX;
        for path in paths(Path::new(path), self.plan.files) {
            let inode = volume.fs().resolve(path.as_os_str().as_encoded_bytes(), Follow::All)?;
            let file =
                volume.open_inode(inode, self.options(spec).write(volume.fs().is_writable()))?;
            let (base, longest, physical) = longest_extent(&file, kind)?;
            len = len.min(longest);
            bases.push(base);
            placements.push(Placement { physical, partition: None });
            files.push(file);
        }
        let (engine, notices) = (volume.engine(), volume.notices().to_vec());
        let route = Shared::Volume(volume, files);
        Ok(Source { bases, len, placements, engine, notices, ..Source::new(spec, route) })
    }

    fn open_host(&mut self, spec: &TargetSpec, path: &Path) -> Result<Source> {
        let (host, file) = self.host_file(self.engine, spec, path)?;
        let report = reported(&file)?;
        if let Some(refusal) = &report.refusal {
            let notices = vec![format!("served by the kernel: {refusal}")];
            let (len, engine) = (file.size(), self.engine);
            let route = Shared::Host(host, file);
            return Ok(Source { len, engine, notices, ..Source::new(spec, route) });
        }
        // The engine that `raw:` and `vol:` targets would use on the device of the host file. It depends on the type of the device's path.
        let device_path = report.device.as_ref().and_then(|device| device.device_path.as_ref());
        let (engine, mut notices) = match device_path {
            Some((device_path, kind)) if *kind != DevicePathKind::NvmeChar => {
                let opened = self.engine_over(self.block_file(device_path, false)?)?;
                (opened.engine, opened.notices)
            }
            _ => (self.engine, Vec::new()),
        };
        let (host, file) =
            if engine == self.engine { (host, file) } else { self.host_file(engine, spec, path)? };
        notices.extend(report.device.map(|device| format!("through {}", device.choice)));
        let (base, len, physical) = longest_extent(&file, IomapType::Mapped)?;
        let placements = vec![Placement { physical, partition: partition(path)? }];
        Ok(Source {
            bases: vec![base],
            len,
            placements,
            engine,
            notices,
            ..Source::new(spec, Shared::Host(host, file))
        })
    }

    fn host_file(
        &mut self,
        engine: Engine,
        spec: &TargetSpec,
        path: &Path,
    ) -> Result<(Host, File)> {
        let host = match self.hosts.iter().find(|(of, _)| *of == engine) {
            Some((_, host)) => host.clone(),
            None => {
                let host = Host::new(&HostOptions::new().engine(engine))?;
                self.hosts.push((engine, host.clone()));
                host
            }
        };
        let file = host.open_with(path, self.options(spec))?;
        Ok((host, file))
    }

    /// The options of files. As with `O_DIRECT`, misaligned requests are refused.
    fn options(&self, spec: &TargetSpec) -> FileOptions {
        FileOptions::new()
            .direct(true)
            .assume_no_dedupe(self.plan.assume_no_dedupe)
            .stable_pages(spec.variant().and_then(Variant::stable_pages))
    }
}

/// The alignment in bytes of a range on a device.
const PAGE: u64 = 4096;

impl Source {
    /// Creates a source whose range is not yet known.
    fn new(spec: &TargetSpec, route: Shared) -> Self {
        let (spec, engine, notices) = (spec.clone(), Engine::Auto, Vec::new());
        Self { spec, route, bases: vec![0], len: 0, placements: Vec::new(), engine, notices }
    }

    fn is_host(&self) -> bool {
        matches!(self.spec, TargetSpec::Host { .. })
    }

    /// Whether the target is a host file, and `path` leads to it.
    fn is_of(&self, path: &Path) -> bool {
        let TargetSpec::Host { path: own, .. } = &self.spec else { return false };
        is_same(own, path)
    }

    /// The counters of the volume's writes, if the target is in a volume.
    pub(crate) fn write_counts(&self) -> Option<WriteCounts> {
        match &self.route {
            Shared::Volume(volume, _) => volume.fs().writer().map(|writer| writer.write_counts()),
            _ => None,
        }
    }

    /// The counters of integrity devices, which verify the checksums of sectors, since the target was opened.
    pub(crate) fn verified(&self) -> Vec<(&'static str, u64)> {
        let Shared::Volume(volume, _) = &self.route else { return Vec::new() };
        let counts = volume.integrity().map(|opened| opened.device.counts()).unwrap_or_default();
        let all = [
            ("wrong_sectors", volume.events().wrong_tuples()),
            ("unverified", counts.unverified),
            ("retagged", counts.retagged),
            ("contested", counts.contested),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Closes the volume of the target, if it has one.
    pub(crate) fn close(&self) -> Result<()> {
        match &self.route {
            Shared::Volume(volume, _) => volume.close(),
            _ => Ok(()),
        }
    }
}

/// Whether a volume, or the guard tags of its integrity device, are stored on this device or image.
fn stands_on(volume: &Location, path: &Path) -> bool {
    let sites = [Some(volume.data()), volume.tags()].into_iter().flatten();
    sites.filter_map(Site::path).any(|site| is_same(site, path))
}

/// Whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    id(one).is_some() && id(one) == id(other)
}

fn reported(file: &File) -> Result<HostReport> {
    file.host().ok_or_else(|| Error::invalid("the file is not a host file"))
}

/// The size of the device that contains a file system, and the start of this device on its disk. `None` if the device is not a partition.
fn partition(path: &Path) -> Result<Option<(u64, u64)>> {
    let named = |error| io(&error, path.display().to_string());
    let dev = path.metadata().map_err(named)?.dev();
    let device_paths = path::device_paths((rustix::fs::major(dev), rustix::fs::minor(dev)))?;
    Ok(device_paths
        .iter()
        .find(|device_path| device_path.base > 0)
        .map(|device_path| (device_path.size, device_path.base)))
}

/// The longest extent of the given type in a file.
fn longest_extent(file: &File, kind: IomapType) -> Result<(u64, u64, u64)> {
    let mut longest = (0, 0, 0);
    for iomap in file.mappings() {
        let iomap = iomap?;
        if iomap.kind == kind && iomap.len > longest.1 {
            longest = (iomap.pos.0, iomap.len, iomap.addr.0);
        }
    }
    if longest.1 == 0 {
        return Err(Error::invalid(format!(
            "the file has no extent of the type {kind:?} to measure"
        )));
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_device_is_laid_out_like_the_partition_or_like_its_disk() {
        let placement = Placement { physical: 4096, partition: Some((1 << 20, 1 << 16)) };
        assert_eq!(placement.on(1 << 20), 4096, "a partition or a copy of the partition");
        assert_eq!(placement.on(1 << 21), 4096 + (1 << 16), "a disk or a copy of the disk");
        assert_eq!(Placement { partition: None, ..placement }.on(1 << 21), 4096);
    }
}
