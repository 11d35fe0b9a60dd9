//! Overwrites existing data. A write may replace only written blocks that belong to a single file, and changes no metadata. All other
//! writes would need a transaction in the log. They are refused with an error that names the reason.
//!
//! A write changes no extents, sizes or time stamps. Therefore the map of a file never changes, and a write accesses only the file's
//! blocks. In the map for writes, unwritten extents appear as holes, so the direct path never converts an unwritten extent. Extents that other
//! files share are marked in the map. If the map is too large to be in memory, each write to a reflinked file looks up its blocks in the
//! group's tree of shared blocks, which is cached.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::inode::XfsInode;
use super::shared_blocks::{SharedBlocks, overlap};
use super::{LogState, Superblock, Xfs};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{InodeFlags, KeepSetId};
use crate::iomap::{
    Begun, Extent, ExtentMap, ExtentState, Iomap, IomapType, MapFile, Snapshot, Write, WriteAt,
    WriteFile, WriteIntent, WriteMap,
};
use crate::open_file::{InFlight, OpenInode};
use crate::sync::{Cache, Mutex};
use crate::units::{FileBlock, FilePos, FsBlock, InodeNo};

/// The attribute that contains a file's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// The number of groups whose shared blocks are cached.
const SHARED_GROUPS: usize = 1024;

/// The state of a volume that is open for overwrites.
pub(super) struct Overwriting {
    /// Whether all writes are refused: the volume was closed, or an error occurred.
    ended: AtomicBool,
    /// Whether a close has completed: all data are durable. A close holds this lock until then, so a second close waits for the first.
    closed: Mutex<bool>,
    /// The open files, with the number of open handles.
    files: Mutex<BTreeMap<InodeNo, (Arc<OpenInode>, usize)>>,
    /// The shared blocks of each group, read at the first use. They do not change while the volume is open.
    shared: Cache<u32, SharedBlocks>,
}

impl Overwriting {
    /// Refuses a volume that needs recovery, or that has a feature for which ironmap supports only reads.
    pub(super) fn new(superblock: &Superblock, log: &LogState) -> Result<Self> {
        if log.recovered {
            let what =
                "the log of the XFS volume must be recovered first, by a mount or by xfs_repair";
            return Err(Error::read_only(what));
        }
        let unknown = superblock.ro_compat.unknown();
        if unknown != 0 {
            let what =
                format!("an XFS volume with the unknown features {unknown:#x} can only be read");
            return Err(Error::read_only(what));
        }
        let (ended, closed) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { ended, closed, files: Mutex::default(), shared: Cache::new(SHARED_GROUPS) })
    }

    /// Adds one open handle of the file to `files`.
    pub(super) fn open(&self, number: InodeNo) -> Arc<OpenInode> {
        let mut files = self.files.lock();
        let (open, users) = files.entry(number).or_default();
        *users += 1;
        Arc::clone(open)
    }

    fn closed(&self, number: InodeNo) {
        let mut files = self.files.lock();
        if let Some((_, users)) = files.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                files.remove(&number);
            }
        }
    }

    /// Refuses all further writes.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        // The change counters of the open files are also incremented, because requests on the direct path check only these counters.
        self.files.lock().values().for_each(|(open, _)| open.changed());
    }

    fn check(&self) -> Result<()> {
        match self.ended.load(Ordering::SeqCst) {
            true => Err(Error::read_only("the volume is closed, or an error has ended all writes")),
            false => Ok(()),
        }
    }
}

impl Xfs {
    /// Makes all written data durable. After an error, all later writes to the volume are refused, because the device may have lost any of
    /// the data.
    pub(super) fn flush(&self) -> Result<()> {
        let Some(overwriting) = &self.overwriting else { return Ok(()) };
        overwriting.check()?;
        self.metadata.flush().inspect_err(|_| overwriting.end())
    }

    /// Refuses new writes, waits for requests in flight, and makes the data durable. If a call fails, all later calls fail too.
    pub(super) fn end_writing(&self) -> Result<()> {
        let Some(overwriting) = &self.overwriting else { return Ok(()) };
        InFlight::none_here()?;
        let mut closed = overwriting.closed.lock();
        if *closed {
            return Ok(());
        }
        overwriting.end();
        let open: Vec<_> =
            overwriting.files.lock().values().map(|(open, _)| Arc::clone(open)).collect();
        for open in open {
            open.alone(0..u64::MAX)?;
        }
        // If an earlier error ended the writes, data may be lost. In this case, the flush returns the earlier error.
        self.metadata.flush()?;
        *closed = true;
        Ok(())
    }

    /// The parts of these blocks that belong to several files, in order. The caller passes blocks of one extent only.
    fn shared_within(
        &self,
        overwriting: &Overwriting,
        blocks: &Range<FsBlock>,
    ) -> Result<Vec<Range<FsBlock>>> {
        // All blocks of an extent are in the same group.
        let group = (blocks.start.0 / u64::from(self.superblock.geometry.group_blocks)) as u32;
        let shared = overwriting.shared.get_or_insert_with(&group, || self.read_shared(group))?;
        Ok(overlap(&shared, blocks).collect())
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = self.end_writing();
    }
}

/// An open file on a volume that accepts overwrites.
pub(super) struct OpenFile {
    inode: Arc<XfsInode>,
    open: Arc<OpenInode>,
    map: OnceLock<WrittenMap>,
}

/// The map of a file for writes and reads. Unwritten extents are holes in this map.
#[derive(Clone)]
struct WrittenMap {
    /// The complete map; `None` if the map is too large to be cached.
    resident: Option<Arc<ExtentMap>>,
    /// Whether some blocks may belong to other files too, and the map does not say which.
    may_share: bool,
    /// Whether the file has capabilities (a `security.capability` attribute). On Linux, a write removes the capabilities. `None` if the
    /// file's attributes cannot be read.
    has_capabilities: Option<bool>,
}

impl OpenFile {
    pub(super) fn new(inode: XfsInode, overwriting: &Overwriting) -> Self {
        let open = overwriting.open(inode.stat.inode);
        Self { inode: Arc::new(inode), open, map: OnceLock::new() }
    }

    pub(super) fn open_inode(&self) -> Arc<OpenInode> {
        Arc::clone(&self.open)
    }

    pub(super) fn fs(&self) -> &Arc<Xfs> {
        &self.inode.fs
    }

    pub(super) fn number(&self) -> InodeNo {
        self.inode.stat.inode
    }

    /// The map, which is read at the first use.
    fn written_map(&self) -> Result<&WrittenMap> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = self.inode.written_map()?;
        Ok(self.map.get_or_init(|| map))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Ok(overwriting) = self.inode.overwriting() {
            overwriting.closed(self.number());
        }
    }
}

impl XfsInode {
    fn overwriting(&self) -> Result<&Overwriting> {
        let overwriting = self.fs.overwriting.as_ref();
        overwriting.ok_or_else(|| Error::read_only("the volume was opened for reading only"))
    }

    fn written_map(&self) -> Result<WrittenMap> {
        let size = self.fs.superblock.geometry.block;
        // Reads do not need `has_capabilities`, so an error is ignored here. The check of a write reads the attributes again and returns
        // the error.
        let has_capabilities = self.has_capabilities().ok();
        let Some(whole) = self.resident()? else {
            let may_share = self.is_reflinked;
            return Ok(WrittenMap { resident: None, may_share, has_capabilities });
        };
        let is_written = |extent: &&Extent| extent.state == ExtentState::Written;
        if !self.is_reflinked && whole.extents().iter().all(|extent| is_written(&extent)) {
            let resident = Some(Arc::clone(whole));
            return Ok(WrittenMap { resident, may_share: false, has_capabilities });
        }
        let mut extents = Vec::new();
        for extent in whole.extents().iter().filter(is_written) {
            self.mark_shared(*extent, &mut extents)?;
        }
        let map = ExtentMap::new(extents, size);
        let map = map.map_err(|_| Error::invalid("the extents of the file are out of order"))?;
        Ok(WrittenMap { resident: Some(Arc::new(map)), may_share: false, has_capabilities })
    }

    /// Adds an extent to a list, cut at the borders of its shared parts. If the tree of shared blocks cannot be read, the whole extent counts
    /// as shared, so that no write changes it.
    fn mark_shared(&self, extent: Extent, extents: &mut Vec<Extent>) -> Result<()> {
        if !self.is_reflinked {
            extents.push(extent);
            return Ok(());
        }
        let blocks = extent.start..FsBlock(extent.start.0 + u64::from(extent.len));
        let shared = match self.fs.shared_within(self.overwriting()?, &blocks) {
            Ok(shared) => shared,
            Err(_) => vec![blocks.clone()],
        };
        let mut at = blocks.start;
        let mut add = |to: FsBlock, state| {
            if at < to {
                let first = FileBlock(extent.first.0 + (at.0 - extent.start.0));
                extents.push(Extent { first, start: at, len: (to.0 - at.0) as u32, state });
                at = to;
            }
        };
        for part in shared {
            add(part.start, ExtentState::Written);
            add(part.end, ExtentState::Shared);
        }
        add(blocks.end, ExtentState::Written);
        Ok(())
    }

    fn has_capabilities(&self) -> Result<bool> {
        Ok(self.xattrs()?.iter().any(|xattr| xattr.name == CAPABILITY))
    }

    /// Refuses a write if the file's type, flags or privileges do not permit the write. The error names the reason.
    fn check_writes(&self, intent: WriteIntent, has_capabilities: Option<bool>) -> Result<()> {
        let refuse = |what| Err(Error::new(ErrorKind::NotPermitted, what));
        let flags = InodeFlags::from_bits_retain(self.stat.flags);
        if self.is_metadata {
            return refuse("the file is the file system's own metadata");
        }
        if self.data.is_realtime {
            return Err(Error::unsupported("realtime files of XFS cannot be written"));
        }
        if flags.contains(InodeFlags::IMMUTABLE) {
            return refuse("the file is immutable");
        }
        if flags.contains(InodeFlags::APPEND) && !intent.contains(WriteIntent::WRITE_BACK) {
            return refuse("the file is append-only");
        }
        let (mode, keep) = (self.stat.mode, KeepSetId::asked(intent));
        if keep.of(mode) != mode || has_capabilities.map_or_else(|| self.has_capabilities(), Ok)? {
            let what = "a write to an XFS file cannot remove its set-id bits or capabilities";
            return Err(Error::unsupported(what));
        }
        Ok(())
    }

    /// Refuses a write to a range within the file if any block of the range is unwritten or shared with other files.
    fn check_range(&self, range: Range<u64>) -> Result<()> {
        let (size, mut at) = (self.fs.superblock.geometry.block, FilePos(range.start));
        let refuse = |at: FilePos, what: &str| {
            let number = self.stat.inode;
            Err(Error::unsupported(format!(
                "inode {number}, byte {at}: an XFS file cannot be written here, because the range contains {what}"
            )))
        };
        while at.0 < range.end {
            let iomap = self.map(at, range.end - at.0)?;
            match iomap.kind {
                IomapType::Mapped => {}
                IomapType::Unwritten => return refuse(at, "an extent that was never written"),
                IomapType::Hole | IomapType::Inline => return refuse(at, "a hole"),
            }
            let end = iomap.end().min(FilePos(range.end));
            if self.is_reflinked {
                let first = size.fs_block_of(iomap.addr_of(at));
                let last = size.fs_block_of(iomap.addr_of(FilePos(end.0 - 1)));
                if !self
                    .fs
                    .shared_within(self.overwriting()?, &(first..FsBlock(last.0 + 1)))?
                    .is_empty()
                {
                    return refuse(at, "blocks shared with other files");
                }
            }
            at = end;
        }
        Ok(())
    }
}

impl WriteFile for OpenFile {
    fn read(&self, intent: WriteIntent) -> Result<Snapshot> {
        if intent.contains(WriteIntent::NOWAIT) && self.map.get().is_none() {
            return Err(Error::would_block("the file's map would have to be read"));
        }
        let changes = self.open.changes();
        let map = self.written_map()?.clone();
        let plain = self.inode.overwriting()?.check().is_ok()
            && !map.may_share
            && self.inode.check_writes(intent, map.has_capabilities).is_ok();
        let map = Overwritten { inode: Arc::clone(&self.inode), open: self.open_inode(), map };
        Ok(Snapshot { changes, plain, map: Box::new(map) })
    }

    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        Ok((self.inode.map(pos, 1)?, self.open.changes()))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.inode.stat.size)
    }

    fn allocate(&self, _range: Range<u64>, _whole: bool) -> Result<u64> {
        Err(needs_log())
    }

    fn zero_tail(&self) -> Result<()> {
        Err(needs_log())
    }

    fn write_from(
        &self,
        _at: WriteAt,
        _bufs: &[IoSlice<'_>],
        _intent: WriteIntent,
    ) -> Result<(FilePos, usize)> {
        Err(needs_log())
    }

    fn convert(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        self.inode.fs.flush()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn end_volume(&self, _why: &Error, then: &mut dyn FnMut()) {
        if let Ok(overwriting) = self.inode.overwriting() {
            overwriting.end();
        }
        then();
    }
}

/// The error of the map operations that need a transaction. [`WriteMap::begin`] refuses all writes that need a transaction, so these
/// operations are never called.
fn needs_log() -> Error {
    Error::unsupported("a write to an XFS volume cannot change metadata")
}

/// An open file with its map, in the form that a queue uses.
struct Overwritten {
    inode: Arc<XfsInode>,
    open: Arc<OpenInode>,
    map: WrittenMap,
}

impl WriteMap for Overwritten {
    fn size(&self) -> u64 {
        self.inode.stat.size
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.map.resident.as_ref()
    }

    fn map_now(&self, pos: FilePos, _seen: u64, _whole: bool) -> Result<(Iomap, u64)> {
        Ok((MapFile::map(self, pos, 1)?, self.open.changes()))
    }

    fn begin(&self, write: &Write) -> Result<Begun> {
        let &Write { pos, len, size, intent, .. } = write;
        self.inode.overwriting()?.check()?;
        self.inode.check_writes(intent, self.map.has_capabilities)?;
        let end = pos.0.saturating_add(len);
        if end > size || intent.contains(WriteIntent::APPEND) {
            let number = self.inode.stat.inode;
            let what = format!(
                "inode {number}: an XFS file of {size} bytes cannot be written past the end"
            );
            return Err(Error::unsupported(what));
        }
        if intent.contains(WriteIntent::NOWAIT) && self.map.resident.is_none() {
            return Err(Error::would_block("the file's map would have to be read"));
        }
        self.inode.check_range(pos.0..end)?;
        Ok(Begun::Direct { allocates: false })
    }
}

impl MapFile for Overwritten {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        if let Some(iomap) = self.map_resident(pos) {
            return Ok(iomap);
        }
        let iomap = self.inode.map(pos, len)?;
        let kind = if iomap.kind == IomapType::Unwritten { IomapType::Hole } else { iomap.kind };
        Ok(Iomap { kind, ..iomap })
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.map.resident.as_ref().map(|map| map.lookup(pos))
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.inode.read_inline(buf, pos)
    }
}
