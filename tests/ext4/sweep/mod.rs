//! Each field of the superblock with hostile values: ironmap opens what the kernel mounts, for reading and for writing, and its check finds a fault where
//! `e2fsck -fn` does. A sample, the same each time; `IRONMAP_FIELDS=N` takes a larger one, and `all` all of them. Where ironmap differs for a reason,
//! [`exceptions`] names it.

mod exceptions;
mod fields;

use std::fs;

use ironmap::VolumeOptions;

use self::exceptions::{Difference, Side, reason};
use self::fields::{Field, fields};
use crate::check::repair::crc;
use crate::check::verdict::ironmap;
use crate::common::command::output;
use crate::common::image::{Image, scratch_in, words};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;

const SEED: u64 = 0x4649_454C_4453;
/// Cases of the sample, of all volumes.
const SAMPLE: u64 = 60;
const SUPERBLOCK: usize = 1024;
/// With some damages e2fsck does not come to an end.
const SECONDS: &str = "10";

/// Volumes of three groups, of clusters, and without checksums and extents.
const VOLUMES: [(&str, &str); 3] = [
    ("6M", "-t ext4 -b 1024 -g 2048 -N 256 -J size=1 -O orphan_file,metadata_csum_seed -I 256"),
    ("12M", "-t ext4 -b 1024 -O bigalloc,^has_journal,^metadata_csum -C 4096 -N 64"),
    ("6M", "-t ext2 -b 1024 -g 2048 -N 128"),
];

/// A field and the value that it gets in a volume.
struct Case {
    volume: usize,
    field: Field,
    value: u64,
}

/// Which is refused, or faulty.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    reading: bool,
    writing: bool,
    check: bool,
}

struct Sweep {
    volumes: Vec<Vec<u8>>,
    /// Whether the kernel mounts them for writing as they are.
    written: Vec<bool>,
    image: Image,
}

impl Sweep {
    fn new() -> Self {
        let image = Image::within(scratch_in("/dev/shm".as_ref()));
        let read = |(size, options)| fs::read(Image::mke2fs(size, &words(options)).path()).unwrap();
        let volumes: Vec<_> = VOLUMES.into_iter().map(read).collect();
        let mut sweep = Self { volumes, written: Vec::new(), image };
        for volume in 0..VOLUMES.len() {
            sweep.put(&sweep.volumes[volume]);
            let sound = sweep.kernel();
            assert!(!sound.reading && !sound.check, "{volume}: {sound:?}");
            sweep.written.push(!sound.writing);
        }
        sweep
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(self.image.path(), bytes).unwrap();
    }

    /// The verdict of the kernel and of e2fsck. The image is as before afterwards.
    fn kernel(&self) -> Verdict {
        let bytes = fs::read(self.image.path()).unwrap();
        let refused = |options| {
            let mounted = self.image.try_mount(options).map(drop);
            self.put(&bytes);
            mounted.is_err()
        };
        let (reading, writing) = (refused("ro"), refused("rw"));
        let path = self.image.path();
        let args = [SECONDS.as_ref(), "e2fsck".as_ref(), "-fn".as_ref(), path.as_os_str()];
        // A volume that no kernel mounts is not clean, whatever e2fsck says.
        let check = reading || !output("timeout", &args).status.success();
        Verdict { reading, writing, check }
    }

    /// The verdict of ironmap. A volume that is read by a backup was refused.
    fn ironmap(&self) -> Verdict {
        let check = !ironmap(&self.image.path()).clean;
        let opened = self.image.open();
        let reading = opened.map_or(true, |volume| {
            let left = volume.ext4().unwrap().take_left();
            left.iter().any(|line| line.contains("superblock is damaged"))
        });
        let options = VolumeOptions::new().write(true);
        let opened = crate::common::beneath::open(&self.image.location(), &options);
        let writing = opened.and_then(|volume| volume.close()).is_err();
        Verdict { reading, writing, check }
    }

    /// The differences that have no reason.
    fn differences(&self, case: &Case) -> Vec<String> {
        let mut bytes = self.volumes[case.volume].clone();
        case.field.set(&mut bytes[SUPERBLOCK..], case.value);
        let sum = crc(!0, &bytes[SUPERBLOCK..][..0x3FC]).to_le_bytes();
        bytes[SUPERBLOCK + 0x3FC..][..4].copy_from_slice(&sum);
        self.put(&bytes);
        let (theirs, ours) = (self.kernel(), self.ironmap());
        let writes = self.written[case.volume];
        let rows = [
            (Difference::Reading, theirs.reading, ours.reading, true),
            (Difference::Writing, theirs.writing, ours.writing, writes),
            (Difference::Check, theirs.check, ours.check, true),
        ];
        let (volume, name, value) = (case.volume, case.field.name, case.value);
        let differ = rows.into_iter().filter(|row| row.1 != row.2 && row.3);
        let sides = differ.map(|row| (row.0, if row.2 { Side::Ironmap } else { Side::Linux }));
        let wrong = sides.filter(|(what, side)| reason(*what, *side, name, value).is_none());
        let told =
            |(what, side)| format!("volume {volume}, {name} {value}: {what:?}, {side:?} alone");
        wrong.map(told).inspect(|wrong| println!("{wrong}")).collect()
    }

    fn all(&self) -> Vec<Case> {
        let cases = |(volume, bytes): (usize, &Vec<u8>)| {
            let sound = &bytes[SUPERBLOCK..][..1024];
            fields()
                .flat_map(|field| field.hostile(sound).into_iter().map(move |value| (field, value)))
                .map(|(field, value)| Case { volume, field, value })
                .collect::<Vec<_>>()
        };
        self.volumes.iter().enumerate().flat_map(cases).collect()
    }
}

/// Values that were believed once.
const NAMED: [(&str, &[u64]); 9] = [
    ("s_log_groups_per_flex", &[32, 255]),
    ("s_log_cluster_size", &[3]),
    ("s_min_extra_isize", &[999]),
    ("s_want_extra_isize", &[999]),
    ("s_journal_dev", &[7]),
    ("s_journal_inum", &[0]),
    ("s_prj_quota_inum", &[7]),
    ("s_orphan_file_inum", &[0, 7]),
    ("s_def_hash_version", &[7]),
];

#[test]
fn each_field_of_the_superblock() {
    require!(
        [Need::Root],
        [Need::Tool("mke2fs")],
        [Need::Bare("the kernel mounts the image itself")]
    );
    let sweep = Sweep::new();
    let all = sweep.all();
    let named = |case: &&Case| {
        let row = NAMED.iter().find(|(name, _)| *name == case.field.name);
        case.volume == 0 && row.is_some_and(|(_, values)| values.contains(&case.value))
    };
    let asked = std::env::var("IRONMAP_FIELDS").unwrap_or_default();
    let mut rng = Rng::new(SEED);
    let sample: Vec<&Case> = if asked == "all" {
        all.iter().collect()
    } else {
        let count = asked.parse().unwrap_or(SAMPLE);
        let drawn = (0..count).map(|_| &all[rng.below(all.len() as u64) as usize]);
        all.iter().filter(named).chain(drawn).collect()
    };
    let wrong: Vec<_> = sample.iter().flat_map(|case| sweep.differences(case)).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), sample.len(), wrong.join("\n"));
}
