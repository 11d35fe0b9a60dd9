//! Names compared without regard to case: Unicode case folding and canonical decomposition, ignorable characters left out.
//!
//! Linux folds with the tables of Unicode 12.1 (`s_encoding` 1); the tables here are newer and agree on all that 12.1
//! assigned. A name with later characters may hash differently, which is why a miss is searched again linearly.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

use super::Ext4;
use crate::error::{Error, Result};

/// `s_encoding` of UTF-8 after Unicode 12.1, the only one there is.
const ENCODING_UTF8_12_1: u16 = 1;

/// The code points that Unicode's `Default_Ignorable_Code_Point` names.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}' | '\u{180B}'..='\u{180E}'
        | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}'
        | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}' | '\u{1BCA0}'..='\u{1BCA3}'
        | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

/// The folded form of a name, equal for names that differ in case only; `None` where it is not UTF-8 and stands for itself.
pub(super) fn fold(name: &[u8]) -> Option<String> {
    let text = str::from_utf8(name).ok()?;
    if text.is_ascii() {
        return Some(text.to_ascii_lowercase());
    }
    Some(text.chars().filter(|c| !is_ignorable(*c)).default_case_fold().nfd().collect())
}

/// A name to look for, and the rule of equality that its directory has.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a [u8],
    folded: Option<String>,
}

impl<'a> Wanted<'a> {
    /// The name by its bytes.
    pub(super) fn exact(name: &'a [u8]) -> Self {
        Self { name, folded: None }
    }

    /// The name without regard to case.
    ///
    /// # Errors
    /// `Unsupported` where the volume's encoding is unknown.
    pub(super) fn folded(name: &'a [u8], fs: &Ext4) -> Result<Self> {
        match fs.superblock.encoding {
            ENCODING_UTF8_12_1 => Ok(Self { name, folded: fold(name) }),
            other => Err(Error::unsupported(format!("names in encoding {other}"))),
        }
    }

    /// The bytes that the tree's hash is taken of.
    pub(super) fn hashed_bytes(&self) -> &[u8] {
        self.folded.as_ref().map_or(self.name, |folded| folded.as_bytes())
    }

    /// Whether an entry has the name.
    pub(super) fn matches(&self, entry: &[u8]) -> bool {
        match &self.folded {
            None => entry == self.name,
            Some(_) if entry == self.name => true,
            Some(folded) => fold(entry).is_some_and(|entry| entry == *folded),
        }
    }

    /// Whether other versions of Unicode may fold this name, or one that is equal to it, in another way.
    pub(super) fn depends_on_tables(&self) -> bool {
        self.folded.as_ref().is_some_and(|folded| !folded.is_ascii() || !self.name.is_ascii())
    }
}
