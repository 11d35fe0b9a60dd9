//! A reader by other authors as the oracle: GRUB's module for XFS, run by `grub-fstest`.

use std::collections::BTreeSet;

use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions};
use rustix::fs::FileType;

use crate::common::command::{find, run};
use crate::common::image::Image;
use crate::common::view::{View, join};
use crate::note;

const PROGRAM: &str = "grub-fstest";
/// The number of files whose content is compared.
const FILES: usize = 40;

/// Asserts that GRUB lists every directory as ironmap does, and reads the same bytes of files. GRUB prints names in a line separated by
/// spaces, so names must not contain white space.
pub(crate) fn assert_same(image: &Image, view: &View, what: &str) {
    if find(PROGRAM).is_none() {
        return note(&format!("GRUB's view: needs the program {PROGRAM}"));
    }
    let path = image.path();
    let path = path.to_str().unwrap();
    let grub = |command: &str, file: &[u8], rest: &[&str]| {
        let file = format!("(loop0)/{}", std::str::from_utf8(file).unwrap());
        run(PROGRAM, &[&[path, command, &file], rest].concat())
    };
    let is_dir = |path: &[u8]| path.is_empty() || view[path].is(FileType::Directory);
    let root = Vec::new();
    let dirs = view.keys().filter(|path| is_dir(path)).chain([&root]);
    // In a directory of several blocks, GRUB before 2.12 reads the end of each block as the index of a single-block directory. With such a
    // GRUB, only small directories are compared.
    let most = if is_old() {
        image.open().unwrap().xfs().unwrap().superblock().directory_block_size()
    } else {
        usize::MAX
    };
    let dirs =
        dirs.filter(|path| view.get(*path).is_none_or(|dir| dir.size.unwrap() <= most as u64));
    for dir in dirs.collect::<BTreeSet<_>>() {
        let said = grub("ls", &join(dir, b""), &[]);
        let theirs: BTreeSet<_> = said
            .split(|byte| *byte == b' ' || *byte == b'\n')
            .filter(|word| !word.is_empty())
            .collect();
        let entries = view.keys().filter(|path| !path.is_empty()).filter_map(|path| {
            let (parent, name) = split(path);
            (parent == &dir[..]).then(|| [name, if is_dir(path) { b"/" } else { b"" }].concat())
        });
        let ours: Vec<_> = entries.collect();
        let ours: BTreeSet<_> = ours.iter().map(|name| &name[..]).collect();
        let place = || format!("{what}, GRUB: /{}", dir.escape_ascii());
        assert!(
            ours == theirs,
            "{}: {:?}",
            place(),
            ours.symmetric_difference(&theirs)
                .take(9)
                .map(|name| name.escape_ascii().to_string())
                .collect::<Vec<_>>()
        );
    }
    let volume = image.open().unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let copy = image.beside("grub");
    let regular = view.iter().filter(|(_, record)| record.is(FileType::RegularFile));
    for (name, record) in regular.take(FILES) {
        grub("cp", name, &[copy.to_str().unwrap()]);
        let theirs = std::fs::read(&copy).unwrap();
        let number = ironmap::units::InodeNo(record.inode.unwrap());
        let file = volume.open_inode(number, FileOptions::new()).unwrap();
        let mut ours = vec![0; record.size.unwrap() as usize];
        assert_eq!(file.read_at(&mut queue, &mut ours, FilePos(0)).unwrap(), ours.len());
        assert!(ours == theirs, "{what}, GRUB: the content of /{}", name.escape_ascii());
    }
}

fn is_old() -> bool {
    let said = String::from_utf8(run(PROGRAM, &["--version"])).unwrap();
    // The output of GRUB is, for example, `grub-fstest (GRUB) 2.06-13+deb12u2`.
    let number = said.split_whitespace().last().unwrap();
    let mut numbers = number.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    let version = (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap());
    version < (2, 12)
}

/// Splits a path into the directory and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
