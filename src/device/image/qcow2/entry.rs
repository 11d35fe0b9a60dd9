//! The entries of L2 tables, which map the clusters of the disk.
//!
//! Source: `docs/interop/qcow2.txt` of QEMU, "Cluster mapping" and "Extended L2 Entries".

use std::ops::Range;

use super::header::Header;

/// The bits of an entry that contain the position of the cluster in the file.
pub(super) const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
/// No other entry uses the cluster.
pub(super) const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros. In an image with subclusters, the bitmap contains this information instead.
pub(super) const ZEROS: u64 = 1;

/// The number of subclusters of a cluster.
pub(super) const SUBCLUSTERS: u64 = 32;

/// An entry of an L2 table. In an image without subclusters, `bitmap` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) word: u64,
    pub(super) bitmap: u64,
}

/// The content of a range of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The content of the backing file, or zeros if there is no backing file.
    Below,
    Zeros,
    /// Bytes of the image file, starting at this position.
    At(u64),
    /// A compressed cluster: its position and length in the file, and the position of the range within the cluster.
    Packed {
        at: u64,
        len: u64,
        skip: u64,
    },
}

/// Returns the position of a cluster's data in the file. Returns `None` if `word`, the first word of the cluster's entry, contains no such
/// position.
#[inline]
pub(super) fn plain(word: u64, cluster: u64) -> Option<u64> {
    let at = word & OFFSET;
    (word & (COMPRESSED | ZEROS) == 0 && at != 0 && at & (cluster - 1) == 0).then_some(at)
}

impl Content {
    /// Returns the content that a range must have to belong to the same extent, if the range begins `count` bytes later.
    pub(super) fn after(self, count: u64) -> Self {
        match self {
            Self::At(at) => Self::At(at + count),
            // Zeros and the backing file need no position. Compressed clusters never form an extent.
            other => other,
        }
    }
}

impl Entry {
    /// Returns the entry for a cluster that no other entry uses.
    pub(super) fn of(at: u64) -> Self {
        Self { word: at | COPIED, bitmap: 0 }
    }

    /// The entry of a cluster that reads as zeros.
    pub(super) const ZEROED: Self = Self { word: ZEROS, bitmap: 0 };

    /// Decodes the content at the offset `skip` in the cluster. Also returns the number of bytes, starting there, that belong to the same
    /// extent.
    ///
    /// # Errors
    /// The reason why the entry is invalid.
    pub(super) fn content(
        self,
        header: &Header,
        skip: u64,
    ) -> Result<(Content, u64), &'static str> {
        let cluster = header.cluster();
        let rest = cluster - skip;
        if self.word & COMPRESSED != 0 {
            let Range { start: at, end } = self.packed(header);
            return Ok((Content::Packed { at, len: end - at, skip }, rest));
        }
        let at = self.word & OFFSET;
        if !at.is_multiple_of(cluster) {
            return Err("the position of the data is not a multiple of the cluster size");
        }
        // In a separate data file, the data of a cluster can be at position 0. In this case, the flag COPIED shows that the cluster is
        // allocated.
        let is_allocated = at != 0 || header.has_data_file() && self.word & COPIED != 0;
        if header.has_subclusters() {
            return self.subcluster(header, skip, is_allocated);
        }
        match (self.word & ZEROS != 0, is_allocated) {
            (true, _) if header.version < 3 => {
                Err("an image of qcow2 version 2 cannot have clusters of zeros")
            }
            (true, _) => Ok((Content::Zeros, rest)),
            (false, true) => Ok((Content::At(at + skip), rest)),
            (false, false) => Ok((Content::Below, rest)),
        }
    }

    /// Decodes an entry of an image with subclusters. The lower half of the bitmap shows which subclusters are allocated, and the upper
    /// half shows which of them read as zeros.
    fn subcluster(
        self,
        header: &Header,
        skip: u64,
        is_allocated: bool,
    ) -> Result<(Content, u64), &'static str> {
        let len = header.cluster() / SUBCLUSTERS;
        let state = |index: u64| {
            (self.bitmap >> index & 1 != 0, self.bitmap >> (index + SUBCLUSTERS) & 1 != 0)
        };
        let first = skip / len;
        let content = match state(first) {
            (true, true) => return Err("a subcluster is both allocated and zero"),
            (true, false) if !is_allocated => {
                return Err("a subcluster is allocated, but its cluster is not");
            }
            (true, false) => Content::At((self.word & OFFSET) + skip),
            (false, true) => Content::Zeros,
            (false, false) => Content::Below,
        };
        let same = (first..SUBCLUSTERS).take_while(|index| state(*index) == state(first)).count();
        Ok((content, (first + same as u64) * len - skip))
    }

    /// Whether a write to the cluster may overwrite the cluster's bytes in the file.
    pub(super) fn is_in_place(self) -> bool {
        self.word & (COPIED | COMPRESSED | ZEROS) == COPIED && self.word & OFFSET != 0
    }

    /// Returns the range of the file that the cluster uses. A compressed cluster ends with a sector of 512 bytes.
    pub(super) fn used(self, header: &Header) -> Range<u64> {
        if self.word & COMPRESSED != 0 {
            return self.packed(header);
        }
        let at = self.word & OFFSET;
        if at == 0 { 0..0 } else { at..at.saturating_add(header.cluster()) }
    }

    fn packed(self, header: &Header) -> Range<u64> {
        let bits = 62 - (header.cluster_bits - 8);
        let at = self.word & ((1 << bits) - 1);
        let more = (self.word & (COMPRESSED - 1)) >> bits;
        at..at / 512 * 512 + (more + 1) * 512
    }

    /// Returns the entry of a compressed cluster. `at` must fit into the entry's position bits.
    pub(super) fn of_packed(at: u64, len: u64, header: &Header) -> Self {
        let bits = 62 - (header.cluster_bits - 8);
        let more = (at + len - 1) / 512 - at / 512;
        Self { word: COMPRESSED | more << bits | at, bitmap: 0 }
    }
}
