//! How a new volume is wished to be.

use super::features::Features;
use crate::fs::ext4::OnError;
use crate::setters::setters;

/// Options of a new volume. The defaults are those of mke2fs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Bytes of the volume; the whole device where left out.
    pub size: Option<u64>,
    /// Bytes of a block: a power of two from 1024 to 65536. By default 4096, and 1024 below 512 MiB.
    pub block_size: Option<u32>,
    /// Bytes of a cluster, with bigalloc: a power of two. By default 16 blocks.
    pub cluster_size: Option<u32>,
    /// Bytes of an inode: a power of two from 128 to a block. By default 256.
    pub inode_size: Option<u16>,
    /// A number of inodes.
    pub inodes: Option<u64>,
    /// Where no number is given, one inode for so many bytes. By default 16384; more for small volumes, fewer for very large ones.
    pub inode_ratio: Option<u64>,
    /// The features.
    pub features: Features,
    /// The label: at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID; random by default.
    pub uuid: Option<[u8; 16]>,
    /// The secret of directory hashes. By default taken from the UUID where that was given, so that the same volume can be made
    /// twice; else random.
    pub hash_seed: Option<[u8; 16]>,
    /// When everything was made, in seconds since 1970; now by default.
    pub time: Option<i64>,
    /// Bytes of the journal; by the volume's size by default.
    pub journal_size: Option<u64>,
    /// Percentage of the blocks that is kept for the superuser.
    pub reserved_percent: f64,
    /// Blocks that a member of a RAID holds in a row.
    pub stride: u16,
    /// Blocks of data of a whole stripe of a RAID.
    pub stripe_width: u32,
    /// Groups whose bitmaps and inode tables lie together, a power of two.
    pub groups_per_flex: u32,
    /// The reaction of the volume to corruption.
    pub on_error: OnError,
    /// User and group that own the root directory.
    pub root_owner: (u32, u32),
    /// Tell the device first that it holds nothing.
    pub discard: bool,
    /// All of the device reads as zeros: a new, sparse image. Then nothing need be zeroed.
    pub zeroed: bool,
    /// Leave the inode tables as they are, and to the kernel to zero them once the volume is mounted; needs checksums of groups.
    pub lazy_tables: bool,
    /// Do it although the device holds something already.
    pub force: bool,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            size: None,
            block_size: None,
            cluster_size: None,
            inode_size: None,
            inodes: None,
            inode_ratio: None,
            features: Features::MODERN,
            label: Vec::new(),
            uuid: None,
            hash_seed: None,
            time: None,
            journal_size: None,
            reserved_percent: 5.0,
            stride: 0,
            stripe_width: 0,
            groups_per_flex: 16,
            on_error: OnError::default(),
            root_owner: (0, 0),
            discard: false,
            zeroed: false,
            lazy_tables: false,
            force: false,
        }
    }
}

impl MkfsOptions {
    /// As mke2fs makes a volume of that size.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(MkfsOptions {
    size: impl Into<Option<u64>>,
    block_size: impl Into<Option<u32>>,
    cluster_size: impl Into<Option<u32>>,
    inode_size: impl Into<Option<u16>>,
    inodes: impl Into<Option<u64>>,
    inode_ratio: impl Into<Option<u64>>,
    features: Features,
    label: impl Into<Vec<u8>>,
    uuid: impl Into<Option<[u8; 16]>>,
    hash_seed: impl Into<Option<[u8; 16]>>,
    time: impl Into<Option<i64>>,
    journal_size: impl Into<Option<u64>>,
    reserved_percent: f64,
    stride: u16,
    stripe_width: u32,
    groups_per_flex: u32,
    on_error: OnError,
    root_owner: (u32, u32),
    discard: bool,
    zeroed: bool,
    lazy_tables: bool,
    force: bool,
});
