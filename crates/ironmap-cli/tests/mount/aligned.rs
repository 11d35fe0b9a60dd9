//! Memory for direct requests.

/// Runs `work` with zeros at an address that O_DIRECT accepts.
pub(crate) fn aligned<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![0; len + 4096];
    let start = memory.as_ptr().align_offset(4096);
    work(&mut memory[start..start + len])
}
