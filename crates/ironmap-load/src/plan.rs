//! The plan of one launch, made by the process that starts it.

use serde::{Deserialize, Serialize};

use crate::positions::Rw;
use crate::target::TargetSpec;

/// The state of the files before they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Allocated and written.
    Written,
    /// Allocated only: each block can be measured once.
    Unwritten,
}

/// The work of one launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The targets; the others are compared with the first one.
    pub targets: Vec<TargetSpec>,
    /// The name of the engine that serves them.
    pub engine: String,
    /// The work.
    pub rw: Rw,
    /// Of a hundred requests of a mix.
    pub reads: u8,
    /// Bytes of a request.
    pub block: usize,
    /// How many files of each target.
    pub files: usize,
    /// The content that the files get before they are measured.
    pub content: Option<Content>,
    /// Each write is durable when it completes.
    pub dsync: bool,
    /// The file is synced after so many writes of a job; 0 for never.
    pub fsync: u64,
    /// Requests in flight of a thread.
    pub depth: u32,
    /// Threads.
    pub jobs: usize,
    /// Requests that are submitted together.
    pub batch_submit: usize,
    /// Completions that are waited for together.
    pub batch_complete: usize,
    /// The memory is registered with the queue.
    pub fixed_buffers: bool,
    /// The memory of each request is looked at when it is complete.
    pub touch: bool,
    /// Of host files on XFS: none shares blocks with others from now on.
    pub assume_no_dedupe: bool,
    /// Limit of the range in bytes.
    pub size: Option<u64>,
    /// How long each target is measured, in milliseconds.
    pub runtime_ms: u64,
    /// The CPUs that the threads are pinned to, in turn.
    pub cpus: Vec<usize>,
    /// So many requests of the target of this index and nothing else, for counting instructions. The others are opened all the same: where
    /// one goes can depend on another.
    pub only: Option<(usize, u64)>,
}

impl Plan {
    /// Whether each block is written once, since it is another work the second time.
    pub fn is_once(&self) -> bool {
        self.content == Some(Content::Unwritten)
    }
}
