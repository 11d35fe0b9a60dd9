//! How names, modes, times and owners are shown to people.

use std::fmt::Write;

use ironmap::fs::{FileType, Stat, Timestamp};
use jiff::tz::TimeZone;
use uzers::{Groups, Users, UsersCache};

/// A UUID as one writes it.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A message as one line: names may hold line breaks and terminal controls.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            let _ = write!(line, "{}", char.escape_default());
        } else {
            line.push(char);
        }
    }
    line
}

/// A name for a terminal, with question marks for what would control it, as `ls` does.
pub(crate) fn for_terminal(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

/// `-rwsr-xr-t`, as `ls -l` shows it.
pub(crate) fn mode_string(stat: &Stat) -> String {
    permissions(stat.file_type, stat.mode)
}

/// The same for a mode that is not, or not yet, the file's.
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
    // For user, group, others: the shift of the three bits, the special bit, its letter.
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

/// The type in `stat`'s words, or its name in JSON.
pub(crate) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Time stamps in the local zone.
pub(crate) struct Clock(TimeZone);

impl Clock {
    pub(crate) fn local() -> Self {
        Self(TimeZone::system())
    }

    /// `2026-11-21 10:05`, as `ls --time-style=long-iso`.
    pub(crate) fn minutes(&self, at: Timestamp) -> String {
        self.format(at, "%Y-%m-%d %H:%M")
    }

    /// `2026-11-21 10:05:09.123456789 +0000`, as `stat`.
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

/// RFC 3339 in UTC with nine digits of the second.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    match instant(at) {
        Some(instant) => format!("{instant:.9}"),
        None => at.seconds.to_string(),
    }
}

/// The nanoseconds count forward from the second, before 1970 too; `None` beyond the year 9999.
fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    let second = jiff::Timestamp::from_second(at.seconds).ok()?;
    second.checked_add(jiff::SignedDuration::from_nanos(i64::from(at.nanoseconds))).ok()
}

/// Names of owners, by this machine's account data.
pub(crate) struct Owners {
    cache: UsersCache,
    numeric: bool,
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

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(for_terminal(b"a\nb\xff"), "a?b\u{fffd}");
    }
}
