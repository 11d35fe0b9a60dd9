//! Intended differences between ironmap and e2fsck, with their reasons.

/// An intended difference, which is not a fault of either program.
pub(crate) struct Exception {
    /// A text that occurs in the message of e2fsck or of ironmap.
    pub(crate) text: &'static str,
    pub(crate) reason: &'static str,
}

/// Faults that only e2fsck reports. ironmap omits them on purpose.
pub(crate) const E2FSCK_ALONE: &[Exception] = &[Exception {
    text: "unsupported feature(s)",
    reason: "e2fsck refuses compatible features that it does not know, which the format lets a reader ignore",
}];

/// Faults that only ironmap reports.
pub(crate) const IRONMAP_ALONE: &[Exception] = &[
    Exception {
        text: "Bad required extra isize in superblock",
        reason: "e2fsck -fn asks whether to fix it, and ends with 0; the kernel refuses to mount",
    },
    Exception {
        text: "journal superblock",
        reason: "without needs_recovery e2fsck does not look where the log would start; the kernel refuses such a journal",
    },
    Exception {
        text: "block 0 of the journal is a hole",
        reason: "e2fsck takes blocks of the journal that were never written for written ones; the kernel refuses to mount",
    },
    Exception {
        text: "i_file_acl: block",
        reason: "e2fsck reports a wrong attribute block where a name leads to the inode; the kernel refuses that of the journal",
    },
    Exception {
        text: "the inode has inline data, but no attribute system.data",
        reason: "e2fsck compares the attribute's name up to a NUL only, the kernel all of it",
    },
    Exception {
        text: "the depth does not match the position of the node",
        reason: "e2fsck takes the depth of nodes below the root as given; the kernel refuses such a file",
    },
    Exception {
        text: "bg_checksum",
        reason: "e2fsck -n leaves wrong checksums of uninit_bg with exit code 0; the kernel refuses to mount",
    },
    Exception {
        text: "is in the directory more than once",
        reason: "e2fsck lets a leaf of a hash tree end with the hash at which the next begins, and does not see that one name is in both",
    },
    Exception {
        text: "reference count",
        reason: "e2fsck leaves a file that is marked as an attribute's value alone while it has a name; the kernel refuses it",
    },
    Exception {
        text: "that is not reachable in the tree",
        reason: "e2fsck compares such an entry of a quota file with what its id uses, and says nothing where that is the same; the kernel finds no room for it",
    },
];
