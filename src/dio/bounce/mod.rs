//! Copies data through bounce buffers, which are memory of the queue. There are two reasons for a copy: the device refuses the address of
//! the caller's memory, or other code could change this memory during the transfer.
//!
//! A bounce buffer is also called a piece. A request takes one piece after another from the queue's [pool](Pool), so a small pool is enough
//! for a large request. If no piece is free, the request waits until other requests complete. The queue's own thread makes all copies.

mod pool;
pub(super) mod short;

use std::io::{IoSlice, IoSliceMut};
use std::ops::DerefMut;

use smallvec::SmallVec;

pub(super) use self::pool::{PIECE, Pool, is_long, room_for};

use super::parts::{Buffers, copy};
use super::transfer::TransferTo;
use super::{Io, Request, State, Target};
use crate::bio::slices::{within, within_mut};
use crate::bio::{BioFlags, Buffer, Memory};
use crate::device::LentPart;
use crate::error::{Errno, Error, Result};
use crate::iomap::MapFile;
use crate::units::{DevOffset, FilePos};

impl Io<'_> {
    /// Takes bounce buffers for `len` bytes in total from the pool. If too few are free, waits until other requests complete.
    pub(super) fn take_pieces(&mut self, len: usize, nowait: bool) -> Result<Buffers> {
        let mut pieces = Buffers::new();
        let mut rest = len;
        if room_for(len) > self.state.pool.limit() {
            // Only an atomic write can exceed the limit of the pool, because it needs all of its bounce buffers at the same time. Every
            // other request takes one bounce buffer after another.
            let what = format!(
                "an atomic write of {len} unaligned bytes exceeds the total size of the bounce buffers"
            );
            return Err(Error::io(Errno::EOPNOTSUPP, what));
        }
        while rest > 0 {
            let taken = match self.state.pool.take(self.queue, rest) {
                Ok(Some(piece)) => {
                    rest -= piece.len();
                    pieces.push(piece);
                    continue;
                }
                Ok(None) if nowait => Err(Error::would_block("no bounce buffer is free")),
                Ok(None) if self.queue.in_flight() == 0 => Err(Error::io(
                    Errno::ENOMEM,
                    format!("cannot allocate {len} bytes of bounce buffers"),
                )),
                Ok(None) => self.pump(),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.give_pieces(pieces);
                return Err(error);
            }
        }
        Ok(pieces)
    }

    pub(super) fn give_pieces(&mut self, pieces: impl IntoIterator<Item = Buffer>) {
        pieces.into_iter().for_each(|piece| self.state.pool.give(self.queue, piece));
    }

    /// Returns the bounce buffers in the memory of a bio to the pool.
    #[inline(always)]
    pub(super) fn give_memory(&mut self, memory: Memory) {
        match memory {
            Memory::Flat(piece) => self.state.pool.give(self.queue, piece),
            Memory::Vectored(pieces) => self.give_pieces(pieces),
        }
    }

    /// Submits the queued bios, so that the device carries them out while data are copied to the next bounce buffer.
    pub(super) fn hand_over(&mut self) {
        // If the submission fails, the requests stay queued, and the next wait returns the error.
        let _ = self.queue.commit();
    }

    /// Reads any range into memory at any address, through bounce buffers. The position must be before the end of the file.
    pub(super) fn read_bounced<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
    ) -> Result<usize> {
        self.state.stats.bounced += 1;
        let want = target.span(request).count;
        let mut done = 0;
        while done < want {
            let here = FilePos(request.pos.0 + done as u64);
            let (start, widened, skip) = target.geometry.widen(here, want - done);
            let len = target.uncut(start, self.state.pool.transfer(widened), request.is_nowait());
            let mut pieces = self.take_pieces(len, request.is_nowait())?;
            let widened = Request { pos: start, len, ..*request };
            let mut slices: SmallVec<[_; 2]> =
                pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let result = self.read_aligned(target, &mut slices, &widened);
            drop(slices);
            if let Ok(count) = result {
                let count = count.min(skip + want - done) - skip;
                copy(within(&pieces, skip..skip + count), within_mut(bufs, done..done + count));
                done += count;
            }
            self.give_pieces(pieces);
            result?;
        }
        Ok(done)
    }

    /// Writes borrowed memory through bounce buffers. An atomic write is one transfer.
    pub(super) fn write_bounced(
        &mut self,
        to: TransferTo,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        failed: impl Fn(&State, Errno) -> Error,
    ) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let atomic = to.flags.contains(BioFlags::ATOMIC);
        let mut done = 0;
        while done < len {
            let count = if atomic { len } else { self.state.pool.transfer(len - done) };
            let mut pieces = self.take_pieces(count, to.flags.contains(BioFlags::NOWAIT))?;
            copy(within(bufs, done..done + count), within_mut(&mut pieces, 0..count));
            let slices: SmallVec<[_; 2]> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let result = self.write_all(to, &slices, DevOffset(at.0 + done as u64));
            drop(slices);
            self.give_pieces(pieces);
            result.map_err(|errno| failed(self.state, errno))?;
            done += count;
        }
        Ok(())
    }

    /// Repeats a read whose data did not match their checksums. The data are read into a bounce buffer that no other code can change, and
    /// are then copied. This buffer is reserved for repeats, so a repeat never waits for a free buffer.
    #[cold]
    pub(super) fn reread(
        &mut self,
        to: TransferTo,
        at: DevOffset,
        bufs: &mut [impl DerefMut<Target = [u8]>],
    ) -> Result<(), Errno> {
        self.state.stats.reread += 1;
        let to = TransferTo { flags: to.flags - BioFlags::REREAD, ..to };
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut piece = self.state.pool.take_last().map_err(|_| Errno::ENOMEM)?;
        let (mut done, mut result) = (0, Ok(()));
        while done < len && result.is_ok() {
            let count = PIECE.min(len - done);
            let slice = IoSliceMut::new(&mut piece[..count]);
            let part = LentPart::new([slice].into_iter().collect(), DevOffset(at.0 + done as u64));
            result = self.read_parts(to, [part].into_iter().collect());
            if result.is_ok() {
                let from = std::iter::once(&piece[..count]);
                copy(from, within_mut(bufs, done..done + count));
            }
            done += count;
        }
        self.state.pool.give_last(piece);
        result
    }
}
