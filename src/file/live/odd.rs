//! Writes that do not begin and end with sectors, of handles that take them: the sectors at both ends are read, and nobody else is at the
//! range meanwhile.

use std::io::IoSlice;

use super::LiveFile;
use super::write::{Ready, SYNCED, cut, cut_from, would_change};
use crate::bio::{Buffer, Left};
use crate::device::with_queue;
use crate::dio::{self, DioFlags, Hold, How};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::Queue;
use crate::units::FilePos;

/// How much goes through memory at once, in bytes.
const PIECE: usize = 256 << 10;

/// What became of a piece that does not begin and end with sectors.
enum Odd {
    Written(usize),
    ByFileSystem,
    Gap(u64),
}

impl LiveFile {
    /// Writes what does not begin and end with sectors: the sectors at both ends are read, and nobody else is at the range meanwhile.
    pub(super) fn write_odd(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if flags.contains(DioFlags::NOWAIT) {
            return Err(would_change());
        }
        if flags.contains(DioFlags::ATOMIC) {
            return Err(Error::invalid("an atomic write that is not of whole sectors"));
        }
        let (mut done, mut zeroed) = (0, None);
        while done < len {
            let at = FilePos(pos.0 + done as u64);
            let count = PIECE.min(len - done);
            let piece = cut_from(bufs, done, count);
            match self.write_odd_piece(queue, &piece, at, count, flags, zeroed) {
                Ok(Odd::Written(count)) => done += count,
                Ok(Odd::Gap(size)) => {
                    self.zero_gap(queue)?;
                    zeroed = Some(size);
                }
                Ok(Odd::ByFileSystem) => {
                    let rest = cut_from(bufs, done, len - done);
                    return Ok(done + self.write_by_file_system(queue, &rest, at, flags)?);
                }
                Err(error) if done > 0 && error.kind() == ErrorKind::NoSpace => break,
                Err(error) => return Err(error),
            }
        }
        if flags.intersects(SYNCED) {
            self.sync(queue, !flags.contains(DioFlags::SYNC))?;
        }
        Ok(done)
    }

    fn write_odd_piece(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        len: usize,
        flags: DioFlags,
        zeroed: Option<u64>,
    ) -> Result<Odd> {
        let live = &*self.0;
        let (start, widened, _) = live.geometry.widen(pos, len);
        let ticket = live.open.content.ask(start.0..start.0.saturating_add(widened as u64), true);
        self.wait_for(queue, ticket, false)?;
        let hold = Hold::Range(ticket);
        let ready = self.prepare_held(queue, pos, len, flags - SYNCED, hold, zeroed);
        let written = ready.and_then(|ready| match ready {
            Ready::Gap(size) => Ok((Odd::Gap(size), false)),
            Ready::ByFileSystem => Ok((Odd::ByFileSystem, false)),
            Ready::Blocks { len, how, left, .. } => {
                let written = self.write_widened(queue, bufs, pos, len, how, left);
                self.end_extension(left, flags);
                Ok((Odd::Written(len), written?))
            }
        });
        self.leave(queue, hold);
        live.fs().writing()?.counters.locked();
        let (odd, full) = written?;
        if full {
            self.write_done(queue, flags);
        }
        Ok(odd)
    }

    /// Writes the sectors that hold a range, which nobody else is at.
    fn write_widened(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        len: usize,
        how: How,
        left: Left,
    ) -> Result<bool> {
        let live = &*self.0;
        let (start, widened, skip) = live.geometry.widen(pos, len);
        let mut buffer = Buffer::aligned(widened)?;
        self.read_edges(queue, &mut buffer, start, skip, len)?;
        copy(bufs, &mut buffer[skip..skip + len]);
        // Nobody else can reach this memory.
        let how = How { ours: true, ..how };
        let more = self.write_held(queue, &[IoSlice::new(&buffer)], start, how)?;
        let full = live.open.wrote(start, widened, (left | more) - Left::GROW);
        // The size is what was asked for, not what was written.
        live.open.wrote(pos, len, left & Left::GROW);
        Ok(full)
    }

    /// Reads the first and the last sector of a range, where the new bytes do not fill them.
    fn read_edges(
        &self,
        queue: &mut Queue,
        buffer: &mut [u8],
        start: FilePos,
        skip: usize,
        count: usize,
    ) -> Result<()> {
        let live = &*self.0;
        let sector = live.geometry.sector();
        let behind = skip + count;
        let last = behind / sector * sector;
        let mut edges = [None, None];
        if skip > 0 {
            edges[0] = Some(0);
        }
        if behind > last && !(skip > 0 && last == 0) {
            edges[1] = Some(last);
        }
        for edge in edges.into_iter().flatten() {
            let view = queue.views.current(&mut queue.state.lives, live, false)?;
            let target = view.target(live, None);
            let into = &mut buffer[edge..edge + sector];
            let at = FilePos(start.0 + edge as u64);
            with_queue!(&mut queue.device, device => {
                dio::read_now(device, &mut queue.state, &target, into, at, DioFlags::empty())
            })?;
        }
        Ok(())
    }
}

fn copy(bufs: &[IoSlice<'_>], into: &mut [u8]) {
    let mut at = 0;
    for part in cut(bufs, into.len()) {
        into[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
}
