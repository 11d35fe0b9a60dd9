//! A volume made by mke2fs, with a directory that a test changes. The result is compared with a model of the names, and independent
//! programs check the volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{ADD_CREDITS, CHANGE_CREDITS, Directory};
use crate::error::{ErrorKind, Result};
use crate::fs::ext4::attr::{Body, NewInode};
use crate::fs::ext4::for_tests::{Alone, Image, run};
use crate::fs::ext4::operation::{InodeToChange, MayChange};
use crate::fs::ext4::{Ext4, ROOT};
use crate::fs::{FileSystem, FileType, Follow, InodeFlags, Timestamp};
use crate::units::InodeNo;

/// The files that the names refer to. There are two files, because a file may have at most 65,000 names.
const FILES: [&str; 2] = ["first", "second"];

impl Image {
    /// A volume with the directory `dir` and two empty files. `options` are options of mke2fs, separated by spaces.
    pub(super) fn with_dir(size: &str, options: &str) -> Self {
        let image = Self::new(options, size);
        let mut commands = String::from("mkdir dir\n");
        for file in FILES {
            commands.push_str(&format!("write /dev/null {file}\n"));
        }
        image.script(&commands);
        image
    }

    /// Runs debugfs with commands, one per line, and returns its output.
    pub(super) fn script(&self, commands: &str) -> String {
        let script = self.beside("commands");
        std::fs::write(&script, commands).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), self.path().to_str().unwrap()])
    }
}

/// The open volume, and the model of its directory: each name in the directory, with the index of the name's file.
pub(super) struct Volume {
    pub(super) image: Image,
    pub(super) fs: Arc<Ext4>,
    pub(super) dir: InodeNo,
    files: [InodeNo; 2],
    pub(super) names: BTreeMap<Vec<u8>, usize>,
}

impl Volume {
    pub(super) fn new(size: &str, options: &str) -> Self {
        Self::of(Image::with_dir(size, options), BTreeMap::new())
    }

    /// Opens an image whose directory contains the names `names`.
    pub(super) fn of(image: Image, names: BTreeMap<Vec<u8>, usize>) -> Self {
        let fs = image.open();
        let number = |path: &str| fs.resolve(path.as_bytes(), Follow::All).unwrap().number();
        let (dir, files) = (number("dir"), FILES.map(number));
        Self { image, fs, dir, files, names }
    }

    pub(super) fn dir(&self) -> InodeToChange<'static> {
        InodeToChange::in_test(self.fs.inode(self.dir).unwrap())
    }

    pub(super) fn file(&self, index: usize) -> InodeNo {
        self.files[index]
    }

    pub(super) fn try_add(&mut self, name: &[u8], file: usize) -> Result<()> {
        let (dir, target) = (self.dir(), self.files[file]);
        self.fs.transact(ADD_CREDITS, |h| {
            let added = Directory::of(&dir).add_entry(h, name, target, FileType::Regular);
            assert!(h.credits_left() > 0, "more blocks are changed than were asked for");
            added
        })?;
        self.names.insert(name.to_vec(), file);
        Ok(())
    }

    pub(super) fn add(&mut self, name: &[u8], file: usize) {
        self.try_add(name, file).unwrap_or_else(|error| panic!("{}: {error}", name.escape_ascii()));
        assert_eq!(self.dir().lookup(name).unwrap().number(), self.files[file]);
    }

    /// Creates a second directory, in the root directory.
    pub(super) fn make_directory(&self, name: &[u8]) -> InodeNo {
        let (fs, root) = (&self.fs, InodeToChange::in_test(self.fs.inode(ROOT).unwrap()));
        let new = NewInode {
            mode: 0o040_755,
            uid: 0,
            gid: 0,
            links: 2,
            flags: InodeFlags::empty(),
            time: Timestamp::default(),
            generation: 77,
            project: 0,
            body: Body::Mapped,
        };
        let links = root.stat().links as u16 + 1;
        let made = fs.transact(2 * ADD_CREDITS, |h| {
            let fresh = h.allocate_inode(ROOT, true)?;
            let number = fresh.number();
            h.init_inode(&fresh, &new)?;
            Directory::of(&InodeToChange::read(fs, &fresh)?).init(h, ROOT)?;
            Directory::of(&root).add_entry(h, name, number, FileType::Directory)?;
            h.update_inode(&root, |raw| raw.set_links(links))?;
            Ok(number)
        });
        made.unwrap()
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        let dir = self.dir();
        self.fs.transact(CHANGE_CREDITS, |h| Directory::of(&dir).remove_entry(h, name)).unwrap();
        self.names.remove(name);
        let gone = self.dir().lookup(name).err().map(|error| error.kind());
        assert_eq!(gone, Some(ErrorKind::NotFound), "{}", name.escape_ascii());
    }

    pub(super) fn set(&mut self, name: &[u8], file: usize) {
        let (dir, target) = (self.dir(), self.files[file]);
        self.fs
            .transact(CHANGE_CREDITS, |h| {
                Directory::of(&dir).set_entry(h, name, target, FileType::Regular)
            })
            .unwrap();
        self.names.insert(name.to_vec(), file);
        assert_eq!(self.dir().lookup(name).unwrap().number(), target);
    }

    pub(super) fn set_parent(&self, dir: &InodeToChange<'_>, parent: InodeNo) {
        let set = self.fs.transact(CHANGE_CREDITS, |h| {
            Directory::of(dir).set_entry(h, b"..", parent, FileType::Directory)
        });
        set.unwrap();
    }

    /// Asserts that the directory lists exactly the names of the model, and that a lookup finds each of them.
    pub(super) fn assert_names(&self) {
        let dir = self.dir();
        let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap());
        let mut listed: BTreeMap<_, _> = entries.map(|entry| (entry.name, entry.inode)).collect();
        assert_eq!(listed.remove(&b"."[..]), Some(self.dir));
        assert_eq!(listed.remove(&b".."[..]), Some(ROOT));
        let expected = self.names.iter().map(|(name, file)| (name.clone(), self.files[*file]));
        assert!(listed == expected.collect(), "{} listed of {}", listed.len(), self.names.len());
        for (name, file) in &self.names {
            assert_eq!(dir.lookup(name).unwrap().number(), self.files[*file]);
        }
        assert_eq!(dir.is_empty_directory().unwrap(), self.names.is_empty());
    }

    /// Sets the link count of each file to the file's number of names, and closes the volume. Then runs e2fsck and debugfs. Returns the
    /// image for further checks.
    pub(super) fn finish(self) -> Image {
        self.assert_names();
        for (index, number) in self.files.into_iter().enumerate() {
            let links = 1 + self.names.values().filter(|file| **file == index).count();
            self.fs
                .transact(1, |h| h.update_inode(&Alone(number), |raw| raw.set_links(links as u16)))
                .unwrap();
        }
        self.fs.close().unwrap();
        let Self { image, fs, names, .. } = self;
        drop(fs);
        image.fsck();
        let answer = image.script("ls -p dir\n");
        // The lines of debugfs have the form "/12/100644/0/0/name/0/". debugfs also lists unused entries, with inode 0.
        let used = |line: &&str| !line.starts_with("/0/");
        let listed = answer.lines().filter(used).filter_map(|line| line.split('/').nth(5));
        let mut listed: Vec<_> = listed.filter(|name| !matches!(*name, "." | "..")).collect();
        listed.sort_unstable();
        let printable = names.keys().all(|name| name.is_ascii());
        let expected: Vec<_> = names.keys().map(|name| String::from_utf8_lossy(name)).collect();
        assert!(!printable || listed == expected, "{} of {}", listed.len(), expected.len());
        image
    }
}

/// A random generator whose numbers depend only on the seed (SplitMix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}
