//! Targets, open: where their requests go, and the range that these hit.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::door::{self, DoorKind};
use ironmap::device::{BlockFile, Device, Null, OpenMode, Opened, open_engine};
use ironmap::fs::ext4::Follow;
use ironmap::host::{HostOptions, HostReport};
use ironmap::iomap::IomapType;
use ironmap::{Engine, Error, File, FileOptions, Host, Location, OpenOptions, Result, Volume};

use super::target::TargetSpec;

/// An open target, shared by the threads: where its requests go, and the range that they hit.
#[derive(Clone)]
pub(super) struct Source {
    pub spec: TargetSpec,
    pub way: Shared,
    /// First byte of the range, in the target's own terms.
    pub base: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// For a file that ironmap has mapped: where the range lies on the device.
    place: Option<Place>,
    pub engine: Engine,
    pub notices: Vec<String>,
}

#[derive(Clone)]
pub(super) enum Shared {
    Device(Arc<dyn Device>),
    Volume(Volume, File),
    Host(Host, File),
}

/// Where a file's range lies.
#[derive(Clone, Copy)]
struct Place {
    /// On the file system's own device.
    physical: u64,
    /// That device's size, and where it begins on its disk, if it is a partition.
    partition: Option<(u64, u64)>,
}

impl Place {
    /// The same place on a device of this size: a partition, or its disk, or the twin of one of them.
    fn on(self, device: u64) -> u64 {
        match self.partition {
            Some((size, start)) if size != device => start + self.physical,
            _ => self.physical,
        }
    }
}

/// How targets are opened, and what several of them share: a volume is exclusive, and a host opens a device once.
pub(super) struct Opener {
    engine: Engine,
    assume_no_dedupe: bool,
    volumes: Vec<(String, Volume)>,
    hosts: Vec<(Engine, Host)>,
}

impl Opener {
    pub(super) fn new(engine: Engine, assume_no_dedupe: bool) -> Self {
        Self { engine, assume_no_dedupe, volumes: Vec::new(), hosts: Vec::new() }
    }

    /// Opens all targets, so that they hit the same blocks as far as that can be.
    pub(super) fn open_all(mut self, specs: &[TargetSpec]) -> Result<Vec<Source>> {
        let mut sources = specs.iter().map(|spec| self.open(spec)).collect::<Result<Vec<_>>>()?;
        // A raw target without an offset of its own hits the very blocks of the file.
        let file = sources.iter().find_map(|source| Some((source.place?, source.len)));
        if let Some((place, len)) = file {
            for source in &mut sources {
                let physical = place.on(source.len);
                if matches!(source.spec, TargetSpec::Raw { offset: None, .. })
                    && source.len >= physical + len
                {
                    (source.base, source.len) = (physical, len);
                }
            }
        }
        // And the kernel reads the same part of a host file.
        let hosts: Vec<Source> =
            sources.iter().filter(|source| source.is_host()).cloned().collect();
        for source in &mut sources {
            if let TargetSpec::Kernel { path } = &source.spec
                && let Some(host) = hosts.iter().find(|host| host.is_of(path))
            {
                (source.base, source.len) = (host.base, host.len);
            }
        }
        Ok(sources)
    }

    /// The range is the longest extent of a mapped file, so that a raw target can be laid over the same blocks.
    fn open(&mut self, spec: &TargetSpec) -> Result<Source> {
        match spec {
            TargetSpec::Raw { path, offset } => {
                self.open_device(spec, path, offset.unwrap_or_default())
            }
            TargetSpec::Kernel { path } => self.open_device(spec, path, 0),
            TargetSpec::Vol { volume, path, .. } => self.open_volume(spec, volume, path),
            TargetSpec::Host { path, .. } => self.open_host(spec, path),
            TargetSpec::Null { size } => {
                let way = Shared::Device(Arc::new(Null::new(*size)));
                Ok(Source { len: *size, engine: Engine::Null, ..Source::new(spec, way) })
            }
        }
    }

    fn open_device(&self, spec: &TargetSpec, path: &Path, base: u64) -> Result<Source> {
        let Opened { device, engine, notices } = self.engine_over(path)?;
        let len = device.size().saturating_sub(base);
        Ok(Source { base, len, engine, notices, ..Source::new(spec, Shared::Device(device)) })
    }

    fn engine_over(&self, path: &Path) -> Result<Opened> {
        let mode = OpenMode { exclusive: false, ..OpenMode::default() };
        open_engine(BlockFile::open(path, &mode)?, self.engine)
    }

    fn open_volume(&mut self, spec: &TargetSpec, name: &str, path: &str) -> Result<Source> {
        let volume = match self.volumes.iter().find(|(open, _)| open == name) {
            Some((_, volume)) => volume.clone(),
            None => {
                let options = OpenOptions { engine: self.engine, ..OpenOptions::default() };
                let volume = Volume::open(&name.parse::<Location>()?, &options)?;
                self.volumes.push((name.to_owned(), volume.clone()));
                volume
            }
        };
        let inode = volume.fs().resolve(path.as_bytes(), Follow::All)?;
        let file = volume.open_inode(inode, STRICT)?;
        let (base, len, physical) = longest_extent(&file)?;
        let place = Some(Place { physical, partition: None });
        let (engine, notices) = (volume.engine(), volume.notices().to_vec());
        let way = Shared::Volume(volume, file);
        Ok(Source { base, len, place, engine, notices, ..Source::new(spec, way) })
    }

    fn open_host(&mut self, spec: &TargetSpec, path: &Path) -> Result<Source> {
        let (host, file) = self.host_file(self.engine, path)?;
        let report = reported(&file)?;
        if let Some(refusal) = &report.refusal {
            let notices = vec![format!("served by the kernel: {refusal}")];
            let (len, engine) = (file.size(), self.engine);
            let way = Shared::Host(host, file);
            return Ok(Source { len, engine, notices, ..Source::new(spec, way) });
        }
        // The engine that raw: and vol: would have on this device.
        let door = report.device.as_ref().and_then(|device| device.door.as_ref());
        let (engine, mut notices) = match door {
            Some((door, kind)) if *kind != DoorKind::NvmeChar => {
                let opened = self.engine_over(door)?;
                (opened.engine, opened.notices)
            }
            _ => (self.engine, Vec::new()),
        };
        let (host, file) =
            if engine == self.engine { (host, file) } else { self.host_file(engine, path)? };
        notices.extend(report.device.map(|device| format!("through {}", device.choice)));
        let (base, len, physical) = longest_extent(&file)?;
        let place = Some(Place { physical, partition: partition(path)? });
        Ok(Source {
            base,
            len,
            place,
            engine,
            notices,
            ..Source::new(spec, Shared::Host(host, file))
        })
    }

    fn host_file(&mut self, engine: Engine, path: &Path) -> Result<(Host, File)> {
        let host = match self.hosts.iter().find(|(of, _)| *of == engine) {
            Some((_, host)) => host.clone(),
            None => {
                let host = Host::new(&HostOptions { engine })?;
                self.hosts.push((engine, host.clone()));
                host
            }
        };
        let options = FileOptions { assume_no_dedupe: self.assume_no_dedupe, ..STRICT };
        let file = host.open(path, options)?;
        Ok((host, file))
    }
}

/// As `O_DIRECT` is: nothing is bounced.
const STRICT: FileOptions = FileOptions { strict: true, assume_no_dedupe: false };

impl Source {
    /// Without a range.
    fn new(spec: &TargetSpec, way: Shared) -> Self {
        let (spec, engine, notices) = (spec.clone(), Engine::Auto, Vec::new());
        Self { spec, way, base: 0, len: 0, place: None, engine, notices }
    }

    fn is_host(&self) -> bool {
        matches!(self.spec, TargetSpec::Host { .. })
    }

    /// Whether it is a host file, and this path leads to it.
    fn is_of(&self, path: &Path) -> bool {
        let TargetSpec::Host { path: own, .. } = &self.spec else { return false };
        let id = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
        id(own).is_some() && id(own) == id(path)
    }
}

fn reported(file: &File) -> Result<HostReport> {
    file.host().ok_or_else(|| Error::invalid("is no host file"))
}

/// The size of the device that a file's file system is on, and where it begins on its disk; `None` if that is a disk.
fn partition(path: &Path) -> Result<Option<(u64, u64)>> {
    let named = |error| super::io(&error, path.display().to_string());
    let dev = path.metadata().map_err(named)?.dev();
    let doors = door::doors((rustix::fs::major(dev), rustix::fs::minor(dev)))?;
    Ok(doors.iter().find(|door| door.base > 0).map(|door| (door.size, door.base)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_device_is_laid_out_like_the_partition_or_like_its_disk() {
        let place = Place { physical: 4096, partition: Some((1 << 20, 1 << 16)) };
        assert_eq!(place.on(1 << 20), 4096, "a partition, or its twin");
        assert_eq!(place.on(1 << 21), 4096 + (1 << 16), "a disk, or its twin");
        assert_eq!(Place { partition: None, ..place }.on(1 << 21), 4096);
    }
}
