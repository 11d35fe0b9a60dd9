//! Symbolic links in each form of storage, and paths that contain links.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use ironmap::ErrorKind;
use ironmap::fs::ext4::Ext4;
use ironmap::fs::{FileType, Follow};
use ironmap::iomap::MapFile;
use ironmap::units::FilePos;

use crate::common::image::{Image, scratch, words};

/// Each form of storage limits the length of a link's target. Targets with lengths around these limits are read back unchanged.
#[test]
fn targets_of_links_are_those_of_the_source() {
    let source = scratch();
    let lengths = [1, 59, 60, 61, 100, 159, 160, 161, 255, 1000, 1022];
    for length in lengths {
        symlink("t".repeat(length), source.path().join(format!("link{length}"))).unwrap();
    }
    for options in [
        "-t ext2 -b 1024 -I 128",
        "-t ext4 -b 1024",
        "-t ext4 -b 4096 -O inline_data",
        "-t ext4 -b 4096 -O inline_data -I 1024",
        "-t ext4 -b 65536 -O ea_inode",
    ] {
        let image = Image::populated("32M", &words(options), source.path());
        let fs = image.ext4();
        for length in lengths {
            let path = format!("link{length}");
            let link = fs.resolve(path.as_bytes(), Follow::NotLast).unwrap();
            assert_eq!(link.file_type(), FileType::Symlink);
            assert_eq!(link.read_link().unwrap(), "t".repeat(length).as_bytes(), "{options}");
        }
    }
}

/// Inline files of every size are read correctly at every position.
#[test]
fn content_of_inline_files_is_that_of_the_source() {
    let source = scratch();
    let content: Vec<u8> = (0..400_u32).map(|byte| byte as u8).collect();
    let sizes = [1, 4, 59, 60, 61, 100, 300];
    for size in sizes {
        fs::write(source.path().join(format!("file{size}")), &content[..size]).unwrap();
    }
    let image = Image::populated("16M", &words("-t ext4 -O inline_data -I 512"), source.path());
    let fs = image.ext4();
    for size in sizes {
        let file = fs.resolve(format!("file{size}").as_bytes(), Follow::All).unwrap();
        assert!(file.stat().flags & 0x1000_0000 != 0, "{size} bytes are inline");
        for pos in [0, 1, 59, 60, 61].into_iter().filter(|pos| *pos < size) {
            let mut bytes = vec![0; size - pos];
            file.read_inline(&mut bytes, FilePos(pos as u64)).unwrap();
            assert_eq!(bytes, content[pos..size]);
        }
    }
}

fn kind(fs: &Arc<Ext4>, path: &str, follow: Follow) -> Option<ErrorKind> {
    let error = fs.resolve(path.as_bytes(), follow).err()?;
    assert!(error.to_string().starts_with(path), "the path is named: {error}");
    Some(error.kind())
}

/// Paths are resolved as in the source tree, by the rules of `path_resolution(7)`.
#[test]
fn paths_resolve_as_in_the_kernel() {
    let source = scratch();
    let root = source.path();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/b/file"), "").unwrap();
    for (target, link) in [
        ("../b/file", "a/b/relative"),
        ("/a/b/file", "absolute"),
        ("a/b/", "slashed"),
        ("../../../../a", "above"),
        ("loop2", "loop1"),
        ("loop1", "loop2"),
        ("nowhere", "dangling"),
        ("a/b/file", "chain0"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    for number in 1..=41 {
        symlink(format!("chain{}", number - 1), root.join(format!("chain{number}"))).unwrap();
    }
    let image = Image::populated("16M", &words("-t ext4"), root);
    let fs = image.ext4();
    let number = |path: &str, follow| fs.resolve(path.as_bytes(), follow).unwrap().number();
    let file = number("a/b/file", Follow::NotLast);
    for path in [
        "/a/b/file",
        "//a///b/./file",
        "a/b/c/../file",
        "../../a/b/file",
        "a/b/relative",
        "absolute",
        "slashed/file",
        "above/b/file",
        "a/b/c/../../../slashed/../b/relative",
        "chain39",
    ] {
        assert_eq!(number(path, Follow::All), file, "{path}");
    }
    for path in ["/", "", "..", "/../..", "a/.."] {
        assert_eq!(number(path, Follow::All).0, 2, "{path}");
    }
    let b = number("a/b", Follow::All);
    assert_eq!(number("slashed/", Follow::NotLast), b, "a slash at the end follows");
    assert_ne!(number("slashed", Follow::NotLast), b);
    assert_eq!(number("a/b/", Follow::NotLast), b);

    assert_eq!(kind(&fs, "loop1", Follow::All), Some(ErrorKind::Loop));
    assert_eq!(kind(&fs, "chain40", Follow::All), Some(ErrorKind::Loop));
    assert_eq!(kind(&fs, "loop1", Follow::NotLast), None);
    assert_eq!(kind(&fs, "dangling", Follow::All), Some(ErrorKind::NotFound));
    assert_eq!(kind(&fs, "dangling", Follow::NotLast), None);
    assert_eq!(kind(&fs, "a/nothing/file", Follow::All), Some(ErrorKind::NotFound));
    assert_eq!(kind(&fs, "a/b/file/", Follow::All), Some(ErrorKind::NotADirectory));
    assert_eq!(kind(&fs, "a/b/file/x", Follow::All), Some(ErrorKind::NotADirectory));
    assert_eq!(kind(&fs, "absolute/x", Follow::All), Some(ErrorKind::NotADirectory));
    let long = "n".repeat(256);
    assert_eq!(kind(&fs, &long, Follow::All), Some(ErrorKind::NameTooLong));
    assert_eq!(kind(&fs, &long[1..], Follow::All), Some(ErrorKind::NotFound));
}
