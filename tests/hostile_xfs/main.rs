//! Hostile XFS volumes: structures are damaged and have valid checksums. No operation may panic, hang or allocate unbounded memory.
//!
//! A failure names the seed and the number of the case. `IRONMAP_HOSTILE=SEED:NUMBER` repeats one case. `IRONMAP_HOSTILE=SEED` runs the
//! cases of another seed than the default. `IRONMAP_HOSTILE_CASES` sets the number of cases.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod structures;
mod trash;
#[path = "../hostile/visit.rs"]
mod visit;
#[path = "../hostile/watch.rs"]
mod watch;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::{BlockFile, Device, OpenMode, Psync};
use tempfile::TempDir;

use common::command;
use common::mounted::{Mounted, unmount};
use common::realtime::{NO_GROUPS, OWN_ZONES, TREES, Way, World};
use common::rng::Rng;
use common::skip::Need;
use common::xfsprogs;
use structures::{Kind, Structure};
use watch::Watch;

const SEED: u64 = 0x0F5_2026;
/// The default number of damaged volumes for each kind of damage and each base volume.
const CASES: u64 = 200;

/// An XFS volume in a file, filled by the kernel.
struct Base {
    name: &'static str,
    dir: TempDir,
    structures: Vec<Structure>,
}

impl Base {
    /// Makes a volume that was unmounted. With `dirty`, makes a volume whose log needs recovery.
    fn new(name: &'static str, mkfs: &str, dirty: bool) -> Self {
        let mounted = Mounted::new(&format!("mkfs.xfs -q {mkfs}"), 320, "noatime");
        fill(mounted.dir());
        let dir = common::image::scratch();
        if dirty {
            let dir = mounted.dir().as_os_str();
            command::run("xfs_io", &["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir]);
        }
        assert!(unmount(mounted.dir()));
        let copy = dir.path().join("base");
        copy_sparse(&mounted.image(), &copy);
        let structures = structures::find(&File::open(&copy).unwrap());
        Self { name, dir, structures }
    }

    /// Makes a volume with realtime files. The kernel does not write to it.
    fn realtime(name: &'static str, way: &Way) -> Self {
        let World { dir, image, .. } = World::new(way);
        let copy = dir.path().join("base");
        copy_sparse(&image.path(), &copy);
        let structures = structures::find(&File::open(&copy).unwrap());
        Self { name, dir, structures }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("base")
    }
}

fn copy_sparse(from: &Path, to: &Path) {
    command::run("cp", &["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()]);
}

/// Makes files that together use every form of directories, attributes, maps and links.
fn fill(root: &Path) {
    let dir = |name: &str, count: usize| {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        for number in 0..count {
            fs::write(dir.join(format!("name-{number:05}")), b"content").unwrap();
        }
    };
    dir("short", 3);
    dir("linear", 40);
    dir("middle", 400);
    dir("hashed", 3000);
    let name = |name: &str| root.join(name);
    std::os::unix::fs::symlink("short", name("link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(900), name("long")).unwrap();
    let file = File::create(name("map")).unwrap();
    for number in 0..600 {
        file.write_all_at(&[7; 4096], number * 8192).unwrap();
    }
    file.sync_all().unwrap();
    for (file, count, len) in
        [("short/name-00000", 3, 10), ("map", 200, 300), ("hashed", 5, 60_000)]
    {
        for number in 0..count {
            let value = vec![b'v'; len];
            let attribute = format!("user.attribute-{number}");
            rustix::fs::setxattr(name(file), attribute, &value, rustix::fs::XattrFlags::empty())
                .unwrap();
        }
    }
}

/// In each round, damages a copy of the undamaged volume in a different way, and reads the whole volume.
fn survive(base: &Base, kind: Option<Kind>) {
    let chosen = std::env::var("IRONMAP_HOSTILE").unwrap_or_default();
    let (seed, number) = match chosen.split_once(':') {
        Some((seed, number)) => (seed.parse().unwrap(), Some(number.parse::<u64>().unwrap())),
        None => (chosen.parse().unwrap_or(SEED), None),
    };
    println!("seed {seed}");
    let cases = std::env::var("IRONMAP_HOSTILE_CASES")
        .map_or(CASES, |cases| cases.parse().expect("IRONMAP_HOSTILE_CASES: a number"));
    let path = base.dir.path().join(format!("{kind:?}"));
    copy_sparse(&base.path(), &path);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
    let device: Arc<dyn Device> =
        Arc::new(Psync::new(Arc::new(BlockFile::open(&path, &mode).unwrap())));
    let structures: Vec<_> =
        base.structures.iter().filter(|s| kind.is_none_or(|kind| s.kind == kind)).collect();
    assert!(!structures.is_empty(), "{}: no {kind:?}", base.name);
    let watch = Watch::start(&format!("{kind:?}"));
    for number in number.map_or(0..cases, |number| number..number + 1) {
        let mut rng = Rng::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        watch.begin(format!("{} {seed}:{number}", base.name));
        let mut saved = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let structure = structures[rng.below(structures.len() as u64) as usize];
            let mut bytes = structure.read(&file);
            saved.push((structure.at, bytes.clone()));
            let like = structures[rng.below(structures.len() as u64) as usize].read(&file);
            damage::damage(&mut bytes, &like, &mut rng);
            // The test repairs most checksums, because a wrong checksum prevents that the code after the verification is reached.
            if rng.below(8) != 0 {
                structure.repair(&mut bytes);
            }
            file.write_all_at(&bytes, structure.at).unwrap();
        }
        if let Some(volume) = visit::seen(Volume::on(Arc::clone(&device))) {
            visit::visit(&volume);
            // A check reads all metadata, so it runs only for every third case.
            if number % 3 == 0 {
                visit::seen(volume.fs().check(&mut |_| {}));
            }
        }
        for (at, bytes) in saved.into_iter().rev() {
            file.write_all_at(&bytes, at).unwrap();
        }
    }
}

/// Asserts that the undamaged volume can be read without an error. Without this check, these tests could pass for a wrong reason.
fn is_sound(base: &Base, recovers: bool) {
    let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
    let device = Psync::new(Arc::new(BlockFile::open(&base.path(), &mode).unwrap()));
    let volume = Volume::on(Arc::new(device)).unwrap();
    assert_eq!(volume.xfs().unwrap().log().recovered, recovers, "{}", base.name);
    let root = volume.fs().inode(volume.fs().root()).unwrap();
    for entry in root.read_dir().unwrap() {
        let inode = volume.fs().inode(entry.unwrap().inode).unwrap();
        inode.xattrs().unwrap();
        if let Ok(mut entries) = inode.read_dir() {
            assert!(entries.all(|entry| entry.is_ok()));
        }
    }
    visit::visit(&volume);
}

#[test]
fn damaged_structures() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for (name, mkfs) in
        [("4k", "-m rmapbt=1"), ("1k, directories of 8k", "-b size=1024 -n size=8192")]
    {
        let base = Base::new(name, mkfs, false);
        is_sound(&base, false);
        for kind in
            Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Record | Kind::Realtime))
        {
            survive(&base, Some(kind));
        }
        survive(&base, None);
    }
}

#[test]
fn damaged_realtime_space() {
    require!([Need::Variable(xfsprogs::VARIABLE)]);
    let base = Base::realtime("realtime groups", &TREES);
    survive(&base, Some(Kind::Realtime));
    for (name, way) in [("groups", &TREES), ("zones", &OWN_ZONES), ("no groups", &NO_GROUPS)] {
        let base = Base::realtime(name, way);
        is_sound(&base, false);
        survive(&base, Some(Kind::Inode));
        survive(&base, Some(Kind::Superblock));
        survive(&base, None);
    }
}

#[test]
fn damaged_logs() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let base = Base::new("dirty", "", true);
    is_sound(&base, true);
    survive(&base, Some(Kind::Record));
    survive(&base, None);
}
