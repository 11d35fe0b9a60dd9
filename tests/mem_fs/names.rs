//! Names in a file system that the test implements. The tests change them with the operations that all formats share.

use std::sync::Arc;

use ironmap::device::Ram;
use ironmap::fs::{
    Credentials, DirCursor, FileSystem, FileType, Follow, NewFile, RenameFlags, SetXattr, Writer,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, FileOptions, Result};

use crate::format::{Kind, MemFs};
use crate::rng::Rng;

const BLOCKS: u64 = 16;
const WHO: Credentials = Credentials::new(7, 8, 0o022);

fn volume() -> Arc<dyn FileSystem> {
    Arc::new(MemFs::new(Arc::new(Ram::new(BLOCKS << 12)), Kind::WHOLE))
}

fn make(fs: &Arc<dyn FileSystem>, dir: InodeNo, name: &str, file: NewFile<'_>) -> InodeNo {
    fs.writable().unwrap().create(dir, name.as_bytes(), file, 0o777, &WHO).unwrap()
}

fn find(fs: &Arc<dyn FileSystem>, path: &str) -> Result<InodeNo, ErrorKind> {
    let found = fs.resolve(path.as_bytes(), Follow::All);
    found.map(|inode| inode.number()).map_err(|error| error.kind())
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().as_ref().map(Error::kind)
}

fn names(fs: &Arc<dyn FileSystem>, dir: InodeNo) -> Vec<String> {
    let dir = fs.inode(dir).unwrap();
    let name =
        |entry: Result<ironmap::fs::DirEntry>| String::from_utf8(entry.unwrap().name).unwrap();
    let mut names: Vec<_> = dir.read_dir().unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn paths_are_resolved_through_links() {
    let fs = volume();
    let root = fs.root();
    let a = make(&fs, root, "a", NewFile::Directory);
    let b = make(&fs, a, "b", NewFile::Directory);
    let file = make(&fs, b, "file", NewFile::Regular);
    make(&fs, root, "absolute", NewFile::Symlink(b"/a/b"));
    let link = make(&fs, b, "relative", NewFile::Symlink(b"../b/file"));
    make(&fs, root, "circle", NewFile::Symlink(b"circle"));
    for path in
        ["/a/b/file", "a//b/./file", "/absolute/relative", "/absolute/../b/file", "../../a/b/file"]
    {
        assert_eq!(find(&fs, path), Ok(file), "{path}");
    }
    assert_eq!(find(&fs, ""), Ok(root));
    assert_eq!(find(&fs, "/a/b/.."), Ok(a));
    assert_eq!(find(&fs, "/circle"), Err(ErrorKind::Loop));
    assert_eq!(find(&fs, "/a/c"), Err(ErrorKind::NotFound));
    assert_eq!(find(&fs, "/a/b/file/c"), Err(ErrorKind::NotADirectory));
    assert_eq!(find(&fs, "/a/b/file/"), Err(ErrorKind::NotADirectory));
    assert_eq!(find(&fs, &"n".repeat(256)), Err(ErrorKind::NameTooLong));
    let not_followed = fs.resolve(b"/a/b/relative", Follow::NotLast).unwrap();
    assert_eq!((not_followed.number(), not_followed.file_type()), (link, FileType::Symlink));
    assert_eq!(not_followed.read_link().unwrap(), b"../b/file");
    let stat = fs.inode(file).unwrap().stat().clone();
    assert_eq!((stat.mode, stat.uid, stat.gid, stat.links), (0o100_755, 7, 8, 1));
}

#[test]
fn names_are_made_moved_and_removed() {
    let fs = volume();
    let root = fs.root();
    let (a, b) =
        (make(&fs, root, "a", NewFile::Directory), make(&fs, root, "b", NewFile::Directory));
    let (x, y) = (make(&fs, a, "x", NewFile::Regular), make(&fs, b, "y", NewFile::Regular));
    let links = |number| fs.inode(number).unwrap().stat().links;
    let rename = |from, old: &[u8], to, new: &[u8], flags| {
        fs.writable().unwrap().rename((from, old), (to, new), flags, &WHO)
    };
    let (plain, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
    assert_eq!((links(root), links(a)), (4, 2));
    assert_eq!(
        kind(fs.writable().unwrap().create(a, b"x", NewFile::Regular, 0, &WHO)),
        Some(ErrorKind::Exists)
    );
    assert_eq!(
        kind(fs.writable().unwrap().create(x, b"z", NewFile::Regular, 0, &WHO)),
        Some(ErrorKind::NotADirectory)
    );
    assert_eq!(kind(fs.writable().unwrap().rmdir(root, b"a")), Some(ErrorKind::NotEmpty));
    assert_eq!(kind(fs.writable().unwrap().unlink(root, b"a")), Some(ErrorKind::IsADirectory));
    assert_eq!(kind(fs.writable().unwrap().rmdir(a, b"x")), Some(ErrorKind::NotADirectory));
    assert_eq!(kind(fs.writable().unwrap().link(a, b, b"a")), Some(ErrorKind::NotPermitted));
    assert_eq!(kind(rename(root, b"a", a, b"a", plain)), Some(ErrorKind::InvalidInput));
    let taken = rename(a, b"x", b, b"y", RenameFlags::NOREPLACE);
    assert_eq!(kind(taken), Some(ErrorKind::Exists));

    rename(a, b"x", b, b"y", exchange).unwrap();
    assert_eq!((find(&fs, "/a/x"), find(&fs, "/b/y")), (Ok(y), Ok(x)));
    rename(a, b"x", b, b"y", plain).unwrap();
    assert_eq!((find(&fs, "/a/x"), find(&fs, "/b/y")), (Err(ErrorKind::NotFound), Ok(y)));
    assert_eq!(kind(fs.inode(x).map(drop)), Some(ErrorKind::NotFound));
    rename(root, b"b", a, b"c", plain).unwrap();
    assert_eq!((find(&fs, "/a/c/y"), find(&fs, "/a/c/..")), (Ok(y), Ok(a)));
    assert_eq!((links(root), links(a)), (3, 3));
    fs.writable().unwrap().link(y, root, b"also").unwrap();
    assert_eq!(links(y), 2);
    assert_eq!(names(&fs, root), [".", "..", "a", "also"]);
    fs.writable().unwrap().unlink(b, b"y").unwrap();
    fs.writable().unwrap().rmdir(a, b"c").unwrap();
    assert_eq!((links(y), names(&fs, a)), (1, vec![".".to_owned(), "..".to_owned()]));
    assert_eq!(
        kind(fs.writable().unwrap().create(b, b"z", NewFile::Regular, 0, &WHO)),
        Some(ErrorKind::NotFound)
    );
}

/// The last name of an open file is removed. The file can still be read and written, and no other file gets its blocks.
#[test]
fn an_open_file_outlives_its_last_name() {
    let fs = MemFs::new(Arc::new(Ram::new(BLOCKS << 12)), Kind::WHOLE);
    let volume = fs.volume();
    let root = fs.root();
    let number = fs.create(root, b"file", NewFile::Regular, 0o600, &WHO).unwrap();
    let inode = fs.inode(number).unwrap();
    let file =
        volume.open_inode(fs.inode(number).unwrap(), FileOptions::new().write(true)).unwrap();
    let mut queue = volume.queue(&ironmap::QueueOptions::default()).unwrap();
    fs.unlink(root, b"file").unwrap();
    assert_eq!(kind(fs.inode(number).map(drop)), Some(ErrorKind::NotFound));
    assert_eq!(volume.fs().inspect(number, |inode| Ok(inode.stat().links)).unwrap(), 0);
    file.write_at(&mut queue, &[1; 5000], FilePos(0)).unwrap();
    file.sync(&mut queue).unwrap();
    let held = fs.hold(number).unwrap();
    drop(file);
    assert_eq!((held.inode().unwrap().size(), fs.usage().free.blocks), (5000, BLOCKS - 2));
    drop(held);
    assert_eq!(fs.usage().free.blocks, BLOCKS);
    let gone = volume.open_inode(inode, FileOptions::new().write(true)).map(drop);
    assert_eq!(kind(gone), Some(ErrorKind::NotFound));
}

/// Names are added and removed during a listing. Each name that exists during the entire listing is listed once.
#[test]
fn a_listing_goes_on_while_names_change() {
    const SEED: u64 = 0x11_57;
    println!("seed {SEED:#x}");
    let (fs, mut rng) = (volume(), Rng::new(SEED));
    let root = fs.root();
    for number in 0..50 {
        make(&fs, root, &format!("stays{number}"), NewFile::Regular);
        make(&fs, root, &format!("goes{number}"), NewFile::Regular);
    }
    let (mut seen, mut cursor, mut goes) = (Vec::new(), DirCursor::START, 0);
    loop {
        let mut listing = fs.inode(root).unwrap().list(cursor).unwrap();
        let some = 1 + rng.below(5) as usize;
        let entries: Vec<_> = listing.by_ref().take(some).map(Result::unwrap).collect();
        cursor = DirCursor::from_raw(listing.cursor().to_raw());
        if entries.is_empty() {
            break;
        }
        seen.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        if goes < 50 {
            fs.writable().unwrap().unlink(root, format!("goes{goes}").as_bytes()).unwrap();
            goes += 1;
        }
    }
    for number in 0..50 {
        let name = format!("stays{number}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
}

#[test]
fn attributes_are_set_replaced_and_removed() {
    let fs = volume();
    let number = make(&fs, fs.root(), "file", NewFile::Regular);
    let get = |name: &[u8]| fs.inode(number).unwrap().xattr(name).unwrap();
    let set =
        |name: &[u8], value: &[u8], how| fs.writable().unwrap().setxattr(number, name, value, how);
    assert_eq!(kind(set(b"user.a", b"1", SetXattr::Replace)), Some(ErrorKind::NoData));
    set(b"user.a", b"1", SetXattr::Create).unwrap();
    assert_eq!(kind(set(b"user.a", b"2", SetXattr::Create)), Some(ErrorKind::Exists));
    set(b"user.a", b"3", SetXattr::Any).unwrap();
    assert_eq!((get(b"user.a"), get(b"user.b")), (Some(b"3".to_vec()), None));
    fs.writable().unwrap().removexattr(number, b"user.a").unwrap();
    assert_eq!(
        kind(fs.writable().unwrap().removexattr(number, b"user.a")),
        Some(ErrorKind::NoData)
    );
    // The library refuses operations that this format does not implement.
    let flags = ironmap::fs::InodeFlags::IMMUTABLE;
    let refused = fs.writable().unwrap().set_flags(number, flags);
    assert_eq!(kind(refused), Some(ErrorKind::Unsupported));
}
