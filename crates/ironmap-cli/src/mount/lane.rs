//! A thread's own way to the volume: a queue, and memory that is aligned as the device wants it.
//!
//! What the kernel brings lies behind a header of 80 bytes, and the caller's own memory is never seen: so each request goes through a
//! buffer of the thread's, which a strict file takes as it is.

use std::cell::RefCell;

use ironmap::bio::Buffer;
use ironmap::{Queue, QueueOptions, Volume};

/// The longest read or write that the kernel is told to send, in bytes.
pub(super) const MOST: usize = 1 << 20;

pub(super) struct Lane {
    pub(super) queue: Queue,
    buffer: Buffer,
}

thread_local! {
    /// A process serves one volume.
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

impl Lane {
    fn new(volume: &Volume) -> ironmap::Result<Self> {
        let queue = volume.queue(&QueueOptions::default())?;
        Ok(Self { queue, buffer: Buffer::aligned(MOST)? })
    }

    /// Works with the calling thread's lane.
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

    /// The queue, and this much memory.
    pub(super) fn parts(&mut self, len: usize) -> ironmap::Result<(&mut Queue, &mut [u8])> {
        if self.buffer.len() < len {
            self.buffer = Buffer::aligned(len)?;
        }
        Ok((&mut self.queue, &mut self.buffer[..len]))
    }
}
