//! The counters of a queue. They are plain integers, because only the thread of the queue uses them.

/// The reason why a request did not take the simple path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum NotSimple {
    /// The simple path is switched off.
    Disabled,
    /// The request has a flag that the simple path does not support: force-wait or bounce.
    Flags,
    /// The request has several buffers.
    Vectored,
    /// The request has no bytes, or it is too long. The limit is one file-system block for a read, and one bio for a write.
    Length,
    /// A part of the request is past the end of the file.
    PastSize,
    /// The device does not accept the position, the length or the memory address.
    Misaligned,
    /// The data are copied because the memory could change while the device computes checksums over it
    /// ([`StablePages`](super::StablePages)).
    Stable,
    /// The mapping is not in memory.
    NotResident,
    /// The range is a hole, an unwritten extent, or inline data.
    NotMapped,
    /// The range extends past the end of the mapping.
    SeveralExtents,
    /// The device protects the range with checksums, so the data must be verified.
    Integrity,
    /// The write would change blocks that other files share.
    Shared,
}

impl NotSimple {
    /// All reasons, in the order in which they are checked.
    pub const ALL: [Self; 12] = [
        Self::Disabled,
        Self::Flags,
        Self::Vectored,
        Self::Length,
        Self::PastSize,
        Self::Misaligned,
        Self::Stable,
        Self::NotResident,
        Self::NotMapped,
        Self::SeveralExtents,
        Self::Integrity,
        Self::Shared,
    ];

    /// A short name for tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Flags => "flags",
            Self::Vectored => "vectored",
            Self::Length => "length",
            Self::PastSize => "past_size",
            Self::Misaligned => "misaligned",
            Self::Stable => "stable",
            Self::NotResident => "not_resident",
            Self::NotMapped => "not_mapped",
            Self::SeveralExtents => "several_extents",
            Self::Integrity => "integrity",
            Self::Shared => "shared",
        }
    }
}

/// The counters of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads that took the simple path.
    pub simple_hits: u64,
    /// Requests that did not take the simple path, by their reason ([`NotSimple`]).
    pub simple_misses: [u64; NotSimple::ALL.len()],
    /// Writes that took the simple path: to one extent, with one bio.
    pub overwrites: u64,
    /// Writes that did not take the simple path.
    pub writes: u64,
    /// Requests whose data were copied through bounce buffers.
    pub bounced: u64,
    /// Transfers whose data did not match their checksums, and which were repeated into memory of the queue.
    pub reread: u64,
    /// Short transfers that were continued.
    pub short: u64,
    /// Reads of host files that the kernel served.
    pub kernel_served: u64,
    /// Reads of host files that lost their lease during the read. Their data were discarded, and the reads were repeated.
    pub cut: u64,
}

impl Stats {
    /// The number of requests that did not take the simple path for the given reason.
    #[must_use]
    pub fn misses(&self, reason: NotSimple) -> u64 {
        self.simple_misses[reason as usize]
    }

    pub(super) fn miss(&mut self, reason: NotSimple) {
        self.simple_misses[reason as usize] += 1;
    }
}
