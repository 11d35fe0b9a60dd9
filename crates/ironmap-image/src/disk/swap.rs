//! The first page of a swap area, as mkswap writes it. Sources: swapon(8) and mkswap(8); areas made by mkswap.

use ironmap::Result;

use super::out::Out;

/// The page size in bytes. Linux finds the signature at the end of the first page, so a machine with another page size cannot use the area.
const PAGE: usize = 4096;
/// The smallest area in bytes: ten pages. mkswap refuses smaller areas.
pub(super) const MIN: u64 = 10 * PAGE as u64;
const SIGNATURE: &[u8] = b"SWAPSPACE2";
/// The maximum length of the label in bytes.
const MAX_LABEL: usize = 16;

/// Refuses a label that is too long. The error text is the reason.
pub(super) fn check_label(label: &str) -> Result<(), String> {
    match label.len() {
        0..=MAX_LABEL => Ok(()),
        _ => Err(format!("the label {label:?} is longer than {MAX_LABEL} bytes")),
    }
}

/// Writes the first page of an area of `len` bytes.
pub(super) fn make(out: &mut Out<'_>, len: u64, uuid: [u8; 16], label: &[u8]) -> Result<()> {
    let mut page = [0; PAGE];
    let last = u32::try_from(len / PAGE as u64 - 1).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[1036..1052].copy_from_slice(&uuid);
    page[1052..1052 + label.len()].copy_from_slice(label);
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    out.put(0, &page)
}
