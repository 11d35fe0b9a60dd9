//! Calls all operations of a volume, within limits, and checks invariants of each result.

use std::collections::HashSet;

use ironmap::fs::{DirCursor, FileType, Follow, Inode};
use ironmap::iomap::{IomapType, MapFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, FileOptions, Queue, QueueOptions, Result, Volume};

/// Limits of a visit, that is, of reading a whole volume. They are needed because directories and maps of a damaged volume may be endless.
const INODES: usize = 60;
const ENTRIES: usize = 600;
const LOOKUPS: usize = 8;
const MAPPINGS: usize = 2000;

/// Walks the tree of the volume. Then reads some inodes by their numbers, whether the inodes are in use or not.
pub(crate) fn visit(volume: &Volume) {
    let fs = volume.fs();
    let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
    if let Some(ext4) = volume.ext4() {
        seen(ext4.orphans().map(|_| ()));
        seen(ext4.check(&mut |_| {}).map(|_| ()));
    }
    let _ = fs.usage();
    for file in seen(fs.deleted()).unwrap_or_default().iter().take(LOOKUPS) {
        let pos = file.next_data(FilePos(0)).unwrap_or(FilePos(0));
        seen(file.read_at(&mut [0; 5000], pos).map(|_| ()));
    }
    for path in [
        &b"linear/../short"[..],
        b"long/b",
        b"middle",
        b"hashed/missing",
        b"created",
        b"a/b/c/d/..",
    ] {
        seen(fs.resolve(path, Follow::All).map(|_| ()));
    }
    let root = fs.root();
    let mut known = HashSet::from([root]);
    let mut left = vec![root];
    let by_number = (1..20).chain(root.0..root.0.saturating_add(20)).map(InodeNo);
    left.extend(by_number.filter(|number| known.insert(*number)));
    let mut visited = 0;
    while let Some(number) = left.pop() {
        visited += 1;
        if visited > INODES {
            break;
        }
        // The inode is read in two ways: with a check of the inode bitmap, and without it. The second way is for inode numbers from
        // directory entries.
        seen(fs.inode(number).map(|_| ()));
        let Some(inode) = seen(fs.known_inode(number)) else { continue };
        seen(inode.xattrs().map(|_| ()));
        seen(inode.xattr(b"user.inode").map(|_| ()));
        match inode.file_type() {
            FileType::Directory => {
                left.extend(directory(&inode).into_iter().filter(|number| known.insert(*number)));
            }
            FileType::Regular => file(volume, &mut queue, inode),
            FileType::Symlink => {
                seen(inode.read_link().map(|_| ()));
            }
            _ => {}
        }
    }
}

fn directory(inode: &Inode) -> Vec<InodeNo> {
    let Some(entries) = seen(inode.read_dir()) else { return Vec::new() };
    let mut names = Vec::new();
    for entry in entries.take(ENTRIES) {
        let Some(entry) = seen(entry) else { break };
        assert!(
            !entry.name.is_empty() && entry.name.len() <= 255,
            "a name of {} bytes",
            entry.name.len()
        );
        assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0), "{:?}", entry.name);
        names.push(entry);
    }
    // `list` returns the entries in the order of the hash tree.
    if let Some(listing) = seen(inode.list(DirCursor::START)) {
        let mut listing = listing.take(ENTRIES);
        while listing.next().and_then(seen).is_some() {}
    }
    let step = names.len() / LOOKUPS + 1;
    for entry in names.iter().step_by(step) {
        seen(inode.lookup(&entry.name).map(|_| ()));
    }
    seen(inode.lookup(b"missing").map(|_| ()));
    names.into_iter().map(|entry| entry.inode).collect()
}

fn file(volume: &Volume, queue: &mut Queue, inode: Inode) {
    let size = inode.size();
    // A caller may request any position, even one past the size.
    for pos in [0, size / 2, size, 1 << 44, i64::MAX as u64, u64::MAX] {
        seen(inode.map(FilePos(pos), 4096).map(|_| ()));
    }
    let Some(file) = seen(volume.open_inode(inode, FileOptions::default())) else { return };
    let mut buf = vec![0xA5; 12 << 10];
    for (pos, len) in [
        (0, 12 << 10),
        (4096, 4096),
        (777, 1234),
        (size.saturating_sub(100), 200),
        (u64::MAX - 5, 9),
    ] {
        if let Some(count) = seen(file.read_at(queue, &mut buf[..len], FilePos(pos))) {
            let expected = size.saturating_sub(pos).min(len as u64);
            assert_eq!(count as u64, expected, "read {len} at {pos} of {size}");
        }
    }
    let mut end = 0;
    for iomap in file.mappings().take(MAPPINGS) {
        let Some(iomap) = seen(iomap) else { break };
        assert!(iomap.pos.0 == end && iomap.len > 0, "{iomap:?} after {end}");
        end = iomap.end().0;
        if iomap.kind == IomapType::Mapped {
            let last = iomap.addr.0.checked_add(iomap.len);
            assert!(last.is_some_and(|last| last <= volume.device().size()), "{iomap:?}");
        }
    }
    if end < size {
        // The file has more mappings than are read of one file, so the search for data and holes is skipped.
        return;
    }
    seen(file.seek_data(FilePos(0)).map(|_| ()));
    seen(file.seek_hole(FilePos(size / 3)).map(|_| ()));
}

/// Returns the value, or `None` if there is an error. An error of kind `Corrupt` must name a position.
pub(crate) fn seen<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_named(&error);
            None
        }
    }
}

fn assert_named(error: &Error) {
    if error.kind() != ErrorKind::Corrupt {
        return;
    }
    let place = error.place().unwrap_or_else(|| panic!("{error}: no place"));
    let located = place.block.is_some() || place.inode.is_some() || place.structure == "superblock";
    assert!(located, "{error}: neither block nor inode");
    assert!(
        !place.field.is_empty() || error.to_string().len() > place.to_string().len() + 8,
        "{error}: no field"
    );
}
