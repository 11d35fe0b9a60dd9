//! Appends, and the ranges that they reserve past the end of the file. While the range of an append is reserved, the append has a shared
//! lock on the file's content. A thread that truncates the file or moves blocks needs an exclusive lock. So no range is reserved while a
//! thread has the exclusive lock.

use std::io::IoSlice;

use super::LiveFile;
use super::target::would_change;
use super::write::Lent;
use crate::bio::CompletionWork;
use crate::dio::{DioFlags, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::iomap::WriteAt;
use crate::queue::Queue;
use crate::units::FilePos;

impl LiveFile {
    /// Writes at the present end of the file. Returns the position of the first byte. Concurrent appends get consecutive positions.
    pub(in crate::file) fn append(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        flags: DioFlags,
    ) -> Result<FilePos> {
        let mut write = Lent::new(bufs, WriteAt::End, flags, Source::Lent);
        let (count, len) = (self.write_somewhere(queue, &mut write)?, write.len());
        if count == len {
            return Ok(write.pos);
        }
        let what = format!("only {count} of {len} bytes were appended");
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Returns the position of a write. For an append, reserves the range; [`end_place`](Self::end_place) releases it. The caller has
    /// locked the content.
    pub(super) fn place(&self, at: WriteAt, len: usize, flags: DioFlags) -> Result<FilePos> {
        if let WriteAt::Pos(pos) = at {
            return Ok(pos);
        }
        if flags.contains(DioFlags::NOWAIT) {
            return Err(would_change());
        }
        let open = &self.handle.inode;
        loop {
            let changes = open.changes();
            let size = self.handle.file.size()?;
            let is_old = || open.changes() != changes;
            if let Some(at) = open.pending.append(size, len as u64, is_old) {
                return Ok(FilePos(at));
            }
        }
    }

    /// Ends a write that has failed or was cancelled. The caller still has the content locked. Returns whether blocks may have been allocated
    /// for the write, so that the file should be converted soon.
    #[cold]
    pub(super) fn cancel(&self, pos: FilePos, len: usize, left: CompletionWork) -> bool {
        let allocates = self.handle.inode.cancelled(pos, len, left);
        self.end_place(left);
        allocates
    }

    /// Releases the reserved range of a write, after the write has extended the file or has failed. The caller still has the content
    /// locked.
    pub(super) fn end_place(&self, left: CompletionWork) {
        if left.contains(CompletionWork::RESERVED) {
            self.handle.inode.pending.place_ended();
        }
    }
}
