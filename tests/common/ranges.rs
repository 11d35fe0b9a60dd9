//! Random requests, and memory for them.

use ironmap::bio::{Buffer, Memory};

use super::rng::Rng;

/// The value of each byte of memory before a read.
pub(crate) const UNTOUCHED: u8 = 0xA5;

/// The part of a file that a read of `len` bytes at `pos` returns.
pub(crate) fn part(content: &[u8], pos: u64, len: usize) -> &[u8] {
    let from = usize::try_from(pos).unwrap_or(usize::MAX).min(content.len());
    &content[from..from.saturating_add(len).min(content.len())]
}

/// Memory for a read, which can begin at any chosen distance from an aligned address. The allocation is one page longer than the requested
/// length.
pub(crate) struct Room(Buffer);

impl Room {
    pub(crate) fn new(len: usize) -> Self {
        let mut buffer = Buffer::aligned(len + 4096).expect("memory");
        buffer.fill(UNTOUCHED);
        Self(buffer)
    }

    /// The `len` bytes that begin `offset` bytes after an aligned address.
    pub(crate) fn at(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.0[offset..offset + len]
    }

    /// The same range as [`Self::at`], as a buffer for an asynchronous request.
    pub(crate) fn into_buffer(mut self, offset: usize, len: usize) -> Buffer {
        let mut used = {
            drop(self.0.split_to(offset));
            self.0
        };
        used.split_to(len)
    }
}

/// Cuts a length into pieces. The lengths of the pieces are random multiples of `unit`; some pieces are empty. The last piece gets the
/// remaining bytes.
pub(crate) fn pieces(rng: &mut Rng, len: usize, unit: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    let mut left = len;
    while left > 0 && pieces.len() < 12 {
        let most = (left / unit).min(40) as u64;
        let piece = (rng.below(most + 2) as usize * unit).min(left);
        pieces.push(piece);
        left -= piece;
    }
    pieces.push(left);
    pieces
}

/// Cuts a buffer into adjacent buffers of these lengths.
pub(crate) fn split(mut buffer: Buffer, pieces: &[usize]) -> Vec<Buffer> {
    pieces.iter().map(|piece| buffer.split_to(*piece)).collect()
}

/// The address and the length of each buffer. After a request completes, a test checks that the returned buffers have the same addresses
/// and lengths.
pub(crate) fn shape(memory: &Memory) -> Vec<(usize, usize)> {
    memory.buffers().iter().map(|buffer| (buffer.address(), buffer.len())).collect()
}

/// The bytes of all buffers in order.
pub(crate) fn bytes(memory: &Memory) -> Vec<u8> {
    memory.buffers().iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

/// Checks the memory after a read that returned `count` bytes and should have returned `expected`. If there is a fault, returns a
/// description of it. After the end of the file, the rest of the last sector must be zero or unchanged, and all later bytes must be
/// unchanged. `unit` is the device's logical block size.
pub(crate) fn fault(memory: &[u8], count: usize, expected: &[u8], unit: usize) -> Option<String> {
    if count != expected.len() {
        return Some(format!("{count} bytes, not {}", expected.len()));
    }
    if let Some(at) = (0..count).find(|at| memory[*at] != expected[*at]) {
        return Some(format!("byte {at} is {:#x}, not {:#x}", memory[at], expected[at]));
    }
    let sector = count.next_multiple_of(unit).min(memory.len());
    let touched = |byte: &u8| *byte != UNTOUCHED;
    if memory[count..sector].iter().any(|byte| touched(byte) && *byte != 0) {
        return Some(format!("data of the device after {count} bytes show"));
    }
    memory[sector..].iter().position(touched).map(|at| format!("byte {} was touched", sector + at))
}
