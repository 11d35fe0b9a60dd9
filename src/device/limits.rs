//! Limits of a device.

/// Limits and promises of a device. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The device refuses all writes, however it is opened.
    pub read_only: bool,
    /// Offsets and lengths of direct requests are multiples of this.
    pub logical_block: u32,
    /// The unit that the device writes without a read-modify-write of its own.
    pub physical_block: u32,
    /// Memory of direct requests is aligned to this.
    pub dma_align: u32,
    /// The largest single request.
    pub max_transfer: u32,
    /// Force-unit-access writes reach the medium without a flush.
    pub fua: bool,
    /// Write-through requests that may flush the device beside their own work.
    pub through_flushes: ThroughFlushes,
    /// There is a volatile cache: a flush is needed for durability.
    pub volatile_cache: bool,
    /// The device computes over the data (checksums, parity): memory must not change during a write.
    pub stable_writes: bool,
    /// `RWF_NOWAIT` is understood; without it an io_uring request is punted to a worker thread.
    pub nowait: bool,
    /// The device has poll queues (`IOPOLL`, `RWF_HIPRI`).
    pub poll: bool,
    /// Requests go around the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Data that do not fit their tuples were already read once more, into memory that no other code can reach.
    pub rereads: bool,
    /// The longest write that is done wholly or not at all (`RWF_ATOMIC`); 0 where none is.
    pub atomic_write: u32,
}

/// Write-through requests that may flush a device beside their own work. If such a flush fails, the request alone gets the error, and the next
/// flush succeeds although data are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThroughFlushes {
    /// None.
    #[default]
    Never,
    /// Those that a call waits for, and none that is queued: so does the kernel on block devices with FUA.
    OfCalls,
    /// All, as the kernel does for files and for block devices without FUA.
    Always,
}
