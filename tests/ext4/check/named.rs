//! Single cases in which e2fsck and ironmap could differ. Each test states the expected result.

use std::fs;

use crate::check::verdict::{agree, e2fsck, ironmap};
use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::require;

/// A volume with three files: a file of two blocks, a file of one block, and a file with an attribute block.
fn volume(options: &str) -> Image {
    let tree = scratch();
    for (name, size) in [("one", 1024), ("two", 2048), ("gone", 10)] {
        fs::write(tree.path().join(name), vec![b'x'; size]).unwrap();
    }
    let image = Image::populated("24M", &words(options), tree.path());
    let value = image.beside("value");
    fs::write(&value, "v".repeat(700)).unwrap();
    image.debugfs(&format!("ea_set -f {} one user.long\n", value.display()));
    image.check();
    image
}

/// Runs debugfs commands that change the volume, and then both checkers (e2fsck and ironmap). If `clean` is set, neither checker may find a
/// fault. If it is not set, both must find one.
fn both(what: &str, image: &Image, commands: &str, clean: bool) {
    image.debugfs(commands);
    agree(what, &image.path(), clean);
    assert_eq!(ironmap(&image.path()).clean, clean, "{what}: {}", e2fsck(&image.path()).text);
}

/// Old versions of mke2fs gave the journal file one block more than the journal's superblock says. The check accepts this. A journal file
/// that is shorter than its superblock says is a fault.
#[test]
fn a_journal_may_have_a_block_past_its_end() {
    for options in ["-t ext3 -b 1024 -J size=4", "-t ext4 -b 1024 -J size=4"] {
        let image = volume(options);
        let blocks = (4 << 10) - 1;
        // The value of `s_maxlen`, in big-endian order.
        image.poke("<8>", 0, 16, &u32::to_be_bytes(blocks));
        both(options, &image, &format!("sif <8> size {}\n", blocks << 10), true);
        // e2fsck accepts even more blocks, if the last pointer block of the file's map has space for them. ironmap refuses such a file.
        image.debugfs(&format!("sif <8> size {}\n", (blocks + 2) << 10));
        assert!(!ironmap(&image.path()).clean, "{options}: longer than its blocks");
    }
}

/// With `shared_blocks`, files may share blocks with each other, but not with the volume's metadata.
#[test]
fn shared_blocks_are_shared_where_the_volume_says_so() {
    let image = volume("-t ext2 -b 1024");
    let shared = image.bmap("one", 0..1)[0];
    let own = image.bmap("two", 1..2)[0];
    let share = format!("sif two block[1] {shared}\nfreeb {own}\nssv free_blocks_count 0\n");
    both("not allowed", &image, &share, false);
    image.debugfs("feature shared_blocks\n");
    let counted = image.copy();
    // On a volume with `shared_blocks`, the shared block itself is no fault. Only the counts are wrong, and e2fsck repairs them.
    counted.repair();
    assert_eq!(counted.bmap("two", 1..2)[0], shared, "they are not shared any more");
    both("allowed", &counted, "feature\n", true);
    both("a bitmap", &counted, "sif two block[1] 3\nsif one block[0] 3\n", false);
}

/// On a volume without `ext_attr`, the field `i_file_acl` has no meaning. A nonzero value in it is a fault.
#[test]
fn attributes_need_the_feature() {
    let image = volume("-t ext4 -b 1024");
    both("without the feature", &image, "feature -ext_attr\n", false);
}

/// Unused inodes are also checked: their checksum and deletion time must be valid.
#[test]
fn unused_inodes_are_looked_at() {
    let deleted = |commands: &str, clean| {
        let image = volume("-t ext4 -b 1024 -I 256");
        let number = image.ext4().resolve(b"/gone", ironmap::fs::Follow::All).unwrap();
        let number = number.number();
        image.debugfs("rm gone\n");
        image.repair();
        both(commands, &image, &commands.replace("GONE", &format!("<{number}>")), clean);
    };
    deleted("feature\n", true);
    deleted("sif GONE checksum 0x12345678\n", false);
    deleted("sif GONE mode 0100644\nsif GONE dtime 0\n", false);
    deleted("sif GONE mode 0100644\nsif GONE dtime 20200101000000\n", true);
    deleted("sif GONE dtime @12\n", false);
}

/// An encrypted inode needs an encryption context. All names in an encrypted directory are encrypted, and their inodes have the policy of
/// the directory.
#[test]
fn encrypted_inodes_are_looked_at() {
    require!([Need::Root], [Need::KernelExt4("test_dummy_encryption_v2")]);
    let made = Image::mke2fs("32M", &words("-t ext4 -b 1024 -I 256 -O encrypt"));
    let mount = made.mount("test_dummy_encryption");
    let dir = mount.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("fifo"), 0o644.into()).unwrap();
    let number = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&dir).unwrap());
    drop(mount);
    agree("as the kernel left it", &made.path(), true);
    let plain = made.beside("plain");
    fs::write(&plain, "y").unwrap();
    let plain = plain.display();
    for (what, commands) in [
        ("no context", format!("write {plain} plain\nsif plain flags 0x80800\n")),
        (
            "a short name",
            format!("mknod fifo p\ncd <{number}>\nln /fifo short\nsif /fifo links_count 2\n"),
        ),
        (
            "a stranger",
            format!(
                "write {plain} plain\nln plain <{number}>/a-name-of-more-than-16-bytes\nsif plain links_count 2\n"
            ),
        ),
    ] {
        let image = made.copy();
        both(what, &image, &commands, false);
    }
}
