//! The I/O resources of a thread: a queue, and memory with the alignment that the device needs.
//!
//! In a request of the kernel, the data begin after a header of 80 bytes. Therefore they are not aligned. The server cannot access the
//! memory of the calling program. Therefore the data of each request are copied to or from a buffer of the thread. This buffer has the
//! alignment for `O_DIRECT`.

use std::cell::RefCell;

use ironmap::bio::Buffer;
use ironmap::{Queue, QueueOptions, Volume};

/// The longest read or write that the kernel may send, in bytes.
pub(super) const MOST: usize = 1 << 20;

pub(super) struct Lane {
    pub(super) queue: Queue,
    buffer: Buffer,
}

thread_local! {
    /// Each thread has one `Lane` (a queue and a buffer). One is enough, because the process serves only one volume.
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

impl Lane {
    fn new(volume: &Volume) -> ironmap::Result<Self> {
        let queue = volume.queue(&QueueOptions::default())?;
        Ok(Self { queue, buffer: Buffer::aligned(MOST)? })
    }

    /// Runs `work` with the queue and the buffer of the calling thread.
    pub(super) fn with<T>(
        volume: &Volume,
        work: impl FnOnce(&mut Self) -> ironmap::Result<T>,
    ) -> ironmap::Result<T> {
        LANE.with_borrow_mut(|lane| {
            let lane = match lane {
                Some(lane) => lane,
                None => lane.insert(Self::new(volume)?),
            };
            work(lane)
        })
    }

    /// The queue, and `len` bytes of the buffer.
    pub(super) fn parts(&mut self, len: usize) -> ironmap::Result<(&mut Queue, &mut [u8])> {
        if self.buffer.len() < len {
            self.buffer = Buffer::aligned(len)?;
        }
        Ok((&mut self.queue, &mut self.buffer[..len]))
    }
}
