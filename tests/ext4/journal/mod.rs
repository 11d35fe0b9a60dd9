//! A read-only open of a dirty volume shows the same tree as the volume after a recovery by Linux or e2fsck.
//!
//! - `debugfs`: journals that debugfs wrote, in every checksum version, valid and broken. The oracle is e2fsck's recovery of a copy.
//! - `kernel`: journals that were copied during a kernel mount. The oracle is the kernel's recovery of a copy. Needs root.
//! - `external`: journals on separate devices. The oracle is the kernel's recovery of a copy. Needs root.
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

/// The content of a file.
fn content(volume: &Volume, number: u64) -> Result<Vec<u8>> {
    let inode = volume.fs().inode(InodeNo(number))?;
    let file = volume.open_inode(inode, FileOptions::new().write(volume.fs().is_writable()))?;
    // A broken journal can give a file a wrong size, so the length is limited.
    let mut bytes = vec![0; file.size().min(1 << 24) as usize];
    let count =
        file.read_at(&mut volume.queue(&QueueOptions::default())?, &mut bytes, FilePos(0))?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Sets the number of the next transaction in a clean journal. The journal's superblock must not have a checksum yet. mke2fs writes none.
fn set_sequence(image: &Image, sequence: u32) {
    image.poke("<8>", 0, 0x18, &sequence.to_be_bytes());
}
