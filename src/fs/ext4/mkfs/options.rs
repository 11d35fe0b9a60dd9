//! The options of a new volume.

use super::features::Features;
use crate::fs::ext4::OnError;
use crate::setters::setters;

/// The options of a new volume. The defaults are the defaults of mke2fs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// The size of the volume in bytes. The default is the size of the device.
    pub size: Option<u64>,
    /// The block size, a power of two from 1024 to 65536. The default is 4096, or 1024 for volumes below 512 MiB. The default is never less
    /// than the sector size of the device.
    pub block_size: Option<u32>,
    /// The cluster size with the feature bigalloc, a power of two in bytes. The default is 16 blocks.
    pub cluster_size: Option<u32>,
    /// The inode size, a power of two from 128 to the block size. The default is 256.
    pub inode_size: Option<u16>,
    /// The number of inodes.
    pub inodes: Option<u64>,
    /// The number of bytes for each inode: if `inodes` is not set, the volume gets one inode for this number of bytes. The default is 16384
    /// for most volumes, less for small volumes, and more for very large volumes.
    pub inode_ratio: Option<u64>,
    /// The features.
    pub features: Features,
    /// The label, of at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID; random by default.
    pub uuid: Option<[u8; 16]>,
    /// The secret seed of directory hashes. If `uuid` is set, the default is this UUID, so that the same options always make the same
    /// volume. If `uuid` is not set, the default is random.
    pub hash_seed: Option<[u8; 16]>,
    /// The time of creation in seconds since 1970. The default is the current time.
    pub time: Option<i64>,
    /// The size of the journal in bytes. The default depends on the volume's size.
    pub journal_size: Option<u64>,
    /// The percentage of blocks reserved for the superuser.
    pub reserved_percent: f64,
    /// The number of consecutive blocks on one member of a RAID (the chunk size).
    pub stride: u16,
    /// The number of data blocks in a stripe across all members of a RAID.
    pub stripe_width: u32,
    /// The number of groups per flex group, a power of two. The bitmaps and inode tables of a flex group are stored together.
    pub groups_per_flex: u32,
    /// The reaction of the volume to corruption.
    pub on_error: OnError,
    /// The user and the group that own the root directory.
    pub root_owner: (u32, u32),
    /// Whether all blocks of the volume are discarded before the first write.
    pub discard: bool,
    /// Whether all bytes of the device read as zeros, as in a new sparse image. If so, nothing is zeroed.
    pub zeroed: bool,
    /// Whether mkfs leaves the inode tables unwritten, so that the kernel zeros them after a mount. This option has an effect only with
    /// group checksums.
    pub lazy_tables: bool,
    /// Whether the volume is made even if the device already contains data.
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
    /// The default options of mke2fs.
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
