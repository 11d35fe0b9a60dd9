//! Every field of the superblock with hostile values, one at a time and with the checksum repaired: ironmap opens what the kernel mounts,
//! refuses what it refuses, and its check finds what xfs_repair finds.
//!
//! `IRONMAP_FIELDS=all` tries all values (ten minutes); without it each required bit and a sample of the others.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::verdict::{ironmap, repair};
use crate::{SEED, require};

/// Values that are drawn by default.
const SAMPLE: usize = 30;
const CRC: usize = 224;
/// Name, byte offset and length. The label is text, and the checksum is repaired.
const FIELDS: [(&str, usize, usize); 55] = [
    ("magicnum", 0, 4),
    ("blocksize", 4, 4),
    ("dblocks", 8, 8),
    ("rblocks", 16, 8),
    ("rextents", 24, 8),
    ("uuid", 32, 16),
    ("logstart", 48, 8),
    ("rootino", 56, 8),
    ("rbmino", 64, 8),
    ("rsumino", 72, 8),
    ("rextsize", 80, 4),
    ("agblocks", 84, 4),
    ("agcount", 88, 4),
    ("rbmblocks", 92, 4),
    ("logblocks", 96, 4),
    ("versionnum", 100, 2),
    ("sectsize", 102, 2),
    ("inodesize", 104, 2),
    ("inopblock", 106, 2),
    ("blocklog", 120, 1),
    ("sectlog", 121, 1),
    ("inodelog", 122, 1),
    ("inopblog", 123, 1),
    ("agblklog", 124, 1),
    ("rextslog", 125, 1),
    ("inprogress", 126, 1),
    ("imax_pct", 127, 1),
    ("icount", 128, 8),
    ("ifree", 136, 8),
    ("fdblocks", 144, 8),
    ("frextents", 152, 8),
    ("uquotino", 160, 8),
    ("gquotino", 168, 8),
    ("qflags", 176, 2),
    ("flags", 178, 1),
    ("shared_vn", 179, 1),
    ("inoalignmt", 180, 4),
    ("unit", 184, 4),
    ("width", 188, 4),
    ("dirblklog", 192, 1),
    ("logsectlog", 193, 1),
    ("logsectsize", 194, 2),
    ("logsunit", 196, 4),
    ("features2", 200, 4),
    ("bad_features2", 204, 4),
    ("features_compat", 208, 4),
    ("features_ro_compat", 212, 4),
    ("features_incompat", 216, 4),
    ("features_log_incompat", 220, 4),
    ("spino_align", 228, 4),
    ("pquotino", 232, 8),
    ("lsn", 240, 8),
    ("meta_uuid", 248, 16),
    ("rest", 264, 1),
    ("end", 511, 1),
];
/// Bits that each volume of version 5 has: byte offset, and the bit in that byte.
const REQUIRED: [(usize, u8); 10] = [
    (101, 0x20),
    (101, 0x80),
    (100, 0x04),
    (100, 0x10),
    (100, 0x20),
    (100, 0x80),
    (203, 0x02),
    (203, 0x08),
    (203, 0x80),
    (202, 0x01),
];

/// A field of which one of the two refuses a value that the other takes.
struct Exception {
    field: &'static str,
    reason: &'static str,
}

const fn exception(field: &'static str, reason: &'static str) -> Exception {
    Exception { field, reason }
}

/// Linux refuses, ironmap reads: check finds each.
const READ: &[Exception] = &[
    exception("rblocks", "realtime files alone need it: these are refused"),
    exception("rbmino", "no file is read by it: Linux reads the inode at the mount"),
    exception("rsumino", "no file is read by it: Linux reads the inode at the mount"),
    exception("logblocks", "the smallest log is that in which Linux can reserve its changes"),
    exception(
        "features_incompat",
        "a structure that contradicts a wrong feature is refused where it is read",
    ),
    exception("features_log_incompat", "Linux mounts it, and shuts it down as it clears them"),
    exception("spino_align", "the least is a cluster of inodes, by which Linux reads them"),
    exception("versionnum", "names without case: a kernel can be built without them"),
];
/// Linux mounts, ironmap refuses.
const REFUSED: &[Exception] = &[
    exception("logstart", "Linux drops the upper bits of the log's place"),
    exception("logblocks", "Linux does not see that the log leaves its group"),
    exception("features_incompat", "Linux does not see gaps without zones"),
    exception("rextsize", "Linux multiplies in 32 bits"),
];
/// xfs_repair finds, check does not.
const NOT_FOUND: &[Exception] = &[];

/// The values of a field: its own with one bit changed, one more and less, none and all bits set.
fn values(sound: &[u8]) -> Vec<Vec<u8>> {
    let mut values = vec![vec![0; sound.len()], vec![0xFF; sound.len()]];
    for bit in 0..sound.len() * 8 {
        let mut value = sound.to_vec();
        value[bit / 8] ^= 1 << (bit % 8);
        values.push(value);
    }
    if sound.len() <= 8 {
        let number = sound.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        for number in [number.wrapping_add(1), number.wrapping_sub(1), 1] {
            values.push(number.to_be_bytes()[8 - sound.len()..].to_vec());
        }
    }
    values.sort();
    values.dedup();
    values.retain(|value| value != sound);
    values
}

fn damages(sound: &[u8; 512]) -> Vec<(&'static str, usize, Vec<u8>)> {
    let name = |at: usize| {
        let has = |(_, start, len): &&(&str, usize, usize)| (*start..start + len).contains(&at);
        FIELDS.iter().find(has).expect("a field").0
    };
    let required = REQUIRED.map(|(at, bit)| (name(at), at, vec![sound[at] ^ bit]));
    let mut all: Vec<_> = FIELDS
        .iter()
        .flat_map(|(name, at, len)| {
            values(&sound[*at..at + len]).into_iter().map(|value| (*name, *at, value))
        })
        .collect();
    if std::env::var("IRONMAP_FIELDS").is_ok_and(|which| which == "all") {
        return all;
    }
    let rng = &mut Rng::new(SEED);
    let sample = (0..SAMPLE).map(|_| all.swap_remove(rng.below(all.len() as u64) as usize));
    required.into_iter().chain(sample.collect::<Vec<_>>()).collect()
}

/// Whether the kernel mounts the image for reading, and lists its root.
fn kernel_mounts(image: &Image) -> bool {
    image.try_mount("ro").is_ok_and(|mount| {
        std::fs::read_dir(mount.dir()).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok()))
    })
}

fn opens(image: &Image) -> ironmap::Result<()> {
    let volume = image.open()?;
    let root = volume.fs().inode(volume.fs().root())?;
    root.read_dir()?.try_for_each(|entry| entry.map(drop))
}

fn reason(list: &[Exception], field: &str) -> Option<&'static str> {
    list.iter().find(|exception| exception.field == field).map(|exception| exception.reason)
}

#[test]
fn fields_of_the_superblock_are_judged_as_by_linux() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    let base = Image::mkfs_xfs("320M", &["-s", "size=512", "-m", "rmapbt=1"]).unwrap();
    drop(base.mount("rw"));
    let mut sound = [0; 512];
    File::open(base.path()).unwrap().read_exact_at(&mut sound, 0).unwrap();
    let image = Image::no_xfs();
    let mut faults = Vec::new();
    for (field, at, value) in damages(&sound) {
        run("cp", &["--sparse=auto".into(), base.path(), image.path()]);
        let mut bytes = sound;
        bytes[at..at + value.len()].copy_from_slice(&value);
        bytes[CRC..CRC + 4].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
        let file = File::options().write(true).open(image.path()).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let (ours, checked) = (opens(&image), ironmap(&image.path()));
        let theirs = repair(&image.path(), Tools::SYSTEM);
        let mounts = kernel_mounts(&image);
        let what =
            format!("{field}: byte {at} on {:02x?} -> {value:02x?}", &sound[at..][..value.len()]);
        let mut differs = |list, how: String| match reason(list, field) {
            Some(reason) => println!("{what}: {how}: {reason}"),
            None => {
                println!("--- {what}: {how}");
                faults.push(format!("{what}: {how}"));
            }
        };
        match (&ours, mounts) {
            (Ok(()), false) => differs(READ, format!("Linux refuses it, check: {}", checked.text)),
            (Err(error), true) => differs(REFUSED, format!("Linux mounts it: {error}")),
            _ => {}
        }
        if checked.clean && !theirs.clean {
            differs(NOT_FOUND, format!("xfs_repair finds: {}", theirs.text));
        }
    }
    assert!(faults.is_empty(), "{} differ: {faults:#?}", faults.len());
}
