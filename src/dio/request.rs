//! Requests to a file.

use super::{DioFlags, Target};
use crate::bio::{BioFlags, BioOp};
use crate::units::FilePos;

/// A request for a range of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// A read or a write.
    pub(crate) op: BioOp,
    pub(crate) pos: FilePos,
    /// The length of the request's memory in bytes.
    pub(crate) len: usize,
    pub(crate) flags: DioFlags,
    /// The token by which the caller identifies the request. A synchronous request does not use it.
    pub(crate) token: u64,
    /// Whether each bio of the write is write-through, so that the data are durable without a sync.
    pub(crate) through: bool,
    /// The owner of the memory of a synchronous write.
    pub(crate) source: Source,
}

/// The owner of the memory of a write. It determines which other code can change the memory during the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Borrowed bytes. Other code may write to them.
    Lent,
    /// A [`Buffer`](crate::bio::Buffer) that a call has borrowed, or that has moved into the queue. Safe code cannot change it.
    Buffer,
    /// Memory that belongs to ironmap itself.
    Engine,
}

/// The part of a request that the device transfers.
pub(super) struct Span {
    /// The number of bytes that the caller receives.
    pub(super) count: usize,
    /// The number of bytes to transfer: `count` rounded up to whole logical blocks.
    pub(super) device: usize,
}

impl Request {
    #[inline(always)]
    pub(super) fn of(op: BioOp, pos: FilePos, len: usize) -> Self {
        let flags = DioFlags::empty();
        Self { op, pos, len, flags, token: 0, through: false, source: Source::Lent }
    }

    #[inline(always)]
    pub(crate) fn read(pos: FilePos, len: usize, flags: DioFlags) -> Self {
        Self { flags, ..Self::of(BioOp::Read, pos, len) }
    }

    #[inline(always)]
    pub(crate) fn write(pos: FilePos, len: usize, flags: DioFlags) -> Self {
        Self { flags, ..Self::of(BioOp::Write, pos, len) }
    }

    /// Creates a queued request whose length is 0. The length is computed later, where it is needed, because the computation takes time if
    /// the memory has several buffers.
    #[inline(always)]
    pub(crate) fn queued(op: BioOp, pos: FilePos, flags: DioFlags, token: u64) -> Self {
        Self { flags, token, ..Self::of(op, pos, 0) }
    }

    #[inline(always)]
    pub(crate) fn token(self, token: u64) -> Self {
        Self { token, ..self }
    }

    #[inline(always)]
    pub(crate) fn is_nowait(&self) -> bool {
        self.flags.contains(DioFlags::NOWAIT)
    }

    /// Returns the flags for the bio of a write.
    #[inline(always)]
    pub(super) fn for_write(&self) -> BioFlags {
        let mut flags = self.flags.for_bio();
        flags.set(BioFlags::DSYNC, self.through);
        flags.set(BioFlags::ATOMIC, self.flags.contains(DioFlags::ATOMIC));
        flags
    }
}

impl<M> Target<'_, M> {
    /// Returns the part of an aligned request that the device transfers. A read ends with the last sector of the file.
    pub(super) fn span(&self, request: &Request) -> Span {
        if request.op == BioOp::Write {
            return Span { count: request.len, device: request.len };
        }
        let count = self.size.saturating_sub(request.pos.0).min(request.len as u64);
        // The length of the request is a multiple of the logical block size, so the rounded value does not exceed it.
        let device = (count + self.geometry.sector_mask) & !self.geometry.sector_mask;
        Span { count: count as usize, device: device as usize }
    }
}
