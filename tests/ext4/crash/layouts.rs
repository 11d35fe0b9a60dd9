//! The layouts of volumes for workloads. A layout consists of `mke2fs` options and the additional options of [`crate::crash::volume`].

/// Layouts for the kernel, with mount options. Delayed allocation is off in some of them, so that more writes reach the device between two
/// syncs.
pub(crate) const KERNEL: [(&str, &str); 10] = [
    ("-t ext4 -b 1024 -J size=1", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1", "defaults"),
    ("-t ext4 -b 4096 -J size=4", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1 -O ea_inode", "data=journal"),
    ("-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit,orphan_file", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1 -O ^metadata_csum", "data=journal,journal_async_commit"),
    ("-t ext3 -b 1024 -J size=1", "nodelalloc"),
    ("-t ext4 -b 2048 -J size=2 -O bigalloc -C 8192", "nodelalloc"),
    ("-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit", "nodelalloc,journal_checksum"),
    ("-t ext4 -b 4096 -J size=4 -O fast_commit", "nodelalloc"),
];

/// Layouts for ironmap.
pub(crate) const OURS: [&str; 13] = [
    "-t ext4 -b 1024 -J size=1",
    "-t ext4 -b 4096 -J size=4",
    "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit",
    "-t ext4 -b 1024 -J size=1 -O orphan_file",
    "-t ext4 -b 1024 -J size=1 -O inline_data",
    "-t ext3 -b 1024 -J size=2",
    "-t ext4 -b 2048 -J size=2 -O bigalloc -C 8192",
    "-t ext4 -b 1024 -J size=1 -N 128 -I 128",
    "-t ext4 -b 1024 -J size=1 -O ea_inode",
    "-t ext4 -b 4096 -J size=4 -O fast_commit",
    "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^64bit checksum_v1",
    "-t ext4 -b 4096 -J size=4 -O inline_data,ea_inode,orphan_file",
    "-t ext4 -b 1024 -J size=1 checksum_v2",
];

/// Layouts with quota. Only workloads of ironmap use them, because the kernel may be built without quota. bigalloc is omitted: with quota,
/// e2fsck 1.47 miscounts the freed blocks of orphans.
pub(crate) const QUOTA: [&str; 3] = [
    "-t ext4 -b 1024 -J size=1 -I 256 -O quota,project",
    "-t ext4 -b 4096 -J size=4 -I 256 -O quota,project,inline_data",
    "-t ext4 -b 2048 -J size=2 -O quota,ea_inode",
];

/// Layouts without a journal.
pub(crate) const UNJOURNALED: [&str; 5] = [
    "-t ext4 -b 1024 -O ^has_journal",
    "-t ext4 -b 4096 -O ^has_journal,^metadata_csum",
    "-t ext4 -b 1024 -O ^has_journal,inline_data,ea_inode",
    "-t ext2 -b 1024",
    "-t ext4 -b 2048 -O ^has_journal,bigalloc -C 8192",
];
