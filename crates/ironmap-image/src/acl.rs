//! Access lists in the form of the system calls: a version and entries of eight bytes (`include/uapi/linux/posix_acl_xattr.h`).

/// The bytes of the version.
const VERSION: usize = 4;
/// Of an entry: tag and permissions in 16 bits each, then a user or group in 32.
const ENTRY: usize = 8;

/// Sorts the named users and the named groups of a list by their numbers: their order means nothing, and the kernel keeps it.
pub(crate) fn sort(value: &mut [u8]) {
    let Some((_, entries)) = value.split_at_mut_checked(VERSION) else { return };
    let (entries, _) = entries.as_chunks_mut::<ENTRY>();
    for entries in entries.chunk_by_mut(|a, b| a[..2] == b[..2]) {
        entries.sort_by_key(|[.., a, b, c, d]| u32::from_le_bytes([*a, *b, *c, *d]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that is cut short, or of an unknown version, is sorted as far as it has entries, and is no reason to fail.
    #[test]
    fn entries_are_sorted_among_their_like() {
        let entry = |tag, id: u8| [tag, 0, 7, 0, id, 1, 0, 0];
        let mut list = [
            &[2, 0, 0, 0],
            &[entry(2, 9), entry(2, 1), entry(1, 0), entry(2, 0)].concat()[..],
            &[9],
        ]
        .concat();
        let sorted = [
            &[2, 0, 0, 0],
            &[entry(2, 1), entry(2, 9), entry(1, 0), entry(2, 0)].concat()[..],
            &[9],
        ]
        .concat();
        sort(&mut list);
        assert_eq!(list, sorted);
        (0..5).for_each(|len| sort(&mut vec![1; len]));
    }
}
