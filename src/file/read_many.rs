//! Batches of reads into borrowed memory. The reads of a batch are in flight at the same time. The call returns after the last read.
//!
//! A read of a batch must pass the gate for the simple path, which checks that one bio is enough. In a batch, a read may be as long as one
//! bio. Two kinds of reads are carried out separately after the batch: reads that do not pass the gate, and reads whose transfer failed or
//! was short.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::{Backing, File};
use crate::bio::Dev;
use crate::device::{DeviceQueue, LentPart};
use crate::dio::{self, DioFlags, Request, State};
use crate::error::Result;
use crate::open_file::Inside;
use crate::queue::Queue;
use crate::units::{DevOffset, FilePos};

/// The largest number of reads that are in flight at the same time. The descriptions of these reads fit on the stack.
const IN_FLIGHT: usize = 64;

/// One read of a batch.
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// The file.
    pub file: &'a File,
    /// The position in the file.
    pub pos: FilePos,
    /// The memory. The read fills all of it, unless the file ends before that.
    pub buf: &'a mut [u8],
    /// The number of bytes read, as [`File::read_at`] returns it.
    pub result: Result<usize>,
}

impl<'a> ReadAt<'a> {
    /// Describes a read that has not been carried out yet. Its result is 0 bytes.
    pub fn new(file: &'a File, buf: &'a mut [u8], pos: impl Into<FilePos>) -> Self {
        Self { file, pos: pos.into(), buf, result: Ok(0) }
    }
}

/// The reason why the mapping of a read in flight is valid.
pub(super) enum Proof<'q> {
    /// The map never changes.
    Always,
    /// The read has a lock on the file's content.
    Content { _inside: Inside<'q> },
    /// The mapping is valid if the lease on the host file is held without interruption until the read completes. The number identifies this
    /// period (a tenure).
    Tenure(u64),
}

/// A read whose device offset is known.
pub(super) struct Placed<'q> {
    pub(super) dev: Dev,
    pub(super) at: DevOffset,
    /// The longest transfer of the device.
    pub(super) most: usize,
    pub(super) proof: Proof<'q>,
}

/// A read in flight.
struct InFlight<'q, 'b> {
    read: usize,
    /// The index of the transfer that contains the read.
    part: usize,
    file: &'b File,
    len: usize,
    result: &'b mut Result<usize>,
    proof: Proof<'q>,
}

/// The reads in flight, and the transfers that contain them.
struct Batch<'q, 'b> {
    dev: Dev,
    reads: SmallVec<[InFlight<'q, 'b>; IN_FLIGHT]>,
    parts: SmallVec<[LentPart<'b>; IN_FLIGHT]>,
    /// One bit for each read. If the bit is set, the read must be carried out separately.
    alone: u64,
}

const _: () = assert!(IN_FLIGHT <= u64::BITS as usize);

impl Queue {
    /// Carries out all reads, and returns when all are complete. The reads can be from any files of the queue's volume or host. The memory
    /// is only borrowed. At most 64 reads are in flight. Each of them needs a slot of the queue. Each read has its own result.
    ///
    /// ```
    /// # use ironmap::prelude::*;
    /// # use ironmap::ReadAt;
    /// # fn main() -> ironmap::Result<()> {
    /// # let ram = std::sync::Arc::new(ironmap::device::Ram::new(8 << 20));
    /// # ironmap::tools::make(&*ram, &ironmap::fs::ext4::MkfsOptions::new())?;
    /// # let volume = VolumeOptions::new().write(true).open_on(ram)?;
    /// # volume.write("/file", &[7; 100_000])?;
    /// # let file = volume.open("/file")?;
    /// # let mut queue = volume.queue(&QueueOptions::new())?;
    /// let mut pages = vec![0; 4 * 4096]; // better aligned memory: a Buffer, or an engine's pool
    /// let positions = [0, 65_536, 8192, 40_960];
    /// let mut reads: Vec<_> = pages
    ///     .chunks_mut(4096)
    ///     .zip(positions)
    ///     .map(|(page, position)| ReadAt::new(&file, page, position))
    ///     .collect();
    /// queue.read_many(&mut reads);
    /// for read in reads {
    ///     assert_eq!(read.result?, 4096);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_many(&mut self, reads: &mut [ReadAt<'_>]) {
        self.read_many_with(reads, DioFlags::empty());
    }

    /// Carries out all reads as [`read_many`](Self::read_many) does. The flags apply to each read.
    pub fn read_many_with(&mut self, reads: &mut [ReadAt<'_>], flags: DioFlags) {
        self.read_batches(reads, flags, false);
    }

    /// Carries out all reads as [`read_many`](Self::read_many) does. Consecutive reads that are adjacent on the device are merged to one
    /// request, up to the longest request of the device.
    pub fn read_merged(&mut self, reads: &mut [ReadAt<'_>]) {
        self.read_batches(reads, DioFlags::empty(), true);
    }

    fn read_batches(&mut self, reads: &mut [ReadAt<'_>], flags: DioFlags, merge: bool) {
        for reads in reads.chunks_mut(IN_FLIGHT) {
            let mut alone = self.read_together(reads, flags, merge);
            while alone != 0 {
                let ReadAt { file, pos, buf, result } = &mut reads[alone.trailing_zeros() as usize];
                // This call adds little code to the program, because one copy of `read_vectored_at` serves all kinds of devices.
                let bufs = &mut [IoSliceMut::new(buf)];
                *result = file.read_vectored_at(self, bufs, *pos, flags);
                alone &= alone - 1;
            }
        }
    }

    /// Carries out the reads that need only one bio. Returns one bit for each read that must be carried out separately.
    fn read_together(&mut self, reads: &mut [ReadAt<'_>], flags: DioFlags, merge: bool) -> u64 {
        let Self { device, state, lanes, views, .. } = self;
        let (lanes, views) = (lanes.as_deref(), &*views);
        let owner = self.owner;
        let mut batch =
            Batch { dev: Dev::OWN, reads: SmallVec::new(), parts: SmallVec::new(), alone: 0 };
        for (index, read) in reads.iter_mut().enumerate() {
            let request = Request::read(read.pos, read.buf.len(), flags);
            let address = read.buf.as_ptr().addr();
            let placed = match &read.file.backing {
                Backing::Volume(file) => file.place(owner, state, &request, address),
                Backing::Live(file) => file.place_read(views, state, &request, address),
                Backing::Host(file) => file.place(owner, lanes, state, &request, address),
            };
            match placed {
                Some(placed) => {
                    if batch.dev != placed.dev {
                        batch.complete(device, state, flags);
                        batch.dev = placed.dev;
                    }
                    batch.add(index, read, placed, merge);
                }
                None => batch.alone |= 1 << index,
            }
        }
        batch.complete(device, state, flags);
        batch.alone
    }
}

impl<'q, 'b> Batch<'q, 'b> {
    /// Adds a read to the batch. If the read is adjacent to the last transfer and may be merged, extends this transfer. If not, adds a new
    /// transfer.
    fn add(
        &mut self,
        read: usize,
        description: &'b mut ReadAt<'_>,
        placed: Placed<'q>,
        merge: bool,
    ) {
        let ReadAt { file, buf, result, .. } = description;
        let len = buf.len();
        let Placed { at, most, proof, .. } = placed;
        let last = self.parts.last_mut().filter(|part| {
            merge && part.at.0 + part.len() as u64 == at.0 && part.len() + len <= most
        });
        match last {
            Some(part) => part.bufs.push(IoSliceMut::new(buf)),
            None => {
                let bufs = SmallVec::from_iter([IoSliceMut::new(buf)]);
                self.parts.push(LentPart::new(bufs, at));
            }
        }
        let part = self.parts.len() - 1;
        self.reads.push(InFlight { read, part, file, len, result, proof });
    }

    /// Carries out the transfers, and records the results of their reads. The function is not inlined, because its code is large and exists
    /// for each kind of device. There is only one call for each batch.
    #[inline(never)]
    fn complete<Q: DeviceQueue>(&mut self, queue: &mut Q, state: &mut State, flags: DioFlags) {
        dio::read_parts_now(queue, state, self.dev, &mut self.parts, flags);
        for read in self.reads.drain(..) {
            let part = &self.parts[read.part];
            if part.result == Ok(part.len()) && read.is_valid(state) {
                *read.result = Ok(read.len);
            } else {
                self.alone |= 1 << read.read;
            }
        }
        self.parts.clear();
    }
}

impl InFlight<'_, '_> {
    /// Whether the mapping was valid until the read was complete.
    fn is_valid(&self, state: &mut State) -> bool {
        match (&self.proof, &self.file.backing) {
            (Proof::Tenure(tenure), Backing::Host(file)) => file.stayed_valid(state, *tenure),
            _ => true,
        }
    }
}
