//! The bounce buffers of one queue: pieces in a few sizes, with a limit on their total size. Each piece is registered with the device's
//! queue, because many requests use the same piece. The pool hands out the piece that was returned last, because its memory is probably
//! still in the processor's caches.

use crate::bio::Buffer;
use crate::device::DeviceQueue;
use crate::error::Result;
use crate::sys::copy;

/// The sizes of bounce buffers (pieces), in bytes. A request uses the smallest piece that is large enough. If no piece is large enough, the
/// request uses several pieces.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, PIECE, LARGE];
/// One of the bounce buffer sizes, in bytes. A transfer that is shorter than [`LARGE`] uses bounce buffers of at most this size. The limit
/// of a pool is at least this size.
pub(in crate::dio) const PIECE: usize = 64 << 10;
/// The size of the largest bounce buffer. At this size, the fixed cost of a request is negligible, but a pool still contains several of
/// these buffers, so that the device always has a request to work on.
const LARGE: usize = 4 * PIECE;
/// A pool uses bounce buffers of the size [`LARGE`] only if its limit is at least this many bytes.
const ROOMY: usize = 4 * LARGE;
/// The default limit of the total size of a queue's bounce buffers, in bytes.
const LIMIT: usize = 2 << 20;

/// A copy of at most this many bytes takes no longer than the submission of a request or a wait for a completion.
const SLIGHT: usize = SIZES[1];

/// The bounce buffers of a queue. A buffer is allocated when a request first needs it.
#[derive(Debug)]
pub(in crate::dio) struct Pool {
    limit: usize,
    /// The total size of all bounce buffers. The field `used` is the total size of the bounce buffers in use.
    bytes: usize,
    used: usize,
    /// The number of bounce buffers in use that are larger than [`SLIGHT`].
    long: usize,
    /// The unused bounce buffers, grouped by the index of their size in [`SIZES`].
    idle: [Vec<Buffer>; SIZES.len()],
    /// The reserved bounce buffer. Repeated reads use this buffer, because they cannot wait for other requests. Synchronous writes use it
    /// too.
    last: Option<Buffer>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { limit: LIMIT, bytes: 0, used: 0, long: 0, idle: Default::default(), last: None }
    }
}

/// Returns the index of the smallest size that is at least `len` bytes or, if no size is large enough, the index of the largest size.
#[inline]
fn class(len: usize) -> usize {
    match len {
        0..=0x1000 => 0,
        0x1001..=0x4000 => 1,
        0x4001..LARGE => 2,
        _ => 3,
    }
}

/// Whether a copy of `len` bytes takes long. During a long copy, the device should be working on other requests.
#[inline]
pub(in crate::dio) fn is_long(len: usize) -> bool {
    len > SLIGHT
}

/// Returns the total size of the bounce buffers that [`Pool::take`] returns for a transfer of `len` bytes.
pub(in crate::dio) fn room_for(len: usize) -> usize {
    let tail = len % PIECE;
    let rest = if tail > 0 { SIZES[class(tail)] } else { 0 };
    len - tail + rest
}

/// Restores the full length of a bounce buffer, and returns the index of this length in [`SIZES`].
fn regain(piece: &mut Buffer) -> usize {
    // All parts of the bounce buffer were joined or dropped, so the buffer can be restored to its full length.
    let whole = piece.regain();
    debug_assert!(whole, "a part of a piece is still in use");
    class(piece.len())
}

impl Pool {
    /// Sets the limit of the total size of the bounce buffers. The limit is rounded down to a multiple of [`PIECE`], and is at least
    /// [`PIECE`].
    pub(in crate::dio) fn set_limit(&mut self, queue: &mut dyn DeviceQueue, limit: usize) {
        self.limit = (limit / PIECE).max(1) * PIECE;
        self.shrink_to(queue, self.limit);
    }

    pub(in crate::dio) fn limit(&self) -> usize {
        self.limit
    }

    /// The total size of all bounce buffers, in use or not.
    pub(in crate::dio) fn bytes(&self) -> usize {
        self.bytes + self.last.as_ref().map_or(0, |last| last.len())
    }

    /// The number of bytes that can be taken without waiting.
    pub(in crate::dio) fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    /// Whether a bounce buffer in use is so large that copying it takes more time than a submission.
    #[inline]
    pub(in crate::dio) fn has_long(&self) -> bool {
        self.long > 0
    }

    /// Returns the size of the next bounce buffer of a request of which `len` bytes remain.
    pub(in crate::dio) fn next(&self, len: usize) -> usize {
        if len >= LARGE && self.limit >= ROOMY { LARGE } else { len.min(PIECE) }
    }

    /// Returns the number of bytes that the next transfer of borrowed memory copies if `len` bytes remain. The limit is one large piece or
    /// twice [`PIECE`].
    pub(in crate::dio) fn transfer(&self, len: usize) -> usize {
        self.next(len).max(len.min(2 * PIECE)).min(self.limit)
    }

    /// Takes a bounce buffer from the pool. [`next`](Self::next) determines the size of the buffer. Returns `None` if a new buffer would
    /// exceed the limit.
    pub(in crate::dio) fn take(
        &mut self,
        queue: &mut dyn DeviceQueue,
        len: usize,
    ) -> Result<Option<Buffer>> {
        let len = self.next(len);
        if let Some(piece) = self.take_idle(len) {
            return Ok(Some(piece));
        }
        let size = SIZES[class(len)];
        if size > self.free() {
            return Ok(None);
        }
        let mut piece = self.make(queue, size)?;
        self.used += size;
        self.long += usize::from(is_long(size));
        piece.truncate(len);
        Ok(Some(piece))
    }

    /// Takes an unused bounce buffer that is already allocated and large enough for `len` bytes.
    #[inline(always)]
    pub(super) fn take_idle(&mut self, len: usize) -> Option<Buffer> {
        let class = class(len);
        let used = self.used + SIZES[class];
        if used > self.limit {
            return None;
        }
        let mut piece = self.idle[class].pop()?;
        self.used = used;
        self.long += usize::from(is_long(SIZES[class]));
        piece.truncate(len);
        Some(piece)
    }

    #[cold]
    fn make(&mut self, queue: &mut dyn DeviceQueue, size: usize) -> Result<Buffer> {
        self.shrink_to(queue, self.limit - size);
        let mut piece = Buffer::aligned(size)?;
        queue.register_one(&mut piece);
        self.bytes += size;
        Ok(piece)
    }

    #[inline(always)]
    pub(in crate::dio) fn give(&mut self, queue: &mut dyn DeviceQueue, mut piece: Buffer) {
        let whole = SIZES.iter().position(|size| *size == piece.len());
        let class = whole.unwrap_or_else(|| regain(&mut piece));
        self.used -= SIZES[class];
        self.long -= usize::from(is_long(SIZES[class]));
        self.idle[class].push(piece);
        if self.bytes > self.limit {
            self.shrink_to(queue, self.limit);
        }
    }

    /// Frees unused bounce buffers until the total size of all bounce buffers is at most `bytes` or no unused buffer remains.
    #[cold]
    fn shrink_to(&mut self, queue: &mut dyn DeviceQueue, bytes: usize) {
        for (idle, size) in self.idle.iter_mut().zip(SIZES) {
            while self.bytes > bytes
                && let Some(mut piece) = idle.pop()
            {
                queue.unregister_one(&mut piece);
                self.bytes -= size;
            }
        }
    }

    /// Copies memory to the reserved bounce buffer. The next call overwrites this copy. Returns `None` if the memory is longer than a
    /// [`PIECE`], or if the buffer cannot be allocated.
    #[inline(always)]
    pub(in crate::dio) fn own_copy(&mut self, of: &[u8]) -> Option<&[u8]> {
        if of.len() > PIECE {
            return None;
        }
        if self.last.is_none() {
            self.make_last()?;
        }
        let copied = self.last.as_mut()?.get_mut(..of.len())?;
        copy(of, copied);
        Some(copied)
    }

    #[cold]
    fn make_last(&mut self) -> Option<()> {
        self.last = Some(Buffer::aligned(PIECE).ok()?);
        Some(())
    }

    /// Takes the reserved bounce buffer for a repeated read.
    pub(in crate::dio) fn take_last(&mut self) -> Result<Buffer> {
        self.last.take().map_or_else(|| Buffer::aligned(PIECE), Ok)
    }

    pub(in crate::dio) fn give_last(&mut self, piece: Buffer) {
        self.last = Some(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BoundedQueue, Device, Null, QueueOptions};

    fn queue() -> BoundedQueue {
        Null::new(1 << 20).queue(&QueueOptions::default()).unwrap()
    }

    #[test]
    fn pieces_are_bounded_together_and_used_again() {
        let (mut pool, mut queue) = (Pool::default(), queue());
        pool.set_limit(&mut queue, 2 * PIECE);
        let large = pool.take(&mut queue, 1 << 20).unwrap().unwrap();
        assert_eq!((large.len(), pool.free()), (PIECE, PIECE));
        let small: Vec<_> = (0..16).map(|_| pool.take(&mut queue, 512).unwrap().unwrap()).collect();
        assert!(small.iter().all(|piece| piece.len() == 512));
        assert!(pool.take(&mut queue, 1).unwrap().is_none());
        assert_eq!(pool.bytes(), 2 * PIECE);
        let address = large.address();
        pool.give(&mut queue, large);
        let again = pool.take(&mut queue, PIECE - 1).unwrap().unwrap();
        assert_eq!((again.address(), again.len()), (address, PIECE - 1));
        // If a bounce buffer of another size is needed, the pool frees unused buffers to stay within its limit.
        small.into_iter().for_each(|piece| pool.give(&mut queue, piece));
        assert!(pool.take(&mut queue, PIECE).unwrap().is_some());
        assert_eq!((pool.bytes(), pool.free()), (2 * PIECE, 0));
    }

    #[test]
    fn the_room_for_a_transfer_is_that_of_its_pieces() {
        for len in
            [1, 512, 4096, 5000, 17 << 10, PIECE, PIECE + 1, 3 * PIECE - 512, 5 * PIECE, 1 << 20]
        {
            let (mut pool, mut queue) = (Pool::default(), queue());
            let (mut left, free) = (len, pool.free());
            while left > 0 {
                left -= pool.take(&mut queue, left).unwrap().unwrap().len();
            }
            assert_eq!(free - pool.free(), room_for(len), "{len}");
        }
    }
}
