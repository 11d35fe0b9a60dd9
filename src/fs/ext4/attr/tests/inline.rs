//! Tests of inline data in inodes with extended attributes.

use super::image::Rng;
use super::xattrs::{find, remove, set};
use crate::ErrorKind;
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::for_tests::Image;
use crate::fs::{FileSystem, SetXattr, Writer};
use crate::units::{FilePos, InodeNo};

const KIND: &str = "-t ext4 -b 1024 -I 256 -O inline_data";

/// Content that fits into the inode is stored in the inode. An added attribute does not change the content, and the kernel can read and
/// write the content.
#[test]
fn small_files_are_kept_in_the_inode() {
    let image = Image::with_files(KIND, &["a", "b"]);
    let fs = image.open();
    let mut rng = Rng(3);
    // An inode of 256 bytes has 68 bytes for content. The other bytes contain the fixed part (128 bytes), the extra fields (32 bytes), the
    // magic number, an entry with its name, and the end mark. `i_block` contains 60 more bytes.
    let mut last = Vec::new();
    for len in [0, 1, 59, 60, 61, 64, 100, 128, 129, 3000] {
        let content = rng.bytes(len);
        let inode = find(&fs, "a");
        let fitted = fs.transact(1, |h| Attributes::of(&inode).store_inline(h, &content)).unwrap();
        assert_eq!(fitted, len <= 128, "{len} bytes");
        if fitted {
            last = content;
        }
        let inode = find(&fs, "a");
        let mut read = vec![0; last.len()];
        inode.read_inline_data(&mut read, FilePos(0)).unwrap();
        assert!(read == last && inode.size() == last.len() as u64);
    }
    let content = rng.bytes(70);
    let inode = find(&fs, "a");
    assert!(fs.transact(1, |h| Attributes::of(&inode).store_inline(h, &content)).unwrap());
    set(&fs, "a", b"user.beside", &[7; 12], SetXattr::Create).unwrap();
    assert!(find(&fs, "a").xattr_block.is_none());
    set(&fs, "a", b"user.away", &[8; 300], SetXattr::Create).unwrap();
    assert!(find(&fs, "a").xattr_block.is_some());
    remove(&fs, "a", b"user.beside").unwrap();
    // Content can use the space that the removed attribute has freed.
    let content = rng.bytes(128);
    let inode = find(&fs, "a");
    assert!(fs.transact(1, |h| Attributes::of(&inode).store_inline(h, &content)).unwrap());
    fs.close().unwrap();
    drop(fs);
    image.fsck();
    let Some(mount) = image.mount() else { return };
    assert!(std::fs::read(mount.path("a")).unwrap() == content);
    std::fs::write(mount.path("a"), b"written by the kernel").unwrap();
    drop(mount);
    image.fsck();
}

/// After the content has been moved out, the map is empty and the attributes remain.
#[test]
fn content_is_taken_out_of_the_inode() {
    let image = Image::with_files(KIND, &["a", "b"]);
    let fs = image.open();
    for content in [&b""[..], &[5; 60], &[6; 90]] {
        let inode = find(&fs, "a");
        assert!(fs.transact(1, |h| Attributes::of(&inode).store_inline(h, content)).unwrap());
        set(&fs, "a", b"user.x", b"y", SetXattr::Any).unwrap();
        let inode = find(&fs, "a");
        let taken = fs.transact(1, |h| Attributes::of(&inode).evict_inline(h)).unwrap();
        assert!(taken == content);
        let inode = find(&fs, "a");
        assert!(!inode.has_inline_data() && inode.size() == content.len() as u64);
        assert_eq!(inode.xattr(b"user.x").unwrap().as_deref(), Some(&b"y"[..]));
        assert_eq!(inode.fs_block(crate::units::FileBlock(0)).unwrap(), None);
    }
    fs.close().unwrap();
    drop(fs);
    image.fsck();
}

/// If a file becomes too large for its inode on a full volume, the file keeps its content.
#[test]
fn content_without_a_block_to_go_to_stays() {
    let image = Image::with_files(KIND, &["a"]);
    let fs = image.open();
    let inode = find(&fs, "a");
    assert!(fs.transact(1, |h| Attributes::of(&inode).store_inline(h, &[4; 100])).unwrap());
    let mut taken = Vec::new();
    let goal = fs.superblock.goal_of(InodeNo(11));
    while let Ok(run) = fs.transact(4, |h| h.allocate_blocks(goal, 1 << 20)) {
        taken.push(run);
    }
    let error = fs.write(inode.number(), FilePos(100), &[5; 900]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    for (start, count) in taken {
        fs.transact(4, |h| h.free_blocks(start, u64::from(count), Freed::Data)).unwrap();
    }
    let inode = find(&fs, "a");
    let mut content = vec![0; 100];
    assert!(inode.has_inline_data() && inode.size() == 100);
    inode.read_inline_data(&mut content, FilePos(0)).unwrap();
    assert!(content == [4; 100]);
    fs.close().unwrap();
    drop(fs);
    image.fsck();
}

/// A file in an inode may be larger than its stored content. The missing bytes read as zeros, and every kind of change is possible. Linux
/// leaves such a file if the power fails while the content is moved out of the inode.
#[test]
fn a_size_beyond_the_content_in_the_inode_is_zeros() {
    let image = Image::with_files(KIND, &["a", "b"]);
    let fs = image.open();
    for (case, change) in ["write", "grow", "shrink", "rewrite"].into_iter().enumerate() {
        let inode = find(&fs, "a");
        let number = inode.number();
        fs.truncate(number, 0).unwrap();
        let inode = find(&fs, "a");
        assert!(fs.transact(1, |h| Attributes::of(&inode).store_inline(h, &[7; 70])).unwrap());
        fs.transact(1, |h| h.update_inode(&inode, |raw| raw.set_size(200_000))).unwrap();
        let mut expected = vec![0; 200_000];
        expected[..70].fill(7);
        let read = |len: usize| {
            let mut content = vec![1; len];
            find(&fs, "a").read_inline_data(&mut content, FilePos(0)).unwrap();
            content
        };
        assert!(read(200_000) == expected, "{case}");
        match change {
            "write" => assert_eq!(fs.write(number, FilePos(5000), &[9; 10]).unwrap(), 10),
            "grow" => fs.truncate(number, 300_000).unwrap(),
            "shrink" => {
                fs.truncate(number, 90).unwrap();
                assert!(read(90) == expected[..90]);
            }
            _ => assert_eq!(fs.write(number, FilePos(0), &[9; 10]).unwrap(), 10),
        }
        let size = match change {
            "grow" => 300_000,
            "shrink" => 90,
            _ => 200_000,
        };
        assert_eq!(find(&fs, "a").size(), size, "{change}");
    }
    fs.close().unwrap();
    drop(fs);
    image.fsck();
}
