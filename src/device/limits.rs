//! Limits of a device.

/// The limits and promises of a device. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The device refuses all writes, regardless of the mode in which it is opened.
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
    /// The write-through requests that may flush the device as a side effect.
    pub through_flushes: ThroughFlushes,
    /// The device has a volatile cache, so durability needs a flush.
    pub volatile_cache: bool,
    /// The device computes over the data (checksums, parity), so memory must not change during a write.
    pub stable_writes: bool,
    /// The device supports `RWF_NOWAIT`. Without it the kernel punts an io_uring request to a worker thread.
    pub nowait: bool,
    /// The device has poll queues (`IOPOLL`, `RWF_HIPRI`).
    pub poll: bool,
    /// Requests go around the page cache (`O_DIRECT`).
    pub direct: bool,
    /// The device has already repeated a read whose data do not match their tuples, into memory that no other code can reach.
    pub rereads: bool,
    /// The longest write that the device carries out wholly or not at all (`RWF_ATOMIC`); 0 if the device has no atomic writes.
    pub atomic_write: u32,
}

/// The write-through requests that may flush a device as a side effect. If such a flush fails, only the request gets the error, and the next
/// flush succeeds although data are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThroughFlushes {
    /// No request.
    #[default]
    Never,
    /// Requests that are made by calls, but not queued requests. The kernel does this on block devices with FUA.
    OfCalls,
    /// All requests, as the kernel does for files and for block devices without FUA.
    Always,
}
