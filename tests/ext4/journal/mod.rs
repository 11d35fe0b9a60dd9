//! A dirty volume, opened read-only, shows the same as after a recovery on the device by Linux or e2fsck.
//!
//! - `debugfs`: journals written by debugfs, in every checksum version, sound and broken; the oracle is e2fsck on a copy.
//! - `kernel`: journals that a live mount left; the oracle is the kernel's own recovery of a copy. Needs root.
//! - `external`: journals on separate devices, compared in the same way.
//! - `fast_commits`: journals with fast commits, recovered to the device, with power cuts during the recovery.

mod debugfs;
mod external;
mod fast_commits;
mod kernel;
mod workload;

use ironmap::fs::ext4::Journal;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{FileOptions, QueueOptions, Result, Volume};

use crate::common::image::Image;

fn journal(image: &Image) -> Result<Journal> {
    Ok(image.open()?.ext4().unwrap().journal().clone())
}

/// The whole of a file.
fn content(volume: &Volume, number: u64) -> Result<Vec<u8>> {
    let inode = volume.fs().inode(InodeNo(number))?;
    let file = volume.open_inode(inode, FileOptions::new().write(volume.fs().is_writable()))?;
    // The size after a broken journal cannot be trusted.
    let mut bytes = vec![0; file.size().min(1 << 24) as usize];
    let count =
        file.read_at(&mut volume.queue(&QueueOptions::default())?, &mut bytes, FilePos(0))?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Sets the number of the next transaction in a clean journal. The journal must have no checksum yet, as after mke2fs.
fn set_sequence(image: &Image, sequence: u32) {
    image.poke("<8>", 0, 0x18, &sequence.to_be_bytes());
}
