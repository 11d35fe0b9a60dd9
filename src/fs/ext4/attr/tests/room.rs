//! Tests of attribute blocks and value inodes: sharing, lack of space, and freeing.

use super::image::Rng;
use super::xattrs::{Values, find, kernels, ours, remove, set};
use crate::ErrorKind;
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::for_tests::Image;
use crate::fs::{FileSystem, SetXattr};
use crate::units::{FsBlock, InodeNo};

/// Several inodes can share an attribute block, and several attributes can share a value inode. A change of one inode's attributes does not
/// change the attributes of other inodes.
#[test]
fn blocks_that_the_kernel_shares_are_distinguished() {
    for kind in ["-t ext4 -b 1024", "-t ext4 -b 4096 -O ea_inode", "-t ext4 -I 128 -O ea_inode"] {
        let names: Vec<_> = (0..12).map(|number| format!("file-{number}")).collect();
        let files: Vec<_> = names.iter().map(String::as_str).collect();
        let image = Image::with_files(kind, &files);
        let Some(mount) = image.mount() else { return };
        let mut rng = Rng(7);
        let value = rng.bytes(500);
        let large = rng.bytes(9000);
        let flags = rustix::fs::XattrFlags::empty();
        for file in &files {
            let path = mount.path(file);
            rustix::fs::lsetxattr(&path, "user.one", &value[..300], flags).unwrap();
            rustix::fs::lsetxattr(&path, "user.two", &value, flags).unwrap();
            if kind.contains("ea_inode") {
                rustix::fs::lsetxattr(&path, "user.large", &large, flags).unwrap();
            }
        }
        let before = kernels(&mount.path(files[0]));
        drop(mount);
        let fs = image.open();
        let blocks: Vec<_> = files.iter().map(|file| find(&fs, file).xattr_block).collect();
        assert!(blocks[0].is_some() && blocks.iter().all(|block| *block == blocks[0]));
        set(&fs, files[0], b"user.two", b"another", SetXattr::Replace).unwrap();
        remove(&fs, files[1], b"user.two").unwrap();
        set(&fs, files[2], b"user.three", b"3", SetXattr::Create).unwrap();
        for name in before.keys() {
            remove(&fs, files[3], name).unwrap();
        }
        // Several threads run at the same time, each with its own inode.
        std::thread::scope(|scope| {
            for file in &files[8..] {
                scope
                    .spawn(|| set(&fs, file, b"user.two", file.as_bytes(), SetXattr::Any).unwrap());
            }
        });
        for file in &files[4..8] {
            let inode = find(&fs, file);
            fs.transact(inode.xattr_credits(), |h| Attributes::of(&inode).drop_xattrs(h)).unwrap();
            // `drop_xattrs` keeps the attributes in the inode itself, because they are normally freed together with the inode. This test
            // keeps the inode and removes these attributes.
            fs.transact(1, |h| {
                h.update_inode(&inode, |raw| {
                    let at = 128 + raw.extra_size();
                    raw.bytes().get_mut(at..).unwrap_or_default().fill(0);
                    Ok(())
                })
            })
            .unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        image.fsck();
        let mount = image.mount().unwrap();
        let mut expected: Vec<_> = vec![before; files.len()];
        expected[0].insert(b"user.two".to_vec(), b"another".to_vec());
        expected[1].remove(&b"user.two"[..]);
        expected[2].insert(b"user.three".to_vec(), b"3".to_vec());
        expected[3..8].fill(Values::new());
        for (file, expected) in files.iter().zip(&mut expected).skip(8) {
            expected.insert(b"user.two".to_vec(), file.as_bytes().to_vec());
        }
        for (file, expected) in files.iter().zip(expected) {
            assert!(kernels(&mount.path(file)) == expected, "{kind}: {file}");
        }
    }
}

/// If the volume has no space for a value, the change fails and leaves the volume unchanged. After a partial change, e2fsck would find
/// unreferenced blocks or an unreferenced inode.
#[test]
fn a_full_volume_stays_as_it_was() {
    // The test tries each number of free blocks, from 0 to one block less than the attribute needs. The value needs 20 blocks, including
    // the blocks reserved for map nodes. An inode of 128 bytes also needs an attribute block.
    for (size, takes) in [(256, 20), (128, 21)] {
        full_volume(&format!("-t ext4 -b 1024 -O ea_inode -m 0 -I {size}"), takes);
    }
}

fn full_volume(kind: &str, takes: u64) {
    let image = Image::with_files(kind, &["a", "b"]);
    let fs = image.open();
    set(&fs, "a", b"user.there", &[1; 3000], SetXattr::Any).unwrap();
    let mut taken = Vec::new();
    while let Ok((start, count)) =
        fs.transact(4, |h| h.allocate_blocks(fs.superblock.goal_of(InodeNo(11)), 1 << 20))
    {
        taken.push((start, count));
    }
    let (start, count) = taken.iter_mut().max_by_key(|run| run.1).unwrap();
    assert!(*count > 30);
    let spare = FsBlock(start.0 + u64::from(*count) - 30);
    *count -= 30;
    let free = |start, count| {
        fs.transact(4, |h| h.free_blocks(start, count, Freed::Data)).unwrap();
        fs.sync().unwrap();
    };
    for step in 0..takes {
        let error = set(&fs, "b", b"user.value", &[2; 20 * 1024], SetXattr::Any).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{step} blocks free");
        assert!(ours(&find(&fs, "b")).is_empty());
        // The spare blocks are freed in an order that leaves few adjacent free blocks.
        free(FsBlock(spare.0 + (step * 7) % 30), 1);
    }
    set(&fs, "b", b"user.value", &[2; 20 * 1024], SetXattr::Any).unwrap();
    remove(&fs, "b", b"user.value").unwrap();
    for step in takes..30 {
        free(FsBlock(spare.0 + (step * 7) % 30), 1);
    }
    for (start, count) in taken {
        free(start, u64::from(count));
    }
    fs.close().unwrap();
    drop(fs);
    image.fsck();
}

/// An inode may have more large values than one transaction can drop. In that case several transactions drop them, and the volume is valid
/// after each transaction.
#[test]
fn many_large_values_are_dropped() {
    let image = Image::with_files("-t ext4 -b 1024 -I 512 -J size=1 -O ea_inode", &["a"]);
    let fs = image.open();
    for number in 0..45 {
        let (name, value) = (format!("user.{number}"), vec![number; 5000]);
        set(&fs, "a", name.as_bytes(), &value, SetXattr::Create).unwrap();
    }
    let inode = find(&fs, "a");
    assert!(inode.xattr_block.is_some());
    fs.transact(inode.xattr_credits(), |h| Attributes::of(&inode).drop_xattrs(h)).unwrap();
    let inode = find(&fs, "a");
    assert_eq!((inode.xattr_block, ours(&inode).len()), (None, 0));
    fs.close().unwrap();
    drop(fs);
    image.fsck();
}

/// A freed attribute block may become a data block of a file. Recovery must not write the old attributes over the file's data.
#[test]
fn freed_blocks_do_not_come_back() {
    let image = Image::with_files("-t ext4 -b 1024 -I 128 -O ea_inode", &["a"]);
    let fs = image.open();
    set(&fs, "a", b"user.large", &[1; 3000], SetXattr::Any).unwrap();
    let block = find(&fs, "a").xattr_block.unwrap();
    let (content, _) = find(&fs, "a").read_xattr_block().unwrap().unwrap();
    // These bytes are `e_value_inum` of the first entry, which follows the block's header.
    let [a, b, c, d] = content[36..40] else { unreachable!() };
    let value = fs.inode(InodeNo(u64::from(u32::from_le_bytes([a, b, c, d])))).unwrap();
    let value = value.fs_block(crate::units::FileBlock(1)).unwrap().unwrap();
    fs.sync().unwrap();
    remove(&fs, "a", b"user.large").unwrap();
    fs.sync().unwrap();
    let data = [7; 1024];
    for block in [block, value] {
        fs.blocks.write_device(block, &[std::io::IoSlice::new(&data)], true).unwrap();
    }
    // The image is copied without closing the volume, as after a crash. e2fsck replays the journal of the copy.
    let image = image.copy();
    image.recover();
    let bytes = std::fs::read(image.path()).unwrap();
    for block in [block, value] {
        let at = block.0 as usize * 1024;
        assert!(bytes[at..at + 1024] == data, "block {block}");
    }
}
