//! The plan of one launch, made by the process that starts it.

use serde::{Deserialize, Serialize};

use crate::positions::Rw;
use crate::target::TargetSpec;

/// The state of the files before the measurement.
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
    /// The targets. All are compared with the first one.
    pub targets: Vec<TargetSpec>,
    /// The name of the requested engine.
    pub engine: String,
    /// The kind of work.
    pub rw: Rw,
    /// The percentage of reads in a mix.
    pub reads: u8,
    /// The bytes of a request.
    pub block: usize,
    /// The number of files of each target.
    pub files: usize,
    /// The content to give the files before the measurement.
    pub content: Option<Content>,
    /// Each write is durable when it completes.
    pub dsync: bool,
    /// The number of writes of a job between two syncs of the file; 0 if the file is never synced.
    pub fsync: u64,
    /// The requests in flight per thread.
    pub depth: u32,
    /// The number of threads.
    pub jobs: usize,
    /// Requests that are submitted together.
    pub batch_submit: usize,
    /// Completions that are waited for together.
    pub batch_complete: usize,
    /// Whether the memory is registered with the queue.
    pub fixed_buffers: bool,
    /// Whether the data of each completed request are read.
    pub touch: bool,
    /// The caller's promise for host files on XFS: from now on they share no blocks with other files.
    pub assume_no_dedupe: bool,
    /// The limit of the range in bytes.
    pub size: Option<u64>,
    /// The time to measure each target, in milliseconds.
    pub runtime_ms: u64,
    /// The CPUs that the threads are pinned to, in turn.
    pub cpus: Vec<usize>,
    /// The index of the only target to run, and its number of requests, to count instructions. The other targets are opened too, because the
    /// position of one can depend on another.
    pub only: Option<(usize, u64)>,
}

impl Plan {
    /// Whether each block is written only once, because a second write is different work.
    pub fn is_once(&self) -> bool {
        self.content == Some(Content::Unwritten)
    }
}
