//! Volumes that are shut down while threads change them. Each is recovered by the kernel and by ironmap, and the two results are compared.

use std::hash::Hasher;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ironmap::fs::Usage;
use ironmap::fs::check::{Finding, Severity};
use ironmap::fs::xfs::{Incompat, LogState};
use ironmap::{ErrorKind, Volume};
use rustix::fs::SeekFrom;

use crate::changes::Changes;
use crate::common::command::{failure, output, run};
use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, words};
use crate::common::kernel;
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::unmount;
use crate::common::process::until;
use crate::common::reads::Depth;
use crate::common::rng::Rng;
use crate::common::skip::note_part;
use crate::common::view::{Subject, View};
use crate::common::xfsprogs;

const DEPTH: Depth = Depth { random: 2, stretches: 100 };
/// The number of inodes that are in use and have no name: those of the realtime bitmap and of the realtime summary.
const HIDDEN: u64 = 2;
/// The number of additional threads that all write to one shared file. These threads run in about half of the cases.
const SHARING: u64 = 5;

/// The options to make and to mount a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) size: &'static str,
    pub(crate) mkfs: &'static str,
    pub(crate) mount: &'static str,
    /// Whether a newer mkfs.xfs than the installed one makes the volume.
    pub(crate) newer: bool,
}

/// Makes a volume in an image in memory.
pub(crate) fn make(variant: &Variant) -> Image {
    let image = Image::no_xfs();
    run("truncate", &["-s".as_ref(), variant.size.as_ref(), image.path().as_os_str()]);
    // With these variables set, mkfs.xfs also makes volumes below its minimum size. These volumes have small logs.
    let mkfs = if variant.newer { xfsprogs::newer("mkfs.xfs") } else { "mkfs.xfs".to_owned() };
    let mut args = words("QA_CHECK_FS=1 TEST_DIR=1 TEST_DEV=1");
    args.extend([&mkfs, "-q", "-f"]);
    args.extend(words(variant.mkfs));
    let path = image.path();
    args.push(path.to_str().expect("a plain path"));
    run("env", &args);
    image
}

pub(crate) fn copy(image: &Image) -> Image {
    let copy = Image::no_xfs();
    run("cp", &["--sparse=always".into(), image.path(), copy.path()]);
    copy
}

/// A kernel mount. Dropping this value unmounts it.
pub(crate) struct Mount {
    dir: PathBuf,
    // This field is dropped after the unmount. Its drop detaches the device.
    _device: LoopDevice,
}

impl Mount {
    pub(crate) fn new(image: &Image, options: &str) -> Result<Self, String> {
        Self::of(LoopDevice::new(image.path()), image.beside("mnt"), options)
    }

    /// Mounts a device at a new directory.
    pub(crate) fn of(device: LoopDevice, dir: PathBuf, options: &str) -> Result<Self, String> {
        std::fs::create_dir_all(&dir).expect("a mount point");
        let place = dir.to_str().expect("a plain path");
        let args = ["-t", "xfs", "-o", options, device.node(), place];
        let result = output("mount", &args);
        if !result.status.success() {
            return Err(failure("mount", &args, &result));
        }
        Ok(Self { dir, _device: device })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.dir);
    }
}

/// The way in which the changes of a volume end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    ShutDown,
    Unmount,
}

/// The kind of changes that the threads make on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Changes of all kinds.
    All,
    /// Writes to shared blocks. XFS copies these blocks.
    CopyOnWrite,
    /// `xfs_fsr` replaces the maps of files with many extents.
    Defragment,
}

/// Mounts a volume and changes it until some steps are done. Then there are two ways to end: the volume is shut down during further
/// changes, or the changes stop and the volume is unmounted.
pub(crate) fn load(image: &Image, variant: &Variant, seed: u64, work: (Work, u64), end: End) {
    let mount = Mount::new(image, variant.mount).unwrap_or_else(|refusal| panic!("{refusal}"));
    change(&mount, variant, seed, work, end);
}

/// Changes a mounted volume until some steps are done. The caller unmounts it.
pub(crate) fn change(
    mount: &Mount,
    variant: &Variant,
    seed: u64,
    (work, most): (Work, u64),
    end: End,
) {
    let rng = &mut Rng::new(seed);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let steps = 20 + rng.below(most);
    let sharing = [0, SHARING][rng.below(2) as usize];
    // A shutdown either writes the log records that are in memory, or discards them.
    let how = ["shutdown", "shutdown -f"][rng.below(2) as usize];
    let xfs_io = variant.mkfs.contains("exchange=1").then(|| xfsprogs::newer("xfs_io"));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let changes = Changes::new(mount.dir(), thread, rng.next(), &done);
            let changes = changes.exchanging(xfs_io.as_deref());
            match work {
                Work::All => scope.spawn(|| changes.run(&stop)),
                Work::Defragment => scope.spawn(|| changes.defragment(&stop)),
                Work::CopyOnWrite => scope.spawn(|| changes.copy_on_write(&stop)),
            };
        }
        for thread in 2..2 + sharing {
            let changes = Changes::new(mount.dir(), thread, rng.next(), &done);
            scope.spawn(|| changes.share(&stop));
        }
        let _stop_at_end = OnDrop(&stop);
        until("the load does its steps", || done.load(Relaxed) >= steps);
        if end == End::ShutDown {
            run("xfs_io", &["-x", "-c", how, mount.dir().to_str().expect("a plain path")]);
        }
    });
}

/// Dropping this value stops the threads that change the volume, even if the test fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The counters that the test reports.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) states: u64,
    pub(crate) dirty: u64,
    pub(crate) transactions: u64,
    pub(crate) wrapped: u64,
    pub(crate) not_wrapped: u64,
    /// The number of states with unfinished intents.
    pub(crate) unfinished: u64,
    /// The number of changes to maps and attributes that were completed.
    pub(crate) finished: u64,
    /// The number of states in which changes of attributes were completed.
    pub(crate) of_attributes: u64,
    pub(crate) with_orphans: u64,
    /// The number of states without orphans and intents. The free blocks are compared only for these states.
    pub(crate) with_usage: u64,
}

/// A result of the comparison: the kernel's recovery does not lead to a valid volume. The test reports this. On small volumes, this happens
/// for about one of several hundred states.
#[derive(Debug, PartialEq)]
pub(crate) enum Unsound {
    /// The kernel refuses to mount the volume.
    Refused,
    /// After the kernel's recovery and after ironmap's recovery, the volume has the same damage. xfs_repair finds it.
    SameDamage,
}

/// Recovers a state with ironmap and with the kernel, and compares the results. Afterwards the image contains the volume as the kernel has
/// recovered it.
pub(crate) fn compare(
    image: &Image,
    what: &str,
    seed: u64,
    tally: &mut Tally,
) -> Result<LogState, Unsound> {
    let ours = copy(image);
    let compared = AssertUnwindSafe(|| compare_with(image, &ours, (what, seed), tally));
    std::panic::catch_unwind(compared).unwrap_or_else(|panic| {
        keep(&ours, seed);
        std::panic::resume_unwind(panic)
    })
}

/// The program xfs_repair of a version that supports the features of the volume.
fn repair_for(incompat: Incompat) -> String {
    let newer = Incompat::PARENT | Incompat::EXCHANGE_RANGE | Incompat::METADIR;
    if incompat.intersects(newer) { xfsprogs::newer("xfs_repair") } else { "xfs_repair".into() }
}

/// Compares a state. `ours` is a copy of the image, and ironmap recovers this copy.
fn compare_with(
    image: &Image,
    ours: &Image,
    (what, seed): (&str, u64),
    tally: &mut Tally,
) -> Result<LogState, Unsound> {
    let before = hash_of(&ours.path());
    let volume = ours.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    let xfs = volume.xfs().expect("an XFS volume");
    let (log, incompat) = (xfs.log().clone(), xfs.superblock().incompat);
    let (usage, free) = (volume.fs().usage(), xfs.superblock().free_blocks());
    let what = &format!("{what}, {log:?}");
    let mut checked = Checked::new(&volume, what);
    drop(volume);
    let mount = match Mount::new(image, "ro") {
        Ok(mount) => mount,
        Err(refusal) if log.recovered => {
            note_part("xfs_log", what, &refusal);
            keep(ours, seed);
            return Err(Unsound::Refused);
        }
        Err(refusal) => panic!("{what}: {refusal}"),
    };
    let (mut expected, statfs) = theirs(&mount, seed);
    drop(mount);
    let repair = repair_for(incompat);
    let recovered = image.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    let after = Checked::new(&recovered, what);
    let usage_after = recovered.fs().usage();
    let free_after = recovered.xfs().expect("an XFS volume").superblock().free_blocks();
    checked.forget_removed(&after, &recovered);
    drop(recovered);
    if checked.is_damage_of_linux(&after) && !image.passes(&repair) {
        note_part("xfs_log", what, &format!("{SAME_DAMAGE}: {:?}", checked.wrong));
        keep(ours, seed);
        return Err(Unsound::SameDamage);
    }
    checked.assert_clean(what);
    after.assert_clean(&format!("{what}, recovered by the kernel"));
    // A crash can leave a half-written attribute value. The kernel's recovery keeps such a value, but xfs_repair would remove it. So the
    // test ignores this finding.
    if !after.notes.iter().any(|note| note.contains("because its change was interrupted")) {
        image.check_by(&repair);
    }
    tally.count(&log);
    let mut subject = Subject::open(image);
    let actual = subject.view();
    let recovered = &format!("{what}, recovered by the kernel");
    assert_same(&expected, &actual, recovered);
    assert_contents(&expected, &mut subject, &actual, recovered);
    drop(subject);
    let mut subject = Subject::open(ours);
    if log.finished_attributes > 0 {
        // When a recovery completes a change of attributes, it also changes times and block counts of files.
        tally.of_attributes += 1;
        for record in expected.values_mut() {
            (record.blocks, record.changed) = (None, None);
        }
    }
    let actual = subject.view();
    assert_same(&expected, &actual, what);
    assert_contents(&expected, &mut subject, &actual, what);
    if compare_usage(&expected, (&usage, &statfs), &log, what, tally) {
        // The kernel counts the blocks of free space B+trees separately. It may allocate such blocks immediately after the mount.
        assert_eq!(free, free_after, "{what}: free blocks");
        assert_eq!(usage_after.free.blocks, statfs.f_bfree, "{what}: free blocks, in recovered");
    }
    assert_eq!(before, hash_of(&ours.path()), "{what}: the image was written");
    Ok(log)
}

/// If a directory is given, copies a state there that the kernel does not recover to a valid volume.
fn keep(image: &Image, seed: u64) {
    if let Some(dir) = std::env::var_os("IRONMAP_XFS_KEEP") {
        let copy = Path::new(&dir).join(format!("{seed:#x}"));
        run("cp", &["--sparse=always".into(), image.path(), copy]);
    }
}

/// Linux removes the attributes of a removed inode in several transactions: first the blocks of values and the content of leaves, later the
/// leaves themselves. A crash between these transactions leaves an inode with references to freed blocks. If the kernel's recovery reads
/// such blocks, it reports corruption, and keeps the inode in the list of removed inodes. xfs_repair then finds the damage.
const SAME_DAMAGE: &str = "the kernel's recovery leaves the same damage, and xfs_repair finds it";

/// The name of the structure, as findings about parent pointers contain it.
const PARENTS: &str = "parent pointers";

/// The findings of a check.
struct Checked {
    notes: Vec<String>,
    wrong: Vec<Finding>,
}

impl Checked {
    fn new(volume: &Volume, what: &str) -> Self {
        let report = volume.fs().check(&mut |_| {});
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        let is_note = |finding: &Finding| finding.severity == Severity::Note;
        let (notes, wrong): (Vec<_>, _) = report.findings.into_iter().partition(is_note);
        Self { notes: notes.iter().map(ToString::to_string).collect(), wrong }
    }

    /// Omits findings about attributes of inodes that the kernel's recovery has removed.
    fn forget_removed(&mut self, by_kernel: &Self, recovered: &Volume) {
        let is_removed = |finding: &Finding| {
            let place = finding.site.place;
            let inode = place.inode.map(|inode| recovered.fs().inode(inode).map(drop));
            let is_gone = matches!(inode, Some(Err(error)) if error.kind() == ErrorKind::NotFound);
            is_gone && (place.structure.starts_with("attribute") || place.structure == PARENTS)
        };
        self.wrong.retain(|finding| by_kernel.wrong.contains(finding) || !is_removed(finding));
    }

    /// Whether the check finds faults after ironmap's recovery, and finds each of these faults also after the kernel's recovery.
    fn is_damage_of_linux(&self, by_kernel: &Self) -> bool {
        !self.wrong.is_empty() && self.wrong.iter().all(|finding| by_kernel.wrong.contains(finding))
    }

    fn assert_clean(&self, what: &str) {
        let shown = &self.wrong[..self.wrong.len().min(20)];
        assert!(shown.is_empty(), "{what}: {shown:#?}, notes {:#?}", self.notes);
    }
}

/// The kernel's view of the volume, mounted read-only.
pub(crate) fn theirs(mount: &Mount, seed: u64) -> (View, rustix::fs::StatVfs) {
    let mut view = kernel::view_with_maps(mount.dir(), DEPTH, seed);
    kernel::add_flags(mount.dir(), &mut view);
    (view, rustix::fs::statvfs(mount.dir()).expect("the usage"))
}

/// Compares the numbers of free inodes. Returns whether the free blocks can be compared too. Files without names were open, or were being
/// removed. After the kernel's recovery they do not exist, so free blocks differ.
fn compare_usage(
    view: &View,
    (ours, theirs): (&Usage, &rustix::fs::StatVfs),
    log: &LogState,
    what: &str,
    tally: &mut Tally,
) -> bool {
    let mut named: Vec<_> = view.values().filter_map(|record| record.inode).collect();
    named.sort_unstable();
    named.dedup();
    let named = named.len() as u64 + HIDDEN;
    let used = (ours.inodes - ours.free.inodes, theirs.f_files - theirs.f_ffree);
    assert_eq!(used.1, named, "{what}: inodes in use by the kernel's recovery");
    assert!(used.0 >= named, "{what}: {} inodes in use, of which {named} have names", used.0);
    let has_orphans = used.0 > named;
    tally.with_orphans += u64::from(has_orphans);
    // When the kernel completes intents or removes files, it may allocate blocks for its B+trees.
    let is_same = log.unfinished.is_empty() && log.finished == 0 && !has_orphans;
    tally.with_usage += u64::from(is_same);
    is_same
}

impl Tally {
    fn count(&mut self, log: &LogState) {
        self.states += 1;
        self.dirty += u64::from(log.recovered);
        self.transactions += log.transactions;
        let is_wrapped = log.head.0 != log.tail.0;
        self.wrapped += u64::from(log.recovered && is_wrapped);
        self.not_wrapped += u64::from(log.recovered && !is_wrapped);
        self.finished += log.finished;
        self.unfinished += u64::from(!log.unfinished.is_empty());
    }
}

/// A hash of a sparse file: of its data and of their positions.
fn hash_of(path: &Path) -> u64 {
    let file = std::fs::File::open(path).expect("the image");
    let mut hasher = std::hash::DefaultHasher::new();
    let (mut pos, mut bytes) = (0, vec![0; 1 << 20]);
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(pos)) {
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(data)).expect("an end");
        let len = bytes.len().min((hole - data) as usize);
        file.read_exact_at(&mut bytes[..len], data).expect("read the image");
        hasher.write_u64(data);
        hasher.write(&bytes[..len]);
        pos = data + len as u64;
    }
    hasher.finish()
}
