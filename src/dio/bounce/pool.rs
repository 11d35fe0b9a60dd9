//! The bounce buffers of one queue: pieces of a few sizes, of which there are only so many bytes together.

use crate::bio::Buffer;
use crate::error::Result;

/// The sizes of pieces, in bytes. A request takes the smallest that holds it, or several of the largest.
const SIZES: [usize; 3] = [4 << 10, 16 << 10, PIECE];
/// The largest piece.
pub(in crate::dio) const PIECE: usize = 64 << 10;
/// How much memory the pieces of a queue take at most, in bytes.
const LIMIT: usize = 2 << 20;

/// The pieces of a queue. They are made when they are first needed.
#[derive(Debug)]
pub(in crate::dio) struct Pool {
    limit: usize,
    /// Bytes of all pieces, and of those that are in use.
    bytes: usize,
    used: usize,
    /// By their sizes.
    idle: [Vec<Buffer>; SIZES.len()],
    /// For what is read again: that cannot wait for others.
    last: Option<Buffer>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { limit: LIMIT, bytes: 0, used: 0, idle: Default::default(), last: None }
    }
}

/// Which size holds so many bytes, or the largest.
fn class(len: usize) -> usize {
    SIZES.iter().position(|size| *size >= len).unwrap_or(SIZES.len() - 1)
}

/// How many bytes the pieces for a transfer take, as [`Pool::take`] gives them for what is left of it.
pub(in crate::dio) fn room_for(len: usize) -> usize {
    let tail = len % PIECE;
    let rest = if tail > 0 { SIZES[class(tail)] } else { 0 };
    len - tail + rest
}

impl Pool {
    /// A number of the largest pieces, at least one.
    pub(in crate::dio) fn set_limit(&mut self, limit: usize) {
        self.limit = (limit / PIECE).max(1) * PIECE;
        self.shrink_to(self.limit);
    }

    pub(in crate::dio) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of all pieces, in use or not.
    pub(in crate::dio) fn bytes(&self) -> usize {
        self.bytes + self.last.as_ref().map_or(0, |last| last.len())
    }

    /// How many bytes can be taken now.
    pub(in crate::dio) fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    /// A piece of `len` bytes, or of as many as the largest has; `None` while too much is in use.
    pub(in crate::dio) fn take(&mut self, len: usize) -> Result<Option<Buffer>> {
        let class = class(len);
        let size = SIZES[class];
        if size > self.free() {
            return Ok(None);
        }
        let mut piece = match self.idle[class].pop() {
            Some(piece) => piece,
            None => {
                self.shrink_to(self.limit - size);
                let piece = Buffer::aligned(size)?;
                self.bytes += size;
                piece
            }
        };
        self.used += size;
        piece.truncate(len);
        Ok(Some(piece))
    }

    pub(in crate::dio) fn give(&mut self, mut piece: Buffer) {
        // Its parts have been joined, or dropped.
        let whole = piece.regain();
        debug_assert!(whole, "a part of a piece is still in use");
        let class = class(piece.len());
        self.used -= SIZES[class];
        self.idle[class].push(piece);
        self.shrink_to(self.limit);
    }

    /// Frees pieces that are not in use.
    fn shrink_to(&mut self, bytes: usize) {
        for (idle, size) in self.idle.iter_mut().zip(SIZES) {
            while self.bytes > bytes && idle.pop().is_some() {
                self.bytes -= size;
            }
        }
    }

    /// The piece for what is read again.
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

    #[test]
    fn pieces_are_bounded_together_and_used_again() {
        let mut pool = Pool::default();
        pool.set_limit(2 * PIECE);
        let large = pool.take(1 << 20).unwrap().unwrap();
        assert_eq!((large.len(), pool.free()), (PIECE, PIECE));
        let small: Vec<_> = (0..16).map(|_| pool.take(512).unwrap().unwrap()).collect();
        assert!(small.iter().all(|piece| piece.len() == 512));
        assert!(pool.take(1).unwrap().is_none());
        assert_eq!(pool.bytes(), 2 * PIECE);
        let address = large.address();
        pool.give(large);
        let again = pool.take(PIECE - 1).unwrap().unwrap();
        assert_eq!((again.address(), again.len()), (address, PIECE - 1));
        // Pieces that nobody uses make room for those of another size.
        small.into_iter().for_each(|piece| pool.give(piece));
        assert!(pool.take(PIECE).unwrap().is_some());
        assert_eq!((pool.bytes(), pool.free()), (2 * PIECE, 0));
    }

    #[test]
    fn the_room_for_a_transfer_is_that_of_its_pieces() {
        for len in [1, 512, 4096, 5000, 17 << 10, PIECE, PIECE + 1, 3 * PIECE - 512, 1 << 20] {
            let mut pool = Pool::default();
            let (mut left, free) = (len, pool.free());
            while left > 0 {
                left -= pool.take(left.min(PIECE)).unwrap().unwrap().len();
            }
            assert_eq!(free - pool.free(), room_for(len), "{len}");
        }
    }
}
