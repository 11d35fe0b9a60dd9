//! Access to inodes by number. A deleted inode is not found, and an inconsistent inode is refused.

use std::fs;

use ironmap::ErrorKind;
use ironmap::fs::Follow;
use ironmap::iomap::MapFile;
use ironmap::units::{FilePos, InodeNo};

use crate::common::image::{Image, words};

/// A volume with the files `a` and `b`.
fn image(options: &str) -> Image {
    let source = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(source.path().join(name), [7; 3000]).unwrap();
    }
    Image::populated("16M", &words(options), source.path())
}

fn number(image: &Image, path: &str) -> InodeNo {
    image.ext4().resolve(path.as_bytes(), Follow::All).unwrap().number()
}

/// An inode with a link count of 0 is not found by its number, even if the inode is on the list of orphans. A lookup of a name that refers
/// to such an inode returns an error of kind `Corrupt`.
#[test]
fn an_inode_without_a_name_is_not_found() {
    let image = image("-t ext4 -b 1024");
    let (a, b) = (number(&image, "a"), number(&image, "b"));
    image.debugfs(&format!(
        "unlink a\nset_inode_field <{a}> links_count 0\nset_inode_field <{b}> links_count 0\n\
         set_super_value last_orphan {a}\n"
    ));
    let fs = image.ext4();
    for gone in [a, b] {
        let error = fs.inode(gone).err().expect("it has no links");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(fs.orphans().unwrap(), 1);
    let error = fs.resolve(b"b", Follow::All).err().expect("it has no links");
    assert_eq!((error.kind(), error.place().unwrap().field), (ErrorKind::Corrupt, "inode"));
}

/// An attribute block has a number of 48 bits. Volumes with the feature 64bit use the upper 16 bits. On other volumes, ironmap ignores
/// these bits.
#[test]
fn the_upper_half_of_an_attribute_block_needs_64bit() {
    for (options, valid) in
        [("-t ext4 -I 128 -O ^64bit,^metadata_csum", true), ("-t ext4 -I 128", false)]
    {
        let image = image(options);
        image.debugfs("ea_set a user.colour blue\n");
        let stat = image.debugfs("stat a\n");
        let block = stat.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
        let block: u64 = block.parse().unwrap();
        assert_ne!(block, 0);
        image.debugfs(&format!("set_inode_field a file_acl {}\n", block | 5 << 32));
        let value = image.ext4().resolve(b"a", Follow::All).unwrap().xattr(b"user.colour");
        match value {
            Ok(value) => assert!(valid && value.as_deref() == Some(b"blue"), "{value:?}"),
            Err(error) => assert!(!valid && error.kind() == ErrorKind::Corrupt, "{error}"),
        }
    }
}

/// An inner node without entries is an error of kind `Corrupt`, even at the root of the tree. It does not count as a hole.
#[test]
fn an_inner_node_without_entries_is_corrupt() {
    let image = image("-t ext4 -b 1024");
    // The root node: magic number, 0 of at most 4 entries in use, depth 1.
    image.debugfs("set_inode_field a block[0] 0xf30a\nset_inode_field a block[1] 0x10004\n");
    let inode = image.ext4().resolve(b"a", Follow::All).unwrap();
    let error = inode.map(FilePos(0), 1).expect_err("a tree without leaves");
    assert_eq!((error.kind(), error.place().unwrap().field), (ErrorKind::Corrupt, "eh_entries"));
}

/// ironmap refuses an orphan file that is larger than the limit, before it reads the blocks of the file.
#[test]
fn an_endless_orphan_file_is_refused() {
    let image = image("-t ext4 -b 1024 -O orphan_file");
    let file = image.ext4();
    assert_eq!(file.orphans().unwrap(), 0);
    drop(file);
    let number = image.debugfs("stats -h\n");
    let number = number.lines().find(|line| line.starts_with("Orphan file inode:"));
    let number = number.unwrap().rsplit(' ').next().unwrap().to_owned();
    image.debugfs(&format!("set_inode_field <{number}> size 0x1000000000\n"));
    let error = image.ext4().orphans().expect_err("64 GiB");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}
