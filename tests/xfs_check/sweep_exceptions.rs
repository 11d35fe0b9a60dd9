//! Permitted differences in the test of the superblock's fields. Each difference has a rule and a reason.

use crate::sweep_cases::{Case, Sector};

/// A rule for one field. It selects the values that only the kernel refuses, or that only ironmap refuses.
pub(crate) struct Exception {
    field: &'static str,
    /// Whether the rule applies. The arguments are the valid superblock and the changed superblock.
    holds: fn(&Sector, &Sector) -> bool,
    reason: &'static str,
}

/// Returns the reason for a difference if it is permitted.
pub(crate) fn reason(list: &[Exception], sound: &Sector, case: &Case) -> Option<&'static str> {
    let holds = |one: &&Exception| one.field == case.field && (one.holds)(sound, &case.sector);
    list.iter().find(holds).map(|exception| exception.reason)
}

/// Reads a big-endian number from the superblock.
fn number(sector: &Sector, at: usize, len: usize) -> u64 {
    sector[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Volumes that the kernel refuses and ironmap reads.
pub(crate) const READ: &[Exception] = &[Exception {
    field: "qflags",
    holds: |_, sector| number(sector, 216, 4) & 0x100 != 0 && number(sector, 176, 2) & 0x49 != 0,
    reason: "Linux looks for files of quota, which are not there; ironmap reads none",
}];
/// Exceptions for a kernel that was built without realtime files and without case-insensitive names. Such a kernel and ironmap may accept
/// different volumes.
pub(crate) const NOT_BUILT_IN: &[Exception] = &[
    Exception {
        field: "rbmino",
        holds: |sound, sector| number(sound, 64, 8) != number(sector, 64, 8),
        reason: "a kernel without realtime files does not read the inode",
    },
    Exception {
        field: "rsumino",
        holds: |sound, sector| number(sound, 72, 8) != number(sector, 72, 8),
        reason: "a kernel without realtime files does not read the inode",
    },
    Exception {
        field: "features_incompat",
        holds: |sound, sector| number(sound, 216, 4) & !number(sector, 216, 4) == 0x100,
        reason: "sb_rbmino is 0, and a kernel without realtime files does not read the inode",
    },
    Exception {
        field: "features_incompat",
        holds: |_, sector| number(sector, 216, 4) & 0x300 == 0x300,
        reason: "a kernel without realtime files has no zones",
    },
    Exception {
        field: "versionnum",
        holds: |sound, sector| number(sound, 100, 2) ^ number(sector, 100, 2) == 0x4000,
        reason: "a kernel without names without case",
    },
];
/// Volumes that the kernel mounts and ironmap refuses.
pub(crate) const REFUSED: &[Exception] = &[
    Exception {
        field: "logstart",
        holds: |_, sector| number(sector, 48, 8) >> sector[124] > u32::MAX.into(),
        reason: "Linux drops the upper bits of the number of the log's group",
    },
    Exception {
        field: "bad_features2",
        holds: |_, sector| number(sector, 204, 4) & !0x38A != 0,
        reason: "Linux takes the bits of both fields, and refuses them where it may write them",
    },
    Exception {
        field: "logblocks",
        holds: |_, sector| {
            let within = number(sector, 48, 8) & ((1 << sector[124]) - 1);
            within + number(sector, 96, 4) > number(sector, 84, 4)
        },
        reason: "Linux does not see that the log leaves its group",
    },
    Exception {
        field: "features_incompat",
        holds: |_, sector| number(sector, 216, 4) & 0x600 == 0x400,
        reason: "Linux does not see gaps without zones",
    },
    Exception {
        field: "rextsize",
        holds: |_, sector| number(sector, 80, 4) << sector[120] > u32::MAX.into(),
        reason: "Linux multiplies in 32 bits",
    },
];
/// Faults that xfs_repair finds, and ironmap's check does not find.
pub(crate) const NOT_FOUND: &[Exception] = &[];
