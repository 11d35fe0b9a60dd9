//! Journals that Linux left: the device is copied beneath a live mount, and Linux's own recovery of the copy is the oracle.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use ironmap::Volume;
use ironmap::fs::FileType;
use ironmap::fs::ext4::{Follow, JournalFeatures, JournalState, ROOT, Recovery};

use crate::image::{Image, content, inode, open, run};

/// A mounted image, unmounted when it goes.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&at).unwrap();
        let options = format!("loop,{options}");
        run(
            "mount",
            &["-t", "ext4", "-o", &options, image.to_str().unwrap(), at.to_str().unwrap()],
            &[0],
        );
        Self(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// A seeded sequence of operations on a tree. Each file is synced with its own chance, so that some changes are in the journal
/// and some are not.
struct Workload {
    root: PathBuf,
    state: u64,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    made: u32,
    /// Whether operations that Linux does not record in fast commits are left out.
    plain: bool,
}

impl Workload {
    fn new(root: &Path, seed: u64, plain: bool) -> Self {
        let (root, dirs) = (root.to_owned(), vec![root.to_owned()]);
        Self { root, state: seed, files: Vec::new(), dirs, made: 0, plain }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % bound
    }

    fn fresh(&mut self) -> PathBuf {
        self.made += 1;
        let dir = self.below(self.dirs.len());
        let pad = self.below(30);
        self.dirs[dir].join(format!("n{}{}", self.made, "x".repeat(pad)))
    }

    fn write(&mut self, path: &Path) {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path).unwrap();
        for _ in 0..1 + self.below(4) {
            let at = self.below(150_000) as u64;
            let mut bytes = vec![self.below(256) as u8; 1 + self.below(40_000)];
            if self.below(6) == 0 {
                // Blocks that begin like the journal's own are escaped where data goes through it.
                for block in bytes.chunks_mut(1024).filter(|block| block.len() >= 4) {
                    block[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
                }
                file.write_all_at(&bytes, at / 4096 * 4096).unwrap();
            } else {
                file.write_all_at(&bytes, at).unwrap();
            }
        }
        if self.below(3) > 0 {
            file.sync_all().unwrap();
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.below(self.files.len()))
    }

    fn step(&mut self) {
        let Some(at) = self.pick() else {
            let path = self.fresh();
            self.write(&path);
            return self.files.push(path);
        };
        let path = self.files[at].clone();
        match self.below(if self.plain { 11 } else { 15 }) {
            0..=3 => {
                let path = self.fresh();
                self.write(&path);
                self.files.push(path);
            }
            4 | 5 => self.write(&path),
            6 => {
                fs::remove_file(&path).unwrap();
                self.files.swap_remove(at);
            }
            7 => {
                let to = self.fresh();
                fs::rename(&path, &to).unwrap();
                File::open(&to).unwrap().sync_all().unwrap();
                self.files[at] = to;
            }
            8 => {
                let to = self.fresh();
                fs::hard_link(&path, &to).unwrap();
                self.files.push(to);
            }
            9 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(self.below(100_000) as u64).unwrap();
                file.sync_all().unwrap();
            }
            10 => {
                let dir = self.fresh();
                fs::create_dir(&dir).unwrap();
                self.dirs.push(dir);
            }
            11 => symlink("a".repeat(1 + self.below(100)), self.fresh()).unwrap(),
            12 => {
                // Over another file.
                let other = self.below(self.files.len());
                if other != at {
                    let to = self.files[other].clone();
                    fs::rename(&path, &to).unwrap();
                    self.files.swap_remove(at);
                }
            }
            13 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                let flags =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                let at = self.below(90_000) as u64;
                rustix::fs::fallocate(&file, flags, at, 1 + self.below(60_000) as u64).unwrap();
            }
            _ => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                let at = self.below(300_000) as u64;
                let len = 1 + self.below(100_000) as u64;
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, len).unwrap();
            }
        }
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Ends with something durable.
    fn sync_last(&mut self) {
        let path = self.root.join("last");
        let file = File::create(path).unwrap();
        file.write_all_at(b"last", 0).unwrap();
        file.sync_all().unwrap();
    }
}

/// What a file is, by name, as far as recovery must agree on it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    mode: u32,
    links: u64,
    owner: (u32, u32),
    /// Neither size nor time of directories: Linux's replay of fast commits adds to them at the time of the replay.
    size: u64,
    modified: (i64, i64),
    content: Vec<u8>,
}

fn kernel_tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if stat.is_file() {
            content = fs::read(&path).unwrap();
        }
        let seen = Seen {
            inode: stat.ino(),
            mode: stat.mode(),
            // Linux's replay leaves a new directory with one link instead of two.
            links: if stat.is_dir() { stat.nlink().max(2) } else { stat.nlink() },
            owner: (stat.uid(), stat.gid()),
            size: if stat.is_dir() { 0 } else { stat.size() },
            modified: if stat.is_dir() { (0, 0) } else { (stat.mtime(), stat.mtime_nsec()) },
            content,
        };
        tree.insert(path.strip_prefix(root).unwrap().to_owned(), seen);
    }
    tree
}

/// The names of a volume as ironmap lists them, each found again by its path.
fn our_names(volume: &Volume) -> BTreeMap<PathBuf, u64> {
    let mut names = BTreeMap::from([(PathBuf::new(), ROOT.0)]);
    let mut todo = vec![(PathBuf::new(), ROOT)];
    while let Some((path, number)) = todo.pop() {
        let dir = volume.fs().inode(number).unwrap();
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.join(OsStr::from_bytes(&entry.name));
            let found = volume.fs().resolve(path.as_os_str().as_bytes(), Follow::NotLast).unwrap();
            assert_eq!(found.number(), entry.inode, "{}", path.display());
            if matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            assert_eq!(entry.file_type, Some(found.file_type()), "{}", path.display());
            assert_eq!(names.insert(path.clone(), entry.inode.0), None, "{}", path.display());
            if found.file_type() == FileType::Directory {
                todo.push((path, entry.inode));
            }
        }
    }
    names
}

struct Scenario {
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount: &'static str,
    features: JournalFeatures,
    plain: bool,
}

impl Scenario {
    /// Runs it; `None` where it cannot be run here.
    fn run(&self, seed: u64) -> Option<Recovery> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {}: a kernel mount needs root", self.name);
            return None;
        }
        let mut options = vec!["-t", "ext4", "-J", "size=8"];
        options.extend(self.mke2fs);
        let image = Image::make("64M", &options);
        let dirty = {
            let mount = format!("noatime,commit=600,{}", self.mount);
            let mounted = Mount::new(&image.path, image.dir.path().join("live"), &mount);
            let mut workload = Workload::new(&mounted.0, seed, self.plain);
            workload.steps(120);
            run("sync", &["-f", mounted.0.to_str().unwrap()], &[0]);
            // An orphan: unlinked while it is open.
            let path = mounted.0.join("orphan");
            let orphan = File::create(&path).unwrap();
            if !self.plain {
                fs::remove_file(&path).unwrap();
            }
            workload.steps(150);
            workload.sync_last();
            let dirty = image.copy("dirty");
            drop(orphan);
            dirty
        };
        let before = fs::read(&dirty).unwrap();
        let volume = open(&dirty).unwrap();
        let JournalState::Recovered(recovery) = volume.fs().journal().state.clone() else {
            panic!("{}: {:?}", self.name, volume.fs().journal());
        };
        println!("{}: seed {seed}: {recovery:?}", self.name);
        let features = volume.fs().journal().features;
        assert!(features.contains(self.features), "{}: {features:?}", self.name);
        if !self.plain {
            assert!(volume.fs().orphans().unwrap() > 0, "{}: no orphan", self.name);
        }

        run(
            "cp",
            &[dirty.to_str().unwrap(), image.dir.path().join("oracle").to_str().unwrap()],
            &[0],
        );
        let mounted = Mount::new(
            &image.dir.path().join("oracle"),
            image.dir.path().join("recovered"),
            "noatime",
        );
        let tree = kernel_tree(&mounted.0);
        assert!(tree.len() > 40, "{}: the workload left {} files", self.name, tree.len());
        let names: BTreeMap<_, _> =
            tree.iter().map(|(path, seen)| (path.clone(), seen.inode)).collect();
        assert_eq!(our_names(&volume), names, "{}, seed {seed}", self.name);
        for (path, theirs) in &tree {
            let what = format!("{}, seed {seed}: {}", self.name, path.display());
            let inode =
                inode(&volume, theirs.inode).unwrap_or_else(|error| panic!("{what}: {error}"));
            let stat = inode.stat();
            let is_dir = stat.file_type == FileType::Directory;
            let ours = Seen {
                inode: stat.inode.0,
                mode: stat.mode,
                links: u64::from(stat.links),
                owner: (stat.uid, stat.gid),
                size: if is_dir { 0 } else { stat.size },
                modified: if is_dir {
                    (0, 0)
                } else {
                    (stat.modified.seconds, i64::from(stat.modified.nanoseconds))
                },
                content: if stat.file_type == FileType::Regular {
                    content(&inode, &dirty).unwrap_or_else(|error| panic!("{what}: {error}"))
                } else {
                    Vec::new()
                },
            };
            if ours != *theirs {
                let differs = ours
                    .content
                    .iter()
                    .zip(&theirs.content)
                    .position(|(ours, theirs)| ours != theirs);
                let brief = |seen: &Seen| {
                    (seen.inode, seen.mode, seen.links, seen.owner, seen.size, seen.modified)
                };
                panic!(
                    "{what}: ours {:?}, theirs {:?}, content from {differs:?}",
                    brief(&ours),
                    brief(theirs)
                );
            }
        }
        assert!(fs::read(&dirty).unwrap() == before, "{}: the image was written", self.name);
        Some(recovery)
    }
}

const PLAIN: Scenario = Scenario {
    name: "ordered",
    mke2fs: &["-b", "4096"],
    mount: "data=ordered",
    features: JournalFeatures::empty(),
    plain: false,
};

#[test]
fn ordered_data() {
    for (mke2fs, features) in [
        (&["-b", "4096", "-O", "64bit,metadata_csum"][..], JournalFeatures::CSUM_V3),
        (&["-b", "1024", "-O", "64bit,metadata_csum,orphan_file"][..], JournalFeatures::CSUM_V3),
        (&["-b", "1024", "-O", "^64bit,^metadata_csum"][..], JournalFeatures::empty()),
        (&["-b", "2048", "-O", "64bit,^metadata_csum"][..], JournalFeatures::SIXTY_FOUR_BIT),
    ] {
        let found = Scenario { mke2fs, features, ..PLAIN }.run(2);
        assert!(found.is_none_or(|recovery| recovery.transactions > 0 && recovery.blocks > 0));
    }
}

/// Data stands in the journal, and some of its blocks are escaped.
#[test]
fn journaled_data() {
    for mke2fs in [&["-b", "4096"][..], &["-b", "1024", "-O", "^metadata_csum"][..]] {
        let found = Scenario { name: "journal", mount: "data=journal", mke2fs, ..PLAIN }.run(3);
        assert!(found.is_none_or(|recovery| recovery.blocks > 20));
    }
}

#[test]
fn checksums_of_the_first_version_and_asynchronous_commits() {
    let mke2fs = &["-b", "1024", "-O", "^metadata_csum"][..];
    let (mount, features) = ("journal_checksum", JournalFeatures::CHECKSUM);
    Scenario { name: "journal_checksum", mke2fs, mount, features, plain: false }.run(4);
    for mke2fs in [mke2fs, &["-b", "4096"]] {
        let mount = "journal_checksum,journal_async_commit,data=writeback";
        let features = JournalFeatures::ASYNC_COMMIT;
        Scenario { name: "journal_async_commit", mke2fs, mount, features, plain: false }.run(5);
    }
}

/// With `plain` most steps can be recorded in fast commits; without it full commits come between them.
///
/// The area must not fill up: Linux 6.18 then reads behind it and refuses its own journal.
#[test]
fn fast_commits() {
    let (mount, features) = ("data=ordered", JournalFeatures::FAST_COMMIT);
    let (mut runs, mut fast_commits) = (0, 0);
    for (mke2fs, seed) in [
        (&["-b", "4096", "-O", "fast_commit"][..], 6),
        (&["-b", "4096", "-O", "fast_commit,^64bit"][..], 7),
        (&["-b", "2048", "-O", "fast_commit,^metadata_csum"][..], 8),
        (&["-b", "2048", "-O", "fast_commit,inline_data"][..], 9),
    ] {
        for plain in [true, false] {
            let scenario = Scenario { name: "fast_commit", mke2fs, mount, features, plain };
            if let Some(recovery) = scenario.run(seed) {
                runs += 1;
                fast_commits += recovery.fast_commits;
            }
        }
    }
    // Linux decides by itself when to make a full commit instead.
    assert!(runs == 0 || fast_commits > 0, "{runs} runs without a fast commit");
}
