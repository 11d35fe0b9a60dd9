//! A tree of files that is generated from a seed. The tree covers the special cases of a volume's content: sizes around every limit, holes,
//! unwritten extents, fragmented files, unusual names, links, device nodes, attributes, owners and times.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags,
};

use super::rng::Rng;

/// The options that determine which kinds of files the tree contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) seed: u64,
    /// The volume's block size. The sizes of files are chosen around multiples of it.
    pub(crate) block: u64,
    /// Whether the tree has several owners, device nodes, sockets and `trusted.` attributes. All of these need root and a kernel mount.
    pub(crate) nodes: bool,
    /// Whether the tree has attributes that are larger than a block.
    pub(crate) large_xattrs: bool,
    /// The number of blocks in each of the files that have thousands of extents.
    pub(crate) fragments: u64,
    pub(crate) limits: Limits,
}

/// The limits that differ between on-disk formats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum length of a symbolic link's target in bytes. The block size can restrict the length further.
    pub(crate) link: u64,
    /// The largest major and minor number of a device.
    pub(crate) device: (u32, u32),
}

impl Limits {
    pub(crate) const EXT4: Self = Self { link: 4095, device: (4095, 0xF_FFFF) };
    /// The limits of XFS on Linux: a link's target has at most 1024 bytes including the final NUL, and major numbers are smaller than on
    /// ext4.
    pub(crate) const XFS: Self = Self { link: 1023, device: (511, 0x3_FFFF) };
}

/// Times around the limits of the time formats: before 1970, and at the end of the 32-bit range in each epoch.
const SECONDS: [i64; 10] = [
    -(1 << 31),
    -1,
    0,
    1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 32) + (1 << 31),
    (1 << 33) + (1 << 31),
    (1 << 34) - (1 << 31) - 1,
];
const NANOSECONDS: [i64; 4] = [0, 1, 123_456_789, 999_999_999];

/// Creates the tree in a directory.
pub(crate) fn grow(dir: &Path, scope: Scope) {
    let mut tree = Tree { dir: dir.to_owned(), rng: Rng::new(scope.seed), scope };
    tree.sizes();
    tree.sparse();
    tree.unwritten();
    tree.fragmented();
    tree.directories();
    tree.names();
    tree.links();
    tree.nodes();
    tree.xattrs();
    tree.acls();
    tree.modes();
    tree.times();
}

struct Tree {
    dir: PathBuf,
    rng: Rng,
    scope: Scope,
}

impl Tree {
    fn room(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        std::fs::create_dir(&dir).expect("a directory");
        dir
    }

    fn write(&mut self, file: &File, pos: u64, len: u64) {
        file.write_all_at(&self.rng.bytes(len as usize), pos).expect("write");
    }

    /// File sizes around the limits of inline data, sectors, blocks, pages, and the first indirect block.
    fn sizes(&mut self) {
        let dir = self.room("sizes");
        let block = self.scope.block;
        let mut sizes =
            vec![0, 1, 2, 59, 60, 61, 95, 100, 128, 150, 156, 157, 160, 161, 200, 255, 300];
        let single = (12 + block / 4) * block;
        for border in [512, block, 4096, 2 * block, 12 * block, 1 << 16, single.min(5 << 20)] {
            sizes.extend([border - 1, border, border + 1]);
        }
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            let file = create(&dir.join(size.to_string()));
            self.write(&file, 0, size);
        }
    }

    /// Makes files with short pieces of data that are far apart, and files that end with a hole. The map of one file needs each kind of
    /// indirect block.
    fn sparse(&mut self) {
        let dir = self.room("sparse");
        let block = self.scope.block;
        for count in [1, 4, 5, 100, 400] {
            let file = create(&dir.join(format!("blocks-{count}")));
            for _ in 0..count {
                let pos = self.rng.below(4 << 20);
                let len = 1 + self.rng.below(block);
                self.write(&file, pos, len);
            }
            let size = (6 << 20) + self.rng.below(block);
            file.set_len(size).expect("set the size");
        }
        let pointers = block / 4;
        let far = create(&dir.join("far"));
        for blocks in [12, 12 + pointers, 12 + pointers + pointers * pointers] {
            // With small blocks, a file's map ends below 16 GiB. With large blocks, the positions are also kept below this limit.
            let border = (blocks * block).min(15 << 30);
            self.write(&far, border - 1, 2);
        }
        create(&dir.join("empty")).set_len(1 << 30).expect("set the size");
    }

    /// Makes files with unwritten extents: in the whole file, around written blocks, and past the end.
    fn unwritten(&mut self) {
        let dir = self.room("unwritten");
        let block = self.scope.block;
        let allocate =
            |file: &File, flags, pos, len| match rustix::fs::fallocate(file, flags, pos, len) {
                Ok(()) => true,
                // ext2 and ext3 have no unwritten extents.
                Err(rustix::io::Errno::OPNOTSUPP) => false,
                Err(error) => panic!("fallocate: {error}"),
            };
        let flags = FallocateFlags::empty();
        allocate(&create(&dir.join("all")), flags, 0, 100 * block);
        let file = create(&dir.join("holes-and-data"));
        allocate(&file, flags, 0, 200 * block);
        for _ in 0..20 {
            let (pos, len) = (self.rng.below(200 * block), 1 + self.rng.below(3 * block));
            self.write(&file, pos, len);
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        allocate(&file, punch, 50 * block, 7 * block + 1);
        let file = create(&dir.join("behind-the-end"));
        self.write(&file, 0, block + 1);
        allocate(&file, FallocateFlags::KEEP_SIZE, 0, 50 * block);
        let file = create(&dir.join("zeroed"));
        self.write(&file, 0, 20 * block);
        allocate(&file, FallocateFlags::ZERO_RANGE, 3 * block + 5, 9 * block);
    }

    /// Writes every second block, syncs, and then writes the other blocks. This gives one extent per block.
    fn fragmented(&mut self) {
        let dir = self.room("fragmented");
        let block = self.scope.block;
        for (name, passes) in [("half", 1), ("whole", 2)] {
            let file = create(&dir.join(name));
            for pass in 0..passes {
                for index in 0..self.scope.fragments {
                    self.write(&file, (2 * index + pass) * block, block);
                }
                file.sync_all().expect("sync");
            }
        }
    }

    /// Makes a deep path, and a directory with many entries. Some of the entries are removed again.
    fn directories(&mut self) {
        let mut deep = self.room("deep");
        for level in 0..60 {
            deep = deep.join(format!("level-{level}"));
            std::fs::create_dir(&deep).expect("a directory");
        }
        let file = create(&deep.join("bottom"));
        self.write(&file, 0, 10);
        let many = self.room("many");
        let target = many.join("target");
        create(&target);
        let mut added = Vec::new();
        for index in 0..2500_u32 {
            let width = 1 + self.rng.below(60) as usize;
            let path = many.join(format!("entry-{index:0width$}"));
            // The entries are hard links, so that few inodes are needed.
            std::fs::hard_link(&target, &path).expect("a link");
            added.push(path);
        }
        for path in added.iter().step_by(7) {
            std::fs::remove_file(path).expect("remove");
        }
        let few = self.room("emptied");
        for index in 0..300 {
            create(&few.join(format!("{index:0100}")));
        }
        for index in 0..299 {
            std::fs::remove_file(few.join(format!("{index:0100}"))).expect("remove");
        }
    }

    /// Makes files with unusual names: names of the maximum length, names that are not UTF-8, and names that contain every possible byte.
    fn names(&mut self) {
        let dir = self.room("names");
        let mut names: Vec<Vec<u8>> = vec![
            vec![b'x'; 255],
            "ä".repeat(127).into_bytes(),
            b"with space".to_vec(),
            b"...".to_vec(),
            b"back\\slash".to_vec(),
            b"\xff\xfe\x80".to_vec(),
            "Straße".into(),
            "日本語".into(),
        ];
        // Names with newlines are included, because mke2fs -d and the tools accept them. The tests do not split the tools' output at
        // newlines.
        names
            .extend((1..=255).filter(|byte| *byte != b'/' && *byte != b'.').map(|byte| vec![byte]));
        for name in names {
            create(&dir.join(OsStr::from_bytes(&name)));
        }
    }

    /// Makes symbolic links whose target is in the inode or in a block, and hard links.
    fn links(&mut self) {
        let dir = self.room("links");
        let longest = (self.scope.block - 1).min(self.scope.limits.link);
        for length in [1, 2, 58, 59, 60, 61, 100, 500, longest - 1, longest] {
            let mut target = OsString::from("/");
            target.push(OsStr::from_bytes(&vec![b'a' + (length % 26) as u8; length as usize - 1]));
            symlink(target, dir.join(format!("symbolic-{length}"))).expect("a link");
        }
        symlink(OsStr::from_bytes(b"\xff\n\x01"), dir.join("no-utf8")).expect("a link");
        symlink("../sizes/1", dir.join("to-a-file")).expect("a link");
        symlink("loop", dir.join("loop")).expect("a link");
        let file = create(&dir.join("hard-0"));
        self.write(&file, 0, 1000);
        for index in 1..5 {
            std::fs::hard_link(dir.join("hard-0"), dir.join(format!("hard-{index}")))
                .expect("a link");
        }
    }

    fn nodes(&mut self) {
        let dir = self.room("nodes");
        let mode = Mode::from_raw_mode(0o640);
        let make = |name: &str, file_type, device| {
            rustix::fs::mknodat(CWD, dir.join(name), file_type, mode, device).expect("a node");
        };
        make("fifo", FileType::Fifo, 0);
        if self.scope.nodes {
            make("socket", FileType::Socket, 0);
            // Device numbers below 256 use a separate encoding.
            for (major, minor) in
                [(0, 0), (1, 3), (255, 255), (256, 0), (8, 256), self.scope.limits.device]
            {
                let device = rustix::fs::makedev(major, minor);
                make(&format!("character-{major}-{minor}"), FileType::CharacterDevice, device);
                make(&format!("block-{major}-{minor}"), FileType::BlockDevice, device);
            }
        }
    }

    fn xattrs(&mut self) {
        let dir = self.room("xattrs");
        // Sets extended attributes. Some values fit into the inode or into one block. Larger values need a separate inode.
        let mut sizes = vec![0, 1, 3, 4, 20, 60, 100, 300, 700];
        if self.scope.large_xattrs {
            sizes.extend([self.scope.block, 5000, 20_000, 60_000]);
        }
        for size in sizes {
            let path = dir.join(format!("value-{size}"));
            create(&path);
            let value = self.rng.bytes(size as usize);
            set_xattr(&path, "user.value", &value);
            set_xattr(&path, "user.second", b"2");
        }
        let path = dir.join("many");
        create(&path);
        for index in 0..25 {
            set_xattr(&path, &format!("user.a-{index}"), &[index; 3]);
        }
        let path = dir.join("directory");
        std::fs::create_dir(&path).expect("a directory");
        set_xattr(&path, "user.of-a-directory", b"yes");
        // The two files get equal attributes, so that the file system may store them in one shared attribute block.
        for name in ["shared-1", "shared-2"] {
            create(&dir.join(name));
            set_xattr(&dir.join(name), "user.shared", &[7; 400]);
        }
        if self.scope.nodes {
            let path = dir.join("trusted");
            create(&path);
            set_xattr(&path, "trusted.overlay.opaque", b"y");
            // The bytes of file capabilities, version 2: cap_net_raw, permitted and effective.
            set_xattr(
                &path,
                "security.capability",
                b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            );
        }
    }

    /// Access control lists as setfacl writes them: version 2, and for each entry the tag, the permissions and the id.
    fn acls(&mut self) {
        let dir = self.room("acls");
        let acl = |entries: &[(u16, u16, u32)]| {
            let mut value = 2_u32.to_le_bytes().to_vec();
            for (tag, permissions, id) in entries {
                value.extend(tag.to_le_bytes());
                value.extend(permissions.to_le_bytes());
                value.extend(id.to_le_bytes());
            }
            value
        };
        let anyone = u32::MAX;
        let named = acl(&[
            (1, 6, anyone),
            (2, 7, 1000),
            (2, 4, 70_000),
            (4, 4, anyone),
            (8, 5, 33),
            (16, 7, anyone),
            (32, 0, anyone),
        ]);
        let file = dir.join("access");
        create(&file);
        set_xattr(&file, "system.posix_acl_access", &named);
        let directory = dir.join("default");
        std::fs::create_dir(&directory).expect("a directory");
        set_xattr(&directory, "system.posix_acl_default", &named);
        create(&directory.join("heir"));
    }

    fn modes(&mut self) {
        let dir = self.room("modes");
        // The mode lets the owner read the file, so that a test without root can copy it.
        let readable = if self.scope.nodes { 0 } else { 0o400 };
        for mode in [0, 0o111, 0o222, 0o444, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o7777] {
            let path = dir.join(format!("{mode:o}"));
            create(&path);
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode | readable)).expect("a mode");
        }
        if self.scope.nodes {
            for id in [0, 1, 65_534, 65_535, 65_536, 70_000, u32::MAX - 1] {
                let path = dir.join(format!("owner-{id}"));
                create(&path);
                let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(u32::MAX - 1 - id));
                rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty())
                    .expect("an owner");
            }
        }
    }

    fn times(&mut self) {
        let dir = self.room("times");
        for seconds in SECONDS {
            for nanoseconds in NANOSECONDS {
                let path = dir.join(format!("{seconds}.{nanoseconds:09}"));
                create(&path);
                let times = Timestamps {
                    last_access: Timespec {
                        tv_sec: -seconds.min(1 << 31),
                        tv_nsec: 999_999_999 - nanoseconds,
                    },
                    last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
                };
                rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
            }
        }
    }
}

fn create(path: &Path) -> File {
    File::create_new(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Sets an extended attribute if the volume has space for it. The oracle reports which attributes exist.
fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    match rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        Ok(()) => {}
        Err(error)
            if matches!(
                std::io::Error::from(error).kind(),
                ErrorKind::StorageFull | ErrorKind::ArgumentListTooLong
            ) => {}
        Err(error) => panic!("{} on {}: {error}", name, path.display()),
    }
}
