//! Journals that Linux wrote. The device is copied while the volume is mounted. The oracle is the recovery of the copy by Linux.

use crate::require;
use std::fs::{self, File};
use std::time::{SystemTime, UNIX_EPOCH};

use ironmap::fs::ext4::{JournalFeatures, JournalState, Recovery};
use rustix::fs::FileType;

use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, LoopMount, words};
use crate::common::kernel;
use crate::common::reads::Depth;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note_part};
use crate::common::view::{Record, Subject, View};
use crate::journal::set_sequence;
use crate::journal::workload::Workload;

const DEPTH: Depth = Depth { random: 4, stretches: 300 };
/// The number of operations between two examinations of the journal, and the maximum number of examinations.
const STEPS: u32 = 30;
const ROUNDS: u32 = 200;

/// A volume, the operations on it, and the journal that is expected.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) mke2fs: &'static str,
    pub(crate) mount: &'static str,
    pub(crate) features: JournalFeatures,
    /// Whether the workload consists only of operations that fast commits can record. Other operations cause full commits.
    pub(crate) plain: bool,
    /// The number of the first transaction.
    pub(crate) sequence: u32,
    /// Whether the workload continues until the log wraps around the end of the journal.
    pub(crate) wrapped: bool,
}

pub(crate) const ORDERED: Scenario = Scenario {
    mke2fs: "-b 4096",
    mount: "data=ordered",
    features: JournalFeatures::empty(),
    plain: false,
    sequence: 1,
    wrapped: false,
};

impl Scenario {
    pub(crate) fn name(&self, seed: u64) -> String {
        format!("{}, {}, plain {}, seed {seed}", self.mke2fs, self.mount, self.plain)
    }

    /// Copies the device while the volume is mounted and programs write to it.
    pub(crate) fn dirty(&self, seed: u64) -> Image {
        let size = if self.wrapped { "-J size=4" } else { "-J size=8" };
        let options = format!("-t ext4 {size} {}", self.mke2fs);
        let image = Image::mke2fs("64M", &words(&options));
        set_sequence(&image, self.sequence);
        let mounted = image.mount(&format!("noatime,commit=600,{}", self.mount));
        let mut workload = Workload::new(mounted.dir(), seed, self.plain);
        workload.steps(120);
        sync(&mounted);
        // The file is removed while it is open, so it becomes an orphan.
        let path = mounted.dir().join("orphan");
        let orphan = File::create(&path).unwrap();
        if !self.plain {
            fs::remove_file(&path).unwrap();
        }
        workload.steps(120);
        for _ in 0..ROUNDS {
            workload.steps(STEPS);
            if !self.plain {
                workload.revoke();
            }
            workload.sync_last();
            let dirty = image.copy();
            if !self.wrapped || wraps(&dirty) {
                drop(orphan);
                return dirty;
            }
        }
        panic!("{}: the log did not wrap", self.name(seed));
    }

    /// Recovers the journal in memory, and compares the result with the kernel's recovery. If the two cannot be compared, returns the
    /// reason.
    fn run(&self, seed: u64) -> Result<Recovery, String> {
        let what = self.name(seed);
        let dirty = self.dirty(seed);
        let volume = dirty.open().unwrap_or_else(|error| panic!("{what}: {error}"));
        let journal = volume.ext4().unwrap().journal();
        let JournalState::Recovered(recovery) = journal.state.clone() else {
            panic!("{what}: {journal:?}");
        };
        assert!(journal.features.contains(self.features), "{what}: {:?}", journal.features);
        if !self.plain {
            assert!(volume.ext4().unwrap().orphans().unwrap() > 0, "{what}: no orphan");
        }
        let replay = if recovery.fast_commits > 0 { Replay::Fast } else { Replay::Full };
        let mut expected = recovered_by_kernel(&dirty, replay)?;
        if self.mount == "data=journal" {
            // If the newest copy of a block is in the journal, the map that ironmap reports gives the position in the journal. So maps are
            // not compared.
            expected.values_mut().for_each(|record| record.map = None);
        }
        assert!(expected.len() > 40, "{what}: the workload left {} files", expected.len());
        compare(&expected, &dirty, &what);
        Ok(recovery)
    }

    /// Runs the test with a seed. If the kernel refuses the journal that it wrote, the seed is recorded as skipped.
    fn run_or_note(&self, test: &str, seed: u64) -> Option<Recovery> {
        let result = self.run(seed);
        result.map_err(|refusal| note_part(test, &self.name(seed), refusal.trim())).ok()
    }
}

/// Commits all changes.
pub(crate) fn sync(mounted: &LoopMount) {
    rustix::fs::syncfs(File::open(mounted.dir()).unwrap()).unwrap();
}

/// Whether the log wraps around, that is, continues in the journal's first block after the last block. The order of the blocks comes from
/// debugfs.
fn wraps(image: &Image) -> bool {
    let blocks = logged_blocks(image);
    blocks.windows(2).any(|pair| pair[1] < pair[0])
}

/// The commits that the kernel replays in its recovery: only full commits, or also fast commits. In a replay of fast commits, the kernel
/// can change inodes in ways that the journal does not record.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Replay {
    Full,
    /// A replay that includes fast commits. When Linux adds names to a directory, it sets the directory's times to the time of the replay.
    /// A new file can also have blocks past its end, which the previous file with the same inode number had allocated.
    Fast,
}

/// The kernel's view after it has recovered a copy. If the kernel refuses the mount, returns its message.
pub(crate) fn recovered_by_kernel(dirty: &Image, replay: Replay) -> Result<View, String> {
    recovered(&dirty.copy(), "", replay)
}

/// The kernel's view after it has recovered this image. The image is a copy. `options` are additional mount options.
pub(crate) fn recovered(copy: &Image, options: &str, replay: Replay) -> Result<View, String> {
    // This time is later than all times of the workload. After the workload a loop device was attached, which takes longer than one tick of
    // the clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let begun = (now.as_secs() as i64, now.subsec_nanos());
    drop(copy.try_mount(&format!("rw,noatime{options}"))?);
    let mount = copy.mount(&format!("ro,noload{options}"));
    let mut view = kernel::view_with_maps(mount.dir(), DEPTH, 1);
    // If the recovery completes an interrupted truncation, it sets the times of the file to the time of the recovery. These times are not
    // compared.
    for record in view.values_mut() {
        let times = [&mut record.modified, &mut record.changed];
        times.into_iter().for_each(|time| *time = time.filter(|time| *time < begun));
    }
    if replay == Replay::Fast {
        view.values_mut().for_each(as_replayed);
    }
    Ok(view)
}

/// Removes the values that Linux sets during a replay of fast commits although the journal does not contain them.
fn as_replayed(record: &mut Record) {
    (record.blocks, record.map) = (None, None);
    if !record.is(FileType::Directory) {
        return;
    }
    // The replay gives a new directory one link instead of two.
    let links = record.links.map(|links| links.max(2));
    let times = [&mut record.accessed, &mut record.modified, &mut record.changed];
    times.into_iter().for_each(|time| *time = None);
    (record.links, record.size) = (links, None);
}

/// Compares names, the results of stat, attributes, link targets, maps and contents. The image must not be changed.
fn compare(expected: &View, dirty: &Image, what: &str) {
    let before = fs::read(dirty.path()).unwrap();
    let mut subject = Subject::open(dirty);
    let actual = subject.view();
    assert_same(expected, &actual, what);
    assert_contents(expected, &mut subject, &actual, what);
    assert!(fs::read(dirty.path()).unwrap() == before, "{what}: the image was written");
}

#[test]
fn ordered_data() {
    require!([Need::Root]);
    for (mke2fs, features) in [
        ("-b 4096 -O 64bit,metadata_csum", JournalFeatures::CSUM_V3),
        ("-b 1024 -O 64bit,metadata_csum,orphan_file", JournalFeatures::CSUM_V3),
        ("-b 1024 -O ^64bit,^metadata_csum", JournalFeatures::empty()),
        ("-b 2048 -O 64bit,^metadata_csum", JournalFeatures::SIXTY_FOUR_BIT),
    ] {
        // If the kernel's writeback has already written a block in place, no revocation of this block is necessary, and the journal
        // contains none. The test then tries another seed.
        let revoked = (2..6).any(|seed| {
            let recovery = Scenario { mke2fs, features, ..ORDERED }.run(seed).unwrap();
            assert!(recovery.transactions > 0 && recovery.blocks > 0, "{mke2fs}: {recovery:?}");
            recovery.revoked > 0
        });
        assert!(revoked, "{mke2fs}: nothing was revoked");
    }
}

/// File data in the journal are replayed. Some of the data blocks are escaped, and the log wraps around the end of the journal.
#[test]
fn journaled_data() {
    require!([Need::Root]);
    for (mke2fs, seed) in [("-b 4096", 3), ("-b 1024 -O ^metadata_csum", 4)] {
        let scenario = Scenario { mount: "data=journal", mke2fs, wrapped: true, ..ORDERED };
        let recovery = scenario.run(seed).unwrap();
        assert!(recovery.blocks > 20, "{mke2fs}: {recovery:?}");
    }
}

/// After the maximum transaction number, numbers continue from 0.
#[test]
fn transaction_numbers_wrap_around() {
    require!([Need::Root]);
    // The numbers begin slightly below the maximum. The log begins at a checkpoint, so it can contain numbers from both sides of the wrap.
    for back in [3, 30] {
        let scenario = Scenario { sequence: u32::MAX - back, ..ORDERED };
        let recovery = scenario.run(11).unwrap();
        assert!(recovery.transactions > 0, "{recovery:?}");
    }
}

#[test]
fn checksums_of_the_first_version_and_asynchronous_commits() {
    require!([Need::Root]);
    let mke2fs = "-b 1024 -O ^metadata_csum";
    let (mount, features) = ("journal_checksum", JournalFeatures::CHECKSUM);
    Scenario { mke2fs, mount, features, ..ORDERED }.run(4).unwrap();
    for mke2fs in [mke2fs, "-b 4096"] {
        let mount = "journal_checksum,journal_async_commit,data=writeback";
        Scenario { mke2fs, mount, features: JournalFeatures::ASYNC_COMMIT, ..ORDERED }
            .run(5)
            .unwrap();
    }
}

/// Fast commits are replayed as the kernel replays them. With blocks of 1 KiB and a full fast-commit area, Linux 6.18 can refuse the
/// journal that it wrote. Then there is no oracle, so the seed is recorded as skipped.
#[test]
fn fast_commits() {
    require!([Need::Root]);
    let (mut runs, mut fast_commits) = (0, 0);
    for (mke2fs, seed) in [
        ("-b 4096 -O fast_commit", 6),
        ("-b 4096 -O fast_commit,^64bit", 7),
        ("-b 2048 -O fast_commit,^metadata_csum", 8),
        ("-b 2048 -O fast_commit,inline_data", 9),
        ("-b 1024 -O fast_commit", 10),
    ] {
        for plain in [true, false] {
            let features = JournalFeatures::FAST_COMMIT;
            let scenario = Scenario { mke2fs, features, plain, ..ORDERED };
            if let Some(recovery) = scenario.run_or_note("kernel::fast_commits", seed) {
                runs += 1;
                fast_commits += recovery.fast_commits;
            }
        }
    }
    // Linux sometimes makes a full commit instead of a fast commit. So the test checks only the total number of fast commits.
    assert!(fast_commits > 0, "{runs} runs without a fast commit");
}

/// One byte of a journal is changed. If the kernel refuses the journal, ironmap refuses it too. If the kernel accepts the journal, ironmap
/// recovers the same tree as the kernel.
#[test]
fn broken_journals_are_what_the_kernel_makes_of_them() {
    require!([Need::Root]);
    let mut rng = Rng::new(12);
    let (mut refused, mut shown) = (0, 0);
    for mke2fs in ["-b 4096", "-b 1024 -O ^metadata_csum"] {
        let dirty = Scenario { mke2fs, ..ORDERED }.dirty(13);
        let log = logged_blocks(&dirty);
        for round in 0..12 {
            let broken = dirty.copy();
            let block =
                broken.bmap("<8>", std::iter::once(log[rng.below(log.len() as u64) as usize]))[0];
            let byte = rng.below([16, 64, broken.block_size()][round % 3]);
            let value = broken.block(block)[byte as usize] ^ (1 << rng.below(8));
            broken.poke_block(block, byte, &[value]);
            let what = format!("{mke2fs}, round {round}: byte {byte} of block {block}");
            match (recovered_by_kernel(&broken, Replay::Full), broken.open()) {
                (Ok(expected), Ok(_)) => {
                    shown += 1;
                    compare(&expected, &broken, &what);
                }
                (Err(_), Err(_)) => refused += 1,
                (Ok(_), Err(error)) => panic!("{what}: the kernel recovers it, and we say {error}"),
                (Err(refusal), Ok(_)) => {
                    panic!("{what}: we recover it, and the kernel says {refusal}")
                }
            }
        }
    }
    assert!(shown > 0 && refused > 0, "{refused} refused, {shown} shown");
}

/// The journal blocks that are part of the log: descriptors, revocations and commits.
fn logged_blocks(image: &Image) -> Vec<u64> {
    let dump = image.ask_debugfs("logdump\n");
    let blocks = dump.lines().filter(|line| line.starts_with("Found expected sequence"));
    blocks.filter_map(|line| line.split(" at block ").nth(1)?.trim().parse().ok()).collect()
}
