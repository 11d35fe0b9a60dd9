//! The memory of one request: one buffer, or several buffers.

use super::Buffer;

/// The memory of a request: the destination of a read or the source of a write. No other variants will be added.
#[derive(Debug)]
pub enum Memory {
    /// One buffer.
    Flat(Buffer),
    /// Several buffers (`iovec`), used in order.
    Vectored(Vec<Buffer>),
}

impl Memory {
    /// Returns the total length of all buffers in bytes.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "requests of length 0 are completed earlier")]
    pub fn len(&self) -> usize {
        match self {
            Self::Flat(buffer) => buffer.len(),
            Self::Vectored(buffers) => buffers.iter().map(|buffer| buffer.len()).sum(),
        }
    }

    /// The buffers, in order.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        match self {
            Self::Flat(buffer) => std::slice::from_ref(buffer),
            Self::Vectored(buffers) => buffers,
        }
    }

    /// The buffers, in order, for writing.
    pub fn buffers_mut(&mut self) -> &mut [Buffer] {
        match self {
            Self::Flat(buffer) => std::slice::from_mut(buffer),
            Self::Vectored(buffers) => buffers,
        }
    }

    /// Returns the buffers, and consumes the memory.
    #[must_use]
    pub fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Self::Flat(buffer) => vec![buffer],
            Self::Vectored(buffers) => buffers,
        }
    }
}

impl From<Buffer> for Memory {
    #[inline(always)]
    fn from(buffer: Buffer) -> Self {
        Self::Flat(buffer)
    }
}

impl From<Vec<Buffer>> for Memory {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self::Vectored(buffers)
    }
}
