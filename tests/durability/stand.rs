//! The devices below a volume.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ironmap::device::image::{Address, Image, ImageFormat};
use ironmap::device::{Device, Ram};
use ironmap::fs::ext4::MkfsOptions;
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode, format};
use ironmap::prelude::*;
use parking_lot::Mutex;

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::watched::Watched;
use crate::disk::Disk;
use crate::server::Server;

/// The size of the file with the cells (the ranges that threads overwrite), and the size of the file for bulk writes.
pub(crate) const CELLS: u64 = 2 << 20;
pub(crate) const BULK: u64 = 18 << 20;

/// The layers between the disk and the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Block,
    /// A qcow2 file on a file system on the disk.
    Qcow2,
    Nbd {
        several: bool,
    },
    Integrity {
        mode: Mode,
        layout: Layout,
        /// Whether each flush clears the map of dirty regions. If `false`, only the close of the device clears it.
        cleans: bool,
    },
}

/// The place where an integrity device stores its tags (checksums).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Tail,
    /// The tags (checksums) are on another part of the same disk.
    Parts,
    /// The tags (checksums) are on another disk.
    Disks,
    /// The tags (checksums) are on another part of the same disk. Each part is an NBD export.
    Exports,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The disks below a volume, and the layers between them.
pub(crate) struct Stand {
    pub(crate) disks: Vec<Arc<Disk>>,
    kind: Kind,
}

/// An open volume. Rust drops the fields in order, so the volume is dropped before the servers and directories that it needs.
pub(crate) struct Open {
    pub(crate) volume: Volume,
    _below: Vec<Box<dyn Any>>,
}

fn file(volume: &Volume, name: &str, len: u64) {
    let file = volume.open_with(name, FileOptions::new().write(true).create(true)).unwrap();
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..len >> 20).for_each(|mib| file.write_all_at(&mut queue, &zeros, mib << 20).unwrap());
}

/// Makes a volume with the files of the test on a device.
fn fill(device: &Arc<dyn Device>, bulk: bool) {
    ironmap::tools::make(&**device, &MkfsOptions::new().force(true)).unwrap();
    let volume = VolumeOptions::new().write(true).open_on(Arc::clone(device)).unwrap();
    file(&volume, "/cells", CELLS);
    if bulk {
        file(&volume, "/bulk", BULK);
    }
    volume.close().unwrap();
}

fn options(mode: Mode) -> FormatOptions {
    FormatOptions::new().mode(mode).region(64 << 10).journal(1 << 20)
}

impl Stand {
    /// New disks with a volume. The cache of each disk is empty.
    pub(crate) fn new(kind: Kind) -> Self {
        static MADE: Mutex<Vec<(Kind, Vec<Vec<Ram>>)>> = Mutex::new(Vec::new());
        let mut made = MADE.lock();
        let known = made.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
            made.push((kind, make(kind)));
            made.len() - 1
        });
        let copies = |parts: &Vec<Ram>| Disk::new(parts.iter().map(Ram::snapshot).collect());
        Self { disks: made[known].1.iter().map(copies).collect(), kind }
    }

    /// Copies of these disks after a power cut. The volume is opened on the copies directly, without NBD exports.
    pub(crate) fn cut(&self) -> Self {
        let kind = match self.kind {
            Kind::Nbd { .. } => Kind::Block,
            Kind::Integrity { mode, layout: Layout::Exports, cleans } => {
                Kind::Integrity { mode, layout: Layout::Parts, cleans }
            }
            kind => kind,
        };
        Self { disks: self.disks.iter().map(|disk| disk.cut()).collect(), kind }
    }

    /// Opens the volume for writing. A timer commits regularly.
    pub(crate) fn open(&self) -> ironmap::Result<Open> {
        let first = &self.disks[0];
        let mut below: Vec<Box<dyn Any>> = Vec::new();
        let mut export = |part, several| {
            let server = Server::start(first, part, several);
            let device = server.open();
            below.push(Box::new(server));
            Arc::new(device) as Arc<dyn Device>
        };
        let device = match self.kind {
            Kind::Block => first.device(0),
            Kind::Nbd { several } => export(0, several),
            Kind::Qcow2 => {
                let dir = scratch_in(std::path::Path::new("/dev/shm"));
                let path = dir.path().join("disk");
                below.push(Box::new(Watched::new(first.device(0), &path)));
                below.push(Box::new(dir));
                Arc::new(Image::open(&Address::new(ImageFormat::Qcow2, path), true)?)
            }
            Kind::Integrity { layout, cleans, .. } => {
                let (data, tags) = match layout {
                    Layout::Tail => (first.device(0), None),
                    Layout::Parts => (first.device(0), Some(first.device(1))),
                    Layout::Disks => (first.device(0), Some(self.disks[1].device(0))),
                    Layout::Exports => (export(0, true), Some(export(1, true))),
                };
                let clean_after = Duration::from_secs(if cleans { 0 } else { 60 });
                let lazy = IntegrityOptions::new().clean_after(clean_after);
                Arc::new(Integrity::open_with(data, tags, &lazy)?.device)
            }
        };
        // With an NBD server, the commit timer is off. A commit by the timer could flush the data before the NBD client sends a flush
        // itself, which the test must observe.
        let often =
            Duration::from_millis(if matches!(self.kind, Kind::Nbd { .. }) { 0 } else { 20 });
        let options = VolumeOptions::new().write(true).commit(often);
        Ok(Open { volume: options.open_on(device)?, _below: below })
    }
}

/// The content of each part of each disk.
fn make(kind: Kind) -> Vec<Vec<Ram>> {
    let plain = |mib: u64, bulk| {
        let ram = Arc::new(Ram::new(mib << 20));
        fill(&(Arc::clone(&ram) as Arc<dyn Device>), bulk);
        vec![vec![ram.snapshot()]]
    };
    match kind {
        Kind::Block => plain(24, false),
        Kind::Nbd { .. } => plain(40, true),
        Kind::Qcow2 => vec![vec![qcow2()]],
        Kind::Integrity { mode, layout, .. } => integrity(mode, layout),
    }
}

/// The content of each part of each disk. The disks contain an integrity device with a volume.
fn integrity(mode: Mode, layout: Layout) -> Vec<Vec<Ram>> {
    let data = Arc::new(Ram::new(24 << 20));
    let tags = (layout != Layout::Tail).then(|| Arc::new(Ram::new(4 << 20)));
    let as_device = |ram: &Arc<Ram>| Arc::clone(ram) as Arc<dyn Device>;
    let beside = tags.as_ref().map(as_device);
    format(&as_device(&data), beside.as_ref(), &options(mode), &mut |_, _| ()).unwrap();
    let device = Integrity::open(as_device(&data), beside).unwrap().device;
    fill(&(Arc::new(device) as Arc<dyn Device>), false);
    let [data, tags] = [Some(data), tags].map(|ram| ram.map(|ram| ram.snapshot()));
    match layout {
        Layout::Disks => [data, tags].into_iter().map(|ram| ram.into_iter().collect()).collect(),
        _ => vec![[data, tags].into_iter().flatten().collect()],
    }
}

/// The content of a qcow2 file with a volume, followed by free space.
fn qcow2() -> Ram {
    let dir = scratch_in(std::path::Path::new("/dev/shm"));
    let path = dir.path().join("disk");
    run("qemu-img", &["create", "-q", "-f", "qcow2", path.to_str().unwrap(), "24M"]);
    let image = Image::open(&Address::new(ImageFormat::Qcow2, &path), true);
    fill(&(Arc::new(image.unwrap()) as Arc<dyn Device>), false);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.resize(bytes.len().next_multiple_of(1 << 20) + (2 << 20), 0);
    Ram::from_image(&bytes)
}

/// The byte that fills a range of a file. `None` if the range contains several different bytes.
pub(crate) fn filled(volume: &Volume, name: &str, at: u64, len: usize) -> Option<u8> {
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let mut bytes = vec![0; len];
    let file = volume.open(name).ok()?;
    file.read_exact_at(&mut queue, &mut bytes, at).ok()?;
    (bytes == vec![bytes[0]; len]).then_some(bytes[0])
}
