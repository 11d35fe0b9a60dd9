//! Formats modes, times and owners for users.

use ironmap::fs::{FileType, Stat, Timestamp};
use jiff::tz::TimeZone;
use uzers::{Groups, Users, UsersCache};

/// The type and mode of a file, as `ls -l` shows them: `-rwsr-xr-t`.
pub(crate) fn mode_string(stat: &Stat) -> String {
    permissions(stat.file_type, stat.mode)
}

/// Formats a file type and a mode. `mode` may differ from the mode of the file.
pub(crate) fn permissions(file_type: FileType, mode: u32) -> String {
    let kind = match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let mut text = String::from(kind);
    // For user, group and others: the shift of the three bits, the special bit, and the special bit's letter.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Formats a number of bytes in short form: `999`, `1.5K`, `234M`. The result is rounded up, as by `ls -h`.
pub(crate) fn human(bytes: u64) -> String {
    let mut unit: u128 = 1;
    for suffix in ["", "K", "M", "G", "T", "P", "E"] {
        let whole = u128::from(bytes).div_ceil(unit);
        let tenths = (u128::from(bytes) * 10).div_ceil(unit);
        if unit > 1 && tenths < 100 {
            return format!("{}.{}{suffix}", tenths / 10, tenths % 10);
        }
        if whole < 1024 {
            return format!("{whole}{suffix}");
        }
        unit *= 1024;
    }
    bytes.to_string()
}

/// The letters of the inode flags, in the order in which `lsattr` shows them. Source: chattr(1) and `lsattr` of e2fsprogs 1.47.
const FLAG_LETTERS: [(char, u32); 22] = [
    ('s', 0x1),
    ('u', 0x2),
    ('S', 0x8),
    ('D', 0x1_0000),
    ('i', 0x10),
    ('a', 0x20),
    ('d', 0x40),
    ('A', 0x80),
    ('c', 0x4),
    ('E', 0x800),
    ('I', 0x1000),
    ('j', 0x4000),
    ('t', 0x8000),
    ('T', 0x2_0000),
    ('e', 0x8_0000),
    ('C', 0x80_0000),
    ('x', 0x200_0000),
    ('F', 0x4000_0000),
    ('N', 0x1000_0000),
    ('P', 0x2000_0000),
    ('V', 0x10_0000),
    ('m', 0x400),
];

/// The flags of an inode as `lsattr` shows them: for each flag, a letter or a dash.
pub(crate) fn flag_letters(flags: u32) -> String {
    FLAG_LETTERS
        .iter()
        .map(|(letter, flag)| if flags & flag != 0 { *letter } else { '-' })
        .collect()
}

/// The name of the type in the output of `stat`.
pub(crate) fn type_name(stat: &Stat) -> &'static str {
    match stat.file_type {
        FileType::Regular if stat.size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Formats timestamps in the local time zone.
pub(crate) struct Clock(TimeZone);

impl Clock {
    pub(crate) fn local() -> Self {
        Self(TimeZone::system())
    }

    /// A timestamp in the format of `ls --time-style=long-iso`: `2026-11-21 10:05`.
    pub(crate) fn minutes(&self, at: Timestamp) -> String {
        self.format(at, "%Y-%m-%d %H:%M")
    }

    /// A timestamp in the format of `stat`: `2026-11-21 10:05:09.123456789 +0000`.
    pub(crate) fn full(&self, at: Timestamp) -> String {
        self.format(at, "%Y-%m-%d %H:%M:%S.%9f %z")
    }

    fn format(&self, at: Timestamp, format: &str) -> String {
        match instant(at) {
            Some(instant) => instant.to_zoned(self.0.clone()).strftime(format).to_string(),
            None => at.seconds.to_string(),
        }
    }
}

/// A timestamp in the format of RFC 3339, in UTC with nine decimals.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    match instant(at) {
        Some(instant) => format!("{instant:.9}"),
        None => at.seconds.to_string(),
    }
}

/// Converts a timestamp to an instant. The nanoseconds are added to the seconds, even before 1970. Returns `None` after the year 9999.
fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    let second = jiff::Timestamp::from_second(at.seconds).ok()?;
    second.checked_add(jiff::SignedDuration::from_nanos(i64::from(at.nanoseconds))).ok()
}

/// Looks up the names of owners in the account data of this host.
pub(crate) struct Owners {
    cache: UsersCache,
    /// Whether numbers are shown instead of names.
    pub(crate) numeric: bool,
}

impl Owners {
    pub(crate) fn new(numeric: bool) -> Self {
        Self { cache: UsersCache::new(), numeric }
    }

    pub(crate) fn user(&self, uid: u32) -> String {
        match self.cache.get_user_by_uid(uid).filter(|_| !self.numeric) {
            Some(user) => user.name().to_string_lossy().into_owned(),
            None => uid.to_string(),
        }
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        match self.cache.get_group_by_gid(gid).filter(|_| !self.numeric) {
            Some(group) => group.name().to_string_lossy().into_owned(),
            None => gid.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_past_2038_are_exact() {
        let utc = Clock(TimeZone::UTC);
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        assert_eq!(utc.full(at(-1, 250_000_000)), "1969-12-31 23:59:59.250000000 +0000");
        assert_eq!(utc.minutes(at(15_032_385_535, 0)), "2446-05-10 22:38");
        assert_eq!(rfc3339(at(0, 1)), "1970-01-01T00:00:00.000000001Z");
    }

    /// The expected results are the output of ls -lh of coreutils 9.1 for files of these sizes.
    #[test]
    fn sizes_for_people_are_rounded_up() {
        let shown = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (1 << 20, "1.0M"),
            ((1 << 20) - 1, "1.0M"),
            (5 << 30, "5.0G"),
            (u64::MAX, "16E"),
        ];
        for (bytes, text) in shown {
            assert_eq!(human(bytes), text);
        }
    }
}
