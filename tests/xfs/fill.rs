//! Makes a tree for XFS: the files that all formats have in common, and the forms of directories, maps and attributes that exist only in
//! XFS.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, lsetxattr, mknodat};

use crate::common::command::{output, run};
use crate::common::rng::Rng;
use crate::common::tree::{Limits, Scope, grow};
use crate::{SEED, collisions};

/// How many files and extents of each kind the tree contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Small,
    /// The tree has directories of 20,000 names, and maps of 20,000 extents.
    Large,
}

impl Amount {
    fn of<T>(self, small: T, large: T) -> T {
        if self == Self::Large { large } else { small }
    }

    /// The number of extents of the file with the most extents.
    pub(crate) fn extents(self) -> u64 {
        self.of(800, 20_000)
    }

    /// The number of names in each of the directories.
    fn names(self) -> &'static [usize] {
        self.of(&[0, 1, 3, 12, 40, 150, 1000], &[0, 1, 3, 12, 40, 150, 1000, 4000, 20_000])
    }
}

/// Fills a mounted volume. `shares` says whether its files can share blocks.
pub(crate) fn fill(dir: &Path, block: u64, amount: Amount, shares: bool) {
    let scope = Scope {
        seed: SEED,
        block,
        nodes: true,
        large_xattrs: true,
        fragments: 200,
        limits: Limits::XFS,
    };
    grow(dir, scope);
    let rng = &mut Rng::new(SEED ^ block);
    directories(dir, amount, rng);
    maps(dir, block, amount, rng);
    if shares {
        shared(dir, block, rng);
    }
    attributes(dir, amount, rng);
    // `flags_and_projects` comes last, because some files that it makes cannot be changed later.
    flags_and_projects(dir);
}

/// Directories of every form. Each form also has copies with fewer names: either single names or long runs of names were removed. Long runs
/// free blocks.
fn directories(dir: &Path, amount: Amount, rng: &mut Rng) {
    let room = dir.join("forms");
    std::fs::create_dir(&room).unwrap();
    let file = room.join("file");
    File::create_new(&file).unwrap();
    for count in amount.names() {
        // The largest directories need most of the time. So they have only one copy.
        let kinds = if *count > 4000 { &["some"][..] } else { &["none", "some", "runs"] };
        for gaps in kinds {
            let dir = room.join(format!("{count}-{gaps}"));
            std::fs::create_dir(&dir).unwrap();
            let mut paths = Vec::new();
            for index in 0..*count {
                let longest = if rng.below(20) == 0 { 240 } else { 30 };
                let width = 1 + rng.below(longest) as usize;
                let path = dir.join(format!("{index:0width$}"));
                // The directory has entries of all file types. Most entries are hard links, because they need no new inodes.
                match rng.below(200) {
                    0 => std::fs::create_dir(&path).unwrap(),
                    1 => symlink("target", &path).unwrap(),
                    2 => {
                        let mode = Mode::from_raw_mode(0o600);
                        mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
                    }
                    _ => std::fs::hard_link(&file, &path).unwrap(),
                }
                paths.push(path);
            }
            let is_gone = |index: usize| match *gaps {
                "some" => index % 3 == 1,
                "runs" => index % 500 > 10,
                _ => false,
            };
            for (_, path) in paths.iter().enumerate().filter(|(index, _)| is_gone(*index)) {
                if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) }
                    .unwrap();
            }
        }
    }
    let alike = room.join("alike");
    std::fs::create_dir(&alike).unwrap();
    for name in collisions::names(40) {
        std::fs::hard_link(&file, alike.join(OsStr::from_bytes(&name))).unwrap();
    }
}

/// Files whose maps do not fit into the inode, and files with blocks past the end.
fn maps(dir: &Path, block: u64, amount: Amount, rng: &mut Rng) {
    let room = dir.join("maps");
    std::fs::create_dir(&room).unwrap();
    let create = |name: &str| File::create_new(room.join(name)).unwrap();
    let count = amount.extents();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let file = create("punched");
    fallocate(&file, FallocateFlags::empty(), 0, 2 * count * block).unwrap();
    for index in 0..count {
        fallocate(&file, punch, 2 * index * block, block).unwrap();
    }
    for index in (1..2 * count).step_by(62) {
        file.write_all_at(&rng.bytes(block as usize), index * block).unwrap();
    }
    let file = create("written-and-unwritten");
    fallocate(&file, FallocateFlags::empty(), 0, 400 * block).unwrap();
    for index in (0..400).step_by(2) {
        file.write_all_at(&rng.bytes(block as usize / 2), index * block).unwrap();
    }
    let file = create("far");
    for shift in [20, 31, 32, 40, 50, 62] {
        file.write_all_at(b"far", (1 << shift) - 1).unwrap();
    }
    let file = create("past-the-end");
    file.write_all_at(&rng.bytes(5000), 0).unwrap();
    let pos = (1 << 20) / block * block;
    fallocate(&file, FallocateFlags::KEEP_SIZE, pos, 30 * block).unwrap();
    for (name, size) in [("few", 3), ("some", 9), ("more", 21)] {
        let file = create(name);
        for index in 0..size {
            file.write_all_at(&rng.bytes(block as usize), (3 * index + 1) * block).unwrap();
        }
    }
}

/// Copies of files that share all or some blocks.
fn shared(dir: &Path, block: u64, rng: &mut Rng) {
    let room = dir.join("shared");
    std::fs::create_dir(&room).unwrap();
    let original = room.join("original");
    std::fs::write(&original, rng.bytes(100 * block as usize + 100)).unwrap();
    for copy in ["copy", "changed"] {
        let copy = room.join(copy);
        run("cp", &["--reflink=always".as_ref(), original.as_os_str(), copy.as_os_str()]);
    }
    let changed = File::options().write(true).open(room.join("changed")).unwrap();
    for index in [0, 7, 50, 51, 99] {
        changed.write_all_at(&rng.bytes(block as usize / 2), index * block).unwrap();
    }
}

/// Attributes of every form: in the inode, in one leaf, in several leaves below nodes, with values in separate blocks, and in many extents.
fn attributes(dir: &Path, amount: Amount, rng: &mut Rng) {
    let room = dir.join("attributes");
    std::fs::create_dir(&room).unwrap();
    let set = |file: &str, name: &[u8], value: &[u8]| {
        lsetxattr(room.join(file), name, value, XattrFlags::empty()).unwrap();
    };
    let counts = [1, 5, 60, 400, amount.of(500, 3000)];
    for (index, count) in counts.into_iter().enumerate() {
        let file = format!("{index}-{count}");
        File::create_new(room.join(&file)).unwrap();
        for number in 0..count {
            // After every five additions, an attribute is removed again, so the attribute blocks have gaps.
            let name = format!("user.{number}");
            let len = rng.below(if count > 10 { 200 } else { 10 });
            set(&file, name.as_bytes(), &rng.bytes(len as usize));
            if number % 5 == 4 {
                let name = format!("user.{}", number - 2);
                rustix::fs::lremovexattr(room.join(&file), name).unwrap();
            }
        }
    }
    for file in ["apart-1", "apart-2", "longest", "names", "alike"] {
        File::create_new(room.join(file)).unwrap();
    }
    // The test extends the two files in turns. So the blocks of each file are not contiguous.
    for number in 0..60 {
        for file in ["apart-1", "apart-2"] {
            let len = 3000 + rng.below(3000) as usize;
            set(file, format!("trusted.{number}").as_bytes(), &rng.bytes(len));
        }
    }
    for (name, len) in [("user.64k", 65_536), ("user.less", 65_535), ("security.half", 32_768)] {
        set("longest", name.as_bytes(), &rng.bytes(len));
    }
    set("names", &[b"user.", &[b'n'; 250][..]].concat(), b"value");
    for prefix in ["user.", "trusted.", "security."] {
        set("names", [prefix, "same"].concat().as_bytes(), prefix.as_bytes());
        set("names", [prefix, "empty"].concat().as_bytes(), b"");
    }
    for (number, name) in collisions::names(20).into_iter().enumerate() {
        set("alike", &[b"user.", &name[..]].concat(), number.to_string().as_bytes());
    }
    // Links and directories also get some kinds of attributes.
    symlink("nowhere", room.join("link")).unwrap();
    set("link", b"trusted.of-a-link", &rng.bytes(700));
    symlink("a".repeat(900), room.join("long-link")).unwrap();
    set("long-link", b"trusted.of-a-link", b"short");
}

fn flags_and_projects(dir: &Path) {
    let room = dir.join("flags");
    std::fs::create_dir(&room).unwrap();
    for flags in ["S", "A", "d", "dA", "P", "a", "i", "iaSdA"] {
        let (file, below) = (room.join(flags), room.join(format!("{flags}-dir")));
        File::create_new(&file).unwrap();
        std::fs::create_dir(&below).unwrap();
        for path in [&file, &below] {
            // Only a directory can have project inheritance.
            if flags == "P" && path == &file {
                continue;
            }
            run("chattr", &[format!("+{flags}").as_ref(), path.as_os_str()]);
        }
    }
    for project in ["1", "65535", "65536", "4294967294"] {
        let path = room.join(format!("project-{project}"));
        std::fs::create_dir(&path).unwrap();
        run("chattr", &["-p".as_ref(), project.as_ref(), path.as_os_str()]);
        run("chattr", &["+P".as_ref(), path.as_os_str()]);
        File::create_new(path.join("heir")).unwrap();
    }
}

/// Whether the files of a mounted volume can share blocks.
pub(crate) fn can_share(dir: &Path) -> bool {
    let (one, other) = (dir.join("one"), dir.join("other"));
    std::fs::write(&one, b"1").unwrap();
    let args = ["--reflink=always".as_ref(), one.as_os_str(), other.as_os_str()];
    output("cp", &args).status.success()
}
