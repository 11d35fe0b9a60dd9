//! Journals on separate devices, written by Linux. The oracle is the kernel's recovery of a copy of the volume and the journal. Needs root.

use std::fs;

use ironmap::fs::ext4::{JournalFeatures, JournalState, Recovery};
use ironmap::{ErrorKind, Volume, VolumeOptions};

use crate::common::beneath;
use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, LoopMount, words};
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::common::view::Subject;
use crate::journal::kernel::{Replay, recovered, sync};
use crate::journal::workload::Workload;
use crate::require;

const UUID: &str = "6d1c1d3f-52f3-4a7c-8f0b-3d7cbb3a9d10";
const SEED: u64 = 31;

/// A volume and the device of its journal.
struct Pair {
    volume: Image,
    journal: Image,
}

/// A kernel mount of a volume and its journal device.
struct Mounted {
    mount: LoopMount,
    _journal: LoopDevice,
}

impl Pair {
    fn new(block_size: u32, options: &str) -> Self {
        let journal = journal(block_size, UUID);
        let device = LoopDevice::new(journal.path());
        let options = format!("-t ext4 -b {block_size} {options} -J device={}", device.node());
        Self { volume: Image::mke2fs("64M", &words(&options)), journal }
    }

    fn copy(&self) -> Self {
        Self { volume: self.volume.copy(), journal: self.journal.copy() }
    }

    fn mount(&self, options: &str) -> Mounted {
        let journal = LoopDevice::new(self.journal.path());
        let options = format!("{options},journal_path={}", journal.node());
        Mounted { mount: self.volume.mount(&options), _journal: journal }
    }

    /// Copies the volume and its journal while programs write to the mounted volume. The journal is copied last. So the copied journal also
    /// contains blocks that the kernel checkpoints between the two copies.
    fn dirty(block_size: u32, options: &str, mount: &str, seed: u64) -> Self {
        let pair = Self::new(block_size, options);
        let mounted = pair.mount(&format!("noatime,commit=600,{mount}"));
        let mut workload = Workload::new(mounted.mount.dir(), seed, false);
        workload.steps(120);
        sync(&mounted.mount);
        workload.steps(120);
        workload.revoke();
        workload.sync_last();
        pair.copy()
    }

    fn options(&self) -> VolumeOptions {
        VolumeOptions::new().journal(self.journal.location())
    }

    fn open(&self) -> ironmap::Result<Volume> {
        beneath::open(&self.volume.location(), &self.options())
    }

    /// Recovers the volume in memory, and compares it with the kernel's recovery of a copy. Nothing is written to the devices.
    fn check(&self, mount: &str) -> Recovery {
        let before = [&self.volume, &self.journal].map(|image| fs::read(image.path()).unwrap());
        let volume = self.open().unwrap_or_else(|error| panic!("{error}"));
        let journal = volume.ext4().unwrap().journal();
        let JournalState::Recovered(recovery) = journal.state.clone() else {
            panic!("{journal:?}");
        };
        drop(volume);
        let copy = self.copy();
        let device = LoopDevice::new(copy.journal.path());
        let with = format!(",journal_path={}", device.node());
        let mut expected = recovered(&copy.volume, &with, Replay::Full).unwrap();
        if mount == "data=journal" {
            // If the newest copy of a block is in the journal, the map that ironmap reports gives the position in the journal. So maps are
            // not compared.
            expected.values_mut().for_each(|record| record.map = None);
        }
        assert!(expected.len() > 40, "the workload left {} files", expected.len());
        let mut subject = Subject::open_by(&self.volume, &self.options());
        let actual = subject.view();
        assert_same(&expected, &actual, mount);
        assert_contents(&expected, &mut subject, &actual, mount);
        let after = [&self.volume, &self.journal].map(|image| fs::read(image.path()).unwrap());
        assert!(before == after, "{mount}: a device was written");
        recovery
    }

    /// The kind and the message of the error that an open with this journal device returns.
    fn refusal(&self, journal: &Image) -> (ErrorKind, String) {
        let options = VolumeOptions::new().journal(journal.location());
        let error = beneath::open(&self.volume.location(), &options).expect_err("a refusal");
        (error.kind(), error.to_string())
    }
}

fn journal(block_size: u32, uuid: &str) -> Image {
    Image::mke2fs("8M", &words(&format!("-O journal_dev -b {block_size} -U {uuid}")))
}

/// The metadata that ironmap reads from the journal are the same as after a recovery by the kernel. The test covers each block size and
/// each kind of checksum.
#[test]
fn metadata_are_recovered() {
    require!([Need::Root]);
    for (block_size, options, features) in [
        (1024, "-O metadata_csum", JournalFeatures::CSUM_V3),
        (4096, "-O metadata_csum", JournalFeatures::CSUM_V3),
        (1024, "-O ^64bit,^metadata_csum", JournalFeatures::empty()),
    ] {
        let dirty = Pair::dirty(block_size, options, "data=ordered", SEED);
        let recovery = dirty.check("data=ordered");
        assert!(recovery.transactions > 0 && recovery.blocks > 0, "{options}: {recovery:?}");
        let journal = dirty.open().unwrap().ext4().unwrap().journal().clone();
        assert!(journal.features.contains(features), "{options}: {journal:?}");
    }
}

/// File data are read from the journal device if the newest copy is there.
#[test]
fn journaled_data_are_read_from_the_journal() {
    require!([Need::Root]);
    let dirty = Pair::dirty(1024, "", "data=journal", SEED + 1);
    let recovery = dirty.check("data=journal");
    assert!(recovery.blocks > 20, "{recovery:?}");
}

/// ironmap does not write volumes whose journal is on a separate device. If such a volume needs recovery, ironmap also refuses to open it
/// without its journal device, and the message names the device. A clean volume can be opened without its journal device. If the caller
/// names a journal device, ironmap verifies the device.
#[test]
fn a_volume_is_refused_without_its_journal_and_for_writing() {
    require!([Need::Root]);
    let dirty = Pair::dirty(1024, "", "data=ordered", SEED + 2);
    let error = dirty.volume.open().expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(said.contains(UUID) && said.contains("--journal"), "{said}");
    let location = dirty.volume.location();
    // A backup superblock does not record whether the journal needs recovery. So ironmap also refuses to open the volume with a backup
    // superblock and without the journal.
    let backup = VolumeOptions::new().superblock(8193);
    let error = backup.clone().open(&location).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(backup.no_load(true).open(&location).is_ok());
    let error = VolumeOptions::new().write(true).open(&location).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = dirty.options().write(true).open(&location).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    drop(dirty.mount("noatime"));
    let state = |volume: Volume| volume.ext4().unwrap().journal().state.clone();
    assert_eq!(state(dirty.volume.open().unwrap()), JournalState::External);
    assert_eq!(state(dirty.open().unwrap()), JournalState::External);
    let other = journal(1024, "0d0bb0ab-7e0c-4c1e-9a27-0d7fae2b57e2");
    assert_eq!(dirty.refusal(&other).0, ErrorKind::InvalidInput);
}

/// ironmap refuses a device that is not the volume's journal, and also the right device with a damaged superblock. The error names the
/// fault.
#[test]
fn only_the_journal_of_the_volume_is_taken() {
    require!([Need::Root]);
    let dirty = Pair::dirty(1024, "", "data=ordered", SEED + 3);
    let refused = |image: &Image, kind, what: &str| {
        let (found, said) = dirty.refusal(image);
        assert!(found == kind && said.contains(what), "{what}: {found:?}, {said}");
    };
    refused(&Image::mke2fs("8M", &["-t", "ext4"]), ErrorKind::InvalidInput, "a file system");
    let other = journal(1024, "0d0bb0ab-7e0c-4c1e-9a27-0d7fae2b57e2");
    refused(&other, ErrorKind::InvalidInput, UUID);
    refused(&journal(1024, UUID), ErrorKind::InvalidInput, "s_users");
    let empty = dirty.journal.copy();
    fs::write(empty.path(), vec![0; 1 << 20]).unwrap();
    refused(&empty, ErrorKind::UnknownFormat, "s_magic");
    fs::write(empty.path(), vec![0; 2048]).unwrap();
    refused(&empty, ErrorKind::UnknownFormat, "2048 bytes");
    // The superblock of the journal is in block 2.
    for (offset, bytes, kind, what) in [
        (0, &[0; 4][..], ErrorKind::Corrupt, "h_magic"),
        (0x0C, &[0, 0, 16, 0], ErrorKind::Corrupt, "journal superblock"),
        (0x30, &[1; 16], ErrorKind::Corrupt, "journal superblock"),
        (0xFC, &[1; 4], ErrorKind::Corrupt, "s_checksum"),
        (0x100, &[1; 16], ErrorKind::Corrupt, "s_checksum"),
    ] {
        let damaged = dirty.journal.copy();
        damaged.poke_block(2, offset, bytes);
        refused(&damaged, kind, what);
    }
    // Without checksums, each field is checked individually.
    let dirty = Pair::dirty(1024, "-O ^metadata_csum", "data=ordered", SEED + 4);
    for (offset, bytes, kind, what) in [
        (0x10, &[0xFF; 4][..], ErrorKind::Corrupt, "s_maxlen"),
        (0x14, &[0, 0, 0, 2], ErrorKind::Corrupt, "s_first"),
        (0x30, &[1; 16], ErrorKind::Corrupt, "s_uuid"),
        (0x40, &[0, 0, 0, 2], ErrorKind::Unsupported, "2 volumes"),
        (0x40, &[0; 4], ErrorKind::InvalidInput, "s_users"),
        (0x100, &[1; 16], ErrorKind::InvalidInput, "s_users"),
    ] {
        let damaged = dirty.journal.copy();
        damaged.poke_block(2, offset, bytes);
        let (found, said) = dirty.refusal(&damaged);
        assert!(found == kind && said.contains(what), "{what}: {found:?}, {said}");
    }
    let internal = Image::mke2fs("16M", &["-t", "ext4", "-b", "1024"]);
    let pair = Pair { volume: internal, journal: dirty.journal.copy() };
    assert_eq!(pair.refusal(&pair.journal).0, ErrorKind::InvalidInput);
}
