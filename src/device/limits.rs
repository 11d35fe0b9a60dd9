//! The limits of a device.

/// The limits and promises of a device. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The device refuses all writes, even if it was opened for writing.
    pub read_only: bool,
    /// Offsets and lengths of direct requests are multiples of this size.
    pub logical_block: u32,
    /// The smallest unit that the device writes without reading and rewriting a longer unit.
    pub physical_block: u32,
    /// Memory for direct requests is aligned to this size.
    pub dma_align: u32,
    /// The longest single request.
    pub max_transfer: u32,
    /// The device supports FUA: a write with force unit access is durable without a flush.
    pub fua: bool,
    /// The write-through requests that may cause the device to be flushed.
    pub through_flushes: ThroughFlushes,
    /// The device has a volatile cache, so data become durable only with a flush.
    pub volatile_cache: bool,
    /// The device computes checksums or parity from the data, so the memory must not change during a write.
    pub stable_writes: bool,
    /// The device supports `RWF_NOWAIT`. If a device does not, the kernel passes each io_uring request to a worker thread.
    pub nowait: bool,
    /// The device has poll queues (`IOPOLL`, `RWF_HIPRI`).
    pub poll: bool,
    /// Requests bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// If the data of a read do not match their protection tuples, the device itself repeats the read, into memory that no other code can
    /// access.
    pub rereads: bool,
    /// The longest write that the device makes completely or not at all (`RWF_ATOMIC`); 0 if the device does not support atomic writes.
    pub atomic_write: u32,
}

impl Limits {
    /// Combines the limits of two devices that are joined into one device. A request within the combined limits is valid on both devices.
    pub(crate) fn joined(self, other: Self) -> Self {
        let logical_block = self.logical_block.max(other.logical_block);
        Self {
            read_only: self.read_only || other.read_only,
            logical_block,
            physical_block: self.physical_block.max(other.physical_block),
            dma_align: self.dma_align.max(other.dma_align),
            max_transfer: self.max_transfer.min(other.max_transfer).max(logical_block),
            fua: self.fua && other.fua,
            through_flushes: self.through_flushes.max(other.through_flushes),
            volatile_cache: self.volatile_cache || other.volatile_cache,
            stable_writes: self.stable_writes || other.stable_writes,
            atomic_write: self.atomic_write.min(other.atomic_write),
            nowait: false,
            poll: false,
            direct: self.direct && other.direct,
            rereads: self.rereads && other.rereads,
        }
    }
}

/// The write-through requests for which the kernel may also flush the device. If such a flush fails, the kernel reports the error only to
/// the write-through request. The next flush then succeeds, although data have been lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThroughFlushes {
    /// No request.
    #[default]
    Never,
    /// Requests by system calls, but not requests through io_uring. This is the kernel's behaviour on block devices with FUA.
    OfCalls,
    /// All requests. This is the kernel's behaviour for files and for block devices without FUA.
    Always,
}
