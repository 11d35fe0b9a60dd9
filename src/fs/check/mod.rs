//! The result and the progress of a check of a volume. All formats use these types.

mod finding;

pub(in crate::fs) use finding::Findings;
pub use finding::{Finding, FindingSite, Kind, Severity};

/// The current pass of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The superblock, the group headers, the journal and the orphans. Progress is counted in groups.
    Groups,
    /// Inodes, their maps and their attributes. Progress is counted in groups.
    Inodes,
    /// Directory entries and their indexes. Progress is counted in directories.
    Directories,
    /// Paths to the root, and link counts. Progress is counted in groups.
    Names,
    /// Free space, owners of blocks, and counters. Progress is counted in groups.
    Space,
}

/// The progress of a check: the current pass, and the number of finished units of this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The pass.
    pub pass: Pass,
    /// The number of finished units of the pass.
    pub done: u64,
    /// The total number of units of the pass.
    pub of: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The first 100,000 findings, in order of discovery.
    pub findings: Vec<Finding>,
    /// The number of findings of each severity. Index 0 is the number of [`Severity::Note`].
    pub counts: [u64; 4],
    /// Inodes in use.
    pub inodes: u64,
    /// Directories in use.
    pub directories: u64,
    /// Blocks in use, counted in whole clusters.
    pub blocks: u64,
}

impl Report {
    /// Whether the volume has no fault. Notes are not faults.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Note)
    }

    /// The worst severity among the findings.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let all = [Severity::Note, Severity::Repairable, Severity::DataLoss, Severity::Fatal];
        all.into_iter().rev().find(|severity| self.count(*severity) > 0)
    }

    /// The number of findings of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> u64 {
        self.counts[severity as usize]
    }
}
