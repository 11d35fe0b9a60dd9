//! The mount options of ext4 that `ironmap mount` does not implement. Options without an effect on this mount are accepted. All others are
//! refused with a hint.
//!
//! The names are those of ext4(5) and of the kernel's Documentation/admin-guide/ext4.rst.

/// Accepted options without a value. Every mount of ironmap already behaves as the option requests, or the option only tunes the kernel's
/// ext4.
const WITHOUT_VALUE: &[&str] = &[
    "acl",
    "user_xattr",
    "delalloc",
    "nodelalloc",
    "auto_da_alloc",
    "noauto_da_alloc",
    "dioread_lock",
    "dioread_nolock",
    "nodioread_nolock",
    "barrier",
    "block_validity",
    "noblock_validity",
    "init_itable",
    "noinit_itable",
    "journal_checksum",
    "nojournal_checksum",
    "journal_async_commit",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "mblk_io_submit",
    "nomblk_io_submit",
    "nombcache",
    "no_mbcache",
    "nogrpid",
    "sysvgroups",
    "bsddf",
    "nocheck",
    "oldalloc",
    "orlov",
    "bh",
    "nobh",
    // Linux also ignores these options. `i_version` would count the changes of a file. Linux always counts them. `mand` would enable
    // mandatory locks. Linux does not have such locks.
    "i_version",
    "iversion",
    "noi_version",
    "noiversion",
    "mand",
    "nomand",
    "reservation",
    "noreservation",
    "fc_debug_force",
    "debug",
    "warn_on_error",
    "nowarn_on_error",
];

/// An option with a number. It has a name, a check, and a description of the values that the kernel accepts.
type WithNumber = (&'static str, fn(u32) -> bool, &'static str);

/// Accepted options with a number.
const WITH_NUMBER: &[WithNumber] = &[
    ("stripe", |_| true, ""),
    ("init_itable", |_| true, ""),
    (
        "inode_readahead_blks",
        |blocks| blocks == 0 || blocks.is_power_of_two() && blocks <= 1 << 30,
        "the value must be 0 or a power of two up to 1073741824",
    ),
    ("max_batch_time", |_| true, ""),
    ("min_batch_time", |_| true, ""),
    ("journal_ioprio", |priority| priority <= 7, "the value must be from 0 to 7"),
    ("mb_optimize_scan", |on| on <= 1, "0 or 1"),
    ("auto_da_alloc", |_| true, ""),
    ("fc_debug_max_replay", |_| true, ""),
];

/// A number as the kernel reads it: decimal, hexadecimal after `0x`, or octal after `0`.
pub(super) fn number(text: &str) -> Option<u32> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // The standard library would accept a plus sign at the start of the digits.
    u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

/// Accepted options with a value. Each option is accepted only with the value in this table.
const WITH_VALUE: &[(&str, &str)] = &[
    ("data", "ordered"),
    ("data_err", "ignore"),
    ("check", "none"),
    ("dax", "never"),
    ("dax", "inode"),
];

/// Whether an option of ext4 is accepted. `None` if ext4 has no option with this name.
///
/// # Errors
/// Fails if the option is refused. The text of the error suggests what to use instead.
pub(super) fn judge(name: &str, value: Option<&str>) -> Option<Result<(), String>> {
    let taken = match value {
        None => WITHOUT_VALUE.contains(&name),
        Some(value) => WITH_VALUE.contains(&(name, value)),
    };
    if taken {
        return Some(Ok(()));
    }
    let with_number = WITH_NUMBER.iter().find(|(known, ..)| *known == name);
    match (value, with_number) {
        (Some(value), Some((_, fits, range))) => Some(match number(value) {
            None => Err(format!("{value:?} is not a number")),
            Some(number) if fits(number) => Ok(()),
            Some(_) => Err((*range).to_owned()),
        }),
        (Some(value), _) if name == "barrier" && number(value).is_some_and(|on| on != 0) => {
            Some(Ok(()))
        }
        _ => instead_of(name).map(|hint| Err(hint.to_owned())),
    }
}

/// The advice for an option that a mount of ironmap cannot implement.
fn instead_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "data" => "data is always written as with data=ordered; leave out the option",
        "data_err" => {
            "a write error is always returned to the program that wrote; leave out the option"
        }
        "barrier" | "nobarrier" => "the device is always flushed; leave out the option",
        "noacl" | "nouser_xattr" => {
            "access control lists and extended attributes are always on; leave out the option"
        }
        "auto_unmount" => {
            "if the server was killed, ironmap umount ends the mount; leave out the option"
        }
        "dax" => "a mount does not support DAX; leave out the option",
        "usrquota" | "grpquota" | "prjquota" | "quota" | "noquota" | "usrjquota" | "grpjquota"
        | "jqfmt" => {
            "quotas are always on if the volume has the feature quota (tune2fs -O quota); leave out the option"
        }
        "grpid" | "bsdgroups" => {
            "the option is not supported; leave it out. To give new files the group of their directory, set the set-group bit of the directory (chmod g+s)"
        }
        "resuid" => {
            "the volume stores this setting, and ironmap tune -u changes it; leave out the option"
        }
        "resgid" => {
            "the volume stores this setting, and ironmap tune -g changes it; leave out the option"
        }
        "sb" => "use ironmap --superblock BLOCK mount -o ro",
        "minixdf" => {
            "statfs always excludes the blocks of metadata, as with bsddf; leave out the option"
        }
        "max_dir_size_kb" => "directories have no limit; leave out the option",
        "check" => {
            "a mount does not check the volume: run ironmap check before the mount, and leave out the option"
        }
        "nouid32" => "user and group ids always have 32 bits; leave out the option",
        "debug_want_extra_isize" => {
            "the superblock determines the fields of new inodes; leave out the option"
        }
        "journal" => {
            "a mount does not make a journal: use mkfs.ext3 or tune2fs -j, and leave out the option"
        }
        "journal_dev" | "journal_path" => {
            "the superblock names the journal's device; leave out the option"
        }
        "abort" => "the option tests the kernel's ext4; leave out the option",
        "test_dummy_encryption" | "inlinecrypt" => {
            "encrypted files cannot be read; leave out the option"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each option of ext4 is accepted, or refused with a text that suggests a solution.
    #[test]
    fn each_option_of_ext4_is_taken_or_refused_with_what_to_do() {
        let taken = "stripe=16 init_itable init_itable=10 inode_readahead_blks=32 max_batch_time=15000 \
             min_batch_time=0 journal_ioprio=3 mb_optimize_scan=1 delalloc auto_da_alloc auto_da_alloc=1 \
             dioread_nolock nogrpid sysvgroups bsddf nocheck check=none orlov data=ordered data_err=ignore \
             barrier barrier=1 acl user_xattr block_validity journal_checksum journal_async_commit \
             noiversion debug dax=never iversion i_version mand nomand reservation noreservation \
             fc_debug_force fc_debug_max_replay=5 nodioread_nolock stripe=0x10 barrier=2";
        for option in taken.split_whitespace() {
            let (name, value) = option.split_once('=').unzip();
            assert_eq!(judge(name.unwrap_or(option), value), Some(Ok(())), "{option}");
        }
        for (option, instead) in [
            ("grpid", "chmod g+s"),
            ("bsdgroups", "chmod g+s"),
            ("resuid=5", "ironmap tune -u"),
            ("resgid=5", "ironmap tune -g"),
            ("sb=131072", "--superblock"),
            ("debug_want_extra_isize=32", "leave out the option"),
            ("inode_readahead_blks=3", "power of two"),
            ("journal_ioprio=8", "0 to 7"),
            ("mb_optimize_scan=2", "0 or 1"),
            ("minixdf", "bsddf"),
            ("max_dir_size_kb=8", "no limit"),
            ("usrjquota=aquota.user", "tune2fs -O quota"),
            ("jqfmt=vfsv1", "tune2fs -O quota"),
            ("data_err=abort", "returned"),
            ("journal_dev=0x700", "superblock"),
            ("barrier=0", "flushed"),
            ("dax", "does not support DAX"),
            ("stripe=x", "not a number"),
        ] {
            let (name, value) = option.split_once('=').unzip();
            let refusal = judge(name.unwrap_or(option), value).unwrap().unwrap_err();
            assert!(refusal.contains(instead), "{option}: {refusal}");
        }
        assert_eq!(judge("jam", None), None);
        assert_eq!(judge("stripe", None), None);
    }
}
