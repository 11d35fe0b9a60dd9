//! The plan of one launch, made by the process that starts it.

use serde::{Deserialize, Serialize};

use super::positions::Rw;
use super::target::TargetSpec;

/// The state of the files before they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// Allocated and written.
    Written,
    /// Allocated only: each block can be measured once.
    Unwritten,
}

/// The work of one launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub targets: Vec<TargetSpec>,
    pub engine: String,
    pub rw: Rw,
    /// Of a hundred requests of a mix.
    pub reads: u8,
    pub block: usize,
    /// How many files of each target.
    pub files: usize,
    /// The content that the files get before they are measured.
    pub content: Option<Content>,
    /// Each write is durable when it completes.
    pub dsync: bool,
    /// The file is synced after so many writes of a job; 0 for never.
    pub fsync: u64,
    pub depth: u32,
    pub jobs: usize,
    pub batch_submit: usize,
    pub batch_complete: usize,
    pub fixed_buffers: bool,
    pub touch: bool,
    pub assume_no_dedupe: bool,
    /// Limit of the range in bytes.
    pub size: Option<u64>,
    pub runtime_ms: u64,
    pub cpus: Vec<usize>,
    /// So many requests of the target of this index and nothing else, for counting instructions. The others are opened all the same: where
    /// one goes can depend on another.
    pub only: Option<(usize, u64)>,
}

impl Plan {
    /// Whether each block is written once, since it is another work the second time.
    pub(super) fn is_once(&self) -> bool {
        self.content == Some(Content::Unwritten)
    }
}
