//! Blocks of the bitmap and of the summary of a realtime group (`struct xfs_rtbuf_blkinfo`). On volumes without realtime groups, bitmap and
//! summary blocks have no header.

/// `rt_magic`: `BMPZ`, `SUMY`.
pub(crate) const BITMAP_MAGIC: u32 = u32::from_be_bytes(*b"BMPZ");
pub(crate) const SUMMARY_MAGIC: u32 = u32::from_be_bytes(*b"SUMY");
/// Bytes of the header.
pub(crate) const HEADER: usize = 48;
