//! Operations on a volume that is open for writing. Each has its effect, and e2fsck finds no fault.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::image::scratch;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{
    Clock, Credentials, DirCursor, Fallocate, FileSystem, Follow, NewFile, RenameFlags,
    SetAttributes, SetXattr, Timestamp, Writer,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, FileOptions, Location, QueueOptions, Volume, VolumeOptions};
use tempfile::TempDir;

const WHO: Credentials = Credentials::new(0, 0, 0o022);

struct Image {
    dir: TempDir,
    what: String,
}

impl Image {
    fn new(options: &str) -> Self {
        let image = Self { dir: scratch(), what: options.to_owned() };
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.arg("-Fq").args(options.split(' ')).arg(image.path()).arg("64M");
        let out = mke2fs.output().unwrap();
        assert!(out.status.success(), "{options}: {}", String::from_utf8_lossy(&out.stderr));
        image
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn open(&self) -> Volume {
        let options = VolumeOptions::new().write(true);
        let location: Location = self.path().to_str().unwrap().parse().unwrap();
        crate::common::beneath::open(&location, &options).unwrap()
    }

    /// Runs `work` on the volume and closes it. Then runs e2fsck, opens the volume read-only, and runs `check` on it.
    fn run(&self, work: impl FnOnce(&Volume), check: impl FnOnce(&Volume)) {
        let volume = self.open();
        work(&volume);
        volume.close().unwrap();
        drop(volume);
        fsck(&self.path(), &self.what);
        let location: Location = self.path().to_str().unwrap().parse().unwrap();
        let volume = crate::common::beneath::open(&location, &VolumeOptions::default()).unwrap();
        check(&volume);
    }
}

fn fsck(image: &Path, what: &str) {
    let out = Command::new("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{what}: {text}");
}

fn number(fs: &Arc<dyn FileSystem>, path: &str) -> InodeNo {
    fs.resolve(path.as_bytes(), Follow::NotLast).unwrap_or_else(|error| panic!("{error}")).number()
}

fn content(volume: &Volume, path: &str) -> Vec<u8> {
    let inode = volume.fs().resolve(path.as_bytes(), Follow::All).unwrap();
    let file = volume.open_inode(inode, FileOptions::new()).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut bytes = vec![0; file.size() as usize + 10];
    let count = file.read_at(&mut queue, &mut bytes, FilePos(0)).unwrap();
    bytes.truncate(count);
    bytes
}

const KINDS: [&str; 9] = [
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -O inline_data",
    "-t ext4 -O ^metadata_csum,uninit_bg",
    "-t ext4 -O bigalloc -C 16384",
    "-t ext4 -I 128",
    "-t ext4 -O ea_inode,large_dir,meta_bg,^resize_inode",
    "-t ext3",
    "-t ext2",
];

#[test]
fn files_of_every_type_are_made_and_removed() {
    for kind in KINDS {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.fs();
                let dir = fs
                    .writable()
                    .unwrap()
                    .create(ROOT, b"dir", NewFile::Directory, 0o755, &WHO)
                    .unwrap();
                let file = fs
                    .writable()
                    .unwrap()
                    .create(dir, b"file", NewFile::Regular, 0o644, &WHO)
                    .unwrap();
                assert_eq!(
                    fs.writable().unwrap().write(file, FilePos(0), b"hello").unwrap(),
                    5,
                    "{kind}"
                );
                assert_eq!(content(volume, "/dir/file"), b"hello", "{kind}");
                for (name, new) in [
                    (&b"fifo"[..], NewFile::Fifo),
                    (b"socket", NewFile::Socket),
                    (b"null", NewFile::CharDevice(1, 3)),
                    (b"disk", NewFile::BlockDevice(259, 70_000)),
                    (b"short", NewFile::Symlink(b"file")),
                    (b"long", NewFile::Symlink(&[b'x'; 300])),
                ] {
                    fs.writable().unwrap().create(dir, name, new, 0o600, &WHO).unwrap();
                }
                fs.writable().unwrap().link(file, ROOT, b"other").unwrap();
                let again =
                    fs.writable().unwrap().create(dir, b"file", NewFile::Regular, 0o644, &WHO);
                assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
                let busy = fs.writable().unwrap().rmdir(ROOT, b"dir").unwrap_err();
                assert_eq!(busy.kind(), ErrorKind::NotEmpty);
                let sub = fs
                    .writable()
                    .unwrap()
                    .create(dir, b"sub", NewFile::Directory, 0o755, &WHO)
                    .unwrap();
                fs.writable().unwrap().create(sub, b"gone", NewFile::Regular, 0o644, &WHO).unwrap();
                fs.writable().unwrap().unlink(sub, b"gone").unwrap();
                fs.writable().unwrap().rmdir(dir, b"sub").unwrap();
            },
            |volume| {
                let fs = volume.fs();
                assert_eq!(fs.resolve(b"/other", Follow::All).unwrap().stat().links, 2);
                let link = fs.resolve(b"/dir/long", Follow::NotLast).unwrap();
                assert_eq!(link.read_link().unwrap(), [b'x'; 300]);
                let disk = fs.resolve(b"/dir/disk", Follow::All).unwrap();
                assert_eq!(disk.stat().device, Some((259, 70_000)));
                assert_eq!(fs.resolve(b"/dir", Follow::All).unwrap().stat().links, 2);
            },
        );
    }
}

#[test]
fn content_of_every_shape_is_written() {
    for kind in KINDS {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.fs();
                let file = fs
                    .writable()
                    .unwrap()
                    .create(ROOT, b"file", NewFile::Regular, 0o644, &WHO)
                    .unwrap();
                let mut model: Vec<u8> = Vec::new();
                let mut write = |pos: usize, len: usize, byte: u8| {
                    let bytes = vec![byte; len];
                    assert_eq!(
                        fs.writable().unwrap().write(file, FilePos(pos as u64), &bytes).unwrap(),
                        len
                    );
                    model.resize(model.len().max(pos + len), 0);
                    model[pos..pos + len].copy_from_slice(&bytes);
                    assert!(content(volume, "/file") == model, "{kind}: {pos}+{len}");
                };
                write(0, 40, 1);
                write(50, 30, 2);
                write(1000, 5000, 3);
                write(100_000, 10, 4);
                write(20_000, 70_000, 5);
                write(0, 1, 6);
                write(300_000, 3_000_000, 7);
                for size in [3_299_999, 1_000_000, 1_000_001, 100, 30, 0, 5000] {
                    fs.writable().unwrap().truncate(file, size as u64).unwrap();
                    model.resize(size, 0);
                    assert!(content(volume, "/file") == model, "{kind}: truncated to {size}");
                }
            },
            |_| {},
        );
    }
}

#[test]
fn space_is_preallocated_punched_and_shifted() {
    for kind in &KINDS[..7] {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.fs();
                let unit = if kind.contains("bigalloc") { 16384 } else { 4096 };
                let file = fs
                    .writable()
                    .unwrap()
                    .create(ROOT, b"file", NewFile::Regular, 0o644, &WHO)
                    .unwrap();
                let mut model: Vec<u8> =
                    (0..40 * unit).map(|at| (at / 512 % 255) as u8 + 1).collect();
                fs.writable().unwrap().write(file, FilePos(0), &model).unwrap();
                let same = |model: &[u8], what: &str| {
                    assert!(content(volume, "/file") == model, "{kind}: {what}");
                };
                let call = |how, pos: usize, len: usize| {
                    fs.writable()
                        .unwrap()
                        .fallocate(file, how, FilePos(pos as u64), len as u64)
                        .unwrap();
                };
                call(Fallocate::Punch, 1000, 3 * unit);
                model[1000..1000 + 3 * unit].fill(0);
                same(&model, "punch");
                call(Fallocate::Zero { keep_size: true }, 10 * unit + 5, 2 * unit);
                model[10 * unit + 5..12 * unit + 5].fill(0);
                same(&model, "zero");
                call(Fallocate::Collapse, 4 * unit, 3 * unit);
                model.drain(4 * unit..7 * unit);
                same(&model, "collapse");
                call(Fallocate::Insert, 6 * unit, 5 * unit);
                model.splice(6 * unit..6 * unit, vec![0; 5 * unit]);
                same(&model, "insert");
                call(Fallocate::Allocate { keep_size: true }, 100 * unit, 50 * unit);
                same(&model, "keep size");
                call(Fallocate::Allocate { keep_size: false }, 50 * unit, 10 * unit);
                model.resize(60 * unit, 0);
                same(&model, "allocate");
                fs.writable()
                    .unwrap()
                    .write(file, FilePos(52 * unit as u64 + 7), b"within")
                    .unwrap();
                model[52 * unit + 7..52 * unit + 13].copy_from_slice(b"within");
                same(&model, "written");
            },
            |_| {},
        );
    }
}

#[test]
fn names_move_replace_and_change_places() {
    for kind in KINDS {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.fs();
                let mkdir = |dir, name: &str| {
                    fs.writable()
                        .unwrap()
                        .create(dir, name.as_bytes(), NewFile::Directory, 0o755, &WHO)
                        .unwrap()
                };
                let touch = |dir, name: &str| {
                    fs.writable()
                        .unwrap()
                        .create(dir, name.as_bytes(), NewFile::Regular, 0o644, &WHO)
                        .unwrap()
                };
                let none = RenameFlags::empty();
                let (a, b) = (mkdir(ROOT, "a"), mkdir(ROOT, "b"));
                let file = touch(a, "file");
                fs.writable().unwrap().rename((a, b"file"), (b, b"moved"), none, &WHO).unwrap();
                assert_eq!(number(fs, "/b/moved"), file);
                let sub = mkdir(a, "sub");
                fs.writable().unwrap().rename((a, b"sub"), (b, b"sub"), none, &WHO).unwrap();
                assert_eq!(number(fs, "/b/sub/.."), b);
                let error = fs
                    .writable()
                    .unwrap()
                    .rename((ROOT, b"b"), (sub, b"x"), none, &WHO)
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                let other = touch(a, "other");
                fs.writable().unwrap().rename((a, b"other"), (b, b"moved"), none, &WHO).unwrap();
                assert_eq!(number(fs, "/b/moved"), other);
                let error = fs
                    .writable()
                    .unwrap()
                    .rename((b, b"moved"), (b, b"sub"), none, &WHO)
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::IsADirectory);
                touch(sub, "in");
                let empty = mkdir(a, "empty");
                fs.writable().unwrap().rename((b, b"sub"), (a, b"empty"), none, &WHO).unwrap();
                assert_eq!(number(fs, "/a/empty"), sub);
                assert!(fs.inode(empty).is_err());
                fs.writable().unwrap().rename((ROOT, b"a"), (ROOT, b"a"), none, &WHO).unwrap();
                fs.writable()
                    .unwrap()
                    .rename((a, b"empty"), (b, b"moved"), RenameFlags::EXCHANGE, &WHO)
                    .unwrap();
                assert_eq!(number(fs, "/a/empty"), other);
                assert_eq!(number(fs, "/b/moved/.."), b);
                fs.writable()
                    .unwrap()
                    .rename((b, b"moved"), (ROOT, b"white"), RenameFlags::WHITEOUT, &WHO)
                    .unwrap();
                let white = fs.resolve(b"/b/moved", Follow::NotLast).unwrap();
                assert_eq!(white.stat().device, Some((0, 0)));
            },
            |volume| {
                let fs = volume.fs();
                assert_eq!(fs.resolve(b"/b", Follow::All).unwrap().stat().links, 2);
                assert_eq!(fs.resolve(b"/", Follow::All).unwrap().stat().links, 6);
            },
        );
    }
}

/// An exchange of two names in one directory changes two entries. If the directory stores its entries in its inode, the second change does
/// not undo the first.
#[test]
fn names_in_one_directory_change_places() {
    for options in ["-O inline_data", "-O ^inline_data"] {
        let numbers = std::cell::Cell::new((InodeNo(0), InodeNo(0)));
        Image::new(options).run(
            |volume| {
                let fs = volume.fs();
                fs.writable().unwrap().create(ROOT, b"d", NewFile::Directory, 0o755, &WHO).unwrap();
                let dir = number(fs, "d");
                for name in [b"one", b"two"] {
                    fs.writable()
                        .unwrap()
                        .create(dir, name, NewFile::Regular, 0o644, &WHO)
                        .unwrap();
                }
                numbers.set((number(fs, "d/one"), number(fs, "d/two")));
                fs.writable()
                    .unwrap()
                    .rename((dir, b"one"), (dir, b"two"), RenameFlags::EXCHANGE, &WHO)
                    .unwrap();
            },
            |volume| {
                let fs = volume.fs();
                let (one, two) = numbers.get();
                assert_eq!((number(fs, "d/one"), number(fs, "d/two")), (two, one), "{options}");
            },
        );
    }
}

#[test]
fn an_open_file_outlives_its_name() {
    for kind in KINDS {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.fs();
                for close in [true, false] {
                    let file = fs
                        .writable()
                        .unwrap()
                        .create(ROOT, b"file", NewFile::Regular, 0o644, &WHO)
                        .unwrap();
                    fs.writable().unwrap().write(file, FilePos(0), &[7; 100_000]).unwrap();
                    let held = fs.hold(file).unwrap();
                    let inode = fs.inode(file).unwrap();
                    let open = volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
                    fs.writable().unwrap().unlink(ROOT, b"file").unwrap();
                    fs.sync().unwrap();
                    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
                    let mut bytes = vec![0; 100_000];
                    open.read_at(&mut queue, &mut bytes, FilePos(0)).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == 7), "{kind}");
                    assert_eq!(volume.ext4().unwrap().orphans().unwrap(), 1, "{kind}");
                    if close {
                        drop((held, open));
                        assert_eq!(volume.ext4().unwrap().orphans().unwrap(), 0, "{kind}");
                    }
                }
            },
            |volume| assert_eq!(volume.ext4().unwrap().orphans().unwrap(), 0, "{kind}"),
        );
    }
}

#[test]
fn attributes_are_set() {
    for kind in KINDS {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.ext4().unwrap();
                let file = fs.create(ROOT, b"file", NewFile::Regular, 0o4755, &WHO).unwrap();
                let set = SetAttributes::new().uid(70_000).gid(5);
                fs.set_attributes(file, &set).unwrap();
                fs.setxattr(file, b"user.colour", b"red", SetXattr::Create).unwrap();
            },
            |volume| {
                let fs = volume.fs();
                let file = fs.resolve(b"/file", Follow::All).unwrap();
                let stat = file.stat();
                assert_eq!((stat.uid, stat.gid, stat.mode), (70_000, 5, 0o100_755), "{kind}");
                assert_eq!(file.xattr(b"user.colour").unwrap().unwrap(), b"red");
            },
        );
    }
}

/// On a full volume, preallocated blocks can be written piece by piece. Each piece splits an extent, until the map needs nodes outside the
/// inode. Then a hole can still be punched into the blocks.
#[test]
fn preallocated_blocks_can_be_written_on_a_full_volume() {
    for kind in ["-t ext4 -b 1024", "-t ext4", "-t ext4 -O bigalloc -C 16384"] {
        let image = Image::new(kind);
        image.run(
            |volume| {
                let fs = volume.ext4().unwrap();
                let block = fs.superblock().block_size.bytes() as u64;
                let file = fs.create(ROOT, b"file", NewFile::Regular, 0o644, &WHO).unwrap();
                let how = Fallocate::Allocate { keep_size: false };
                fs.fallocate(file, how, FilePos(0), 1200 * block).unwrap();
                let rest = fs.create(ROOT, b"rest", NewFile::Regular, 0o644, &WHO).unwrap();
                let mut size = 0;
                let full = loop {
                    match fs.write(rest, FilePos(size), &[9; 1 << 20]) {
                        Ok(count) => size += count as u64,
                        Err(error) => break error.kind(),
                    }
                };
                assert_eq!(full, ErrorKind::NoSpace, "{kind}");
                assert_eq!(fs.free_space().available, 0, "{kind}");
                for piece in 0..400_u64 {
                    let pos = FilePos((piece * 3 + 1) * block);
                    let written = fs.write(file, pos, &vec![piece as u8; block as usize]);
                    assert_eq!(written.unwrap(), block as usize, "{kind}, piece {piece}");
                }
                fs.fallocate(file, Fallocate::Punch, FilePos(100 * block), block).unwrap();
                let more = fs.write(rest, FilePos(size), &[9; 1 << 20]);
                assert_eq!(more.unwrap_err().kind(), ErrorKind::NoSpace, "{kind}: kept for nodes");
            },
            |volume| {
                let fs = volume.fs();
                let file = fs.resolve(b"/file", Follow::All).unwrap();
                let block = u64::from(file.stat().block_size);
                assert_eq!(file.size(), 1200 * block, "{kind}");
            },
        );
        let location: Location = image.path().to_str().unwrap().parse().unwrap();
        let volume = crate::common::beneath::open(&location, &VolumeOptions::default()).unwrap();
        let block = volume.ext4().unwrap().superblock().block_size.bytes();
        for (at, found) in content(&volume, "/file").chunks(block).enumerate() {
            let expected = if at % 3 == 1 && at != 100 { (at / 3) as u8 } else { 0 };
            assert!(found.iter().all(|byte| *byte == expected), "{kind}, block {at}");
        }
    }
}

/// A program has read an inode. Then the file is removed, and another file gets the inode number. The old inode cannot open this other
/// file. Generation numbers do not help here. The clock is constant, as for reproducible images, so generation numbers begin with the same
/// value at each open.
#[test]
fn an_inode_in_hand_opens_no_file_that_has_got_its_number() {
    let image = Image::new("-t ext4 -I 256 -N 64");
    let location: Location = image.path().to_str().unwrap().parse().unwrap();
    let clock = Clock::Fixed(Timestamp { seconds: 1_000_000_000, nanoseconds: 0 });
    let options = VolumeOptions::new().write(true).clock(clock);
    let long = [b'x'; 200];
    let kinds = [NewFile::Regular, NewFile::Directory, NewFile::Symlink(&long)];
    let make = |volume: &Volume, name: &str, kind: NewFile<'_>| {
        volume.fs().writable().unwrap().create(ROOT, name.as_bytes(), kind, 0o755, &WHO).unwrap()
    };
    let remove = |volume: &Volume, name: &str, kind: NewFile<'_>| match kind {
        NewFile::Directory => volume.fs().writable().unwrap().rmdir(ROOT, name.as_bytes()).unwrap(),
        _ => volume.fs().writable().unwrap().unlink(ROOT, name.as_bytes()).unwrap(),
    };
    for old in kinds {
        for new in kinds {
            let what = format!("{old:?}, then {new:?}");
            let volume = crate::common::beneath::open(&location, &options).unwrap();
            make(&volume, "name", old);
            volume.close().unwrap();
            drop(volume);
            let volume = crate::common::beneath::open(&location, &options).unwrap();
            let fs = volume.fs();
            let decoded = || fs.lookup(ROOT, b"name").unwrap();
            let (opened, read) = (decoded(), decoded());
            fs.writable()
                .unwrap()
                .setxattr(read.number(), b"user.secret", &[b'o'; 900], SetXattr::Any)
                .ok();
            let read_before = decoded();
            remove(&volume, "name", old);
            fs.sync().unwrap();
            // A new directory does not always get the lowest free inode number. So several directories are made.
            let names: Vec<_> = (0..40).map(|name| format!("new{name}")).collect();
            let taken: Vec<_> = names.iter().map(|name| make(&volume, name, new)).collect();
            let number = opened.number();
            assert!(taken.contains(&number), "{what}: the number is not taken again");
            fs.writable()
                .unwrap()
                .setxattr(number, b"user.secret", &[b'n'; 900], SetXattr::Any)
                .ok();
            let refused = |error: ironmap::Error| {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
            };
            let is_directory = old == NewFile::Directory;
            if is_directory {
                refused(read.lookup(b"..").map(drop).unwrap_err());
                refused(read.list(DirCursor::START).map(drop).unwrap_err());
            } else {
                refused(
                    volume
                        .open_inode(opened, FileOptions::new().write(true))
                        .map(drop)
                        .unwrap_err(),
                );
            }
            if matches!(old, NewFile::Symlink(_)) {
                refused(read.read_link().map(drop).unwrap_err());
            }
            refused(read_before.xattrs().map(drop).unwrap_err());
            refused(read_before.xattr(b"user.secret").map(drop).unwrap_err());
            names.iter().for_each(|name| remove(&volume, name, new));
            volume.close().unwrap();
            drop(volume);
            fsck(&image.path(), &what);
        }
    }
}

/// Large attribute values are stored in separate inodes. If a value is replaced, its inode is reused. A concurrent reader gets either the
/// old value or the new value.
#[test]
fn a_large_value_is_read_while_it_is_replaced() {
    const ROUNDS: u8 = 200;
    let image = Image::new("-t ext4 -O ea_inode");
    let value = |round: u8| vec![round; 20_000 + usize::from(round)];
    let work = |volume: &Volume| {
        let fs = volume.fs();
        let number =
            fs.writable().unwrap().create(ROOT, b"file", NewFile::Regular, 0o644, &WHO).unwrap();
        let set = |round| {
            fs.writable()
                .unwrap()
                .setxattr(number, b"user.large", &value(round), SetXattr::Any)
                .unwrap();
        };
        set(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..ROUNDS).for_each(set));
            let mut last = 0;
            while !writer.is_finished() {
                let read = fs.inode(number).unwrap().xattr(b"user.large").unwrap().unwrap();
                assert!(read[0] >= last && read == value(read[0]), "after {last}");
                last = read[0];
            }
        });
    };
    image.run(work, |volume| {
        let file = volume.fs().resolve(b"/file", Follow::NotLast).unwrap();
        assert_eq!(file.xattr(b"user.large").unwrap().unwrap(), value(ROUNDS - 1));
    });
}
