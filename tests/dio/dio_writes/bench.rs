//! A volume in memory, and a queue for it. The device records its requests. A test can make requests fail.

use std::collections::BTreeSet;
use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::device::{Entry, Faults, Limits, Ram, Record, Sim};
use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, Fallocate, FileSystem, NewFile, WriteCounts};
use ironmap::iomap::IomapType;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, File, FileOptions, Queue, QueueOptions, Result, Volume};

use crate::common::beneath::over_faulty;
use crate::common::image::{Image, words};

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const NONE: DioFlags = DioFlags::empty();

/// A volume on a device with three layers. From top to bottom: the first layer records requests, the second makes requests fail, and the
/// third stores the data in memory. The volume commits a transaction only at the request of a test.
pub(crate) struct Bench {
    image: Image,
    ram: Arc<Ram>,
    pub(crate) faults: Arc<Sim>,
    record: Arc<Record>,
    pub(crate) volume: Volume,
}

/// Counts the requests that the device received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The number of writes, and the number of write-through writes.
    pub(crate) writes: usize,
    pub(crate) through: usize,
    pub(crate) flushes: usize,
}

impl Bench {
    pub(crate) fn new(mkfs: &str) -> Self {
        Self::with_limits(mkfs, Ram::LIMITS)
    }

    pub(crate) fn with_limits(mkfs: &str, limits: Limits) -> Self {
        Self::with_image(Image::in_memory("24M", &words(mkfs)), limits)
    }

    /// Opens the volume of an image.
    pub(crate) fn with_image(image: Image, limits: Limits) -> Self {
        let ram = Ram::from_image(&std::fs::read(image.path()).unwrap()).with_limits(limits);
        Self::on(image, ram)
    }

    fn on(image: Image, ram: Ram) -> Self {
        let ram = Arc::new(ram);
        let faults = Arc::new(Sim::new(Arc::clone(&ram) as _, Faults::default()));
        let record = Arc::new(Record::new(Arc::clone(&faults) as _));
        let device = over_faulty(Arc::clone(&record) as _, &(Arc::clone(&ram) as _));
        let volume = Volume::writable_on(device, Clock::default()).unwrap();
        Self { image, ram, faults, record, volume }
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    pub(crate) fn queue(&self) -> Queue {
        self.volume.queue(&QueueOptions::default()).unwrap()
    }

    pub(crate) fn create(&self, name: &str) -> InodeNo {
        let who = Credentials::default();
        self.fs()
            .writable()
            .unwrap()
            .create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &who)
            .unwrap()
    }

    pub(crate) fn open(&self, number: InodeNo, strict: bool) -> File {
        let options = FileOptions::new().direct(strict);
        self.volume.open_inode(self.fs().inode(number).unwrap(), options.write(true)).unwrap()
    }

    /// Makes a durable file with this many written blocks.
    pub(crate) fn written(&self, name: &str, blocks: u64) -> File {
        let number = self.create(name);
        self.fs()
            .writable()
            .unwrap()
            .write(number, FilePos(0), &vec![0x11; (blocks * BLOCK) as usize])
            .unwrap();
        self.fs().sync().unwrap();
        self.open(number, false)
    }

    /// Makes a durable file with this many unwritten blocks.
    pub(crate) fn unwritten(&self, name: &str, blocks: u64) -> File {
        let number = self.create(name);
        let how = Fallocate::Allocate { keep_size: false };
        self.fs().writable().unwrap().fallocate(number, how, FilePos(0), blocks * BLOCK).unwrap();
        self.fs().sync().unwrap();
        self.open(number, false)
    }

    /// Makes a durable file of this size without blocks.
    pub(crate) fn hole(&self, name: &str, blocks: u64) -> File {
        let number = self.create(name);
        self.fs().writable().unwrap().truncate(number, blocks * BLOCK).unwrap();
        self.fs().sync().unwrap();
        self.open(number, false)
    }

    /// Fills the free space with data, and frees the blocks again. A test later checks that no file shows these data. Returns the sectors
    /// of the blocks.
    pub(crate) fn soil(&self) -> BTreeSet<u64> {
        let mut queue = self.queue();
        let file = self.open(self.create("junk"), false);
        let count = file.write_at(&mut queue, &memory(64 << 20, 0xDB), FilePos(0)).unwrap();
        assert!(count as u64 > (4 << 20));
        file.sync(&mut queue).unwrap();
        let extents = file.mappings().map(Result::unwrap);
        let sectors =
            extents.flat_map(|extent| extent.addr.0 / 512..(extent.addr.0 + extent.len) / 512);
        let sectors = sectors.collect();
        drop(file);
        self.fs().writable().unwrap().unlink(ROOT, b"junk").unwrap();
        self.fs().sync().unwrap();
        sectors
    }

    /// The increase of the file system's write counters while `work` runs.
    pub(crate) fn cost(&self, work: impl FnOnce()) -> WriteCounts {
        let before = self.fs().writable().unwrap().write_counts();
        work();
        self.fs().writable().unwrap().write_counts() - before
    }

    /// The requests to the device that are sent while `work` runs.
    pub(crate) fn seen(&self, work: impl FnOnce()) -> Seen {
        let from = self.record.log().len();
        work();
        let mut seen = Seen::default();
        for entry in &self.record.log().entries()[from..] {
            match entry {
                Entry::Write { fua, .. } => {
                    seen.writes += 1;
                    seen.through += usize::from(*fua);
                }
                Entry::Flush => seen.flushes += 1,
                _ => {}
            }
        }
        seen
    }

    /// Opens a volume on a copy of the device's content. This is the state after a power cut that loses no write.
    pub(crate) fn after_crash(&self) -> Self {
        Self::on(Image::none(), self.ram.snapshot())
    }

    /// The image after a power cut, before recovery.
    pub(crate) fn cut(&self) -> Image {
        let image = self.image.copy();
        self.ram.store(&std::fs::File::create(image.path()).unwrap()).unwrap();
        image
    }

    /// Closes the volume, lets e2fsck check the image, and returns the image.
    pub(crate) fn close(self) -> Image {
        let Self { image, ram, volume, .. } = self;
        volume.close().unwrap();
        drop(volume);
        let file = std::fs::File::create(image.path()).unwrap();
        ram.store(&file).unwrap();
        drop(file);
        image.check();
        image
    }
}

/// Aligned memory, filled with a byte.
pub(crate) fn memory(len: u64, fill: u8) -> Buffer {
    let mut buffer = Buffer::aligned(len as usize).unwrap();
    buffer.fill(fill);
    buffer
}

pub(crate) fn content(file: &File, queue: &mut Queue) -> Vec<u8> {
    let mut buffer = memory(file.size().next_multiple_of(BLOCK).max(BLOCK), 0xEE);
    let count = file.read_at(queue, &mut buffer, FilePos(0)).unwrap();
    buffer[..count].to_vec()
}

/// The kind and the length in blocks of each mapping of a file.
pub(crate) fn map(file: &File) -> Vec<(IomapType, u64)> {
    let mut map: Vec<(IomapType, u64)> = Vec::new();
    for iomap in file.mappings() {
        let iomap = iomap.unwrap();
        let len = (iomap.end().0.min(file.size()) - iomap.pos.0).div_ceil(BLOCK);
        match map.last_mut() {
            Some((kind, blocks)) if *kind == iomap.kind => *blocks += len,
            _ => map.push((iomap.kind, len)),
        }
    }
    map
}

/// The calls that write a file. Each call must have the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Lent,
    Borrowed,
    Owned,
}

pub(crate) const CALLS: [Call; 3] = [Call::Lent, Call::Borrowed, Call::Owned];

impl Call {
    pub(crate) fn write(
        self,
        (file, queue): (&File, &mut Queue),
        buffer: Buffer,
        pos: u64,
        flags: DioFlags,
    ) -> Result<usize> {
        match self {
            Self::Lent => file.write_at_with(queue, &buffer, FilePos(pos), flags),
            Self::Borrowed => file.write_buffer_at(queue, &buffer, FilePos(pos), flags),
            Self::Owned => {
                let submitted = file.submit_write(queue, buffer, FilePos(pos), flags, 7);
                submitted.map_err(|rejected| rejected.error)?;
                queue.wait(1)?;
                let done = queue.pop().expect("a completion");
                assert_eq!((done.token, queue.outstanding()), (7, 0));
                done.result
            }
        }
    }
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("it fails").kind()
}
