//! POSIX access control lists in the format of the xattr system calls: a version, then entries of eight bytes
//! (`include/uapi/linux/posix_acl_xattr.h`).

use ironmap::sorting::Sorting;

/// The length of the version in bytes.
const VERSION: usize = 4;
/// The length of an entry in bytes: tag and permissions with 16 bits each, then a user or group with 32 bits.
const ENTRY: usize = 8;

/// Sorts the named users and the named groups of a list by their IDs. The order of these entries has no meaning, but the kernel preserves
/// it.
pub(crate) fn sort(value: &mut [u8]) {
    let Some((_, entries)) = value.split_at_mut_checked(VERSION) else { return };
    let (entries, _) = entries.as_chunks_mut::<ENTRY>();
    for entries in entries.chunk_by_mut(|a, b| a[..2] == b[..2]) {
        entries.order_by_key(|[.., a, b, c, d]| u32::from_le_bytes([*a, *b, *c, *d]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complete entries of a truncated list are sorted too. The version is not checked.
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
