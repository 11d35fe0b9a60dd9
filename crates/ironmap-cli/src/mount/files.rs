//! Open files: reads, writes, allocation and syncs.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{FileHandle, WriteFlags};
use ironmap::dio::DioFlags;
use ironmap::fs::{Access, Fallocate, Held, Inode, InodeFlags, KeepSetId};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Errno, ErrorKind, File, FileOptions};
use ironmap_image::transfer;

use super::fail::{Fail, Result};
use super::handles::OpenFile;
use super::lane::{Lane, MOST};
use super::names::check_named;
use super::{Asker, Atime, Mount};

/// Flags of `open`, with the values of Linux's `asm-generic/fcntl.h`. Most architectures use these values.
mod open_flags {
    pub(super) const ACCESS_MODE: i32 = 0o3;
    pub(super) const APPEND: i32 = 0o2000;
    pub(super) const TRUNCATE: i32 = 0o1000;
    pub(super) const DSYNC: i32 = 0o10000;
    pub(super) const SYNC: i32 = 0o4_010_000;
    pub(super) const NO_ATIME: i32 = 0o1_000_000;
    #[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
    pub(super) const DIRECT: i32 = 0o200_000;
    #[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
    pub(super) const DIRECT: i32 = 0o40_000;
}

/// Modes of `fallocate`.
mod mode {
    pub(super) const KEEP_SIZE: i32 = 0x1;
    pub(super) const PUNCH_HOLE: i32 = 0x2;
    pub(super) const COLLAPSE_RANGE: i32 = 0x8;
    pub(super) const ZERO_RANGE: i32 = 0x10;
    pub(super) const INSERT_RANGE: i32 = 0x20;
}

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// With `relatime`, a read updates an access time that is older than this number of seconds.
const DAY: i64 = 24 * 60 * 60;
/// The maximum number of bytes per `copy_file_range` request. Between two requests, a signal can interrupt the program.
const COPIED: u64 = 64 << 20;

/// The reply to an `open`.
pub(super) struct Opened {
    pub(super) handle: FileHandle,
    /// Whether the kernel bypasses its page cache for this file.
    pub(super) direct: bool,
}

impl Mount {
    /// Returns the options with which the server opens a file of the volume. On a writable volume, the server opens each file for writing,
    /// because the kernel checks what a program's descriptor permits. `write_back` means that the kernel writes cached pages of this file,
    /// in any order.
    fn file_options(&self, strict: bool, write_back: bool) -> FileOptions {
        let options = FileOptions::new().write(self.volume.fs().is_writable()).direct(strict);
        options.keep_set_id(KeepSetId::Yes).write_back(write_back)
    }

    pub(super) fn open(&self, inode: InodeNo, flags: i32) -> Result<Opened> {
        let held = self.fs().hold(inode)?;
        let inode = held.inode()?;
        check_named(&*inode)?;
        admit(&inode, flags)?;
        // With a writeback cache, the kernel sends complete pages. An append and an overwrite would then look the same. Therefore an
        // append-only file bypasses the cache.
        let around_cache = self.options.writeback && inode.flags().contains(InodeFlags::APPEND);
        let write_back = self.options.writeback && !around_cache;
        let file = self.volume.open_inode(inode, self.file_options(false, write_back))?;
        let open = OpenFile {
            writes: flags & open_flags::ACCESS_MODE != 0,
            no_atime: self.is_read_without_time(held.number(), flags),
            sync: self.nodes.get(held.number()).manner().sync,
            sync_flags: flags & open_flags::SYNC,
            held,
            file,
            strict: OnceLock::new(),
        };
        let handle = self.files.insert(open);
        Ok(Opened { handle, direct: around_cache || flags & open_flags::DIRECT != 0 })
    }

    /// The inodes that are open for writing, without duplicates.
    pub(super) fn open_for_writing(&self) -> HashSet<InodeNo> {
        let open = self.files.all();
        open.iter().filter(|open| open.writes).map(|open| open.held.number()).collect()
    }

    /// Whether an inode is open for writing. Only such an inode can have dirty pages in the kernel's cache.
    pub(super) fn is_open_for_writing(&self, inode: InodeNo) -> bool {
        self.files.any(|open| open.writes && open.held.number() == inode)
    }

    /// Whether a read of this inode through a descriptor with these flags leaves the access time unchanged.
    pub(super) fn is_read_without_time(&self, inode: InodeNo, flags: i32) -> bool {
        flags & open_flags::NO_ATIME != 0 || self.nodes.get(inode).manner().no_atime
    }

    /// Returns the `File` for a request with these flags. With `O_DIRECT`, this `File` has the alignment rules of `O_DIRECT`.
    fn way<'a>(&self, open: &'a OpenFile, flags: i32) -> Result<&'a File> {
        if flags & open_flags::DIRECT == 0 {
            return Ok(&open.file);
        }
        if let Some(strict) = open.strict.get() {
            return Ok(strict);
        }
        let strict = self.volume.open_inode(open.held.inode()?, self.file_options(true, false))?;
        Ok(open.strict.get_or_init(|| strict))
    }

    /// Reads, and passes the bytes to `reply`.
    pub(super) fn read<T>(
        &self,
        handle: FileHandle,
        pos: u64,
        len: usize,
        flags: i32,
        reply: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let open = self.files.get(handle)?;
        let file = self.way(&open, flags)?;
        let done = Lane::with(&self.volume, |lane| {
            let (queue, buffer) = lane.parts(len)?;
            let count = transfer::read(file, queue, buffer, FilePos(pos))?;
            if !open.no_atime {
                self.read_stamp(&open.held);
            }
            Ok(reply(&buffer[..count]))
        });
        Ok(done?)
    }

    /// Writes data. If the space runs out or the device fails after some bytes were written, the reply is a short count. There are two
    /// exceptions, in which the kernel does not pass a short count to the program.
    ///
    /// The first exception is a write of cached pages: the kernel checks only the errno of its reply. The second is an asynchronous direct
    /// write: the kernel changes a short reply to EIO. The request does not show whether the write is asynchronous. In both cases, the
    /// reply is the full count or an error.
    pub(super) fn write(
        &self,
        handle: FileHandle,
        pos: u64,
        data: &[u8],
        flags: i32,
        write_flags: WriteFlags,
    ) -> Result<usize> {
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // A write of cached pages comes from the kernel, not from a program. It need not be aligned, and need not be durable at once.
        let flags = if cached { 0 } else { flags };
        let direct = flags & open_flags::DIRECT != 0;
        let open = self.files.get(handle)?;
        if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.strip(open.held.number(), KeepSetId::No)?;
        }
        let file = self.way(&open, flags)?;
        let mut how = self.durability(&open, flags);
        how.set(DioFlags::WHOLE, direct);
        let done = Lane::with(&self.volume, |lane| {
            let (queue, buffer) = lane.parts(data.len())?;
            buffer.copy_from_slice(data);
            let mut done = 0;
            loop {
                let at = FilePos(pos + done as u64);
                let count = transfer::write(file, queue, &buffer[done..], at, how)?;
                done += count;
                if count == 0 || done == data.len() || !(cached || direct) {
                    return Ok(done);
                }
            }
        });
        self.nodes.get(open.held.number()).changed();
        match done? {
            done if done < data.len() && (cached || direct) => Err(Fail::new(Errno::EIO)),
            done => Ok(done),
        }
    }

    /// Removes set-id bits and capabilities. The kernel must then read the attributes again, because it has cached the mode.
    fn strip(&self, inode: InodeNo, keep: KeepSetId) -> Result<()> {
        if self.fs().writable()?.strip_privileges(inode, keep)? {
            self.nodes.get(inode).changed();
            self.forget_attributes(inode);
        }
        Ok(())
    }

    fn durability(&self, open: &OpenFile, flags: i32) -> DioFlags {
        if self.options.sync || flags & open_flags::SYNC == open_flags::SYNC {
            DioFlags::SYNC
        } else if open.sync || flags & open_flags::DSYNC != 0 {
            DioFlags::DSYNC
        } else {
            DioFlags::empty()
        }
    }

    pub(super) fn sync_file(&self, handle: FileHandle, data_only: bool) -> Result<()> {
        let open = self.files.get(handle)?;
        let file = &open.file;
        Ok(Lane::with(&self.volume, |lane| match data_only {
            true => file.sync_data(&mut lane.queue),
            false => file.sync(&mut lane.queue),
        })?)
    }

    pub(super) fn fallocate(
        &self,
        handle: FileHandle,
        pos: u64,
        len: u64,
        mode: i32,
        asker: Asker,
    ) -> Result<()> {
        let keep_size = mode & mode::KEEP_SIZE != 0;
        let how = match mode & !mode::KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            mode::PUNCH_HOLE if keep_size => Fallocate::Punch,
            mode::ZERO_RANGE => Fallocate::Zero { keep_size },
            mode::COLLAPSE_RANGE if !keep_size => Fallocate::Collapse,
            mode::INSERT_RANGE if !keep_size => Fallocate::Insert,
            _ => return Err(Fail::new(Errno::EOPNOTSUPP)),
        };
        let open = self.files.get(handle)?;
        let inode = open.held.number();
        let done =
            self.fs().writable().and_then(|writer| writer.fallocate(inode, how, FilePos(pos), len));
        if let Err(error) = &done {
            self.forget_pages(inode, pos, len);
            // If no space is left, the file keeps the bytes that were written. The result is their number.
            if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Quota) {
                return Ok(done?);
            }
        }
        self.strip(inode, asker.keeps_set_id())?;
        self.changed(&[inode])?;
        done?;
        match open.sync_flags {
            0 => Ok(()),
            _ => self.sync_file(handle, false),
        }
    }

    /// Returns the position of the first data, or of the first hole, at or after `pos`. A block that contains any data is reported as data
    /// completely, as in the kernel's ext4.
    pub(super) fn seek(&self, handle: FileHandle, pos: i64, whence: i32) -> Result<i64> {
        let open = self.files.get(handle)?;
        let (file, size) = (&open.file, open.file.size());
        let pos = u64::try_from(pos)
            .ok()
            .filter(|pos| *pos < size)
            .ok_or_else(|| Fail::new(Errno::ENXIO))?;
        let block = u64::from(self.fs().usage().block_size);
        let start = |pos: u64| pos / block * block;
        let data =
            |pos| Ok::<_, Fail>(file.seek_data(FilePos(start(pos)))?.map(|found| start(found.0)));
        let found = match whence {
            SEEK_DATA => data(pos)?.ok_or_else(|| Fail::new(Errno::ENXIO))?,
            SEEK_HOLE => {
                let mut hole = start(pos);
                while hole < size && data(hole)? == Some(hole) {
                    let end = file.seek_hole(FilePos(hole))?.map_or(size, |found| found.0);
                    hole = end.next_multiple_of(block);
                }
                hole.min(size)
            }
            _ => return Err(Fail::new(Errno::EINVAL)),
        };
        Ok(found.max(pos) as i64)
    }

    /// Copies data from one file to another. The data do not pass through the memory of the calling program. Returns the number of bytes,
    /// which may be less than `len`.
    pub(super) fn copy_range(
        &self,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        len: u64,
        asker: Asker,
    ) -> Result<u64> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(to.0)?);
        let inode = target.held.number();
        let len = len.min(COPIED);
        // The kernel does not remove set-id bits before a copy. Therefore the server removes them.
        if len > 0 && from.1 < source.file.size() {
            self.strip(inode, asker.keeps_set_id())?;
        }
        let durability = self.durability(&target, target.sync_flags);
        let mut done = 0;
        let copied = Lane::with(&self.volume, |lane| {
            while done < len {
                let (queue, buffer) = lane.parts((len - done).min(MOST as u64) as usize)?;
                let count = transfer::read(&source.file, queue, buffer, FilePos(from.1 + done))?;
                if count == 0 {
                    break;
                }
                let at = FilePos(to.1 + done);
                let written =
                    transfer::write(&target.file, queue, &buffer[..count], at, durability)?;
                done += written as u64;
                if written < count {
                    break;
                }
            }
            Ok(())
        });
        self.nodes.get(inode).changed();
        if !source.no_atime {
            self.read_stamp(&source.held);
        }
        if let Err(error) = copied {
            // Bytes after the reported count may have been written too. Their cached pages are dropped.
            self.forget_pages(inode, to.1 + done, len - done);
            if done == 0 {
                return Err(error.into());
            }
        }
        Ok(done)
    }

    /// Updates the access time after a read, if the mount's options require it.
    pub(super) fn read_stamp(&self, held: &Held) {
        if self.needs_read_stamp(held.number()) {
            held.stamp(Access::Read);
        }
    }

    /// Whether a read of an inode updates its access time at this moment.
    pub(super) fn needs_read_stamp(&self, number: InodeNo) -> bool {
        if self.options.atime == Atime::Never || self.no_times.load(Ordering::Relaxed) {
            return false;
        }
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        if self.options.atime == Atime::Relative {
            let node = self.nodes.get(number);
            if node.is_quiet(now) {
                return false;
            }
            node.quiet_until(now.saturating_add(DAY));
            let Ok(inode) = self.fs().inspect(number, |inode| Ok(inode.stat().clone())) else {
                node.changed();
                return false;
            };
            let (read, changed) = (inode.accessed, inode.modified.max(inode.changed));
            if read > changed && now.saturating_sub(read.seconds) < DAY {
                node.quiet_no_longer_than(read.seconds.saturating_add(DAY));
                return false;
            }
        }
        true
    }
}

/// Refuses to open an immutable file for writing. Refuses to open an append-only file for writing without `O_APPEND`. FUSE does not pass
/// these inode flags to the kernel, so the kernel cannot refuse the open.
fn admit(inode: &Inode, flags: i32) -> Result<()> {
    let writes = flags & open_flags::ACCESS_MODE != 0;
    let appends = flags & open_flags::APPEND != 0 && flags & open_flags::TRUNCATE == 0;
    let refused = inode.flags().contains(InodeFlags::IMMUTABLE)
        || inode.flags().contains(InodeFlags::APPEND) && !appends;
    if writes && refused { Err(Fail::new(Errno::EPERM)) } else { Ok(()) }
}
