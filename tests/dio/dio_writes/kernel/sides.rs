//! The two sides of the comparison. The kernel writes a mounted volume with O_DIRECT. ironmap writes an unmounted copy of the volume, with
//! a handle that accepts only the alignment of O_DIRECT.

use std::fs::{File as KernelFile, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ironmap::bio::Memory;
use ironmap::dio::DioFlags;
use ironmap::fs::{Fallocate, Follow};
use ironmap::iomap::{IomapType, Mappings};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, FileOptions, Queue, QueueOptions, Volume};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};

use super::step::{Step, Write};
use crate::common::ranges::{Room, split};
use crate::common::view::Piece;

/// The result of a request: the number of bytes, or an errno.
pub(super) type Outcome = Result<usize, i32>;

/// The state of a block in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Hole,
    Unwritten,
    Written,
}

pub(super) struct Kernel {
    pub(super) path: PathBuf,
    file: KernelFile,
}

pub(super) struct Ours<'a> {
    volume: &'a Volume,
    number: InodeNo,
    strict: File,
    /// A handle that accepts any position. After a permitted difference, the test uses it to make the content of both volumes equal again.
    file: File,
    queue: Queue,
}

fn slices<'b>(bytes: &'b [u8], pieces: &[usize]) -> Vec<IoSlice<'b>> {
    let mut rest = bytes;
    let cut = |piece: &usize| {
        let (head, tail) = rest.split_at(*piece);
        rest = tail;
        IoSlice::new(head)
    };
    pieces.iter().map(cut).collect()
}

fn memory(write: &Write, bytes: &[u8]) -> Room {
    let mut room = Room::new(write.offset + write.len());
    room.at(write.offset, write.len()).copy_from_slice(bytes);
    room
}

impl Kernel {
    pub(super) fn open(dir: &Path, name: &str) -> Self {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let path = dir.join(name);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(direct).open(&path).unwrap();
        Self { path, file }
    }

    pub(super) fn size(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    pub(super) fn content(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    pub(super) fn write(&self, write: &Write, bytes: &[u8]) -> Outcome {
        let mut room = memory(write, bytes);
        let slices = slices(room.at(write.offset, write.len()), &write.pieces);
        let mut flags = ReadWriteFlags::empty();
        flags.set(ReadWriteFlags::DSYNC, write.flags.contains(DioFlags::DSYNC));
        flags.set(ReadWriteFlags::SYNC, write.flags.contains(DioFlags::SYNC));
        flags.set(ReadWriteFlags::HIPRI, write.flags.contains(DioFlags::HIPRI));
        flags.set(ReadWriteFlags::NOWAIT, write.is_nowait());
        flags.set(ReadWriteFlags::APPEND, write.append);
        if write.flags.contains(DioFlags::ATOMIC) {
            flags |= ReadWriteFlags::from_bits_retain(0x40);
        }
        pwritev2(&self.file, &slices, write.pos, flags).map_err(rustix::io::Errno::raw_os_error)
    }

    pub(super) fn change(&self, step: &Step) -> Outcome {
        let keep = FallocateFlags::KEEP_SIZE;
        let fallocate = |flags, pos, len| fallocate(&self.file, flags, pos, len);
        let result = match *step {
            Step::Truncate(size) => rustix::fs::ftruncate(&self.file, size),
            Step::Punch(pos, len) => fallocate(FallocateFlags::PUNCH_HOLE | keep, pos, len),
            Step::Allocate { pos, len, keep_size } => {
                let flags = if keep_size { keep } else { FallocateFlags::empty() };
                fallocate(flags, pos, len)
            }
            Step::Zero(pos, len) => fallocate(FallocateFlags::ZERO_RANGE | keep, pos, len),
            Step::Sync | Step::Write(_) => rustix::fs::fsync(&self.file),
        };
        result.map(|()| 0).map_err(rustix::io::Errno::raw_os_error)
    }
}

impl<'a> Ours<'a> {
    pub(super) fn open(volume: &'a Volume, name: &str) -> Self {
        let inode = volume.fs().resolve(name.as_bytes(), Follow::All).unwrap();
        let number = inode.number();
        let open = |strict| {
            let options = FileOptions::new().direct(strict);
            volume.open_inode(volume.fs().inode(number).unwrap(), options.write(true)).unwrap()
        };
        let queue = volume.queue(&QueueOptions::default()).unwrap();
        Self { volume, number, strict: open(true), file: open(false), queue }
    }

    pub(super) fn number(&self) -> InodeNo {
        self.number
    }

    pub(super) fn size(&self) -> u64 {
        self.file.size()
    }

    pub(super) fn content(&mut self) -> Vec<u8> {
        let mut bytes = vec![0xEE; self.size() as usize];
        let count = self.file.read_at(&mut self.queue, &mut bytes, FilePos(0)).unwrap();
        assert_eq!(count, bytes.len());
        bytes
    }

    pub(super) fn write(&mut self, write: &Write, bytes: &[u8]) -> Outcome {
        let Self { strict, queue, .. } = self;
        let (flags, pos) = (write.flags, FilePos(write.pos));
        let mut room = memory(write, bytes);
        let lent = !write.owned || write.len() == 0;
        if write.append && lent {
            let all = room.at(write.offset, write.len());
            let appended = strict.append(queue, all, flags);
            return appended.map(|_| write.len()).map_err(|error| error.errno().0);
        }
        if lent {
            let slices = slices(room.at(write.offset, write.len()), &write.pieces);
            let count = match &slices[..] {
                [one] => strict.write_at_with(queue, one, pos, flags),
                slices => strict.write_vectored_at(queue, slices, pos, flags),
            };
            return count.map_err(|error| error.errno().0);
        }
        let buffer = room.into_buffer(write.offset, write.len());
        let memory = match &write.pieces[..] {
            [_] => Memory::Flat(buffer),
            pieces => Memory::Vectored(split(buffer, pieces)),
        };
        let submitted = if write.append {
            strict.submit_append(queue, memory, flags, 1).map(drop)
        } else {
            strict.submit_write(queue, memory, pos, flags, 1)
        };
        submitted.map_err(|rejected| rejected.error.errno().0)?;
        queue.wait(1).unwrap();
        queue.pop().unwrap().result.map_err(|error| error.errno().0)
    }

    /// Writes with a handle that accepts any request.
    pub(super) fn write_anyhow(&mut self, write: &Write, bytes: &[u8]) {
        let count = self.file.write_at(&mut self.queue, bytes, FilePos(write.pos)).unwrap();
        assert_eq!(count, bytes.len());
    }

    pub(super) fn change(&mut self, step: &Step) -> Outcome {
        let fs = self.volume.fs();
        let fallocate =
            |how, pos, len| fs.writable().unwrap().fallocate(self.number, how, FilePos(pos), len);
        let result = match *step {
            Step::Truncate(size) => fs.writable().unwrap().truncate(self.number, size),
            Step::Punch(pos, len) => fallocate(Fallocate::Punch, pos, len),
            Step::Allocate { pos, len, keep_size } => {
                fallocate(Fallocate::Allocate { keep_size }, pos, len)
            }
            Step::Zero(pos, len) => fallocate(Fallocate::Zero { keep_size: true }, pos, len),
            Step::Sync | Step::Write(_) => self.file.sync(&mut self.queue),
        };
        result.map(|()| 0).map_err(|error| error.errno().0)
    }

    /// The number of mappings with blocks on the device, up to a position.
    pub(super) fn extents(&self, end: u64) -> usize {
        let mapped = Mappings::new(&self.file, FilePos(0), FilePos(end)).map(Result::unwrap);
        mapped.filter(|iomap| iomap.kind != IomapType::Hole).count()
    }

    /// The state of each block up to a position.
    pub(super) fn map(&self, block: u64, end: u64) -> Vec<Block> {
        let mut map = vec![Block::Hole; (end / block) as usize];
        for iomap in Mappings::new(&self.file, FilePos(0), FilePos(end)) {
            let iomap = iomap.unwrap();
            let kind = match iomap.kind {
                IomapType::Hole => Block::Hole,
                IomapType::Unwritten => Block::Unwritten,
                _ => Block::Written,
            };
            let last = iomap.end().0.min(end).div_ceil(block);
            map[(iomap.pos.0 / block) as usize..last as usize].fill(kind);
        }
        map
    }
}

/// The state of each block, from the output of FIEMAP.
pub(super) fn blocks(pieces: &[Piece], block: u64, end: u64) -> Vec<Block> {
    let mut map = vec![Block::Hole; (end / block) as usize];
    for piece in pieces.iter().filter(|piece| piece.pos < end) {
        let kind = if piece.unwritten { Block::Unwritten } else { Block::Written };
        let last = (piece.pos + piece.len).min(end).div_ceil(block);
        map[(piece.pos / block) as usize..last as usize].fill(kind);
    }
    map
}
