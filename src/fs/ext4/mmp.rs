//! Multiple mount protection: detects whether another node uses the volume.
//!
//! Linux checks multiple mount protection only for read-write mounts. ironmap also checks it for read-only opens, because another node
//! could change the blocks during the reads. A live node increments the sequence number in the MMP block regularly. If the number changes
//! during the check, the open is refused. If the number does not change, the other node is dead. In this case the volume is opened, and its
//! journal is recovered as after any crash.

use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{MetadataSeed, crc32c_raw};
use super::disk::mmp::{CHECKSUM_OFFSET, MAGIC, RawMmp, SEQ_CLEAN, SEQ_FSCK};
use super::superblock::Superblock;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::sys::Buffer;
use crate::units::FsBlock;

/// The interval at which the check polls the sequence number.
const LOOK: Duration = Duration::from_millis(250);
/// The longest update interval that the format allows, in seconds. ironmap replaces a longer interval on a volume by this maximum.
const LONGEST_INTERVAL: u16 = 300;

/// The purpose of the open. It determines how long the open waits for a change of the sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// An open for reading waits at most 20 seconds, even if the volume's update interval is longer. The open does not detect a node that
    /// updates the MMP block more slowly. The volume is not damaged in that case, but reads can return wrong data.
    Read,
    /// An open for writing waits until a node that uses the volume would certainly have updated the sequence number.
    Write,
}

impl Purpose {
    fn longest(self) -> Duration {
        match self {
            Self::Read => Duration::from_secs(20),
            Self::Write => Duration::MAX,
        }
    }
}

/// The time after which a node with an update interval of `interval` seconds has certainly updated the sequence number. It is twice the
/// interval plus one second, but at most the interval plus one minute.
pub(super) fn patience(interval: u16) -> Duration {
    let interval = u64::from(interval.clamp(1, LONGEST_INTERVAL));
    Duration::from_secs((2 * interval + 1).min(interval + 60))
}

/// Refuses a volume that another node holds. The error is `Busy` and contains the node's name.
pub(super) fn check(device: &dyn Device, sb: &Superblock, purpose: Purpose) -> Result<()> {
    let Some(block) = sb.mmp_block else { return Ok(()) };
    check_with(device, sb, block, purpose, std::thread::sleep)
}

fn check_with(
    device: &dyn Device,
    sb: &Superblock,
    block: FsBlock,
    purpose: Purpose,
    wait: impl Fn(Duration),
) -> Result<()> {
    let first = read(device, sb, block)?;
    let seq = first.mmp_seq.get();
    let holder = || {
        let text = |bytes: &[u8]| {
            let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (node, device) = (text(&first.mmp_nodename), text(&first.mmp_bdevname));
        format!("node {node:?} (device {device:?})")
    };
    if seq == SEQ_CLEAN {
        return Ok(());
    }
    if seq == SEQ_FSCK {
        let what = format!("e2fsck is running on the volume, on {}", holder());
        return Err(Error::new(ErrorKind::Busy, what));
    }
    // A node with a slow device stores an update interval in the MMP block that is longer than the interval in the superblock. The check
    // uses the longer of these two intervals.
    let limit =
        patience(first.mmp_check_interval.get().max(sb.mmp_interval)).min(purpose.longest());
    for _ in 0..limit.as_millis() / LOOK.as_millis() {
        wait(LOOK);
        if read(device, sb, block)?.mmp_seq.get() != seq {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("the volume is in use on {}", holder()),
            ));
        }
    }
    Ok(())
}

/// Reads the MMP block from the device. The block is never cached, because other nodes change it.
pub(super) fn read(device: &dyn Device, sb: &Superblock, block: FsBlock) -> Result<RawMmp> {
    let place = Place::new("MMP block").block(block);
    if block.0 == 0 || !sb.contains(block) {
        let place = Place::new("superblock").field("s_mmp_block");
        return Err(place.corrupt(format!(
            "block {block} is not valid on a volume of {} blocks",
            sb.blocks_count
        )));
    }
    let mut buffer = Buffer::aligned(sb.block_size.bytes())?;
    device.read_exact_at(&mut buffer, sb.block_size.offset_of(block))?;
    let Ok((raw, _)) = RawMmp::read_from_prefix(&buffer) else {
        return Err(place.corrupt("the MMP block is truncated"));
    };
    if raw.mmp_magic.get() != MAGIC {
        let magic = raw.mmp_magic.get();
        return Err(place
            .field("mmp_magic")
            .corrupt(format!("the magic number is {magic:#x} instead of {MAGIC:#x}")));
    }
    if let Some(seed) = sb.seed {
        let computed = mmp_checksum(seed, &buffer);
        let stored = raw.mmp_checksum.get();
        if stored != computed {
            return Err(place.field("mmp_checksum").bad_checksum(stored, computed));
        }
    }
    Ok(raw)
}

/// The checksum of the MMP block. The checksum covers all bytes before the checksum field.
fn mmp_checksum(seed: MetadataSeed, block: &[u8]) -> u32 {
    crc32c_raw(seed.0, &block[..CHECKSUM_OFFSET])
}

/// Stores the checksum of the MMP block.
pub(crate) fn seal_mmp(seed: Option<MetadataSeed>, raw: &mut RawMmp) {
    if let Some(seed) = seed {
        raw.mmp_checksum.set(mmp_checksum(seed, raw.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;
    use std::process::Command;
    use std::sync::Arc;

    use super::*;
    use crate::device::{BlockFile, OpenMode, Psync};

    /// Opens a volume made by mke2fs. The sequence number is set to `seq` before the open, and grows by `step` at each wait. Returns the
    /// result of the open and the total time of the waits.
    fn opened(features: &str, seq: Option<u32>, step: u32) -> (Result<()>, Duration) {
        opened_to(Purpose::Read, 5, features, seq, step)
    }

    fn opened_to(
        purpose: Purpose,
        interval: u16,
        features: &str,
        seq: Option<u32>,
        step: u32,
    ) -> (Result<()>, Duration) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut mke2fs = Command::new("/sbin/mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features]);
        mke2fs.args(["-E", &format!("mmp_update_interval={interval}")]).arg(&path).arg("4M");
        assert!(mke2fs.status().unwrap().success());
        let mode = OpenMode { direct: false, ..OpenMode::default() };
        let device = Psync::new(Arc::new(BlockFile::open(&path, &mode).unwrap()));
        let image = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let mut bytes = [0; 1024];
        device.read_exact_at(&mut bytes, Superblock::RANGE.0).unwrap();
        let sb = Superblock::parse(&bytes, device.size()).unwrap();
        let at = sb.block_size.offset_of(sb.mmp_block.unwrap()).0 + 4;
        let set = |seq: u32| image.write_all_at(&seq.to_le_bytes(), at).unwrap();
        let now = Cell::new(seq.unwrap_or(0));
        if let Some(seq) = seq {
            set(seq);
        }
        let waited = Cell::new(Duration::ZERO);
        let outcome = check_with(&device, &sb, sb.mmp_block.unwrap(), purpose, |time| {
            waited.set(waited.get() + time);
            now.set(now.get() + step);
            set(now.get());
        });
        (outcome, waited.get())
    }

    #[test]
    fn a_volume_is_refused_while_its_holder_is_alive() {
        let plain = "mmp,^metadata_csum";
        let (outcome, waited) = opened("mmp,metadata_csum", None, 0);
        assert_eq!((outcome.unwrap(), waited), ((), Duration::ZERO), "clean");
        let (outcome, _) = opened(plain, Some(SEQ_FSCK), 0);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy, "e2fsck");
        let (outcome, waited) = opened(plain, Some(77), 1);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy, "alive");
        assert_eq!(waited, LOOK, "the wait ends at the first change");
        let (outcome, waited) = opened(plain, Some(77), 0);
        assert_eq!((outcome.unwrap(), waited), ((), Duration::from_secs(11)), "dead");
        let (outcome, _) = opened("mmp,metadata_csum", Some(77), 0);
        assert_eq!(outcome.unwrap_err().place().unwrap().field, "mmp_checksum");
    }

    #[test]
    fn a_writer_waits_as_long_as_a_slow_holder_may_take() {
        for (interval, to_read, to_write) in [(5, 11, 11), (30, 20, 61), (300, 20, 360)] {
            for (purpose, seconds) in [(Purpose::Read, to_read), (Purpose::Write, to_write)] {
                let (outcome, waited) =
                    opened_to(purpose, interval, "mmp,^metadata_csum", Some(77), 0);
                assert!(outcome.is_ok());
                assert_eq!(waited, Duration::from_secs(seconds), "{interval} s, {purpose:?}");
            }
        }
        assert_eq!(
            patience(u16::MAX),
            Duration::from_secs(360),
            "an interval that is too long is limited"
        );
    }
}
