//! Names in a FAT directory. Each file has a short name of 8 and 3 characters, and also a long name if the short name differs from its real
//! name.

use std::collections::{HashMap, HashSet};

/// A short name: eight characters and three characters of the extension, padded with spaces.
pub(super) type Short = [u8; 11];

/// The number of UTF-16 code units in one entry of a long name.
const UNITS: usize = 13;
/// The maximum length of a name in UTF-16 code units.
const MAX_UNITS: usize = 255;

/// Refuses a name that FAT cannot store. The error is the reason.
pub(super) fn refuse(name: &str) -> Result<(), &'static str> {
    let is_bad = |char: char| char < ' ' || char == '\x7F' || "\"*/:<>?\\|".contains(char);
    if name.contains(is_bad) {
        Err("the name contains a character that FAT does not permit")
    } else if name.ends_with([' ', '.']) {
        Err("FAT permits no name that ends with a dot or a space")
    } else if name.encode_utf16().count() > MAX_UNITS {
        Err("the name is longer than 255 characters")
    } else {
        Ok(())
    }
}

fn is_short(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"$%'-_@~`!(){}^#&".contains(&byte)
}

/// The short names in use in one directory.
#[derive(Default)]
pub(super) struct Shorts {
    taken: HashSet<Short>,
    /// For each short name without its number: the last number that was tried.
    numbers: HashMap<Short, u32>,
}

impl Shorts {
    /// If `name` is a valid short name that is not in use, reserves and returns it.
    pub(super) fn exact(&mut self, name: &str) -> Option<Short> {
        let (short, is_exact) = basis(name);
        (is_exact && shown(&short) == name && self.taken.insert(short)).then_some(short)
    }

    /// Makes a short name for a long name.
    pub(super) fn make(&mut self, name: &str) -> Short {
        let (short, fits) = basis(name);
        if fits && self.taken.insert(short) {
            return short;
        }
        let number = self.numbers.entry(short).or_default();
        loop {
            *number += 1;
            let tail = format!("~{number}");
            let used = short[..8].iter().position(|byte| *byte == b' ').unwrap_or(8);
            let at = used.min(8 - tail.len().min(8));
            let mut made = short;
            made[at..8].fill(b' ');
            made[at..at + tail.len()].copy_from_slice(tail.as_bytes());
            if self.taken.insert(made) {
                return made;
            }
        }
    }
}

/// Returns the short name that is most similar to a name, and whether the two differ at most in case.
fn basis(name: &str) -> (Short, bool) {
    let inner = name.trim_start_matches('.');
    let (base, extension) = inner.rsplit_once('.').unwrap_or((inner, ""));
    let (mut short, mut fits) = ([b' '; 11], inner.len() == name.len());
    for (text, to) in [(base, 0..8), (extension, 8..11)] {
        let chars = text.chars().filter(|char| !matches!(char, ' ' | '.'));
        fits &= text.len() <= to.len() && !text.contains([' ', '.']);
        for (char, to) in chars.zip(&mut short[to]) {
            let byte = u8::try_from(char).unwrap_or(0).to_ascii_uppercase();
            fits &= is_short(byte);
            *to = if is_short(byte) { byte } else { b'_' };
        }
    }
    if short[0] == b' ' {
        (short[0], fits) = (b'_', false);
    }
    (short, fits)
}

/// Returns a short name as users see it.
fn shown(short: &Short) -> String {
    let [base, extension] =
        [&short[..8], &short[8..]].map(|part| String::from_utf8_lossy(part).trim_end().to_owned());
    if extension.is_empty() { base } else { format!("{base}.{extension}") }
}

/// Returns the number of directory entries for a long name.
pub(super) fn long_entries(name: &str) -> usize {
    name.encode_utf16().count().div_ceil(UNITS)
}

/// Returns the directory entries of a long name, in the order in which FAT stores them: the entry with the end of the name is first.
pub(super) fn long(name: &str, short: &Short) -> Vec<[u8; 32]> {
    let sum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let units: Vec<_> = name.encode_utf16().collect();
    let count = long_entries(name);
    let entry = |number: usize| {
        let mut entry = [0; 32];
        let last = if number == count { 0x40 } else { 0 };
        entry[0] = number as u8 | last;
        // The attribute of a long name, and the checksum of the short name.
        entry[11] = 0x0F;
        entry[13] = sum;
        for index in 0..UNITS {
            // A zero ends a name that does not fill its last entry. The rest of the entry is filled with ones.
            let at = (number - 1) * UNITS + index;
            let unit = units.get(at).copied();
            let unit = unit.unwrap_or(if at == units.len() { 0 } else { 0xFFFF });
            let to = match index {
                0..5 => 1 + 2 * index,
                5..11 => 14 + 2 * (index - 5),
                _ => 28 + 2 * (index - 11),
            };
            entry[to..to + 2].copy_from_slice(&unit.to_le_bytes());
        }
        entry
    };
    (1..=count).rev().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short names are unique. A valid short name is kept. A name that differs from its short name only in case gets no number.
    #[test]
    fn short_names_are_unique() {
        let mut shorts = Shorts::default();
        for (name, expected) in [
            ("README.TXT", Some("README.TXT")),
            ("bootx64.efi", None),
            ("A.B.C", None),
            (".profile", None),
            ("NAME WITH SPACE", None),
        ] {
            let short = shorts.exact(name);
            assert_eq!(short.as_ref().map(shown).as_deref(), expected, "{name}");
        }
        for (name, expected) in [
            ("readme.txt", "README~1.TXT"),
            ("bootx64.efi", "BOOTX64.EFI"),
            ("a.b.c", "AB~1.C"),
            (".profile", "PROFIL~1"),
            ("long file name.conf", "LONGFI~1.CON"),
            ("long file names.conf", "LONGFI~2.CON"),
            ("größe", "GR__E~1"),
            ("...", "_~1"),
        ] {
            assert_eq!(shown(&shorts.make(name)), expected, "{name}");
        }
        for number in 3..1200 {
            let made = shown(&shorts.make("long file name.conf"));
            assert!(made.ends_with(&format!("~{number}.CON")), "{made}");
        }
    }
}
