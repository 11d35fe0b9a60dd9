//! The three feature words of the superblock, and the features that this implementation supports.
//!
//! Source: "Super Block" in Linux's ext4 documentation. The types keep unknown bits. A volume with an unknown INCOMPAT bit is refused. A
//! volume with an unknown RO_COMPAT bit can only be read.

use bitflags::bitflags;

bitflags! {
    /// Features that an implementation may ignore. A volume with unknown bits in this word can be read and written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// Blocks for directories are preallocated.
        const DIR_PREALLOC = 0x1;
        /// AFS server inodes.
        const IMAGIC_INODES = 0x2;
        /// A journal exists.
        const HAS_JOURNAL = 0x4;
        /// Inodes may have extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks are reserved, so that the group descriptor table can grow.
        const RESIZE_INODE = 0x10;
        /// Directories may have a hash tree.
        const DIR_INDEX = 0x20;
        /// Lazily initialised groups, a proposal that Linux never used.
        const LAZY_BG = 0x40;
        /// Snapshot exclude inode.
        const EXCLUDE_INODE = 0x80;
        /// Snapshot exclude bitmap.
        const EXCLUDE_BITMAP = 0x100;
        /// Backup superblocks in at most two groups (`s_backup_bgs`).
        const SPARSE_SUPER2 = 0x200;
        /// The journal may contain fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID must not change, because encryption may use them.
        const STABLE_INODES = 0x800;
        /// An orphan file exists (`s_orphan_file_inum`).
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that every implementation must support to read or write the volume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Compression, which Linux never implemented.
        const COMPRESSION = 0x1;
        /// Directory entries contain the file type.
        const FILETYPE = 0x2;
        /// The journal needs recovery.
        const RECOVER = 0x4;
        /// The device is an external journal.
        const JOURNAL_DEV = 0x8;
        /// Each block of group descriptors is stored in the meta group that the descriptors describe.
        const META_BG = 0x10;
        /// Files may use extents.
        const EXTENTS = 0x40;
        /// Block numbers have 64 bits.
        const SIXTY_FOUR_BIT = 0x80;
        /// Multiple-mount protection is enabled.
        const MMP = 0x100;
        /// The bitmaps and the inode table of a group may be stored in another group.
        const FLEX_BG = 0x200;
        /// Large attribute values are stored in separate inodes.
        const EA_INODE = 0x400;
        /// Data in directory entries. This bit is reserved and was never used.
        const DIRDATA = 0x1000;
        /// The checksum seed is stored (`s_checksum_seed`).
        const CSUM_SEED = 0x2000;
        /// A directory may be larger than 2 GiB, or have a hash tree of three levels.
        const LARGEDIR = 0x4000;
        /// Small files are stored in the inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted inodes exist.
        const ENCRYPT = 0x10000;
        /// Case-insensitive directories exist.
        const CASEFOLD = 0x20000;
        const _ = !0;
    }

    /// Features that an implementation must support to write to the volume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Backup superblocks are in group 1 and in groups whose numbers are powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// Files larger than 2 GiB exist.
        const LARGE_FILE = 0x2;
        /// Directories are B-trees. This feature was never used.
        const BTREE_DIR = 0x4;
        /// `i_blocks` may count file-system blocks instead of 512-byte sectors.
        const HUGE_FILE = 0x8;
        /// Group descriptors contain a CRC16.
        const GDT_CSUM = 0x10;
        /// A directory with more than 65,000 subdirectories has a link count of 1.
        const DIR_NLINK = 0x20;
        /// Inodes are larger than 128 bytes.
        const EXTRA_ISIZE = 0x40;
        /// The volume has a snapshot.
        const HAS_SNAPSHOT = 0x80;
        /// Quotas are stored in internal inodes.
        const QUOTA = 0x100;
        /// Blocks are allocated in clusters.
        const BIGALLOC = 0x200;
        /// All metadata structures contain a CRC32C.
        const METADATA_CSUM = 0x400;
        /// Replicas, a feature that was never used.
        const REPLICA = 0x800;
        /// The image is read-only.
        const READONLY = 0x1000;
        /// The volume has project quota.
        const PROJECT = 0x2000;
        /// Files may share data blocks, an Android extension.
        const SHARED_BLOCKS = 0x4000;
        /// fs-verity files exist.
        const VERITY = 0x8000;
        /// The orphan file may contain entries.
        const ORPHAN_PRESENT = 0x10000;
        const _ = !0;
    }
}

impl Incompat {
    /// The features that reads support. ENCRYPT is included, because most of an encrypted volume can be read: only reads of encrypted
    /// inodes are refused.
    pub const READABLE: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::SIXTY_FOUR_BIT)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);
}

impl Incompat {
    /// The features that writes support.
    pub const WRITABLE: Self = Self::READABLE;
}

impl Compat {
    /// The features that e2fsck supports.
    pub(super) const KNOWN: Self = Self::DIR_PREALLOC
        .union(Self::IMAGIC_INODES)
        .union(Self::HAS_JOURNAL)
        .union(Self::EXT_ATTR)
        .union(Self::RESIZE_INODE)
        .union(Self::DIR_INDEX)
        .union(Self::SPARSE_SUPER2)
        .union(Self::FAST_COMMIT)
        .union(Self::STABLE_INODES)
        .union(Self::ORPHAN_FILE);
}

impl RoCompat {
    /// The features that e2fsck supports.
    pub(super) const KNOWN: Self = Self::WRITABLE.union(Self::READONLY).union(Self::SHARED_BLOCKS);

    /// The features that writes support. VERITY is included, because only the files with fs-verity are read-only. The rest of the volume
    /// can be written.
    pub const WRITABLE: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::HUGE_FILE)
        .union(Self::GDT_CSUM)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::BIGALLOC)
        .union(Self::METADATA_CSUM)
        .union(Self::QUOTA)
        .union(Self::PROJECT)
        .union(Self::VERITY)
        .union(Self::ORPHAN_PRESENT);
}

macro_rules! names {
    ($type:ident: $($flag:ident = $name:literal),* $(,)?) => {
        impl $type {
            /// The bit with this name. e2fsprogs uses the same names.
            #[must_use]
            pub fn of_name(name: &str) -> Option<Self> {
                const KNOWN: &[($type, &str)] = &[$(($type::$flag, $name)),*];
                KNOWN.iter().find(|(_, known)| *known == name).map(|(flag, _)| *flag)
            }

            /// The names of the set bits, as e2fsprogs spells them. The name of an unknown bit is `FEATURE_`, the name of the word, and the
            /// bit's number.
            pub fn names(self) -> impl Iterator<Item = String> {
                const KNOWN: &[($type, &str)] = &[$(($type::$flag, $name)),*];
                (0..32).filter(move |bit| self.bits() >> bit & 1 == 1).map(|bit| {
                    match KNOWN.iter().find(|(flag, _)| flag.bits() == 1 << bit) {
                        Some((_, name)) => (*name).to_owned(),
                        None => format!("FEATURE_{}{bit}", stringify!($type)),
                    }
                })
            }
        }
    };
}

names!(Compat: DIR_PREALLOC = "dir_prealloc", IMAGIC_INODES = "imagic_inodes", HAS_JOURNAL = "has_journal",
    EXT_ATTR = "ext_attr", RESIZE_INODE = "resize_inode", DIR_INDEX = "dir_index", LAZY_BG = "lazy_bg",
    EXCLUDE_INODE = "snapshot_inode", EXCLUDE_BITMAP = "snapshot_bitmap", SPARSE_SUPER2 = "sparse_super2",
    FAST_COMMIT = "fast_commit", STABLE_INODES = "stable_inodes", ORPHAN_FILE = "orphan_file");
names!(Incompat: COMPRESSION = "compression", FILETYPE = "filetype", RECOVER = "needs_recovery",
    JOURNAL_DEV = "journal_dev", META_BG = "meta_bg", EXTENTS = "extent", SIXTY_FOUR_BIT = "64bit", MMP = "mmp",
    FLEX_BG = "flex_bg", EA_INODE = "ea_inode", DIRDATA = "dirdata", CSUM_SEED = "metadata_csum_seed",
    LARGEDIR = "large_dir", INLINE_DATA = "inline_data", ENCRYPT = "encrypt", CASEFOLD = "casefold");
names!(RoCompat: SPARSE_SUPER = "sparse_super", LARGE_FILE = "large_file", BTREE_DIR = "btree_dir",
    HUGE_FILE = "huge_file", GDT_CSUM = "uninit_bg", DIR_NLINK = "dir_nlink", EXTRA_ISIZE = "extra_isize",
    HAS_SNAPSHOT = "snapshot", QUOTA = "quota", BIGALLOC = "bigalloc", METADATA_CSUM = "metadata_csum",
    REPLICA = "replica", READONLY = "read-only", PROJECT = "project", SHARED_BLOCKS = "shared_blocks",
    VERITY = "verity", ORPHAN_PRESENT = "orphan_present");
