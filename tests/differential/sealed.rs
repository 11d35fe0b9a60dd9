//! Data that ironmap must not return: the names and contents of encrypted files, and the hash blocks of fs-verity past the end of a file.

use ironmap::ErrorKind;
use ironmap::fs::{Follow, InodeFlags};
use ironmap::iomap::{IomapType, MapFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Errno, Error, FileOptions, QueueOptions, Volume};
use rustix::fs::FileType;

use crate::common::compare::assert_contents;
use crate::common::image::{Image, scratch, words};
use crate::common::kernel;
use crate::common::reads::plan;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::common::view::Subject;
use crate::{DEPTH, SEED, require};

/// The inode flags `EXT4_VERITY_FL` and `EXT4_EXTENTS_FL`.
const VERITY: &str = "0x180000";

fn assert_encrypted<T>(result: Result<T, Error>, what: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{what}: no error"));
    assert_eq!(error.kind(), ErrorKind::Encrypted, "{what}: {error}");
    let text = error.to_string();
    assert_eq!(error.errno(), Errno::ENOKEY, "{what}: {text}");
    assert!(text.contains("encrypted"), "{what}: {text}");
}

fn read(volume: &Volume, number: InodeNo) -> Result<usize, Error> {
    let inode = volume.fs().inode(number)?;
    let file = volume.open_inode(inode, FileOptions::default())?;
    let mut queue = volume.queue(&QueueOptions::default())?;
    file.read_at(&mut queue, &mut [0; 4096], FilePos(0))
}

/// The kernel encrypts a tree with a test key. Without the key, the kernel answers `stat` and refuses all other accesses with ENOKEY.
/// ironmap must do the same.
#[test]
fn encrypted_files_are_recognized_and_not_read() {
    require!([Need::Root], [Need::KernelExt4("test_dummy_encryption_v2")]);
    let image = Image::mke2fs("32M", &words("-t ext4 -b 4096 -O encrypt"));
    let mount = image.mount("test_dummy_encryption");
    let dir = mount.dir().join("dir");
    std::fs::create_dir_all(dir.join("inner")).expect("directories");
    for (index, size) in [0, 1, 5000, 300_000].into_iter().enumerate() {
        let path = dir.join("inner").join(index.to_string());
        std::fs::write(path, Rng::new(SEED).bytes(size)).expect("a file");
    }
    std::os::unix::fs::symlink("inner/1", dir.join("link")).expect("a link");
    std::fs::write(mount.dir().join("top"), "encrypted, with a plain name").expect("a file");
    drop(mount);

    let volume = image.open().expect("open the volume");
    let mount = image.mount("ro,noload");
    let expected = kernel::view_of_stats(mount.dir());
    let mut encrypted = 0;
    for (path, expected) in &expected {
        let what = path.escape_ascii().to_string();
        let number = InodeNo(expected.inode.expect("a number"));
        let inode = volume.fs().inode(number).expect("the inode");
        let stat = inode.stat();
        let ours = (stat.mode, stat.links, (stat.uid, stat.gid), stat.blocks);
        let theirs = (expected.mode, expected.links, expected.owner, expected.blocks);
        assert_eq!((Some(ours.0), Some(ours.1), Some(ours.2), Some(ours.3)), theirs, "{what}");
        if !inode.flags().contains(InodeFlags::ENCRYPT) {
            continue;
        }
        encrypted += 1;
        if expected.is(FileType::Directory) {
            assert_encrypted(inode.read_dir().map(drop), &what);
            assert_encrypted(inode.lookup(b"inner"), &what);
        } else if expected.is(FileType::Symlink) {
            assert_encrypted(inode.read_link(), &what);
        } else {
            assert_eq!(Some(stat.size), expected.size, "{what}");
            assert_encrypted(read(&volume, number), &what);
        }
    }
    assert_eq!(encrypted, 8, "inodes that the kernel encrypted");
    assert_encrypted(volume.fs().resolve(b"dir/inner/1", Follow::All), "a path");
}

/// A file with the encryption flag cannot be read. debugfs sets the flag, so the kernel need not support encryption.
#[test]
fn a_file_with_the_flag_is_not_read() {
    let source = scratch();
    std::fs::write(source.path().join("file"), "secret").expect("a file");
    let image = Image::populated("16M", &words("-t ext4 -O encrypt"), source.path());
    image.debugfs("sif file flags 0x80800\n");
    let volume = image.open().expect("open the volume");
    let file = volume.fs().resolve(b"file", Follow::All).expect("the file");
    assert_eq!(file.size(), 6);
    assert_encrypted(read(&volume, file.number()), "file");
}

/// fs-verity stores a tree of hashes in blocks past the end of the file. A read returns the data of the file, and never the hashes.
#[test]
fn blocks_past_the_end_of_a_verity_file_are_not_read() {
    let source = scratch();
    let content = Rng::new(SEED).bytes(200_000);
    let size = 5000;
    std::fs::write(source.path().join("file"), &content).expect("a file");
    let image = Image::populated("16M", &words("-t ext4 -b 4096 -O verity"), source.path());
    image.debugfs(&format!("sif file flags {VERITY}\nsif file size {size}\n"));

    let mut subject = Subject::open(&image);
    let actual = subject.view();
    let cut = source.path().join("cut");
    std::fs::write(&cut, &content[..size]).expect("a file");
    let cut = std::fs::File::open(cut).expect("the file");
    let mut expected = actual.clone();
    let record = expected.get_mut(&b"file"[..]).expect("the file");
    record.reads = plan(&cut, size as u64, DEPTH, SEED);
    assert_contents(&expected, &mut subject, &actual, "verity");
    let file = subject.fs().resolve(b"file", Follow::All).expect("the file");
    assert!(file.flags().contains(InodeFlags::VERITY));
    // The file has hash blocks, which must not be returned.
    let behind = file.map(FilePos(65_536), 4096).expect("a mapping");
    assert_eq!(behind.kind, IomapType::Mapped, "blocks past the end");
}
