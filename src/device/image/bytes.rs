//! Reads little-endian numbers from structures of a known length.

pub(super) fn u16_le(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) | u16::from(bytes[at + 1]) << 8
}

pub(super) fn u32_le(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_le(bytes, at)) | u32::from(u16_le(bytes, at + 2)) << 16
}

pub(super) fn u64_le(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_le(bytes, at)) | u64::from(u32_le(bytes, at + 4)) << 32
}
