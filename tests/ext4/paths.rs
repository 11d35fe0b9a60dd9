//! Access to a volume through paths, in the style of `std::fs`. The kernel sees the same tree. e2fsck finds no fault.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use ironmap::Error;
use ironmap::fs::FileType;
use ironmap::prelude::*;

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;

fn made() -> Image {
    Image::mke2fs("64M", &["-t", "ext4"])
}

fn writable(image: &Image) -> Volume {
    crate::common::beneath::open(&image.location(), &VolumeOptions::new().write(true)).unwrap()
}

fn kind(error: ironmap::Result<impl Sized>) -> ErrorKind {
    error.map(drop).unwrap_err().kind()
}

/// A tree is made through paths. When the kernel mounts the volume, it sees the same tree.
#[test]
fn a_tree_made_by_paths_is_the_kernels() {
    require!([Need::Root, Need::Tool("mke2fs")]);
    let image = made();
    let volume = writable(&image);
    volume.create_dir_all("/srv/data/deep").unwrap();
    volume.create_dir_all("srv/data").unwrap();
    volume.write("/srv/data/first", b"first").unwrap();
    volume.write("/srv/data/first", b"1").unwrap();
    volume.write("/srv/data/long", vec![7; 300_000]).unwrap();
    volume.hard_link("/srv/data/long", "/srv/data/deep/again").unwrap();
    volume.symlink("data/first", "/srv/link").unwrap();
    volume.symlink("data/made", "/srv/dangling").unwrap();
    volume.write("/srv/dangling", "made by its link").unwrap();
    volume.rename("/srv/data/first", "/srv/second").unwrap();
    let options = FileOptions::new().create_new(true).write(true).mode(0o2640).owner(7, 8);
    volume.open_with("/srv/owned", options).unwrap();
    assert_eq!(volume.read("/srv/data/made").unwrap(), b"made by its link");
    assert_eq!(volume.read_link("/srv/link").unwrap(), Path::new("data/first"));
    assert!(!volume.exists("/srv/link").unwrap() && volume.exists("/srv/second").unwrap());
    assert_eq!(volume.symlink_metadata("/srv/link").unwrap().file_type, FileType::Symlink);
    assert_eq!(volume.metadata("/srv/data/long").unwrap().links, 2);
    let names = volume.read_dir("/srv").unwrap().map(|entry| entry.unwrap().name);
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let expected: [&[u8]; 5] = [b"dangling", b"data", b"link", b"owned", b"second"];
    assert_eq!(names, expected);
    volume.close().unwrap();
    drop(volume);
    image.check();

    let mounted = image.mount("ro");
    let read = |path: &str| fs::read(mounted.dir().join(path)).unwrap();
    assert_eq!(read("srv/second"), b"1");
    assert_eq!(read("srv/data/deep/again"), vec![7; 300_000]);
    assert_eq!(read("srv/dangling"), b"made by its link");
    let owned =
        std::os::unix::fs::MetadataExt::mode(&mounted.dir().join("srv/owned").metadata().unwrap());
    assert_eq!(owned, 0o10_2640);
}

/// Contradictory options and invalid names are refused, with the error kinds of `std`. Nothing is changed.
#[test]
fn refusals_are_those_of_std() {
    let image = made();
    let volume = writable(&image);
    volume.create_dir("/dir").unwrap();
    volume.write("/file", b"content").unwrap();
    let open = |path: &str, options| kind(volume.open_with(path, options));
    assert_eq!(open("/none", FileOptions::new()), ErrorKind::NotFound);
    assert_eq!(open("/none", FileOptions::new().create(true)), ErrorKind::InvalidInput);
    assert_eq!(open("/file", FileOptions::new().truncate(true)), ErrorKind::InvalidInput);
    let cut = FileOptions::new().write(true).append(true).truncate(true);
    assert_eq!(open("/file", cut), ErrorKind::InvalidInput);
    assert_eq!(open("/file", FileOptions::new().read(false)), ErrorKind::InvalidInput);
    assert_eq!(open("/file", FileOptions::new().write(true).create_new(true)), ErrorKind::Exists);
    assert_eq!(open("/dir", FileOptions::new()), ErrorKind::IsADirectory);
    assert_eq!(open("/file/below", FileOptions::new()), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.create_dir("/")), ErrorKind::InvalidInput);
    assert_eq!(kind(volume.create_dir("/dir")), ErrorKind::Exists);
    assert_eq!(kind(volume.create_dir_all("/file/below")), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.remove_dir("/file")), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.remove_file("/dir")), ErrorKind::IsADirectory);
    assert_eq!(kind(volume.rename("/none", "/new")), ErrorKind::NotFound);
    assert_eq!(volume.read("/file").unwrap(), b"content");
    // The error message contains the path only once.
    let error = volume.open("/none").map(drop).unwrap_err().to_string();
    assert_eq!(error.matches("none").count(), 1, "{error}");
    volume.close().unwrap();
    drop(volume);
    let read_only = image.open().unwrap();
    assert_eq!(
        kind(read_only.open_with("/file", FileOptions::new().write(true))),
        ErrorKind::ReadOnly
    );
    assert_eq!(kind(read_only.write("/file", b"")), ErrorKind::ReadOnly);
}

/// A read-only handle refuses single writes, queued writes and appends. An append handle always writes at the end of the file, and ignores
/// the given position.
#[test]
fn a_handle_writes_as_it_was_opened() {
    let image = made();
    let volume = writable(&image);
    volume.write("/file", vec![1; 8192]).unwrap();
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let reader = volume.open("/file").unwrap();
    let writer = volume.open_with("/file", FileOptions::new().write(true)).unwrap();
    // Writes through a read-only handle are still refused after a writable handle has overwritten data.
    writer.write_all_at(&mut queue, &[2; 4096], 0).unwrap();
    for _ in 0..2 {
        assert_eq!(kind(reader.write_at(&mut queue, &[3; 4096], 0)), ErrorKind::ReadOnly);
        assert_eq!(
            kind(reader.append(&mut queue, &[3; 10], DioFlags::empty())),
            ErrorKind::ReadOnly
        );
        let buffer = Buffer::aligned(4096).unwrap();
        let queued = reader.submit_write(&mut queue, buffer, 0, DioFlags::empty(), 1);
        assert_eq!(queued.unwrap_err().error.kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(queue.outstanding(), 0);
    let log = volume.open_with("/file", FileOptions::new().append(true)).unwrap();
    assert_eq!(log.write_at(&mut queue, b"at the end", 0).unwrap(), 10);
    let mut memory = Buffer::aligned(4096).unwrap();
    memory.fill(4);
    log.submit_write(&mut queue, memory, 0, DioFlags::empty(), 2).unwrap();
    queue.wait(1).unwrap();
    let (count, memory) = queue.pop().unwrap().into_buffer().unwrap();
    assert_eq!((count, memory.len()), (4096, 4096));
    let content = volume.read("/file").unwrap();
    assert_eq!(content.len(), 8192 + 10 + 4096);
    assert_eq!((&content[..4096], &content[8192..8202]), (&[2; 4096][..], &b"at the end"[..]));
    let cut = FileOptions::new().write(true).truncate(true);
    assert_eq!(volume.open_with("/file", cut).unwrap().size(), 0);
    drop((reader, writer, log));
    volume.close().unwrap();
    drop((queue, volume));
    image.check();
}

/// An inode can be opened by its number. An inode that was read earlier cannot be opened if its number has been reused for another file.
#[test]
fn an_inode_is_opened_by_its_number() {
    let image = made();
    let volume = writable(&image);
    volume.write("/first", b"first").unwrap();
    let read = volume.fs().resolve(b"/first", ironmap::fs::Follow::All).unwrap();
    let number = read.number();
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let file = volume.open_inode(number, FileOptions::new()).unwrap();
    assert_eq!(file.read_all(&mut queue).unwrap(), b"first");
    drop(file);
    volume.remove_file("/first").unwrap();
    volume.write("/second", b"second").unwrap();
    assert_eq!(volume.metadata("/second").unwrap().inode, number, "the number is used again");
    assert_eq!(kind(volume.open_inode(read, FileOptions::new())), ErrorKind::NotFound);
}

/// `remove_dir_all` removes a tree with its content. It removes the links in the tree and does not follow them.
#[test]
fn a_tree_is_removed() {
    let image = made();
    let volume = writable(&image);
    volume.write("/kept", b"kept").unwrap();
    let mut deep = String::from("/tree");
    for depth in 0..150 {
        volume.create_dir(&deep).unwrap();
        volume.write(format!("{deep}/file"), vec![1; depth * 10]).unwrap();
        volume.symlink("/kept", format!("{deep}/link")).unwrap();
        deep.push_str("/d");
    }
    assert_eq!(kind(volume.remove_dir("/tree")), ErrorKind::NotEmpty);
    volume.remove_dir_all("/tree").unwrap();
    assert!(!volume.exists("/tree").unwrap());
    assert_eq!(volume.read("/kept").unwrap(), b"kept");
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// A cursor implements the traits of `std::io`. It can read lines and rewrite parts of a file. Its errors have the kind and message of the
/// original error.
#[test]
fn a_cursor_is_a_file_for_std() {
    let image = made();
    let volume = writable(&image);
    let options = FileOptions::new().write(true).create(true);
    let open = |options| {
        let queue = volume.queue(&QueueOptions::new().depth(1)).unwrap();
        Cursor::new(volume.open_with("/lines", options).unwrap(), queue)
    };
    let mut cursor = open(options);
    for line in 0..1000 {
        writeln!(cursor, "line {line}").unwrap();
    }
    cursor.seek(SeekFrom::Start(5)).unwrap();
    cursor.write_all(b"X").unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-4)).unwrap(), 8890 - 4);
    let mut tail = String::new();
    cursor.read_to_string(&mut tail).unwrap();
    assert_eq!(tail, "999\n");
    cursor.rewind().unwrap();
    let lines: Vec<_> = BufReader::new(cursor).lines().map(Result::unwrap).collect();
    assert_eq!((lines.len(), &*lines[0], &*lines[999]), (1000, "line X", "line 999"));
    let error = open(FileOptions::new()).write(b"refused").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let own: Error = error.downcast().unwrap();
    assert_eq!(own.errno(), ironmap::Errno::EROFS);
    let mut log = open(FileOptions::new().append(true));
    log.write_all(b"end\n").unwrap();
    assert_eq!(log.position(), FilePos(8894));
    assert!(log.seek(SeekFrom::Current(i64::MIN)).is_err());
}

/// If a file ends before a buffer is full, an exact read returns an error.
#[test]
fn an_exact_read_is_whole_or_an_error() {
    let image = made();
    let volume = writable(&image);
    volume.write("/file", vec![9; 5000]).unwrap();
    let file = volume.open("/file").unwrap();
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let mut bytes = [0; 1000];
    file.read_exact_at(&mut queue, &mut bytes, 4000).unwrap();
    assert_eq!(bytes, [9; 1000]);
    let error = file.read_exact_at(&mut queue, &mut bytes, FilePos(4001)).unwrap_err();
    assert_eq!(error.errno(), ironmap::Errno::ENODATA);
}

type Kernels = fn(&Path, &Path) -> std::io::Result<()>;
type Ours = fn(&Volume, &Path, &Path) -> ironmap::Result<()>;

/// The operations that are compared. Each has one function that runs it through the kernel and one that runs it through ironmap. The
/// arguments are the directory of the test case, and the path in it.
const OPERATIONS: [(&str, Kernels, Ours); 11] = [
    (
        "create",
        |_, path| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(false).open(path).map(drop)
        },
        |volume, _, path| {
            volume.open_with(path, FileOptions::new().write(true).create(true)).map(drop)
        },
    ),
    (
        "create_new",
        |_, path| fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop),
        |volume, _, path| {
            volume.open_with(path, FileOptions::new().write(true).create_new(true)).map(drop)
        },
    ),
    (
        "stat",
        |_, path| path.metadata().map(drop),
        |volume, _, path| volume.metadata(path).map(drop),
    ),
    (
        "lstat",
        |_, path| path.symlink_metadata().map(drop),
        |volume, _, path| volume.symlink_metadata(path).map(drop),
    ),
    ("unlink", |_, path| fs::remove_file(path), |volume, _, path| volume.remove_file(path)),
    ("rmdir", |_, path| fs::remove_dir(path), |volume, _, path| volume.remove_dir(path)),
    ("mkdir", |_, path| fs::create_dir(path), |volume, _, path| volume.create_dir(path)),
    (
        "symlink",
        |_, path| symlink("target", path),
        |volume, _, path| volume.symlink("target", path),
    ),
    (
        "link",
        |dir, path| fs::hard_link(dir.join("other"), path),
        |volume, dir, path| volume.hard_link(dir.join("other"), path),
    ),
    (
        "rename from",
        |dir, path| fs::rename(path, dir.join("renamed")),
        |volume, dir, path| volume.rename(path, dir.join("renamed")),
    ),
    (
        "rename to",
        |dir, path| fs::rename(dir.join("other"), path),
        |volume, dir, path| volume.rename(dir.join("other"), path),
    ),
];

/// Makes the same files in a directory of the volume and in a directory of the mount.
fn make_case(volume: &Volume, here: &Path, there: &Path) {
    let links =
        [("to-dir", "dir"), ("to-file", "file"), ("to-none", "gone"), ("slash", "new-name/")];
    volume.create_dir_all(here.join("dir/below")).unwrap();
    volume.create_dir(here.join("empty")).unwrap();
    fs::create_dir_all(there.join("dir/below")).unwrap();
    fs::create_dir(there.join("empty")).unwrap();
    for (link, target) in links {
        volume.symlink(target, here.join(link)).unwrap();
        symlink(target, there.join(link)).unwrap();
    }
    for file in ["file", "other"] {
        volume.write(here.join(file), file).unwrap();
        fs::write(there.join(file), file).unwrap();
    }
}

/// The sorted names in a directory, with their types.
fn entries(dir: &Path) -> Vec<(OsString, fs::FileType)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut entries: Vec<_> =
        entries.map(|entry| (entry.file_name(), entry.file_type().unwrap())).collect();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    entries
}

/// If a path ends with a slash, its last name must be a directory. Every operation on such a path has the same result and the same effect
/// as in the kernel.
#[test]
fn a_slash_after_a_name_means_what_it_means_to_the_kernel() {
    require!([Need::Root, Need::Tool("mke2fs")]);
    let names =
        ["file", "dir", "empty", "to-dir", "to-file", "to-none", "none", "slash", "none/below"];
    let (image, twin) = (made(), made());
    let (volume, mount) = (writable(&image), twin.mount("noatime"));
    let (mut cases, mut wrong) = (Vec::new(), Vec::new());
    for (what, kernels, ours) in OPERATIONS {
        for name in names {
            for slashes in ["", "/", "//"] {
                let number = cases.len().to_string();
                let (here, there) = (Path::new("/").join(&number), mount.dir().join(&number));
                make_case(&volume, &here, &there);
                let path = format!("{name}{slashes}");
                let found = ours(&volume, &here, &here.join(&path));
                let expected = kernels(&there, &there.join(&path));
                let found = found.map_err(|error| error.errno().0);
                let expected = expected.map_err(|error| error.raw_os_error().unwrap());
                if found != expected {
                    wrong.push(format!("{what} {path}: {found:?}, the kernel: {expected:?}"));
                }
                cases.push(format!("{what} {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    volume.close().unwrap();
    drop(volume);
    image.check();
    let mounted = image.mount("ro");
    for (number, case) in cases.iter().enumerate() {
        let entries = |root: &Path| entries(&root.join(number.to_string()));
        assert_eq!(entries(mounted.dir()), entries(mount.dir()), "{case}");
    }
}

/// Every change of a file's content removes its capabilities, as in the kernel. Set-id bits remain, and the caller must remove them.
#[test]
fn a_change_of_the_content_ends_capabilities() {
    use ironmap::fs::{Fallocate, SetXattr};
    const CAPABILITY: &[u8] = b"security.capability";
    let image = made();
    let volume = writable(&image);
    volume.write("/program", vec![1; 9000]).unwrap();
    let (fs, number) = (volume.fs(), volume.metadata("/program").unwrap().inode);
    let allocate = Fallocate::Allocate { keep_size: true };
    let changes: [(&str, &dyn Fn()); 6] = [
        ("write", &|| {
            assert_eq!(fs.writable().unwrap().write(number, FilePos(5), b"x").unwrap(), 1);
        }),
        ("cut", &|| fs.writable().unwrap().truncate(number, 100).unwrap()),
        ("grow", &|| fs.writable().unwrap().truncate(number, 20_000).unwrap()),
        ("allocate", &|| {
            fs.writable().unwrap().fallocate(number, allocate, FilePos(0), 50_000).unwrap();
        }),
        ("punch", &|| {
            fs.writable().unwrap().fallocate(number, Fallocate::Punch, FilePos(0), 4096).unwrap();
        }),
        ("empty", &|| volume.write("/program", b"").unwrap()),
    ];
    for (what, change) in changes {
        let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fs.writable().unwrap().setxattr(number, CAPABILITY, &value, SetXattr::Any).unwrap();
        change();
        assert_eq!(fs.inode(number).unwrap().xattr(CAPABILITY).unwrap(), None, "{what}");
    }
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// ironmap refuses to make a file that the kernel could not read: a symbolic link whose target contains a NUL, or a device with a number
/// that cannot be stored.
#[test]
fn impossible_files_are_not_made() {
    use ironmap::fs::{Credentials, NewFile};
    let image = made();
    let volume = writable(&image);
    assert_eq!(kind(volume.symlink("a\0b", "/link")), ErrorKind::InvalidInput);
    let (root, who) = (volume.fs().root(), Credentials::default());
    for device in [
        NewFile::CharDevice(4096, 0),
        NewFile::CharDevice(1, 1 << 20),
        NewFile::BlockDevice(u32::MAX, 0),
    ] {
        let made = volume.fs().writable().unwrap().create(root, b"device", device, 0o600, &who);
        assert_eq!(kind(made), ErrorKind::InvalidInput, "{device:?}");
    }
    let largest = NewFile::BlockDevice(4095, (1 << 20) - 1);
    let number =
        volume.fs().writable().unwrap().create(root, b"largest", largest, 0o600, &who).unwrap();
    assert_eq!(volume.fs().inode(number).unwrap().stat().device, Some((4095, (1 << 20) - 1)));
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// If space runs out during a write, `Write::write` returns a short count. It returns an error only if it wrote nothing. So a caller that
/// continues after a short count does not write any data twice.
#[test]
fn a_cursor_that_appends_writes_nothing_twice() {
    let image = Image::mke2fs("8M", &["-t", "ext4", "-b", "1024"]);
    let volume = writable(&image);
    let mut queue = volume.queue(&QueueOptions::new()).unwrap();
    let filler = volume.open_with("/filler", FileOptions::new().append(true).create(true)).unwrap();
    while filler.write_at(&mut queue, &[0; 65_536], 0).is_ok_and(|count| count == 65_536) {}
    drop(filler);
    let cut = volume.metadata("/filler").unwrap().size - 300_000;
    volume
        .fs()
        .writable()
        .unwrap()
        .truncate(volume.metadata("/filler").unwrap().inode, cut)
        .unwrap();
    let content: Vec<u8> = (0..900_000_u32).map(|at| (at / 3) as u8).collect();
    let log = volume.open_with("/log", FileOptions::new().append(true).create(true)).unwrap();
    let mut cursor = Cursor::new(log, queue);
    let count = cursor.write(&content).unwrap();
    assert!(count > 0 && count < content.len(), "{count}");
    volume.remove_file("/filler").unwrap();
    cursor.write_all(&content[count..]).unwrap();
    assert!(volume.read("/log").unwrap() == content);
    drop(cursor);
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// `remove_dir_all` of a link removes the link and keeps its target, as in std. If names in a damaged directory cannot be looked up, the
/// function returns an error and does not loop endlessly.
#[test]
fn a_tree_that_cannot_be_removed_is_an_error() {
    let image = Image::mke2fs("16M", &["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"]);
    {
        let volume = writable(&image);
        volume.create_dir("/dir").unwrap();
        for number in 0..400 {
            volume.write(format!("/dir/a-name-that-is-long-{number:05}"), b"").unwrap();
        }
        volume.symlink("dir", "/link").unwrap();
        volume.symlink("nowhere", "/dangling").unwrap();
        assert_eq!(kind(volume.remove_dir_all("/link/")), ErrorKind::NotADirectory);
        volume.remove_dir_all("/link").unwrap();
        volume.remove_dir_all("/dangling").unwrap();
        volume.close().unwrap();
    }
    image.debugfs("ssv hash_seed 11111111-2222-3333-4444-555555555555\n");
    let volume = writable(&image);
    assert_eq!(kind(volume.remove_dir_all("/dir")), ErrorKind::NotFound);
}

/// Linux refuses a volume with fewer than ten reserved inodes. It mounts a volume of an unknown revision only for reading. ironmap does the
/// same.
#[test]
fn superblocks_that_linux_refuses_are_refused() {
    let image = Image::mke2fs("8M", &["-t", "ext4", "-O", "^metadata_csum"]);
    for first in [0_u32, 1, 10, u32::MAX] {
        image.debugfs(&format!("ssv first_ino {first}\n"));
        let error = image.open().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{first}: {error}");
        assert!(error.to_string().contains("s_first_ino"), "{error}");
    }
    image.debugfs("ssv first_ino 11\nssv rev_level 2\n");
    image.open().unwrap();
    let written = VolumeOptions::new().write(true).open(&*image.location().to_string());
    assert_eq!(kind(written), ErrorKind::ReadOnly);
}
