//! `blocktrash` of xfs_db fills metadata blocks with random bytes, so their checksums are invalid. ironmap detects the damage, or the
//! damage does not change any result.
//!
//! `IRONMAP_XFS_TRASH` sets the number of volumes for long runs.

use std::collections::BTreeMap;
use std::path::Path;

use ironmap::fs::{FileType, Inode};
use ironmap::iomap::MapFile;
use ironmap::units::FilePos;
use ironmap::{Result, Volume};

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::watch::Watch;
use crate::{Base, SEED, copy_sparse, require};

/// The default number of volumes.
const VOLUMES: u64 = 60;
/// The maximum number of mappings that are compared for each file.
const MAPPINGS: usize = 1000;

/// The user-visible state of a file as text, or an error.
type Seen = std::result::Result<String, ()>;

/// The result for each path of a volume. If the listing of a directory ends with an error, the result of the directory is this error. The
/// names before the error are included.
#[derive(Default)]
struct Tree {
    files: BTreeMap<Vec<u8>, Seen>,
    errors: u64,
}

impl Tree {
    fn of(volume: &Volume) -> Result<Self> {
        let mut tree = Self::default();
        let fs = volume.fs();
        let mut left = vec![(Vec::new(), fs.known_inode(fs.root())?)];
        while let Some((path, dir)) = left.pop() {
            let mut whole = true;
            for entry in dir.read_dir()? {
                let Ok(entry) = entry else {
                    whole = false;
                    break;
                };
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let path = [&path[..], b"/", &entry.name].concat();
                // Each entry is also looked up by its name. The lookup uses the index of the directory.
                let found = dir.lookup(&entry.name);
                let seen = found.and_then(|inode| Ok((shown(&inode)?, inode)));
                tree.errors += u64::from(seen.is_err());
                if let Ok((_, inode)) = &seen
                    && inode.file_type() == FileType::Directory
                {
                    left.push((path.clone(), fs.known_inode(inode.number())?));
                }
                tree.files.insert(path, seen.map(|(shown, _)| shown).map_err(drop));
            }
            if !whole {
                tree.errors += 1;
                tree.files.insert(path, Err(()));
            }
        }
        Ok(tree)
    }

    /// Fails the test unless each result is an error or equals the result for the undamaged volume.
    fn assert_like(&self, sound: &Self, what: &str) {
        for (path, seen) in &self.files {
            let path_shown = path.escape_ascii();
            match sound.files.get(path) {
                None if path.is_empty() => {}
                None => panic!("{what}: {path_shown} is not in the sound volume"),
                Some(expected) if seen.is_ok() => {
                    assert!(seen == expected, "{what}: {path_shown} is {seen:?}, not {expected:?}");
                }
                Some(_) => {}
            }
        }
        for path in sound.files.keys().filter(|path| !self.files.contains_key(*path)) {
            let parents = (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at]);
            let is_told = parents.into_iter().any(|dir| self.files.get(dir) == Some(&Err(())));
            assert!(is_told, "{what}: {} is gone without an error", path.escape_ascii());
        }
    }
}

fn shown(inode: &Inode) -> Result<String> {
    let mut text = format!("{:?} {:?}", inode.stat(), inode.xattrs()?);
    match inode.file_type() {
        FileType::Symlink => text += &inode.read_link()?.escape_ascii().to_string(),
        FileType::Regular => {
            let mut pos = FilePos(0);
            for _ in 0..MAPPINGS {
                if pos.0 >= inode.size() {
                    break;
                }
                let iomap = inode.map(pos, 1)?;
                text += &format!(" {iomap:?}");
                pos = iomap.end();
            }
        }
        _ => {}
    }
    Ok(text)
}

#[test]
fn trashed_blocks() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_db")]);
    let count = std::env::var("IRONMAP_XFS_TRASH");
    let count = count.map_or(VOLUMES, |count| count.parse().expect("a number"));
    for (name, mkfs) in [("4k", ""), ("1k, directories of 8k", "-b size=1024 -n size=8192")] {
        let base = Base::new(name, mkfs, false);
        let sound = Tree::of(&Volume::open(base.path().as_path()).unwrap()).unwrap();
        assert_eq!(sound.errors, 0, "{name}");
        let dir = scratch_in(Path::new("/dev/shm"));
        let path = dir.path().join("trashed");
        let watch = Watch::start("trashed blocks");
        let rng = &mut Rng::new(SEED);
        let (mut refused, mut errors) = (0, 0);
        for number in 0..count / 2 {
            copy_sparse(&base.path(), &path);
            let (blocks, seed) = (1 + rng.below(40), rng.next() as u32);
            let most = [8, 1024, 8192][rng.below(3) as usize];
            let trash = format!("blocktrash -n {blocks} -s {seed} -x 1 -y {most}");
            let what = format!("{name}, number {number}: {trash}");
            watch.next(what.clone());
            let image = path.to_str().unwrap();
            let said = run("xfs_db", &["-x", "-c", "blockget", "-c", &trash, image]);
            let said = String::from_utf8(said).unwrap();
            assert_eq!(said.matches(" block ").count() as u64, blocks, "{what}: {said}");
            match Volume::open(path.as_path()).and_then(|volume| Tree::of(&volume)) {
                // ironmap refuses the volume if the damaged block belongs to the superblock, the log, or the root directory.
                Err(_) => refused += 1,
                Ok(tree) => {
                    tree.assert_like(&sound, &what);
                    errors += tree.errors;
                }
            }
        }
        println!("{name}: {refused} of {} refused, {errors} errors in the others", count / 2);
        assert!(errors > 0, "{name}: nothing was found");
    }
}
