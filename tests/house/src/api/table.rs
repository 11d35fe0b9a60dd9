//! The table of the operations, docs/api.toml.

use std::collections::BTreeMap;
use std::{fs, io};

use serde::Deserialize;
use toml::Spanned;

pub(super) const PATH: &str = "docs/api.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// The errno of each kind of error.
    pub(super) kinds: BTreeMap<String, Spanned<String>>,
    /// The parameters of C functions that are not arguments of an operation, and their meaning.
    pub(super) c_parameters: BTreeMap<String, String>,
    #[serde(rename = "operation")]
    pub(super) operations: Vec<Operation>,
    #[serde(rename = "exception")]
    pub(super) exceptions: Vec<Exception>,
}

/// An operation that users can run. For each interface (Rust, C, Python), the entry has either names of functions, or the reason why the
/// interface lacks a function.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Operation {
    pub(super) name: Spanned<String>,
    /// Each argument as "name: meaning".
    pub(super) arguments: Vec<Spanned<String>>,
    /// The names of errnos, sorted.
    pub(super) errors: Spanned<Vec<String>>,
    #[serde(default)]
    rust: Vec<Spanned<String>>,
    no_rust: Option<String>,
    #[serde(default)]
    c: Vec<Spanned<String>>,
    no_c: Option<String>,
    #[serde(default)]
    python: Vec<Spanned<String>>,
    no_python: Option<String>,
}

/// Functions that are not operations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    pub(super) reason: Spanned<String>,
    #[serde(default)]
    rust: Vec<Spanned<String>>,
    #[serde(default)]
    c: Vec<Spanned<String>>,
    #[serde(default)]
    python: Vec<Spanned<String>>,
}

/// One of the ways to use ironmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Rust,
    C,
    Python,
}

impl Door {
    pub(super) const ALL: [Self; 3] = [Self::Rust, Self::C, Self::Python];
}

impl Operation {
    pub(super) fn names(&self, door: Door) -> &[Spanned<String>] {
        match door {
            Door::Rust => &self.rust,
            Door::C => &self.c,
            Door::Python => &self.python,
        }
    }

    /// The reason why an interface lacks a function.
    pub(super) fn reason(&self, door: Door) -> Option<&str> {
        let reason = match door {
            Door::Rust => &self.no_rust,
            Door::C => &self.no_c,
            Door::Python => &self.no_python,
        };
        reason.as_deref()
    }
}

impl Exception {
    pub(super) fn names(&self, door: Door) -> &[Spanned<String>] {
        match door {
            Door::Rust => &self.rust,
            Door::C => &self.c,
            Door::Python => &self.python,
        }
    }
}

/// The table with its text.
pub(super) struct Source {
    pub(super) table: Table,
    text: String,
}

impl Source {
    pub(super) fn read() -> io::Result<Self> {
        Self::parse(fs::read_to_string(PATH)?)
    }

    pub(super) fn parse(text: String) -> io::Result<Self> {
        let table =
            toml::from_str(&text).map_err(|error| io::Error::other(format!("{PATH}: {error}")))?;
        Ok(Self { table, text })
    }

    /// The line of a value, counted from 1.
    pub(super) fn line<T>(&self, value: &Spanned<T>) -> usize {
        let before = self.text.get(..value.span().start).unwrap_or_default();
        before.matches('\n').count() + 1
    }
}
