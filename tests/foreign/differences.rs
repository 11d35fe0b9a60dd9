//! Intended differences between ironmap and the other programs, for each image.

use crate::fsck;
use crate::images::Steps;

/// An intended difference, with its reason.
pub(crate) struct Difference {
    /// The names of the images in which the difference occurs.
    names: &'static [&'static str],
    reason: &'static str,
}

/// Intended differences between the results of `check` and of `e2fsck -fn`.
pub(crate) const CHECKS: &[Difference] = &[
    Difference {
        names: &["f_bad_gdt_csum", "f_uninit_enable"],
        reason: "e2fsck -n reports wrong checksums of uninit_bg, and ends with code 0",
    },
    Difference {
        names: &["f_extent_too_deep"],
        reason: "e2fsck takes an extent tree of seven levels for one that could be better; the kernel refuses more than five",
    },
    Difference {
        names: &["f_first_meta_bg_too_big", "f_sb_extra_isize", "f_zero_inode_size"],
        reason: "e2fsck -n goes on without the field or with a backup, and ends with code 0; the kernel refuses to mount",
    },
    Difference {
        names: &["f_journal", "j_corrupt_revoke_rcount"],
        reason: "e2fsck leaves out what it cannot recover without a word; the kernel refuses to mount",
    },
    Difference {
        names: &["f_bad_fname, repaired", "f_ea_inode_self_ref, repaired"],
        reason: "e2fsck leaves a name of an inode that is marked as an attribute's value; the kernel refuses it",
    },
    Difference {
        names: &["f_badtable, repaired", "f_bbinode, repaired"],
        reason: "e2fsck leaves out data in blocks that the volume lists as bad; the kernel does not know that list",
    },
    Difference {
        names: &["f_inlinedata_repair, repaired"],
        reason: "e2fsck does not count the attribute block of a link with inline data",
    },
];

/// Images with files that the kernel can read. ironmap does not read these files, or reads them differently.
pub(crate) const READS: &[Difference] = &[
    Difference {
        names: &["f_bad_encryption", "f_dup_de_crypt", "f_encrypted_lpf"],
        reason: "without the key the kernel makes up names for the entries of an encrypted directory; ironmap says that they are encrypted",
    },
    Difference {
        names: &[
            "f_baddir",
            "f_baddir2",
            "f_dup3",
            "f_inlinedata_dirblocks",
            "f_salvage_dir",
            "f_trunc_dirent_header",
            "f_uninit_dir",
        ],
        reason: "the kernel lists a directory without the entries that it cannot read, and tells its log of them; ironmap gives an error",
    },
    Difference {
        names: &[
            "f_badsymlinks",
            "f_badsymlinks2",
            "f_inlinedata_repair",
            "f_invalid_extent_symlink",
        ],
        reason: "the kernel gives the target of a link up to its first NUL, whatever the size says; ironmap gives an error",
    },
    Difference {
        names: &["f_ea_checks"],
        reason: "the kernel does not verify the hash of a value in a block of attributes",
    },
    Difference {
        names: &["f_h_badroot"],
        reason: "the kernel looks through all of a directory whose hash tree is broken; ironmap lists it, and a lookup gives an error",
    },
    Difference {
        names: &["f_inlinedata_flags"],
        reason: "the kernel reads nothing from an inode with inline data on a volume without the feature; ironmap gives an error",
    },
    Difference {
        names: &["f_orphan_extents_inode", "f_orphan_indirect_inode"],
        reason: "the kernel finishes a truncation when it mounts the volume, and that is when the file was changed",
    },
];

/// Images in which an operation reports faults or does not repair faults.
pub(crate) const CHANGES: &[Difference] = &[
    Difference {
        names: &["f_bad_gdt_csum", "f_uninit_enable"],
        reason: "e2fsck -n ends with code 0, but a volume with wrong checksums of its groups is not written",
    },
    Difference {
        names: &[
            "f_zero_inode_size",
            "f_first_meta_bg_too_big",
            "f_sb_extra_isize",
            "j_corrupt_revoke_rcount",
        ],
        reason: "e2fsck -n ends with code 0, but ironmap refuses the volume, as the kernel does",
    },
    Difference {
        names: &["f_extent_too_deep"],
        reason: "e2fsck takes the tree for sound, ironmap and the kernel refuse the file",
    },
    Difference {
        names: &["f_bad_fname, repaired", "f_ea_inode_self_ref, repaired"],
        reason: "e2fsck leaves a name of an inode that is marked as an attribute's value; the kernel refuses it too",
    },
    Difference {
        names: &["f_inlinedata_repair, repaired"],
        reason: "e2fsck leaves an attribute block with two users, one of them a link with inline data, and a count of one",
    },
    Difference {
        names: &["f_extent_int_bad_csum, repaired"],
        reason: "e2fsck takes a node of an extent tree that begins past the file's size for a wrong one; the kernel's fallocate makes the same",
    },
    Difference {
        names: &["f_uninit_disable"],
        reason: "e2fsck looks at bg_itable_unused of a volume without group checksums; the kernel leaves it as it is",
    },
];

/// The version of e2fsprogs for which the lists are valid.
const LISTED: &str = "e2fsck 1.47.0 ";

/// Reports images that are in a list but show no difference any more. The lists are valid only for one version of e2fsprogs.
pub(crate) fn none_left(steps: &mut Steps<'_>) {
    if fsck::version().starts_with(LISTED) {
        steps.wrong("they agree: the list of differences is out of date");
    }
}

/// Returns the reason for a difference if it is intended.
pub(crate) fn reason(list: &'static [Difference], name: &str) -> Option<&'static str> {
    list.iter().find(|known| known.names.contains(&name)).map(|known| known.reason)
}
