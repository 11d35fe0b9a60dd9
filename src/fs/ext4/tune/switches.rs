//! Features and default mount options, which are switched on and off by their names.
//!
//! Sources: ext4(5), tune2fs(8), and the bytes that tune2fs writes.

use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::superblock::RawSuperblock;
use crate::fs::ext4::mkfs::{Features, random};
use crate::fs::ext4::superblock::{change_features, features};
use crate::fs::ext4::{Compat, Incompat, RoCompat};

/// Features that a change of the superblock alone can enable.
const SETTABLE: Features = Features {
    compat: Compat::DIR_INDEX.union(Compat::STABLE_INODES).union(Compat::FAST_COMMIT),
    incompat: Incompat::EXTENTS
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGEDIR)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: RoCompat::LARGE_FILE
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::VERITY)
        .union(RoCompat::READONLY),
};

/// Features that a change of the superblock alone can disable.
const CLEARABLE: Features = Features {
    compat: Compat::FAST_COMMIT,
    incompat: Incompat::CSUM_SEED,
    ro_compat: RoCompat::READONLY,
};

/// Features that need changes of other metadata, each with the program that makes these changes. A feature that is neither in this table,
/// nor in `SETTABLE`, nor in `CLEARABLE` cannot be changed after mkfs.
const ELSEWHERE: &[(&str, &str)] = &[
    ("has_journal", "tune2fs"),
    ("orphan_file", "tune2fs"),
    ("quota", "tune2fs"),
    ("project", "tune2fs"),
    ("mmp", "tune2fs"),
    ("metadata_csum", "tune2fs"),
    ("uninit_bg", "tune2fs"),
    ("64bit", "resize2fs -b or -s"),
    ("resize_inode", "tune2fs and e2fsck -f"),
    ("filetype", "tune2fs and e2fsck -f"),
    ("sparse_super", "tune2fs and e2fsck -f"),
    ("large_file", "tune2fs and e2fsck -f"),
    ("huge_file", "tune2fs and e2fsck -f"),
    ("dir_nlink", "tune2fs and e2fsck -f"),
    ("extra_isize", "tune2fs and e2fsck -f"),
    ("dir_index", "tune2fs and e2fsck -f"),
    ("metadata_csum_seed", "tune2fs"),
    ("flex_bg", "tune2fs"),
];

/// The value of `s_encoding` for UTF-8 with the tables of Unicode 12.1.
const ENCODING_UTF8_12_1: u16 = 1;
/// The value of `s_encrypt_algos` for AES-256-XTS (content) and AES-256-CTS (names).
const ENCRYPTION_MODES: [u8; 4] = [1, 4, 0, 0];

/// The names of the default mount options in tune2fs, and their bits.
const MOUNT_OPTIONS: &[(&str, u32)] = &[
    ("debug", 0x1),
    ("bsdgroups", 0x2),
    ("user_xattr", 0x4),
    ("acl", 0x8),
    ("uid16", 0x10),
    ("journal_data", 0x20),
    ("journal_data_ordered", 0x40),
    ("journal_data_writeback", 0x60),
    ("nobarrier", 0x100),
    ("block_validity", 0x200),
    ("discard", 0x400),
    ("nodelalloc", 0x800),
];
/// The bits that contain the journal mode. Three of the mount options are values of these bits.
const JOURNAL_MODE: u32 = 0x60;

/// Splits a word into a name and a flag. The flag is false if the word begins with `^`.
fn switch(word: &str) -> (&str, bool) {
    word.strip_prefix('^').map_or((word, true), |name| (name, false))
}

/// Switches a feature on or off.
///
/// # Errors
/// `InvalidInput` for an unknown name, or if the feature requires another feature; `Unsupported`, with an alternative, if other metadata
/// would also have to change.
pub(super) fn feature(raw: &mut RawSuperblock, word: &str) -> Result<()> {
    let (name, on) = switch(word);
    let feature = Features::of_name(name)?;
    let now = features(raw);
    if feature.is_within(now) == on {
        return Ok(());
    }
    if !feature.is_within(if on { SETTABLE } else { CLEARABLE }) {
        return Err(elsewhere(name, on));
    }
    if on {
        switch_on(raw, (name, feature), now)?;
    } else if !can_go(raw, feature, now) {
        return Err(elsewhere(name, on));
    }
    change_features(raw, |features| {
        features.compat.set(feature.compat, on);
        features.incompat.set(feature.incompat, on);
        features.ro_compat.set(feature.ro_compat, on);
    });
    Ok(())
}

fn elsewhere(name: &str, on: bool) -> Error {
    let tool = ELSEWHERE.iter().find(|(known, _)| *known == name).map(|(_, tool)| *tool);
    Error::unsupported(match (tool, on) {
        (Some(tool), _) => {
            format!("the feature {name} changes more than the superblock: use {tool}")
        }
        (None, true) => {
            format!("the feature {name} can only be set when a volume is made (mkfs -O)")
        }
        (None, false) => format!("the feature {name} cannot be switched off"),
    })
}

/// Sets the other fields of the superblock that a newly enabled feature needs.
fn switch_on(
    raw: &mut RawSuperblock,
    (name, feature): (&str, Features),
    now: Features,
) -> Result<()> {
    let needs = |there: bool, other: &str| {
        if there {
            Ok(())
        } else {
            Err(Error::invalid(format!("the feature {name} needs the feature {other}")))
        }
    };
    if feature.compat == Compat::DIR_INDEX && raw.s_hash_seed.as_bytes() == [0; 16] {
        let seed = random()?;
        let (words, _) = seed.as_chunks::<4>();
        for (word, bytes) in raw.s_hash_seed.iter_mut().zip(words) {
            word.set(u32::from_le_bytes(*bytes));
        }
    }
    if feature.compat == Compat::FAST_COMMIT {
        needs(now.compat.contains(Compat::HAS_JOURNAL), "has_journal")?;
    }
    if feature.incompat == Incompat::CSUM_SEED {
        needs(now.ro_compat.contains(RoCompat::METADATA_CSUM), "metadata_csum")?;
        raw.s_checksum_seed.set(crc32c_raw(!0, &raw.s_uuid));
    }
    if feature.incompat == Incompat::ENCRYPT {
        raw.s_encrypt_algos = ENCRYPTION_MODES;
    }
    if feature.incompat == Incompat::CASEFOLD {
        raw.s_encoding.set(ENCODING_UTF8_12_1);
        raw.s_encoding_flags.set(0);
    }
    Ok(())
}

/// Whether the volume permits that a feature is disabled.
fn can_go(raw: &RawSuperblock, feature: Features, now: Features) -> bool {
    let summed = now.ro_compat.contains(RoCompat::METADATA_CSUM);
    // With metadata_csum, dir_index cannot be disabled, because the checksums of directory blocks depend on dir_index. With
    // metadata_csum_seed, all checksums use the stored seed. Without metadata_csum_seed, all checksums use a seed that is derived from the
    // UUID. metadata_csum_seed can therefore be disabled only if the stored seed equals the derived seed.
    !(feature.compat == Compat::DIR_INDEX && summed)
        && (feature.incompat != Incompat::CSUM_SEED
            || raw.s_checksum_seed.get() == crc32c_raw(!0, &raw.s_uuid))
}

/// Refuses a change of the UUID if other metadata depend on the UUID.
///
/// # Errors
/// `Unsupported`, with an alternative.
pub(super) fn check_uuid(raw: &RawSuperblock) -> Result<()> {
    let Features { compat, incompat, ro_compat } = features(raw);
    let seeded = incompat.contains(Incompat::CSUM_SEED);
    let why = if compat.contains(Compat::STABLE_INODES) {
        "with stable_inodes the keys of encrypted files depend on the UUID"
    } else if ro_compat.contains(RoCompat::METADATA_CSUM) && !seeded {
        "all checksums depend on the UUID: add -O metadata_csum_seed, which keeps the checksums, or use tune2fs -U, which computes the checksums again"
    } else if ro_compat.contains(RoCompat::GDT_CSUM) {
        "with uninit_bg the checksums of all groups depend on the UUID: use tune2fs -U"
    } else if incompat.contains(Incompat::EA_INODE) && !seeded {
        "with ea_inode the hashes of attributes depend on the UUID: use tune2fs -U"
    } else if compat.contains(Compat::HAS_JOURNAL) && raw.s_journal_inum.get() == 0 {
        "with journal_dev the journal's device records the UUID: use tune2fs -U"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(format!("the UUID cannot be changed: {why}")))
}

/// Switches a default mount option on or off.
///
/// # Errors
/// `InvalidInput` for an unknown name.
pub(super) fn mount_option(raw: &mut RawSuperblock, word: &str) -> Result<()> {
    let (name, on) = switch(word);
    let Some((_, bits)) = MOUNT_OPTIONS.iter().find(|(known, _)| *known == name) else {
        return Err(Error::invalid(format!("{name} is not a default mount option")));
    };
    let mode = if bits & JOURNAL_MODE == 0 { 0 } else { JOURNAL_MODE };
    let cleared = raw.s_default_mount_opts.get() & !(bits | mode);
    raw.s_default_mount_opts.set(if on { cleared | bits } else { cleared });
    Ok(())
}
