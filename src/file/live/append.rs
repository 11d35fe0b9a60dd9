//! Appends: their places beyond the end of the file. A place is taken and given back within the file's content, so that a thread that cuts or
//! moves that, and has it for himself, finds no place taken.

use std::io::IoSlice;

use super::LiveFile;
use super::write::{Lent, would_change};
use crate::bio::CompletionWork;
use crate::dio::{DioFlags, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::iomap::WriteAt;
use crate::queue::Queue;
use crate::units::FilePos;

impl LiveFile {
    /// Writes at the end of the file, wherever that is then; gives the position. Several appends at a time get consecutive places.
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

    /// Where a write goes whose content is held. An append has the place until it [ends](Self::end_place).
    pub(super) fn place(&self, at: WriteAt, len: usize, flags: DioFlags) -> Result<FilePos> {
        if let WriteAt::Pos(pos) = at {
            return Ok(pos);
        }
        if flags.contains(DioFlags::NOWAIT) {
            return Err(would_change());
        }
        let open = &self.0.open;
        loop {
            let changes = open.changes();
            let size = self.0.file.size()?;
            let is_old = || open.changes() != changes;
            if let Some(at) = open.pending.append(size, len as u64, is_old) {
                return Ok(FilePos(at));
            }
        }
    }

    /// Ends the place of a write that has made the file longer or was to, whose content is still held.
    pub(super) fn end_place(&self, left: CompletionWork) {
        if left.contains(CompletionWork::RESERVED) {
            self.0.open.pending.place_ended();
        }
    }
}
