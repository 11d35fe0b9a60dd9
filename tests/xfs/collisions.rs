//! Names with the same hash. XFS finds a name by its hash. If several names have the same hash, XFS compares the names.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{XattrFlags, lsetxattr};

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::{SIZE, compare_with_kernel, require};

/// Makes `count` different names with the same hash and the same length. For each byte, the hash shifts by seven bits and then adds the
/// byte by XOR. So two changes cancel out: a change of the lowest bit in a byte, and a change of the highest bit in the next byte.
pub(crate) fn names(count: usize) -> Vec<Vec<u8>> {
    let mut names = vec![Vec::new()];
    while names.len() < count {
        let longer = names.iter().flat_map(|name| WORDS.map(|word| [name, &word[..]].concat()));
        names = longer.collect();
    }
    names.truncate(count);
    names
}

/// Words of four bytes with the same hash.
const WORDS: [[u8; 4]; 4] = [
    [b'a', b'A', b'a', b'A'],
    [b'a' ^ 1, b'A' ^ 0x80, b'a', b'A'],
    [b'a', b'A', b'a' ^ 1, b'A' ^ 0x80],
    [b'a' ^ 1, b'A' ^ 0x80, b'a' ^ 1, b'A' ^ 0x80],
];

/// The hash as "XFS Algorithms & Data Structures" defines it. It processes four bytes per step.
fn hash(name: &[u8]) -> u32 {
    let word = |hash: u32, bytes: &[u8]| {
        let shifted = bytes.iter().fold(0_u32, |word, byte| (word << 7) ^ u32::from(*byte));
        shifted ^ hash.rotate_left(7 * bytes.len() as u32 % 32)
    };
    name.chunks(4).fold(0, word)
}

#[test]
fn the_names_have_one_hash() {
    let names = names(1000);
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert!(names.iter().all(|name| hash(name) == hash(&names[0])));
    // `xfs_db -c 'hash aAaA'` prints this value.
    assert_eq!(hash(b"aAaA"), 0x0c30_70c1);
}

/// Many names have the same hash and fill more than one leaf of the index. A lookup finds all of them. xfs_repair does not check this
/// volume. Version 6.1 requires that each leaf begins with a higher hash than the leaf before, but the kernel splits leaves anywhere.
#[test]
fn names_of_one_hash_are_found_in_every_leaf() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    for (options, count) in [(["-b", "size=1024"], 1200), (["-b", "size=4096"], 1500)] {
        let image = Image::mkfs_xfs(SIZE, &options).unwrap();
        {
            let mount = image.mount("rw");
            let dir = mount.dir().join("names");
            std::fs::create_dir(&dir).unwrap();
            let file = dir.join("file");
            File::create_new(&file).unwrap();
            for (number, name) in names(count).into_iter().enumerate() {
                std::fs::hard_link(&file, dir.join(OsStr::from_bytes(&name))).unwrap();
                // The test adds names with other hashes, so that the names with the same hash begin in the middle of a leaf.
                std::fs::hard_link(&file, dir.join(number.to_string())).unwrap();
            }
            let file = mount.dir().join("attributes");
            File::create_new(&file).unwrap();
            for name in names(count / 3) {
                let name = [b"user.", &name[..]].concat();
                lsetxattr(&file, &name[..], &name[..], XattrFlags::empty()).unwrap();
            }
        }
        compare_with_kernel(&image, "", &format!("{options:?}"));
    }
}
