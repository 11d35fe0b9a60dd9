//! Writes that do not begin and end at sector boundaries. Direct handles refuse these writes. The sectors at both ends are read before the
//! write. The range is locked exclusively from this read until the write is complete.

use std::io::IoSlice;

use super::prepare::{Ready, SYNCED, Wanted};
use super::target::would_change;
use super::write::Lent;
use super::{Access, LiveFile};
use crate::bio::slices::{cut, within};
use crate::bio::{Buffer, CompletionWork};
use crate::dio::{self, DioFlags, Request, Source};
use crate::error::{Error, Result};
use crate::iomap::{Contended, WriteAt};
use crate::queue::Queue;
use crate::units::FilePos;

/// The largest number of bytes that are read and written in one step.
const PIECE: usize = 256 << 10;

/// The result of a write that does not begin and end at sector boundaries.
enum Unaligned {
    /// The number of bytes that were written, and whether the caller must now convert unwritten extents. The caller must do this if the
    /// file has many unwritten ranges that contain data.
    Written(usize, bool),
    /// The number of bytes that were written. The file system must write the rest.
    ByFileSystem(usize),
    Gap(u64),
}

impl LiveFile {
    /// Writes data that do not begin and end at sector boundaries. The sectors at both ends are read first. The range is locked exclusively
    /// during the read and the write. An append locks the whole content of the file.
    pub(super) fn write_unaligned(&self, queue: &mut Queue, write: &mut Lent<'_>) -> Result<usize> {
        let (at, len, flags) = (write.at, write.len(), write.flags);
        if flags.contains(DioFlags::NOWAIT) {
            return Err(would_change());
        }
        if flags.contains(DioFlags::ATOMIC) {
            return Err(Error::invalid("an atomic write must consist of whole sectors"));
        }
        let range = match at {
            WriteAt::End => at.range(0),
            WriteAt::Pos(pos) => {
                let (start, widened, _) = self.geometry.widen(pos, len);
                WriteAt::Pos(start).range(widened as u64)
            }
        };
        let mut zeroed = None;
        loop {
            let entered = self.enter(queue, range.clone(), Access::Exclusive, false)?;
            let written =
                self.write_unaligned_held(queue, write, Wanted { at, len, flags, zeroed });
            drop(entered);
            self.handle.file.contended(Contended::Alone);
            match written? {
                Unaligned::Gap(size) => {
                    self.zero_gap(queue)?;
                    zeroed = Some(size);
                }
                Unaligned::ByFileSystem(0) => return self.write_by_file_system(queue, write),
                Unaligned::ByFileSystem(done) => {
                    let bufs = cut(write.bufs, done..len);
                    let at = WriteAt::Pos(FilePos(write.pos.0 + done as u64));
                    let mut rest = Lent { bufs: &bufs, at, ..*write };
                    let written = self.write_by_file_system(queue, &mut rest);
                    return written.map(|count| done + count);
                }
                Unaligned::Written(count, full) => {
                    if full {
                        self.write_done(queue, flags);
                    }
                    if flags.intersects(SYNCED) {
                        self.sync(queue, !flags.contains(DioFlags::SYNC))?;
                    }
                    return Ok(count);
                }
            }
        }
    }

    fn write_unaligned_held(
        &self,
        queue: &mut Queue,
        write: &mut Lent<'_>,
        wanted: Wanted,
    ) -> Result<Unaligned> {
        let pos = self.place(wanted.at, wanted.len, wanted.flags)?;
        write.pos = pos;
        let written = self.write_pieces(queue, write.bufs, pos, wanted);
        if wanted.at == WriteAt::End {
            self.end_place(CompletionWork::RESERVED);
        }
        written
    }

    /// Writes a range piece by piece. The caller has an exclusive lock on the range.
    fn write_pieces(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        wanted: Wanted,
    ) -> Result<Unaligned> {
        let Wanted { len, flags, .. } = wanted;
        let (mut done, mut full) = (0, false);
        // With WHOLE, all data are one piece. Space for all data is then allocated before any byte is written.
        let most = if flags.contains(DioFlags::WHOLE) { len } else { PIECE };
        while done < len {
            let at = FilePos(pos.0 + done as u64);
            let count = most.min(len - done);
            let piece = Wanted { len: count, flags: flags - SYNCED, ..wanted };
            match self.prepare_held(queue, at, piece) {
                Ok(Ready::Blocks { request, left }) => {
                    let piece = cut(bufs, done..done + request.len);
                    full |= self.write_widened(queue, &piece, &request, left)?;
                    done += request.len;
                }
                Ok(Ready::Gap(size)) => return Ok(Unaligned::Gap(size)),
                Ok(Ready::ByFileSystem | Ready::Unaligned(_)) => {
                    return Ok(Unaligned::ByFileSystem(done));
                }
                Err(error) if done > 0 && error.is_for_space() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Unaligned::Written(done, full))
    }

    /// Writes the sectors that contain a range. The caller has an exclusive lock on the range. Returns whether the caller must now convert
    /// unwritten extents that contain data.
    fn write_widened(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        request: &Request,
        left: CompletionWork,
    ) -> Result<bool> {
        let Request { pos, len, .. } = *request;
        let (start, widened, skip) = self.geometry.widen(pos, len);
        let mut buffer = Buffer::aligned(widened)?;
        self.read_edges(queue, &mut buffer, start, skip, len)?;
        copy(bufs, &mut buffer[skip..skip + len]);
        // The buffer is not copied, because no other code can change it.
        let widened = Request { pos: start, len: widened, source: Source::Engine, ..*request };
        let written = self.write_held(queue, &[IoSlice::new(&buffer)], &widened);
        let written = written.inspect_err(|_| {
            self.handle.inode.cancelled(start, widened.len, left);
        })?;
        self.stamp_write();
        // The new size of the file is the end of the caller's bytes. The written sectors may end later.
        let end = left.contains(CompletionWork::GROW).then(|| pos.0 + len as u64);
        Ok(self.handle.inode.wrote(&written, end))
    }

    /// Reads the first and the last sector of a range. A sector that the new bytes fill completely is not read.
    fn read_edges(
        &self,
        queue: &mut Queue,
        buffer: &mut [u8],
        start: FilePos,
        skip: usize,
        count: usize,
    ) -> Result<()> {
        let sector = self.geometry.sector();
        let behind = skip + count;
        let last = behind / sector * sector;
        let first = (skip > 0).then_some(0);
        let last = (behind > last && first != Some(last)).then_some(last);
        for edge in first.into_iter().chain(last) {
            let request = Request::read(start + edge as u64, sector, DioFlags::empty());
            let Queue { device, state, views, .. } = &mut *queue;
            let target = self.target(views, &mut state.files, None, false)?;
            let into = &mut buffer[edge..edge + sector];
            dio::read_now(&mut device.through_table(), state, &target, into, &request)?;
        }
        Ok(())
    }
}

fn copy(bufs: &[IoSlice<'_>], into: &mut [u8]) {
    let mut at = 0;
    for part in within(bufs, 0..into.len()) {
        into[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}
