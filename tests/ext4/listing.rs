//! Directories that change during a listing. An entry that exists during the entire listing is listed exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use ironmap::device::{Device, Faults, Ram, Sim};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Clock, Credentials, DirCursor, FileSystem, NewFile};
use ironmap::units::InodeNo;
use ironmap::{ErrorKind, Volume, VolumeOptions};

const SEED: u64 = 0x5EED_0D18;

/// The options of mke2fs, the number of names that remain, and the number of names that each thread adds and removes. Each directory grows
/// from inline data to one block, to a tree, and to two levels of nodes.
const KINDS: [(&str, usize, usize); 5] = [
    ("-t ext4 -b 1024 -N 1024", 60, 12_000),
    ("-t ext4 -b 1024 -O inline_data", 3, 600),
    ("-t ext4 -b 4096", 10, 3_000),
    ("-t ext3 -b 1024", 5, 3_000),
    ("-t ext4 -b 1024 -O ^dir_index", 100, 400),
];

fn open(image: &Image) -> Volume {
    let options = VolumeOptions::new().write(true).clock(Clock::System);
    crate::common::beneath::open(&image.location(), &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn make(fs: &Arc<dyn FileSystem>, dir: InodeNo, name: &str, new: NewFile<'_>) -> InodeNo {
    fs.writable()
        .unwrap()
        .create(dir, name.as_bytes(), new, 0o755, &Credentials::default())
        .unwrap()
}

fn add(fs: &Arc<dyn FileSystem>, file: InodeNo, dir: InodeNo, name: &str) {
    fs.writable().unwrap().link(file, dir, name.as_bytes()).unwrap();
}

/// Removes a name, if it exists.
fn remove(fs: &Arc<dyn FileSystem>, dir: InodeNo, name: &str) {
    match fs.writable().unwrap().unlink(dir, name.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}

/// Checks that each expected name was listed exactly once, and that no name was listed twice. In a linear directory, a name may be listed
/// twice if it is removed and added again. So these tests add each name only once.
#[track_caller]
fn assert_once(seen: &Seen, expected: &BTreeSet<Vec<u8>>, kind: &str) {
    for name in expected {
        let times = seen.get(name).copied().unwrap_or(0);
        let name = name.escape_ascii();
        assert_eq!(times, 1, "{kind}, seed {SEED:#x}: {name}");
    }
    let twice = seen.iter().find(|(_, times)| **times > 1);
    assert_eq!(twice, None, "{kind}, seed {SEED:#x}");
}

/// The number of times that each name was listed.
type Seen = BTreeMap<Vec<u8>, usize>;

/// Lists a directory. If `pieces` is set, the listing stops after random entries, and a new listing continues at the position that the
/// cursor returned.
fn list(fs: &Arc<dyn FileSystem>, dir: InodeNo, rng: &mut Rng, pieces: bool) -> Seen {
    let inode = fs.inode(dir).unwrap();
    let mut seen = Seen::new();
    let mut listing = inode.list(DirCursor::START).unwrap();
    while let Some(entry) = listing.next() {
        *seen.entry(entry.unwrap().name).or_default() += 1;
        if pieces && rng.below(200) == 0 {
            let cursor = DirCursor::from_raw(listing.cursor().to_raw());
            listing = inode.list(cursor).unwrap();
        }
    }
    seen
}

#[test]
fn names_that_stay_come_once_while_others_come_and_go() {
    for (kind, staying, changing) in KINDS {
        let image = Image::mke2fs("64M", &words(kind));
        let volume = open(&image);
        let fs = volume.fs();
        let dir = make(fs, ROOT, "dir", NewFile::Directory);
        let files = [0, 1].map(|number| make(fs, ROOT, &format!("{number}"), NewFile::Regular));
        let stays = |number: usize| format!("stays {number}");
        for number in 0..staying {
            add(fs, files[0], dir, &stays(number));
        }
        let expected: BTreeSet<_> = (0..staying)
            .map(|number| stays(number).into_bytes())
            .chain([b".".to_vec(), b"..".to_vec()])
            .collect();
        let (at_work, listed) = (AtomicUsize::new(2), AtomicUsize::new(0));
        // The changing threads wait for this flag, so that the first listing begins before the directory grows.
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (at_work, begun, files) = (&at_work, &begun, &files);
                scope.spawn(move || {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    let mut rng = Rng::new(SEED + thread);
                    for number in 0..changing {
                        let name = |number| format!("thread {thread} adds the name {number}");
                        add(fs, files[thread as usize], dir, &name(number));
                        if rng.below(4) == 0 {
                            remove(fs, dir, &name(rng.below(number as u64 + 1) as usize));
                        }
                    }
                    at_work.fetch_sub(1, Ordering::SeqCst);
                });
            }
            for thread in 0..2 {
                let (expected, at_work, listed, begun) = (&expected, &at_work, &listed, &begun);
                scope.spawn(move || {
                    let mut rng = Rng::new(SEED + 100 + thread);
                    loop {
                        begun.store(true, Ordering::SeqCst);
                        let last = at_work.load(Ordering::SeqCst) == 0;
                        let seen = list(fs, dir, &mut rng, thread == 0);
                        assert_once(&seen, expected, kind);
                        listed.fetch_add(1, Ordering::SeqCst);
                        if last {
                            break;
                        }
                    }
                });
            }
        });
        assert!(listed.load(Ordering::SeqCst) > 2, "{kind}: nothing was listed meanwhile");
        volume.close().unwrap();
        let listed = list(fs, dir, &mut Rng::new(SEED), true);
        drop(volume);
        image.check();
        // A listing in the order on disk has the same entries as a listing in the order of the hash tree.
        let fs = image.fs();
        let inode = fs.inode(dir).unwrap();
        let entries = inode.read_dir().unwrap().map(|entry| (entry.unwrap().name, 1)).collect();
        assert!(listed == entries, "{kind}: {} listed", listed.len());
        assert!(list(&fs, dir, &mut Rng::new(SEED), true) == entries, "{kind}: read-only");
    }
}

/// A directory changes its form between two entries of a listing: from inline data to one block, or from one block to a tree. The listing
/// continues correctly.
#[test]
fn a_listing_goes_on_in_another_form() {
    for kind in ["-t ext4 -b 1024 -O inline_data", "-t ext4 -b 1024"] {
        let image = Image::mke2fs("64M", &words(kind));
        let volume = open(&image);
        let fs = volume.fs();
        let dir = make(fs, ROOT, "dir", NewFile::Directory);
        let mut seen = BTreeSet::new();
        for number in 0..3 {
            make(fs, dir, &format!("first {number}"), NewFile::Regular);
        }
        let mut cursor = DirCursor::START;
        let mut added = 0;
        // Each iteration lists a part of the directory and adds thirty names. The listing must still end.
        loop {
            let mut listing = fs.inode(dir).unwrap().list(cursor).unwrap();
            let Some(entry) = listing.next() else { break };
            let name = entry.unwrap().name;
            assert!(listing.cursor() > cursor, "{kind}");
            assert!(seen.insert(name.clone()), "{kind}: {} again", name.escape_ascii());
            cursor = listing.cursor();
            if added < 300 {
                for _ in 0..30 {
                    make(fs, dir, &format!("a longer name {added}"), NewFile::Regular);
                    added += 1;
                }
            }
        }
        for number in 0..3 {
            assert!(seen.contains(format!("first {number}").as_bytes()), "{kind}: {number}");
        }
    }
}

/// If a directory is removed during a listing, the listing ends. It does not read the former blocks of the directory.
#[test]
fn the_listing_of_a_removed_directory_ends() {
    let image = Image::mke2fs("64M", &words("-t ext4 -b 1024"));
    let volume = open(&image);
    let fs = volume.fs();
    let dir = make(fs, ROOT, "dir", NewFile::Directory);
    let names: Vec<_> = (0..200).map(|number| format!("name {number}")).collect();
    for name in &names {
        make(fs, dir, name, NewFile::Regular);
    }
    let stale = fs.inode(dir).unwrap();
    let mut listing = stale.list(DirCursor::START).unwrap();
    listing.next().unwrap().unwrap();
    for name in &names {
        fs.writable().unwrap().unlink(dir, name.as_bytes()).unwrap();
    }
    fs.writable().unwrap().rmdir(ROOT, b"dir").unwrap();
    let rest = listing.by_ref().map(Result::unwrap).fold(0, |count, _| count + 1);
    assert!(rest < names.len() / 2, "{rest}: more than was read together");
    drop(listing);
    assert_eq!(stale.list(DirCursor::START).err().unwrap().kind(), ErrorKind::NotFound);
    // The new directory reuses the inode number.
    let next = make(fs, ROOT, "next", NewFile::Directory);
    assert_eq!(next, dir);
    assert_eq!(stale.list(DirCursor::START).err().unwrap().kind(), ErrorKind::NotFound);
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// On a volume that is open for reading, a walk over the inodes in order reads the inode table in long ranges. If a sector of the table cannot
/// be read, only the inodes of its block are missing.
#[test]
fn a_walk_over_inodes_in_order_needs_few_requests() {
    let image = Image::mke2fs("16M", &words("-t ext4 -b 1024 -N 2048 -I 256"));
    let numbers = 20..900;
    {
        let volume = open(&image);
        let fs = volume.fs();
        for number in 0..1000 {
            make(fs, ROOT, &format!("file{number}"), NewFile::Regular);
        }
    }
    let bytes = std::fs::read(image.path()).unwrap();
    let ram: Arc<dyn Device> = Arc::new(Ram::from_image(&bytes));
    let sim = Arc::new(Sim::new(ram, Faults::default()));
    let walk = || {
        let volume = Volume::on(Arc::clone(&sim) as Arc<dyn Device>).unwrap();
        let before = sim.requests();
        let lost: Vec<_> =
            numbers.clone().filter(|number| volume.fs().inode(InodeNo(*number)).is_err()).collect();
        (sim.requests() - before, lost)
    };
    let (requests, lost) = walk();
    assert!(lost.is_empty(), "{lost:?}");
    // The table has 4 inodes in each block.
    assert!(requests < 220 / 32 + 8, "{requests} requests");
    let table = image.debugfs("imap <500>\n");
    let block = table.split("located at block ").nth(1).unwrap();
    let block: u64 = block.split(',').next().unwrap().parse().unwrap();
    sim.set_faults(Faults { bad_sectors: BTreeSet::from([block * 2]), ..Faults::default() });
    let (_, lost) = walk();
    let first = (500 - 1) / 4 * 4 + 1;
    assert_eq!(lost, [first, first + 1, first + 2, first + 3]);
}
