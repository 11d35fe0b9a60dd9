//! Appends, and their places beyond the end of the file. A place is taken and given back while the file's content is held. So a thread that
//! truncates the file or moves its blocks, and holds the content exclusively, finds no place taken.

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
    /// Writes at the current end of the file; returns the position. Concurrent appends get consecutive places.
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
        let what = format!("{count} of {len} bytes were appended");
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// The position of a write whose content is held. An append keeps its place until it [ends](Self::end_place).
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

    /// Ends the place of a write that has made or should have made the file longer. Its content is still held.
    pub(super) fn end_place(&self, left: CompletionWork) {
        if left.contains(CompletionWork::RESERVED) {
            self.handle.inode.pending.place_ended();
        }
    }
}
