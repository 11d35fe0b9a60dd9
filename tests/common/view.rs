//! A volume as a user sees it: all paths, each with the results of `stat`, `readlink`, `getxattr` and FIEMAP.
//!
//! The code in this file reads the volume with ironmap. The oracles fill the same type of records.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::{FileSystem, Inode};
use ironmap::fs::{FileType, Timestamp};
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;
use ironmap::{Engine, File, FileOptions, Queue, QueueOptions, Volume, VolumeOptions};

use super::beneath;
use super::image::Image;
use super::reads::Read;

/// A time: seconds and nanoseconds since 1970.
pub(crate) type Time = (i64, u32);

/// Records by path. Paths begin at the volume's root, without a leading `/`; the root itself is the empty path.
pub(crate) type View = BTreeMap<Vec<u8>, Record>;

/// The properties of a path. If a property is `None`, the oracle does not report it, and the test does not compare it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) inode: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) links: Option<u32>,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) size: Option<u64>,
    pub(crate) blocks: Option<u64>,
    pub(crate) device: Option<(u32, u32)>,
    pub(crate) accessed: Option<Time>,
    pub(crate) modified: Option<Time>,
    pub(crate) changed: Option<Time>,
    pub(crate) created: Option<Time>,
    pub(crate) flags: Option<u32>,
    pub(crate) generation: Option<u32>,
    pub(crate) project: Option<u32>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(crate) map: Option<Vec<Piece>>,
    /// The ranges of the content that were read by the oracle, with the results.
    pub(crate) reads: Vec<Read>,
}

impl Record {
    pub(crate) fn is(&self, file_type: rustix::fs::FileType) -> bool {
        self.mode.is_some_and(|mode| rustix::fs::FileType::from_raw_mode(mode) == file_type)
    }
}

/// A range of a file that has blocks on the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) pos: u64,
    pub(crate) len: u64,
    pub(crate) addr: u64,
    pub(crate) unwritten: bool,
}

/// Joins adjacent pieces of a map. Oracles split a map at different positions, so only joined maps can be compared.
pub(crate) fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.pos + last.len == piece.pos
                    && last.addr + last.len == piece.addr
                    && last.unwritten == piece.unwritten =>
            {
                last.len += piece.len;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// Joins the path of a directory and the name of an entry.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// A call that ironmap offers to read a file. All calls must return the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadCall {
    /// A read into one buffer at any address.
    Plain,
    Vectored,
    /// A request that is submitted to a queue. The test waits for the completion of the request, and pops it.
    Async,
    /// A read with the alignment of `O_DIRECT`, through a handle that refuses other alignments.
    Strict,
}

impl ReadCall {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Vectored, Self::Async, Self::Strict];
}

/// An alignment that every device accepts, in bytes.
const STRICT: u64 = 4096;

/// A file that is opened twice. The handle `any` accepts requests with any alignment. The handle `strict` accepts only the alignment of
/// `O_DIRECT`.
pub(crate) struct Handles {
    any: File,
    strict: File,
}

/// The volume under test, opened with ironmap.
pub(crate) struct Subject {
    volume: Volume,
    queue: Queue,
}

impl Subject {
    pub(crate) fn open(image: &Image) -> Self {
        Self::open_with(image, Engine::default())
    }

    pub(crate) fn open_with(image: &Image, engine: Engine) -> Self {
        Self::open_by(image, &VolumeOptions::new().engine(engine))
    }

    pub(crate) fn open_by(image: &Image, options: &VolumeOptions) -> Self {
        let volume = beneath::open(&image.location(), options).expect("open the volume");
        let queue = volume.queue(&QueueOptions::default()).expect("a queue");
        Self { volume, queue }
    }

    /// Reads all paths of the volume. Each entry must be found both by a listing of its directory and by a lookup of its name.
    pub(crate) fn view(&self) -> View {
        let mut view = View::new();
        let root = self.volume.fs().inode(self.volume.fs().root()).expect("the root directory");
        self.visit(&root, b"", &mut view);
        view
    }

    fn visit(&self, inode: &Inode, path: &[u8], view: &mut View) {
        let fail = |error: ironmap::Error| -> ! { panic!("/{}: {error}", path.escape_ascii()) };
        view.insert(path.to_vec(), record(inode).unwrap_or_else(|error| fail(error)));
        if inode.stat().file_type != FileType::Directory {
            return;
        }
        let entries = inode.read_dir().and_then(Iterator::collect::<ironmap::Result<Vec<_>>>);
        for entry in entries.unwrap_or_else(|error| fail(error)) {
            if matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let child = join(path, &entry.name);
            let found = inode.lookup(&entry.name).unwrap_or_else(|error| fail(error));
            let (stat, shown) = (found.stat(), child.escape_ascii());
            assert_eq!(stat.inode, entry.inode, "/{shown}: lookup and listing differ");
            let same = entry.file_type.is_none_or(|recorded| recorded == stat.file_type);
            assert!(same, "/{shown}: the entry says {:?}", entry.file_type);
            assert!(!view.contains_key(&child), "/{shown}: listed twice");
            self.visit(&found, &child, view);
        }
    }

    /// Opens a regular file for reading.
    pub(crate) fn file(&self, inode: u64) -> Handles {
        let open = |strict| {
            let inode = self.volume.fs().inode(ironmap::units::InodeNo(inode)).expect("the inode");
            self.volume.open_inode(inode, FileOptions::new().direct(strict)).expect("open the file")
        };
        Handles { any: open(false), strict: open(true) }
    }

    /// Reads once, and appends the bytes to `bytes`. Only a read at the end of the file may be short.
    pub(crate) fn read(
        &mut self,
        file: &Handles,
        way: ReadCall,
        read: &Read,
        bytes: &mut Vec<u8>,
    ) -> ironmap::Result<()> {
        let queue = &mut self.queue;
        bytes.clear();
        match way {
            ReadCall::Plain => {
                bytes.resize(read.len, 0xa5);
                let count = file.any.read_at(queue, bytes, FilePos(read.pos))?;
                bytes.truncate(count);
            }
            ReadCall::Vectored => {
                bytes.resize(read.len, 0xa5);
                let (head, tail) = bytes.split_at_mut(read.len / 3);
                let mut bufs = [IoSliceMut::new(head), IoSliceMut::new(tail)];
                let pos = FilePos(read.pos);
                let count = file.any.read_vectored_at(queue, &mut bufs, pos, DioFlags::empty())?;
                bytes.truncate(count);
            }
            ReadCall::Async => {
                let memory = Buffer::from(vec![0xa5; read.len]);
                let pos = FilePos(read.pos);
                let sent = file.any.submit_read(queue, memory, pos, DioFlags::empty(), read.pos);
                sent.map_err(|rejected| rejected.error)?;
                queue.wait(1)?;
                let done = queue.pop().expect("a completion");
                assert_eq!(done.token, read.pos);
                bytes.extend_from_slice(&super::ranges::bytes(&done.memory)[..done.result?]);
            }
            ReadCall::Strict => {
                // Reads the aligned range that contains the requested range. Every device accepts requests with this alignment.
                let start = read.pos & !(STRICT - 1);
                let skipped = (read.pos - start) as usize;
                let len = (skipped + read.len).next_multiple_of(STRICT as usize);
                let mut buf = Buffer::aligned(len)?;
                let count = file.strict.read_at(queue, &mut buf, FilePos(start))?;
                let end = count.min(skipped + read.len);
                bytes.extend_from_slice(buf[..end].get(skipped..).unwrap_or_default());
            }
        }
        Ok(())
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }
}

fn record(inode: &Inode) -> ironmap::Result<Record> {
    let stat = inode.stat();
    let time = |time: Timestamp| (time.seconds, time.nanoseconds);
    let xattrs = inode.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value));
    let (target, map) = match stat.file_type {
        FileType::Symlink => (Some(inode.read_link()?), None),
        FileType::Regular => (None, Some(map(inode)?)),
        _ => (None, None),
    };
    Ok(Record {
        inode: Some(stat.inode.0),
        mode: Some(stat.mode),
        links: Some(stat.links),
        owner: Some((stat.uid, stat.gid)),
        size: Some(stat.size),
        blocks: Some(stat.blocks),
        device: stat.device,
        accessed: Some(time(stat.accessed)),
        modified: Some(time(stat.modified)),
        changed: Some(time(stat.changed)),
        created: stat.created.map(time),
        flags: Some(stat.flags),
        generation: Some(stat.generation),
        project: stat.project,
        target,
        xattrs: Some(xattrs.collect()),
        map,
        reads: Vec::new(),
    })
}

/// The map of a file, including blocks past its end.
fn map(inode: &Inode) -> ironmap::Result<Vec<Piece>> {
    use ironmap::iomap::MapFile;
    let mut pieces = Vec::new();
    let mut pos = 0;
    loop {
        let iomap = inode.map(FilePos(pos), u64::MAX - pos)?;
        let holds = iomap.pos.0 <= pos && pos < iomap.end().0;
        assert!(holds, "inode {}: the mapping of {pos} is {iomap:?}", inode.stat().inode);
        let unwritten = match iomap.kind {
            IomapType::Mapped => Some(false),
            IomapType::Unwritten => Some(true),
            _ => None,
        };
        let len = iomap.end().0 - pos;
        if let Some(unwritten) = unwritten {
            pieces.push(Piece { pos, len, addr: iomap.addr_of(FilePos(pos)).0, unwritten });
        }
        pos = iomap.end().0;
        // The last mapping is the hole up to the largest file position.
        if iomap.kind == IomapType::Inline || pos >= i64::MAX as u64 {
            return Ok(joined(pieces));
        }
    }
}
