//! The [`FileSystem`] implementation of ext4. Each method is one operation of [`Ext4`].

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::jbd2::CommitTimer;
use super::operation::{MayChange, Patience, WriteState};
use super::ops::{Ext4Held, check_file, check_name, check_removed};
use super::{Ext4, Ext4Listing, Incompat, Inode, ROOT, Superblock};
use crate::error::{Error, Result};
use crate::fs::check::{Progress, Report};
use crate::fs::deleted::Deleted;
use crate::fs::{
    self, Access, Capabilities, Credentials, DirCursor, Fallocate, FileOps, FileSystem, Follow,
    Footprint, Format, How, InodeFlags, InodeOps, KeepSetId, ListDir, NewFile, OnError, ReadDir,
    RenameFlags, SetAttributes, SetXattr, Stat, Usage, WriteCounts, Writer, Xattr,
};
use crate::iomap::{
    Begun, Contended, ExtentMap, Iomap, MapFile, Snapshot, Write, WriteAt, WriteFile, WriteIntent,
    WriteMap,
};
use crate::open_file::{self, OpenInode};
use crate::units::{FilePos, InodeNo};

/// The entry for ext4 in the table of file-system formats.
pub(crate) const FORMAT: Format = Format {
    name: "ext2, ext3 or ext4",
    is_on: Superblock::is_on,
    find_backup: super::rescue::find_backup,
    wanted_journal: Some(|device| {
        let sb = Ext4::superblock_of(device)?;
        let wanted = sb.incompat.contains(Incompat::RECOVER) && sb.has_external_journal();
        Ok(wanted.then_some(sb.journal_uuid))
    }),
    footprint: |device| {
        let sb = Ext4::superblock_of(device)?;
        let block_size = sb.block_size.bytes();
        Ok(Footprint { end: sb.blocks_count.saturating_mul(block_size as u64), block_size })
    },
    open: |device, events, how| {
        let fs = match how {
            How::Read => Ext4::open(device, events),
            How::Rescue(rescue) => Ext4::open_damaged(device, events, rescue),
            How::Write(clock) => Ext4::open_for_writing(device, events, clock),
        };
        fs.map(|fs| Arc::new(fs) as Arc<dyn FileSystem>)
    },
};

impl FileSystem for Arc<Ext4> {
    fn format(&self) -> &'static str {
        self.superblock.format()
    }

    fn capabilities(&self) -> Capabilities {
        use super::{Compat, RoCompat};
        let sb = &self.superblock;
        let mut can = Capabilities::FALLOCATE | Capabilities::FLAGS;
        can.set(Capabilities::WRITE | Capabilities::METADATA, self.is_writable());
        can.set(Capabilities::JOURNAL, sb.compat.contains(Compat::HAS_JOURNAL));
        can.set(Capabilities::XATTRS, sb.compat.contains(Compat::EXT_ATTR));
        can.set(Capabilities::PROJECTS, sb.ro_compat.contains(RoCompat::PROJECT));
        can
    }

    fn root(&self) -> InodeNo {
        ROOT
    }

    fn usage(&self) -> Usage {
        let sb = &self.superblock;
        Usage {
            block_size: sb.block_size.bytes() as u32,
            blocks: sb.blocks_count.saturating_sub(sb.overhead_blocks),
            inodes: sb.inodes_count.into(),
            free: self.free_space(),
        }
    }

    fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Ext4::check(self, progress)
    }

    fn deleted(&self) -> Result<Vec<Deleted>> {
        Ext4::deleted(self)
    }

    fn take_notices(&self) -> Vec<String> {
        self.take_left()
    }

    fn has_lost_names(&self, dir: InodeNo) -> bool {
        self.left.has_lost_names(dir)
    }

    fn tolerate_inodes(&self) {
        self.left.tolerate_inodes();
    }

    fn tolerated(&self, number: InodeNo) -> Option<String> {
        self.left.inode_fault(number)
    }

    fn used_inodes(
        &self,
        found: &mut dyn FnMut(InodeNo, Result<fs::Inode>) -> Result<()>,
    ) -> Result<()> {
        Ext4::used_inodes(self, found)
    }

    fn inode(&self, number: InodeNo) -> Result<fs::Inode> {
        Ext4::inode(self, number).map(fs::Inode::new)
    }

    fn look(
        &self,
        number: InodeNo,
        look: &mut dyn FnMut(&dyn InodeOps) -> Result<()>,
    ) -> Result<()> {
        self.inspect(number, |inode| look(inode))
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<fs::Inode> {
        Ext4::lookup(self, dir, name).map(fs::Inode::new)
    }

    fn resolve(&self, path: &[u8], follow: Follow) -> Result<fs::Inode> {
        Ext4::resolve(self, path, follow).map(fs::Inode::new)
    }

    fn hold(&self, number: InodeNo) -> Result<fs::Held> {
        Ext4::hold(self, number).map(fs::Held::new)
    }

    fn hold_read(&self, inode: fs::Inode) -> Result<(fs::Held, fs::Inode)> {
        let (held, now) = self.hold_decoded(inode.stat())?;
        Ok((fs::Held::new(held), now.map_or(inode, fs::Inode::new)))
    }

    fn writer(&self) -> Option<&dyn Writer> {
        Some(self)
    }

    fn sync(&self) -> Result<()> {
        self.sync_all()
    }

    fn close(&self) -> Result<()> {
        self.end_writing()
    }
}

impl Ext4 {
    /// Checks the name and the kind of a new file. The caller makes these checks before the checks of the volume, in the same order as
    /// Linux.
    fn check_new(&self, name: &[u8], file: NewFile<'_>) -> Result<()> {
        check_name(name)?;
        check_file(file, self.superblock.block_size.bytes())
    }
}

impl Writer for Arc<Ext4> {
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<InodeNo> {
        self.check_new(name, file)?;
        self.operate(|op| op.create(dir, name, file, permissions, who).map(|new| new.number()))
    }

    fn create_held(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<fs::Held> {
        self.check_new(name, file)?;
        self.operate(|op| {
            let new = op.create(dir, name, file, permissions, who)?;
            Ok(fs::Held::new(op.open_new(&new)))
        })
    }

    fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.operate(|op| op.link(inode, dir, name))
    }

    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.operate(|op| op.unlink(dir, name))
    }

    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_removed(name)?;
        self.operate(|op| op.rmdir(dir, name))
    }

    fn rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        who: &Credentials,
    ) -> Result<()> {
        self.operate(|op| op.rename(from, to, flags, who))
    }

    fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<()> {
        self.operate(|op| op.set_attributes(number, set))
    }

    fn set_flags(&self, number: InodeNo, flags: InodeFlags) -> Result<()> {
        self.operate(|op| op.set_flags(number, flags))
    }

    fn setxattr(&self, number: InodeNo, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.operate(|op| op.setxattr(number, name, value, how))
    }

    fn removexattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        self.operate(|op| op.removexattr(number, name))
    }

    fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        self.operate(|op| op.truncate(number, size))
    }

    fn fallocate(&self, number: InodeNo, how: Fallocate, pos: FilePos, len: u64) -> Result<()> {
        self.operate(|op| op.fallocate(number, how, pos, len))
    }

    fn write(&self, number: InodeNo, pos: FilePos, bytes: &[u8]) -> Result<usize> {
        let at = WriteAt::Pos(pos);
        let (_, count) = self.write_from(number, at, &[IoSlice::new(bytes)], false, false)?;
        Ok(count)
    }

    fn strip_privileges(&self, number: InodeNo, keep: KeepSetId) -> Result<bool> {
        // Most files have no set-ID bits and no capabilities. For these files, this check without a lock is enough.
        if !self.inspect(number, |inode| Ext4::has_privileges(inode, keep))? {
            return Ok(false);
        }
        self.operate(|op| op.strip_privileges(number, keep))
    }

    fn trim(&self, min_len: u64) -> Result<u64> {
        self.discard_free_space(min_len)
    }

    fn set_discard(&self, on: bool) -> Result<()> {
        self.discard_freed(on)
    }

    fn on_error(&self) -> OnError {
        self.superblock().on_error
    }

    fn write_counts(&self) -> WriteCounts {
        Ext4::write_counts(self)
    }

    fn commit_in_time(&self, interval: Duration) -> Result<open_file::CommitTimer> {
        Ok(open_file::CommitTimer::new(CommitTimer::start(self, interval)?))
    }
}

impl InodeOps for Inode {
    fn stat(&self) -> &Stat {
        Inode::stat(self)
    }

    fn is_internal(&self) -> bool {
        Inode::is_internal(self)
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        Inode::resident_map(self)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Inode::read_link(self)
    }

    fn xattrs(&self) -> Result<Vec<Xattr>> {
        Inode::xattrs(self)
    }

    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Inode::xattr(self, name)
    }

    fn lookup(&self, name: &[u8]) -> Result<fs::Inode> {
        Inode::lookup(self, name).map(fs::Inode::new)
    }

    fn read_dir(&self) -> Result<ReadDir<'_>> {
        Ok(Box::new(Inode::read_dir(self)?))
    }

    fn list(&self, from: DirCursor) -> Result<fs::Listing> {
        Ok(Box::new(Inode::list(self, from)?))
    }
}

impl ListDir for Ext4Listing {
    fn cursor(&self) -> DirCursor {
        Ext4Listing::cursor(self)
    }
}

impl FileOps for Ext4Held {
    fn number(&self) -> InodeNo {
        Ext4Held::number(self)
    }

    fn inode(&self) -> Result<fs::Inode> {
        Ext4Held::inode(self).map(fs::Inode::new)
    }

    fn stamp(&self, access: Access) {
        Ext4Held::stamp(self, access);
    }

    fn writes(self: Arc<Self>) -> Option<(Arc<OpenInode>, Arc<dyn WriteFile>)> {
        let state = Arc::clone(self.state()?);
        Some((Arc::clone(&state.inode), Arc::new(OpenForWriting { held: self, state })))
    }
}

/// An open file on a volume that is open for writing.
struct OpenForWriting {
    held: Arc<Ext4Held>,
    state: Arc<WriteState>,
}

/// A file's inode, in the state in which it was read.
struct WritableInode {
    inode: Inode,
    open: Arc<OpenInode>,
    /// `Some` if the file may have set-ID bits or capabilities that a write must remove.
    keep: Option<KeepSetId>,
}

impl WriteFile for OpenForWriting {
    fn read(&self, intent: WriteIntent) -> Result<Snapshot> {
        let (fs, number) = (self.held.fs(), self.held.number());
        let nowait = intent.contains(WriteIntent::NOWAIT);
        let _shared = if nowait { fs.try_share(number)? } else { fs.share(number) };
        let changes = self.state.inode.changes();
        fs.watch(|| {
            if nowait && !fs.has_inode(number)? {
                return Err(Error::would_block(
                    "the file's inode would have to be read from the device",
                ));
            }
            let inode = self.held.inode()?;
            inode.keep_small_map()?;
            let keep = KeepSetId::asked(intent);
            let mut plain = fs.admit_write(&inode, FilePos(0), 0, None).is_ok()
                && !inode.flags().contains(InodeFlags::APPEND)
                && !inode.has_inline_data();
            let mut privileged = None;
            if !plain || Ext4::has_privileges(&inode, keep)? {
                (plain, privileged) = (false, Some(keep));
            }
            let map =
                WritableInode { inode, open: Arc::clone(&self.state.inode), keep: privileged };
            Ok(Snapshot { changes, plain, map: Box::new(map) })
        })
    }

    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        let fs = self.held.fs();
        let _shared = fs.share(self.held.number());
        let changes = self.state.inode.changes();
        Ok((fs.watch(|| self.held.inode()?.map(pos, 1))?, changes))
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        let fs = self.held.fs();
        let shared = fs.share(self.held.number());
        let inode = fs.watch(|| self.held.inode())?;
        drop(shared);
        inode.read_inline(buf, pos)
    }

    fn size(&self) -> Result<u64> {
        let fs = self.held.fs();
        // The shared lock prevents a concurrent conversion of unwritten extents to written extents.
        let _shared = fs.share(self.held.number());
        let size = fs.watch(|| self.held.inode())?.size();
        Ok(size.max(self.state.inode.pending.size()))
    }

    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64> {
        self.held.fs().allocate_for_write(self.held.number(), &self.state, range, whole)
    }

    fn zero_tail(&self) -> Result<()> {
        self.held.fs().zero_past_end(self.held.number())
    }

    fn write_from(
        &self,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        intent: WriteIntent,
    ) -> Result<(FilePos, usize)> {
        let is_cache = intent.contains(WriteIntent::WRITE_BACK);
        let whole = intent.contains(WriteIntent::WHOLE);
        self.held.fs().write_from(self.held.number(), at, bufs, is_cache, whole)
    }

    fn convert(&self) -> Result<()> {
        self.held.fs().convert(self.held.number(), &self.state, Patience::Some)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.held.fs().sync_open(self.held.number(), &self.state, data_only)
    }

    fn is_durable(&self) -> bool {
        self.held.fs().map_is_durable(&self.state)
    }

    fn end_volume(&self, why: &Error, then: &mut dyn FnMut()) {
        self.held.fs().abort_then(why, then);
    }

    fn stamp_write(&self) {
        self.held.stamp(Access::Write);
    }

    fn contended(&self, what: Contended) {
        if let Ok(writing) = self.held.fs().writing() {
            match what {
                Contended::Waited => writing.counters.waited(),
                Contended::Alone => writing.counters.locked(),
            }
        }
    }
}

impl WriteMap for WritableInode {
    fn size(&self) -> u64 {
        self.inode.size()
    }

    fn resident_map(&self) -> Option<&Arc<ExtentMap>> {
        self.inode.resident_map()
    }

    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)> {
        let (fs, number) = (self.inode.file_system(), self.inode.number());
        fs.watch(|| {
            let _shared = fs.share(number);
            let changes = self.open.changes();
            let iomap = if changes != seen {
                fs.inode_or_orphan(number)?.map_by_leaf(pos)?
            } else if whole {
                self.inode.map(pos, 1)?
            } else {
                self.inode.map_by_leaf(pos)?
            };
            Ok((iomap, changes))
        })
    }

    fn begin(&self, write: &Write) -> Result<Begun> {
        let &Write { pos, len, size, zeroed, intent } = write;
        let (fs, inode) = (self.inode.file_system(), &self.inode);
        let (nowait, appends) =
            (intent.contains(WriteIntent::NOWAIT), intent.contains(WriteIntent::APPEND));
        let anywhere = appends || intent.contains(WriteIntent::WRITE_BACK);
        fs.admit_write(inode, pos, len, (!anywhere).then_some(size))?;
        if let Some(keep) = self.keep
            && Ext4::has_privileges(inode, keep)?
        {
            if nowait {
                return Err(would_change());
            }
            fs.strip_privileges(inode.number(), keep)?;
        }
        let grows = pos.0.saturating_add(len) > size;
        let has_extents = inode.flags().contains(InodeFlags::EXTENTS);
        if inode.has_inline_data() || appends && !has_extents {
            return if nowait { Err(would_change()) } else { Ok(Begun::ByFileSystem) };
        }
        if grows && nowait {
            return Err(would_change());
        }
        let block = fs.superblock().block_size.bytes() as u64;
        if pos.0 > size && !size.is_multiple_of(block) && zeroed != Some(size) {
            return Ok(Begun::ZeroTail);
        }
        Ok(Begun::Direct { allocates: has_extents })
    }
}

impl MapFile for WritableInode {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.inode.map(pos, len)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.inode.map_resident(pos)
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.inode.read_inline(buf, pos)
    }
}

fn would_change() -> Error {
    Error::would_block("the file's metadata would have to change")
}
