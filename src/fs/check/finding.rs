//! Findings of a check: the fault, its place and its severity.

use std::fmt;

use crate::device::Device;
use crate::error::{Error, Place};
use crate::fs::FileType;
use crate::units::InodeNo;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// No fault: information, or a part of the volume that was not checked.
    Note,
    /// Metadata contradict each other, but a repair can restore everything from the volume.
    Repairable,
    /// Content or names of files are lost, or cannot be assigned to a file.
    DataLoss,
    /// The volume as a whole cannot be used in its present state.
    Fatal,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Repairable => "repairable",
            Self::DataLoss => "data loss",
            Self::Fatal => "fatal",
        })
    }
}

/// The place of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindingSite {
    /// The block group of the structure, if the structure belongs to one group.
    pub group: Option<u32>,
    /// The structure and the field, and the inode and the block if they are known.
    pub place: Place,
}

impl FindingSite {
    /// The place of a structure of a group.
    #[must_use]
    pub(in crate::fs) fn of_group(group: u32, place: Place) -> Self {
        Self { group: Some(group), place }
    }
}

impl From<Place> for FindingSite {
    fn from(place: Place) -> Self {
        Self { group: None, place }
    }
}

impl fmt::Display for FindingSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group}: ")?;
        }
        self.place.fmt(f)
    }
}

/// A fault of the structure at the finding's place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The device returns an error for this structure.
    Unreadable {
        /// The error.
        error: String,
    },
    /// A checksum does not match its content.
    Checksum {
        /// The value on disk.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// A field differs from the value that other fields imply.
    Value {
        /// The value on disk.
        stored: u64,
        /// The right value.
        expected: u64,
    },
    /// A field has a value that is not valid.
    Invalid {
        /// The value on disk.
        stored: u64,
        /// The rule that the value violates.
        rule: &'static str,
    },
    /// A structure cannot be decoded. The finding describes the fault only as text.
    Damaged {
        /// The fault, in words.
        what: String,
    },
    /// A pointer names blocks outside the volume.
    Outside {
        /// The first block to which the pointer refers.
        block: u64,
        /// The number of blocks to which the pointer refers.
        count: u64,
    },
    /// Another structure claims the same blocks.
    ClaimedTwice {
        /// The first block that is claimed twice.
        block: u64,
        /// The number of blocks that are claimed twice.
        count: u64,
    },
    /// The blocks belong to the file system's own structures.
    ClaimsMetadata {
        /// The first of these blocks.
        block: u64,
        /// The number of these blocks.
        count: u64,
        /// The structure that owns the blocks.
        structure: &'static str,
    },
    /// An entry names an inode that is not in use.
    EntryToUnused {
        /// The entry's name.
        name: Vec<u8>,
        /// The inode.
        target: InodeNo,
    },
    /// An entry names an inode that must not have a name, such as an internal file.
    EntryToInvalid {
        /// The entry's name.
        name: Vec<u8>,
        /// The inode.
        target: InodeNo,
    },
    /// The type in an entry differs from the type of the inode.
    EntryType {
        /// The entry's name.
        name: Vec<u8>,
        /// The type in the entry.
        stored: u8,
        /// The inode's type.
        actual: FileType,
    },
    /// A name is not valid.
    BadName {
        /// The name.
        name: Vec<u8>,
    },
    /// A name appears twice in the directory.
    DuplicateName {
        /// The name.
        name: Vec<u8>,
    },
    /// A directory has a second name, but a directory may have only one name.
    SecondName {
        /// The name.
        name: Vec<u8>,
        /// The directory that the name refers to.
        target: InodeNo,
    },
    /// A name is in a hash-tree leaf that does not cover the name's hash. Lookups do not find this name.
    WrongLeaf {
        /// The name.
        name: Vec<u8>,
        /// The hash of the name.
        hash: u32,
    },
    /// The directory's first entries are not `.` and `..`.
    MissingDots,
    /// `..` does not name the directory that contains this directory.
    WrongParent {
        /// The inode in `..`.
        stored: InodeNo,
        /// The directory that contains this directory.
        actual: InodeNo,
    },
    /// An inode in use cannot be reached from the root.
    Unconnected,
    /// The number of names differs from the link count.
    LinkCount {
        /// The link count in the inode (`i_links_count`).
        stored: u32,
        /// The number of names that the check found.
        names: u32,
    },
    /// The bitmap marks a range as free, but the range is in use.
    MarkedFree {
        /// The first block or inode of the range.
        first: u64,
        /// The number of blocks or inodes in the range.
        count: u64,
    },
    /// The bitmap marks a range as used, but no structure uses it.
    MarkedUsed {
        /// The first block or inode of the range.
        first: u64,
        /// The number of blocks or inodes in the range.
        count: u64,
    },
    /// A structure records values that differ from the values that the check computed.
    Records {
        /// The difference, in words.
        what: String,
    },
    /// A quota file records a usage that differs from the actual usage.
    Usage {
        /// The id of the user, group or project.
        id: u32,
        /// The recorded and the actual number of bytes.
        bytes: (u64, u64),
        /// The recorded and the actual number of inodes.
        inodes: (u64, u64),
    },
    /// A backup superblock is damaged, or a constant field differs from the primary superblock.
    Backup,
    /// Inodes without a name that the next mount removes or truncates.
    Orphans {
        /// The number of orphans.
        count: u64,
    },
    /// The journal was recovered in memory, and the check reads the recovered volume.
    Recovered {
        /// The number of committed transactions.
        transactions: u32,
    },
    /// The superblock records errors.
    RecordedErrors {
        /// The number of errors.
        count: u32,
    },
    /// A structure was not checked.
    NotChecked {
        /// The structure that was not checked, and the reason.
        what: &'static str,
    },
}

impl Kind {
    /// The severity of this kind of finding.
    pub(in crate::fs) fn severity(&self) -> Severity {
        match self {
            Self::Backup
            | Self::Orphans { .. }
            | Self::Recovered { .. }
            | Self::RecordedErrors { .. }
            | Self::NotChecked { .. } => Severity::Note,
            Self::Unreadable { .. }
            | Self::Outside { .. }
            | Self::ClaimedTwice { .. }
            | Self::ClaimsMetadata { .. }
            | Self::EntryToUnused { .. }
            | Self::Damaged { .. } => Severity::DataLoss,
            _ => Severity::Repairable,
        }
    }
}

impl Kind {
    /// The machine-readable name, such as `checksum` or `claimed_twice`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::Checksum { .. } => "checksum",
            Self::Value { .. } => "value",
            Self::Invalid { .. } => "invalid",
            Self::Damaged { .. } => "damaged",
            Self::Outside { .. } => "outside",
            Self::ClaimedTwice { .. } => "claimed_twice",
            Self::ClaimsMetadata { .. } => "claims_metadata",
            Self::EntryToUnused { .. } => "entry_to_unused",
            Self::EntryToInvalid { .. } => "entry_to_invalid",
            Self::EntryType { .. } => "entry_type",
            Self::BadName { .. } => "bad_name",
            Self::DuplicateName { .. } => "duplicate_name",
            Self::SecondName { .. } => "second_name",
            Self::WrongLeaf { .. } => "wrong_leaf",
            Self::MissingDots => "missing_dots",
            Self::WrongParent { .. } => "wrong_parent",
            Self::Unconnected => "unconnected",
            Self::LinkCount { .. } => "link_count",
            Self::MarkedFree { .. } => "marked_free",
            Self::MarkedUsed { .. } => "marked_used",
            Self::Records { .. } => "records",
            Self::Usage { .. } => "usage",
            Self::Backup => "backup",
            Self::Orphans { .. } => "orphans",
            Self::Recovered { .. } => "recovered",
            Self::RecordedErrors { .. } => "recorded_errors",
            Self::NotChecked { .. } => "not_checked",
        }
    }

    /// The start of the finding's text: the name of a directory entry, or a range of numbers. `None` for all other findings.
    fn subject(&self) -> Option<String> {
        match self {
            Self::EntryToUnused { name, .. }
            | Self::EntryToInvalid { name, .. }
            | Self::EntryType { name, .. }
            | Self::BadName { name }
            | Self::DuplicateName { name }
            | Self::SecondName { name, .. }
            | Self::WrongLeaf { name, .. } => Some(format!("{:?}", String::from_utf8_lossy(name))),
            Self::Outside { block, count }
            | Self::ClaimedTwice { block, count }
            | Self::ClaimsMetadata { block, count, .. } => {
                Some(Run("block", *block, *count).to_string())
            }
            Self::MarkedFree { first, count } | Self::MarkedUsed { first, count } => {
                Some(Run("number", *first, *count).to_string())
            }
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = self.subject() {
            write!(f, "{subject} ")?;
        }
        match self {
            Self::Unreadable { error } => write!(f, "cannot be read: {error}"),
            Self::Checksum { stored, computed } => {
                write!(f, "checksum is {stored:#x} on disk, and {computed:#x} for this content")
            }
            Self::Value { stored, expected } => write!(f, "{stored}, should be {expected}"),
            Self::Invalid { stored, rule } => write!(f, "{stored}: {rule}"),
            Self::Damaged { what } | Self::Records { what } => f.write_str(what),
            Self::Outside { .. } => f.write_str("outside the volume"),
            Self::ClaimedTwice { .. } => f.write_str("also in use by another structure"),
            Self::ClaimsMetadata { structure, .. } => write!(f, "also in use by the {structure}"),
            Self::EntryToUnused { target, .. } => {
                write!(f, "names inode {target}, which is not in use")
            }
            Self::EntryToInvalid { target, .. } => {
                write!(f, "names inode {target}, which must not have a name")
            }
            Self::EntryType { stored, actual, .. } => {
                write!(f, "records type {stored}, but the inode is a {actual:?}")
            }
            Self::BadName { .. } => f.write_str("is not a valid name"),
            Self::DuplicateName { .. } => f.write_str("is in the directory more than once"),
            Self::SecondName { target, .. } => {
                write!(f, "is a second name of directory inode {target}")
            }
            Self::WrongLeaf { hash, .. } => {
                write!(f, "with hash {hash:#010x} is in the wrong leaf of the hash tree")
            }
            Self::MissingDots => f.write_str("the first entries are not . and .."),
            Self::WrongParent { stored, actual } => {
                write!(f, ".. names inode {stored}, but should name inode {actual}")
            }
            Self::Unconnected => {
                f.write_str("the inode is in use, but not reachable from the root")
            }
            Self::LinkCount { stored, names } => write!(f, "{stored} links, but {names} names"),
            Self::MarkedFree { .. } => f.write_str("marked as free, but in use"),
            Self::MarkedUsed { .. } => f.write_str("marked as in use, but free"),
            Self::Usage { id, bytes, inodes } => write!(
                f,
                "the record of id {id} has {} bytes and {} inodes, but id {id} uses {} bytes and {} inodes",
                bytes.0, inodes.0, bytes.1, inodes.1
            ),
            Self::Backup => {
                f.write_str("the backup differs from the primary superblock, or is damaged")
            }
            Self::Orphans { count } => {
                write!(f, "{count} orphan inodes, which the next mount removes or truncates")
            }
            Self::Recovered { transactions } => {
                write!(f, "{transactions} transactions of the journal were recovered in memory")
            }
            Self::RecordedErrors { count } => {
                write!(f, "{count} errors recorded in the superblock")
            }
            Self::NotChecked { what } => write!(f, "not checked: {what}"),
        }
    }
}

/// A single number, or a range of consecutive numbers.
struct Run(&'static str, u64, u64);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what, first, count) = *self;
        match count {
            0 | 1 => write!(f, "{what} {first}"),
            _ => write!(f, "{what}s {first} to {}", first.saturating_add(count - 1)),
        }
    }
}

/// A finding. `Display` writes the severity, the place and the fault in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The place.
    pub site: FindingSite,
    /// The kind of fault.
    pub what: Kind,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.site, self.what)
    }
}

/// The findings of a running check.
#[derive(Debug, Default)]
pub(in crate::fs) struct Findings {
    pub(in crate::fs) list: Vec<Finding>,
    /// The number of findings by severity.
    pub(in crate::fs) counts: [u64; 4],
}

impl Findings {
    /// The maximum number of findings in memory. Further findings are only counted.
    const KEPT: usize = 100_000;

    /// The report of the check, with the numbers of used inodes, directories and blocks.
    pub(in crate::fs) fn report(self, inodes: u64, directories: u64, blocks: u64) -> super::Report {
        super::Report { findings: self.list, counts: self.counts, inodes, directories, blocks }
    }

    pub(in crate::fs) fn add(&mut self, site: impl Into<FindingSite>, what: Kind) {
        self.keep(None, site.into(), what);
    }

    /// Adds a finding whose severity differs from the usual severity of its kind.
    pub(in crate::fs) fn add_as(
        &mut self,
        severity: Severity,
        site: impl Into<FindingSite>,
        what: Kind,
    ) {
        self.keep(Some(severity), site.into(), what);
    }

    /// Adds a finding if a volume of `size` bytes extends past the end of its truncated device.
    pub(in crate::fs) fn check_end(&mut self, device: &dyn Device, size: u64) {
        let stored = device.stored();
        if stored < size {
            let what = format!("the volume has {size} bytes, but the device ends at byte {stored}");
            self.add(Place::new("superblock"), Kind::Damaged { what });
        }
    }

    /// Adds a finding. This function is cold and never inlined. Hundreds of places can report a fault, but most volumes have none.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, severity: Option<Severity>, site: FindingSite, what: Kind) {
        let severity = severity.unwrap_or_else(|| what.severity());
        self.counts[severity as usize] += 1;
        if self.list.len() < Self::KEPT {
            self.list.push(Finding { severity, site, what });
        }
    }

    /// Adds a finding with a text, for a fault that loses no data.
    pub(in crate::fs) fn wrong(&mut self, site: impl Into<FindingSite>, what: impl Into<String>) {
        self.add_as(Severity::Repairable, site, Kind::Damaged { what: what.into() });
    }

    /// Adds a finding with the text of an error that occurred during a read. The place of the finding is the place of the error. If the
    /// error has no place, the place of the finding is `site`.
    pub(in crate::fs) fn error(&mut self, site: impl Into<FindingSite>, error: &Error) {
        self.keep_error(site.into(), error);
    }

    #[cold]
    #[inline(never)]
    fn keep_error(&mut self, mut site: FindingSite, error: &Error) {
        if let Some(place) = error.place() {
            site.place = *place;
        }
        let what = match error.kind() {
            crate::error::ErrorKind::Io(_) => Kind::Unreadable { error: error.to_string() },
            _ => Kind::Damaged { what: error.what().to_owned() },
        };
        self.add(site, what);
    }

    /// Compares a value with the expected value and adds a finding if they differ. Returns whether they are equal.
    pub(in crate::fs) fn expect(
        &mut self,
        site: impl Into<FindingSite>,
        stored: impl Into<u64>,
        expected: impl Into<u64>,
    ) -> bool {
        let (stored, expected) = (stored.into(), expected.into());
        if stored != expected {
            self.differs(site.into(), stored, expected);
        }
        stored == expected
    }

    #[cold]
    #[inline(never)]
    fn differs(&mut self, site: FindingSite, stored: u64, expected: u64) {
        self.keep(None, site, Kind::Value { stored, expected });
    }

    /// Compares two checksums and adds a finding if they differ. Returns whether they are equal.
    pub(in crate::fs) fn checksum(
        &mut self,
        site: impl Into<FindingSite>,
        stored: u32,
        computed: u32,
    ) -> bool {
        if stored != computed {
            self.add(site, Kind::Checksum { stored, computed });
        }
        stored == computed
    }
}
