//! A minimal file system format. Names, inodes and maps are in memory, under one lock; the content is on a device. The code uses only the
//! public items of the library.

mod content;
mod file;
mod inode;
mod names;
mod tree;

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ironmap::bio::Buffer;
use ironmap::device::{Device, Segmented};
use ironmap::fs::{
    Capabilities, Credentials, Fallocate, FileSystem, FreeSpace, Held, Inode, InodeOps, KeepSetId,
    NewFile, RenameFlags, SetAttributes, SetXattr, Usage, Writer,
};
use ironmap::open_file::Unconverted;
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Error, ErrorKind, Result, Volume};

use content::{BLOCK, OpenFile};
use file::Open;
use tree::{ROOT, Tree};

/// A volume of this format. A clone refers to the same volume.
#[derive(Clone)]
pub(crate) struct MemFs {
    device: Arc<dyn Device>,
    kind: Kind,
    tree: Arc<Mutex<Tree>>,
    pub(crate) gate: Arc<Gate>,
}

/// With this switch a test can stop an allocation.
#[derive(Default)]
pub(crate) struct Gate {
    /// While this flag is true, allocations wait.
    pub(crate) closed: AtomicBool,
    /// Whether an allocation is waiting.
    pub(crate) reached: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        while self.closed.load(SeqCst) {
            self.reached.store(true, SeqCst);
            std::thread::yield_now();
        }
    }
}

/// The number of blocks of the log. Each block contains a record.
pub(crate) const LOG: u64 = 4;

/// The second device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    None,
    /// Both devices are in memory.
    Memory,
    /// Both devices are files, whose requests use io_uring.
    Files,
}

/// The options of the format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Whether the volume is open for writing.
    pub(crate) writes: bool,
    /// Whether the complete map is in memory when the first request arrives.
    pub(crate) resident: bool,
    /// The second device of the volume. Every other block of a file is on this device.
    pub(crate) second: Second,
    /// Whether a sync writes a record to a log on a separate device.
    pub(crate) log: bool,
    /// Whether new blocks are allocated as unwritten blocks. If `false`, the code of this file system writes the data of new blocks itself,
    /// without the direct-I/O core of the library.
    pub(crate) unwritten: bool,
}

impl Kind {
    pub(crate) const WHOLE: Self =
        Self { writes: true, resident: true, unwritten: true, second: Second::None, log: false };
}

impl MemFs {
    /// Creates an empty volume.
    pub(crate) fn new(device: Arc<dyn Device>, kind: Kind) -> Self {
        let far = if kind.second == Second::None { 0 } else { device.end().0 / BLOCK };
        let second = Segmented::REALTIME / BLOCK..far;
        let tree = Tree::new((0..device.size() / BLOCK).chain(second));
        Self { device, kind, tree: Arc::new(Mutex::new(tree)), gate: Arc::default() }
    }

    /// The same volume, opened with other options of the format.
    pub(crate) fn like(&self, kind: Kind) -> Self {
        Self { kind, ..self.clone() }
    }

    pub(crate) fn volume(&self) -> Volume {
        Volume::of(Arc::new(self.clone()), Arc::clone(&self.device))
    }

    /// Opens the volume again after a close.
    pub(crate) fn opened_again(&self) -> Volume {
        self.tree().ended = None;
        self.volume()
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the tree for a change.
    fn change(&self) -> Result<MutexGuard<'_, Tree>> {
        let tree = self.tree();
        let refused = if self.kind.writes { tree.ended } else { Some("opened read-only") };
        refused.map_or(Ok(tree), |why| Err(Error::new(ErrorKind::ReadOnly, why)))
    }

    /// Changes the content of a file with exclusive access. Before the change, updates the metadata for all earlier writes to the file.
    fn change_content<T>(
        &self,
        number: InodeNo,
        work: impl FnOnce(&mut OpenFile<'_>) -> Result<T>,
    ) -> Result<T> {
        let open = self.tree().open(number)?;
        // The order of locks: first the file, then the tree.
        let _alone = open.alone(0..u64::MAX)?;
        let mut tree = self.change()?;
        let mut file = tree.file(&*self.device, number)?;
        file.convert()?;
        let done = work(&mut file);
        open.changed();
        done
    }

    /// If data of a file were written since the last update of the file's metadata, updates these metadata.
    fn convert(&self, number: InodeNo) -> Result<()> {
        let waits = self.change()?.open(number)?.unconverted() != Unconverted::default();
        if waits { self.change_content(number, |_| Ok(())) } else { Ok(()) }
    }

    /// Lets a file share the blocks of another file, so that both files have the same content.
    pub(crate) fn reflink(&self, from: InodeNo, to: InodeNo) -> Result<()> {
        self.change_content(from, |_| Ok(()))?;
        let mut tree = self.change()?;
        let file = tree.file(&*self.device, from)?;
        let (size, shared) = (file.stat.size, file.blocks.share());
        let other = tree.file(&*self.device, to)?;
        (other.stat.size, *other.blocks) = (size, shared);
        for number in [from, to] {
            tree.node(number)?.open.changed();
        }
        Ok(())
    }

    /// Makes the data durable. Then writes the number of syncs to the log, if the volume has one.
    fn write_log(&self) -> Result<()> {
        self.device.flush()?;
        if !self.kind.log {
            return Ok(());
        }
        let mut tree = self.tree();
        tree.syncs += 1;
        let mut record = Buffer::aligned(BLOCK as usize)?;
        record[..8].copy_from_slice(&tree.syncs.to_le_bytes());
        let at = DevOffset(Segmented::JOURNAL + tree.syncs % LOG * BLOCK);
        self.device.write_all_at(&[IoSlice::new(&record)], at, true)
    }

    /// The newest record of the log.
    pub(crate) fn last_record(&self) -> u64 {
        let mut log = vec![0; (LOG * BLOCK) as usize];
        self.device.read_exact_at(&mut log, DevOffset(Segmented::JOURNAL)).unwrap();
        let record = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
        log.chunks(BLOCK as usize).map(record).max().unwrap()
    }

    /// From now on, refuses all changes.
    fn end(&self, why: &'static str) {
        let mut tree = self.tree();
        tree.ended = Some(why);
        tree.nodes.values().for_each(|node| node.open.changed());
    }
}

impl FileSystem for MemFs {
    fn format(&self) -> &'static str {
        "mem"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::XATTRS;
        can.set(Capabilities::WRITE | Capabilities::METADATA, self.kind.writes);
        can.set(Capabilities::FALLOCATE, self.kind.unwritten);
        can
    }

    fn root(&self) -> InodeNo {
        ROOT
    }

    fn usage(&self) -> Usage {
        let tree = self.tree();
        let (free, inodes) = (tree.free.len() as u64, tree.nodes.len() as u64);
        Usage::new(
            BLOCK as u32,
            self.device.size() / BLOCK,
            u32::MAX.into(),
            FreeSpace::new(free, free, u64::from(u32::MAX) - inodes),
        )
    }

    fn inode(&self, number: InodeNo) -> Result<Inode> {
        let inode = self.read(number)?;
        match inode.stat().links {
            0 => Err(Error::new(ErrorKind::NotFound, "the file has been removed")),
            _ => Ok(Inode::new(inode)),
        }
    }

    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()> {
        look(&self.read(number)?)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Inode> {
        let found = self.tree().lookup(dir, name)?;
        self.inode(found)
    }

    fn hold(&self, number: InodeNo) -> Result<Held> {
        Ok(Held::new(Open::new(self, number)?))
    }

    fn hold_read(&self, inode: Inode) -> Result<(Held, Inode)> {
        // Inode numbers are not reused.
        let held = self.hold(inode.number())?;
        let now = held.inode()?;
        Ok((held, now))
    }

    fn writer(&self) -> Option<&dyn Writer> {
        self.kind.writes.then_some(self as &dyn Writer)
    }

    fn sync(&self) -> Result<()> {
        let written = self.tree().unconverted();
        written.into_iter().try_for_each(|number| self.convert(number))?;
        self.write_log()
    }

    fn close(&self) -> Result<()> {
        self.sync()?;
        self.end("closed");
        Ok(())
    }
}

impl Writer for MemFs {
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<InodeNo> {
        self.change()?.create(dir, name, file, permissions, who)
    }

    fn create_held(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<Held> {
        self.hold(self.create(dir, name, file, permissions, who)?)
    }

    fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.change()?.link(inode, dir, name)
    }

    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.change()?.unlink(dir, name)
    }

    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.change()?.rmdir(dir, name)
    }

    fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        _who: &Credentials,
    ) -> Result<()> {
        self.change()?.rename(from, to, flags)
    }

    fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<()> {
        let mut tree = self.change()?;
        let node = tree.node_mut(number)?;
        let stat = &mut node.stat;
        if let Some(permissions) = set.permissions {
            stat.mode = stat.file_type.to_mode() | permissions;
        }
        stat.uid = set.uid.unwrap_or(stat.uid);
        stat.gid = set.gid.unwrap_or(stat.gid);
        stat.accessed = set.accessed.unwrap_or(stat.accessed);
        stat.modified = set.modified.unwrap_or(stat.modified);
        stat.changed = set.changed.unwrap_or(stat.changed);
        node.open.changed();
        Ok(())
    }

    fn setxattr(&self, number: InodeNo, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let mut tree = self.change()?;
        let xattrs = &mut tree.node_mut(number)?.xattrs;
        match (xattrs.contains_key(name), how) {
            (true, SetXattr::Create) => {
                Err(Error::new(ErrorKind::Exists, "the attribute is there"))
            }
            (false, SetXattr::Replace) => Err(no_attribute()),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    fn removexattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        let removed = self.change()?.node_mut(number)?.xattrs.remove(name);
        removed.map(drop).ok_or_else(no_attribute)
    }

    fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        self.change_content(number, |file| file.resize(size))
    }

    fn fallocate(&self, number: InodeNo, how: Fallocate, pos: FilePos, len: u64) -> Result<()> {
        if !self.kind.unwritten && how != Fallocate::Punch {
            return Err(Error::unsupported("to allocate unwritten blocks"));
        }
        let end = pos.0.checked_add(len).filter(|_| len > 0);
        let range = pos.0..end.ok_or_else(|| Error::invalid("an empty range"))?;
        self.change_content(number, |file| match how {
            Fallocate::Allocate { keep_size } => file.preallocate(range, keep_size),
            Fallocate::Punch => file.punch(range),
            Fallocate::Zero { keep_size } => {
                file.punch(range.clone())?;
                file.preallocate(range, keep_size)
            }
            Fallocate::Collapse => file.collapse(range),
            Fallocate::Insert => file.insert(range),
            _ => Err(Error::unsupported("this change of a range")),
        })
    }

    fn write(&self, number: InodeNo, pos: FilePos, bytes: &[u8]) -> Result<usize> {
        self.change_content(number, |file| file.write(pos.0, bytes))
    }

    fn strip_privileges(&self, number: InodeNo, keep: KeepSetId) -> Result<bool> {
        let mut tree = self.change()?;
        let node = tree.node_mut(number)?;
        let had = keep == KeepSetId::No && node.stat.mode & SET_ID != 0;
        if had {
            node.stat.mode &= !SET_ID;
            node.open.changed();
        }
        Ok(had)
    }
}

/// The set-user-id bit and the set-group-id bit.
const SET_ID: u32 = 0o6000;

fn no_attribute() -> Error {
    Error::new(ErrorKind::NoData, "no such attribute")
}
