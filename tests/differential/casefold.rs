//! Directories that ignore case. Few kernels support them, so the oracle is e2fsck. e2fsck sorts and hashes the names of such a directory,
//! with tables that e2fsck itself contains. ironmap finds a name only if it folds and hashes the name in the same way.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use crate::common::image::{Image, scratch};
use crate::common::view::Subject;

/// The inode flags `EXT4_CASEFOLD_FL` and `EXT4_EXTENTS_FL`.
const FLAGS: &str = "0x40080000";
/// The inode flag `EXT4_INDEX_FL`.
const HASHED: u32 = 0x1000;

/// Pairs of spellings that Unicode folds to the same name.
const PAIRS: [(&str, &str); 8] = [
    ("Makefile", "MAKEFILE"),
    ("Straße", "STRASSE"),
    ("\u{c5}ngstr\u{f6}m", "A\u{30a}NGSTRO\u{308}M"),
    ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ("\u{fb01}le", "FILE"),
    ("Ǆ", "ǆ"),
    ("soft\u{ad}hyphen", "SOFTHYPHEN"),
    ("日本語", "日本語"),
];

#[test]
fn names_are_found_in_any_case() {
    let source = scratch();
    let dir = source.path().join("dir");
    std::fs::create_dir(&dir).expect("a directory");
    for (name, _) in PAIRS {
        File::create_new(dir.join(name)).expect("a file");
    }
    // The number of entries is large enough that the directory needs an htree.
    for index in 0..1000 {
        File::create_new(dir.join(format!("Entry-É-{index}"))).expect("a file");
    }
    // This name is in a separate directory, because e2fsck 1.47.0 cannot hash a name that is not UTF-8.
    let odd = source.path().join("odd");
    std::fs::create_dir(&odd).expect("a directory");
    let no_utf8 = std::ffi::OsStr::from_bytes(b"NO-\xff-UTF8");
    File::create_new(odd.join(no_utf8)).expect("a file");

    let options =
        ["-t", "ext4", "-b", "1024", "-N", "4096", "-O", "casefold", "-E", "encoding=utf8"];
    let image = Image::populated("64M", &options, source.path());
    image.debugfs(&format!("sif /dir flags {FLAGS}\nsif /odd flags {FLAGS}\n"));
    image.rebuild_directories();
    image.check();

    let subject = Subject::open(&image);
    subject.view();
    let root = subject.fs().inode(ironmap::fs::ext4::ROOT).expect("the root directory");
    let dir = root.lookup(b"dir").expect("the directory");
    assert_ne!(dir.stat().flags & HASHED, 0, "e2fsck has built a tree of hashes");
    let find = |name: &str| {
        let found = dir.lookup(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.stat().inode
    };
    for (name, other) in PAIRS {
        assert_eq!(find(name), find(other), "{name} and {other}");
    }
    for index in 0..1000 {
        assert_eq!(find(&format!("Entry-É-{index}")), find(&format!("ENTRY-E\u{301}-{index}")));
    }
    let odd = root.lookup(b"odd").expect("the directory");
    assert!(odd.lookup(b"NO-\xff-UTF8").is_ok(), "a name that is not UTF-8, by its bytes");
    assert!(odd.lookup(b"no-\xff-utf8").is_err(), "a name that is not UTF-8 has no case");
    assert!(root.lookup(b"DIR").is_err(), "the root directory does regard case");
}
