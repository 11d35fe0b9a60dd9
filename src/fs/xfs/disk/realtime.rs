//! The header of a block in the bitmap or the summary of a realtime group (`struct xfs_rtbuf_blkinfo`). On volumes without realtime groups,
//! these blocks have no header.

/// The values of the field `rt_magic`: `BMPZ` in a bitmap, `SUMY` in a summary.
pub(crate) const BITMAP_MAGIC: u32 = u32::from_be_bytes(*b"BMPZ");
pub(crate) const SUMMARY_MAGIC: u32 = u32::from_be_bytes(*b"SUMY");
/// Bytes of the header.
pub(crate) const HEADER: usize = 48;
