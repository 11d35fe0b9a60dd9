//! Case-insensitive names. Names are compared after Unicode case folding, canonical decomposition and removal of ignorable characters.
//!
//! Linux folds with the tables of Unicode 12.1 (`s_encoding` 1). The tables here are from a later version. Both versions fold all
//! characters of Unicode 12.1 in the same way. For a name with newer characters, ironmap and Linux may compute different hashes. A linear
//! search therefore follows each lookup by hash that finds no entry.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

use super::Ext4;
use crate::error::{Error, Result};

/// `s_encoding` for UTF-8 with Unicode 12.1, the only defined encoding.
const ENCODING_UTF8_12_1: u16 = 1;

/// Whether a character has Unicode's property `Default_Ignorable_Code_Point`.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}' | '\u{180B}'..='\u{180E}'
        | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}'
        | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}' | '\u{1BCA0}'..='\u{1BCA3}'
        | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

/// Whether a later version of Unicode than 12.1 may have added a case mapping or decomposition for this character.
fn is_younger(c: char) -> bool {
    matches!(c,
        '\u{1ABF}'..='\u{1AFF}' | '\u{1C89}' | '\u{2C2F}' | '\u{A7C0}' | '\u{A7C7}'..='\u{A7F5}'
        | '\u{10570}'..='\u{105FF}' | '\u{10D50}'..='\u{10D85}' | '\u{11380}'..='\u{113D0}'
        | '\u{11930}'..='\u{11938}' | '\u{16120}'..='\u{1612F}' | '\u{16D60}'..='\u{16D6A}'
        | '\u{1E4EC}'..='\u{1E4EF}')
}

/// The folded form of a name. Names that differ only in case have the same folded form. Returns `None` for a name that is not UTF-8,
/// because such a name is compared by bytes.
pub(super) fn fold(name: &[u8]) -> Option<String> {
    let text = str::from_utf8(name).ok()?;
    if text.is_ascii() {
        return Some(text.to_ascii_lowercase());
    }
    Some(text.chars().filter(|c| !is_ignorable(*c)).default_case_fold().nfd().collect())
}

/// A name to look up, and the rule by which the directory compares names.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a [u8],
    folded: Option<String>,
}

impl<'a> Wanted<'a> {
    /// A name that is compared by bytes.
    pub(super) fn exact(name: &'a [u8]) -> Self {
        Self { name, folded: None }
    }

    /// A name that is compared without regard to case.
    ///
    /// # Errors
    /// `Unsupported` if the volume's encoding is unknown.
    pub(super) fn folded(name: &'a [u8], fs: &Ext4) -> Result<Self> {
        match fs.superblock.encoding {
            ENCODING_UTF8_12_1 => Ok(Self { name, folded: fold(name) }),
            other => {
                Err(Error::unsupported(format!("the encoding {other} of names is not supported")))
            }
        }
    }

    /// The bytes from which the directory's hash is computed.
    pub(super) fn hashed_bytes(&self) -> &[u8] {
        self.folded.as_ref().map_or(self.name, |folded| folded.as_bytes())
    }

    /// Refuses a new name in a case-insensitive directory if Linux would refuse the name, or if Linux could not find the new entry.
    ///
    /// # Errors
    /// `Unsupported` for characters that Linux's tables fold differently; `InvalidInput` for bytes that violate the volume's encoding in
    /// strict mode.
    pub(super) fn check_new(&self, fs: &Ext4) -> Result<()> {
        let shown = || String::from_utf8_lossy(self.name);
        match &self.folded {
            None if fs.superblock.encoding_strict => {
                Err(Error::invalid(format!("{}: the name is not UTF-8", shown())))
            }
            Some(_) if shown().chars().any(is_younger) => {
                let what = format!("{}: the name has characters newer than Unicode 12.1", shown());
                Err(Error::unsupported(what))
            }
            _ => Ok(()),
        }
    }

    /// Whether this name matches only an entry with identical bytes.
    pub(super) fn is_exact(&self) -> bool {
        self.folded.is_none()
    }

    /// Whether an entry matches the name.
    #[inline]
    pub(super) fn matches(&self, entry: &[u8]) -> bool {
        match &self.folded {
            None => entry == self.name,
            Some(_) if entry == self.name => true,
            Some(folded) => fold(entry).is_some_and(|entry| entry == *folded),
        }
    }

    /// Whether the Unicode version affects the folded form of this name, or of another name with the same folded form.
    pub(super) fn depends_on_tables(&self) -> bool {
        self.folded.as_ref().is_some_and(|folded| !folded.is_ascii() || !self.name.is_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::process::Command;

    use super::super::hash::{HashVersion, NameHash};
    use super::{fold, is_younger};

    /// ironmap and debugfs, which uses the tables of Unicode 12.1, fold each tested character in the same way. The test compares the hashes
    /// of the folded names.
    #[test]
    fn folding_agrees_with_debugfs() {
        let hash = NameHash { version: HashVersion::HalfMd4, unsigned: false, seed: [0; 4] };
        let characters = ('\u{80}'..='\u{1FFFF}').chain('\u{E0000}'..='\u{E01FF}');
        let names: Vec<_> =
            characters.filter(|c| !is_younger(*c)).map(|c| format!("X{c}\u{301}")).collect();
        let mut commands = String::new();
        for name in &names {
            writeln!(commands, "dx_hash -h half_md4 -c -e utf8 \"{name}\"").unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("commands");
        std::fs::write(&script, commands).unwrap();
        let output = Command::new("debugfs").arg("-f").arg(&script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let hash_of_line = |line: &str| {
            let hash = line.strip_prefix("Hash of ")?.rsplit_once(" is 0x")?.1;
            u32::from_str_radix(hash.split(' ').next()?, 16).ok()
        };
        let expected: Vec<u32> = text.lines().filter_map(hash_of_line).collect();
        assert_eq!(expected.len(), names.len(), "debugfs hashed every name");
        for (name, expected) in names.iter().zip(expected) {
            let folded = fold(name.as_bytes()).unwrap();
            assert_eq!(hash.of(folded.as_bytes()), expected, "{}", name.escape_unicode());
        }
    }
}
