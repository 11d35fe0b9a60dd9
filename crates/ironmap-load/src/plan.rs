//! The plan of one run of the benchmark. The process that starts the run makes the plan.

use serde::{Deserialize, Serialize};

use crate::positions::Rw;
use crate::target::TargetSpec;

/// The state of the blocks of the files before the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// The blocks are allocated and written.
    Written,
    /// The blocks are allocated as unwritten extents. The first write of a block converts its extent, so each block can be measured only
    /// once.
    Unwritten,
}

/// The work of one run of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The targets. All others are compared with the first target.
    pub targets: Vec<TargetSpec>,
    /// The name of the requested engine.
    pub engine: String,
    /// The kind of work.
    pub rw: Rw,
    /// The percentage of reads in a mix.
    pub reads: u8,
    /// The length of a request in bytes.
    pub block: usize,
    /// The number of files of each target.
    pub files: usize,
    /// The content to give the files before the measurement.
    pub content: Option<Content>,
    /// Whether each write is durable when it completes.
    pub dsync: bool,
    /// The number of writes of a thread between two syncs of the file. If it is 0, the file is never synced.
    pub fsync: u64,
    /// The number of requests in flight per thread.
    pub depth: u32,
    /// The number of threads.
    pub jobs: usize,
    /// The number of requests that are submitted together.
    pub batch_submit: usize,
    /// The number of completions for which a thread waits at once.
    pub batch_complete: usize,
    /// Whether the memory is registered with the queue.
    pub fixed_buffers: bool,
    /// Whether the data of each completed request are read.
    pub touch: bool,
    /// For host files on XFS, the caller promises that these files share no blocks with other files during the measurement.
    pub assume_no_dedupe: bool,
    /// The maximum length of the range that is used, in bytes.
    pub size: Option<u64>,
    /// The time to measure each target, in milliseconds.
    pub runtime_ms: u64,
    /// The CPUs that the threads are pinned to, in turn.
    pub cpus: Vec<usize>,
    /// To count instructions: the index of the only target to run, and the number of requests. The other targets are opened too, because
    /// the range of one target can depend on another target.
    pub only: Option<(usize, u64)>,
}

impl Plan {
    /// Whether each block is written only once, because a second write to the block would need less work.
    pub fn is_once(&self) -> bool {
        self.content == Some(Content::Unwritten)
    }
}
