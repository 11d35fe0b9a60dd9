//! The feature flags in a volume's superblock.

use bitflags::bitflags;

bitflags! {
    /// `sb_features_ro_compat`: a program that does not know a bit here can still read the volume.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// B+trees of chunks with free inodes.
        const FINOBT = 0x1;
        /// B+trees of the owners of blocks (reverse mapping).
        const RMAPBT = 0x2;
        /// Files can share blocks.
        const REFLINK = 0x4;
        /// The headers of allocation groups count the blocks of inode trees.
        const INOBTCOUNT = 0x8;
    }

    /// `sb_features_incompat`: a program that does not know a bit here must not read the volume.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Directory entries contain file types.
        const FTYPE = 0x1;
        /// Chunks of inodes can have holes.
        const SPARSE_INODES = 0x2;
        /// The UUID in metadata differs from the UUID of the volume.
        const META_UUID = 0x4;
        /// Inodes can store times up to the year 2486.
        const BIGTIME = 0x8;
        /// The volume needs a run of `xfs_repair`.
        const NEEDS_REPAIR = 0x10;
        /// Files can have 2^47 extents.
        const NREXT64 = 0x20;
        /// Ranges of two files can be exchanged.
        const EXCHANGE_RANGE = 0x40;
        /// Each file has pointers to its parent directories.
        const PARENT = 0x80;
        /// Internal files have a separate directory tree.
        const METADIR = 0x100;
        /// The realtime space consists of zones, which are written sequentially.
        const ZONED = 0x200;
        /// Zones have gaps between them.
        const ZONE_GAPS = 0x400;
    }
}

impl RoCompat {
    /// Returns the bits that are set but unknown to ironmap.
    pub(super) fn unknown(self) -> u32 {
        (self - Self::all()).bits()
    }
}

impl Incompat {
    /// Returns the bits that are set but unknown to ironmap.
    pub(super) fn unknown(self) -> u32 {
        (self - Self::all()).bits()
    }
}
