//! Appends: their places beyond the end of the file. A place is taken and given back within the file's content, so that a thread that cuts or
//! moves that, and has it for himself, finds no place taken.

use std::io::IoSlice;

use super::LiveFile;
use super::write::would_change;
use crate::bio::{CompletionWork, Memory};
use crate::dio::{DioFlags, Rejected};
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
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut place = FilePos(0);
        match self.write_somewhere(queue, bufs, WriteAt::End, flags, &mut place)? {
            count if count == len => Ok(place),
            count => {
                let what = format!("{count} of {len} bytes were appended");
                Err(Error::new(ErrorKind::NoSpace, what))
            }
        }
    }

    pub(in crate::file) fn submit_append(
        &self,
        queue: &mut Queue,
        memory: Memory,
        flags: DioFlags,
        token: u64,
    ) -> Result<FilePos, Box<Rejected>> {
        self.submit_somewhere(queue, memory, WriteAt::End, flags, token)
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
