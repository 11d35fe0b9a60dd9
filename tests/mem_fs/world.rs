//! A volume of the test's file system with one file.

use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::device::{BlockFile, Device, OpenMode, Ram, Segmented, Uring, UringOptions};
use ironmap::dio::DioFlags;
use ironmap::fs::{Credentials, FileSystem, NewFile, Writer};
use ironmap::iomap::IomapType;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, FileOptions, Queue, QueueOptions, Volume};

use crate::format::{Kind, LOG, MemFs, Second};

pub(crate) const BLOCK: usize = 4096;
pub(crate) const NONE: DioFlags = DioFlags::empty();
pub(crate) const LAZY: Kind = Kind { resident: false, ..Kind::WHOLE };
pub(crate) const READ: Kind = Kind { writes: false, ..Kind::WHOLE };

/// A volume with an empty file, and a queue for it.
pub(crate) struct World {
    pub(crate) fs: MemFs,
    pub(crate) volume: Volume,
    pub(crate) number: InodeNo,
    pub(crate) file: File,
    pub(crate) queue: Queue,
}

impl World {
    pub(crate) fn new(kind: Kind, blocks: usize) -> Self {
        let fs = MemFs::new(device(kind, blocks as u64), kind);
        let number = create(&fs, b"file");
        Self::of(&fs, kind, number)
    }

    pub(crate) fn of(fs: &MemFs, kind: Kind, number: InodeNo) -> Self {
        let fs = fs.like(kind);
        let volume = fs.volume();
        let file = open(&volume, number);
        let queue = volume.queue(&QueueOptions::default()).unwrap();
        Self { fs, volume, number, file, queue }
    }

    /// The same file of the same volume, opened with other options of the format.
    pub(crate) fn seen_as(&self, kind: Kind) -> Self {
        Self::of(&self.fs, kind, self.number)
    }

    pub(crate) fn read(&mut self, pos: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xa5; len];
        let count = self.file.read_at(&mut self.queue, &mut bytes, FilePos(pos as u64)).unwrap();
        bytes.truncate(count);
        bytes
    }

    pub(crate) fn write(&mut self, pos: usize, bytes: &[u8]) {
        let count = self.file.write_at(&mut self.queue, bytes, FilePos(pos as u64)).unwrap();
        assert_eq!(count, bytes.len());
    }

    pub(crate) fn sync(&mut self) {
        self.file.sync(&mut self.queue).unwrap();
    }

    /// The mappings of the file up to its end: the kind and the length in bytes of each.
    pub(crate) fn mappings(&self) -> Vec<(IomapType, u64)> {
        let size = self.file.size();
        let cut =
            |iomap: ironmap::iomap::Iomap| (iomap.kind, iomap.end().0.min(size) - iomap.pos.0);
        self.file.mappings().map(|iomap| cut(iomap.unwrap())).collect()
    }

    /// Pops the completion of a request, which must have succeeded. Returns the token, and the bytes that were read.
    pub(crate) fn completion(&mut self) -> (u64, Vec<u8>) {
        self.queue.wait(1).unwrap();
        let completion = self.queue.pop().unwrap();
        let count = completion.result.unwrap();
        let mut bytes: Vec<u8> =
            completion.memory.buffers().iter().flat_map(|buffer| buffer.to_vec()).collect();
        bytes.truncate(count);
        (completion.token, bytes)
    }
}

/// Makes a device for a volume of `blocks` blocks. With a second device, each of the two devices has half of the blocks.
fn device(kind: Kind, blocks: u64) -> Arc<dyn Device> {
    let Kind { second, log, .. } = kind;
    let of = |blocks: u64| -> Arc<dyn Device> {
        if second != Second::Files {
            return Arc::new(Ram::new(blocks * BLOCK as u64));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(blocks * BLOCK as u64).unwrap();
        // The descriptor is closed, because a volume has its image for itself.
        let path = file.into_temp_path();
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let file = Arc::new(BlockFile::open(&path, &mode).unwrap());
        Arc::new(Uring::new(file, UringOptions::default()))
    };
    let half = if second == Second::None { 0 } else { blocks / 2 };
    let others = [(Segmented::REALTIME, half), (Segmented::JOURNAL, if log { LOG } else { 0 })];
    let others = others.into_iter().filter(|(_, blocks)| *blocks > 0);
    let others: Vec<_> = others.map(|(at, blocks)| (at, of(blocks))).collect();
    match others.is_empty() {
        true => of(blocks),
        false => Arc::new(Segmented::joined(of(blocks - half), others).writable()),
    }
}

pub(crate) fn create(fs: &MemFs, name: &[u8]) -> InodeNo {
    fs.create(fs.root(), name, NewFile::Regular, 0o644, &Credentials::default()).unwrap()
}

pub(crate) fn open(volume: &Volume, number: InodeNo) -> File {
    let inode = volume.fs().inode(number).unwrap();
    volume.open_inode(inode, FileOptions::new().write(volume.fs().is_writable())).unwrap()
}

pub(crate) fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::aligned(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}
