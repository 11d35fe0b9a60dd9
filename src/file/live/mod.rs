//! A file of a volume that is open for writing. The inode and the content of the file can change.
//!
//! Each queue has a view of the file: a copy of the inode's size and map. The view is valid until the change counter of the inode changes.
//! A read or an overwrite locks the content through the lane of its queue. The lane is a counter that only this queue writes. Then the
//! request compares the inode's change counter with the counter of the view. If the two counters are equal, the request goes to the device.
//! Such a request acquires no lock to which other threads write.

mod append;
mod copied;
mod prepare;
mod read;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod target;
#[cfg(test)]
mod tests;
mod unaligned;
mod write;

use std::ops::Range;
use std::sync::Arc;

use crate::dio::{Geometry, Hold};
use crate::error::{Error, Result};
use crate::file::FileOptions;
use crate::fs::{Held, KeepSetId};
use crate::iomap::{Contended, Iomap, IomapType, WriteAt, WriteIntent};
use crate::open_file::{
    CommitTimer, Entered, FileHandle, FileIndexes, InFlight, Owner, Ticket, View,
};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// An open file of a volume that is open for writing.
#[derive(Clone)]
pub(crate) struct LiveFile {
    handle: Arc<FileHandle>,
    strict: bool,
    writing: Writing,
    volume: Owner,
    geometry: Geometry,
}

/// The positions to which a handle can write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// The handle can only read.
    Nowhere,
    /// Each write is made at the position that the caller requests.
    Anywhere,
    /// Each write is an append.
    AtEnd,
}

impl Writing {
    fn of(options: &FileOptions) -> Self {
        match (options.append, options.write) {
            (true, _) => Self::AtEnd,
            (false, true) => Self::Anywhere,
            (false, false) => Self::Nowhere,
        }
    }

    /// Returns the position of a write through this handle. `at` is the position that the caller requests. Fails if the handle can only
    /// read.
    fn admit(self, at: WriteAt) -> Result<WriteAt> {
        match self {
            Self::Anywhere => Ok(at),
            Self::AtEnd => Ok(WriteAt::End),
            Self::Nowhere => Err(Error::read_only("the file was opened for reading only")),
        }
    }
}

/// How a request locks a range of the content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Shared,
    Exclusive,
}

impl LiveFile {
    /// Creates the open file from a handle. Returns `None` if the volume is read-only.
    pub(crate) fn new(
        held: &Held,
        timer: Option<CommitTimer>,
        options: FileOptions,
        volume: Owner,
        geometry: Geometry,
        indexes: &Arc<FileIndexes>,
    ) -> Option<Self> {
        let file = held.writes()?;
        let mut intent = WriteIntent::empty();
        intent.set(WriteIntent::KEEP_SET_ID, options.keep_set_id == KeepSetId::Yes);
        intent.set(WriteIntent::WRITE_BACK, options.write_back);
        let writing = Writing::of(&options);
        let overwrites = writing == Writing::Anywhere;
        let handle = FileHandle::new(held.number(), file, indexes, timer, intent, overwrites);
        Some(Self { handle: Arc::new(handle), strict: options.direct, writing, volume, geometry })
    }

    pub(super) fn number(&self) -> InodeNo {
        self.handle.number
    }

    pub(super) fn size(&self) -> u64 {
        self.handle.file.size().unwrap_or(0)
    }

    pub(super) fn appends(&self) -> bool {
        self.writing == Writing::AtEnd
    }

    /// Returns the mapping that contains a position. Parts of unwritten extents may already contain data, although the metadata do not
    /// record this yet. These parts count as written.
    pub(super) fn map(&self, pos: FilePos) -> Result<Iomap> {
        let open = &self.handle.inode;
        loop {
            let (iomap, changes) = self.handle.file.map(pos)?;
            if iomap.kind != IomapType::Unwritten {
                return Ok(iomap);
            }
            if let Some(refined) = open.pending.refine(iomap, pos, || open.changes() != changes) {
                return Ok(refined);
            }
        }
    }

    pub(super) fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.handle.file.read_inline(buf, pos)
    }

    /// Locks a range of the content. For shared access, the queue normally increments its own counter (its lane). If an exclusive lock does
    /// not permit this at the moment, and for exclusive access, a range lock is used.
    fn enter(
        &self,
        queue: &mut Queue,
        range: Range<u64>,
        access: Access,
        nowait: bool,
    ) -> Result<Entered> {
        let file = queue.state.files.learn(&self.handle);
        let hold = if access == Access::Shared && file.enter() {
            Hold::Lane
        } else {
            let ticket = self.handle.inode.content.ask(range, access == Access::Exclusive);
            self.wait_for(queue, ticket, nowait)?;
            Hold::Range(ticket)
        };
        Ok(Entered::new(file, hold))
    }

    /// Returns the queue's copy of the file's size and map (the view). If the inode has changed, first updates this copy.
    fn current<'q>(&self, queue: &'q mut Queue, nowait: bool) -> Result<&'q View> {
        queue.views.current(&mut queue.state.files, &self.handle, nowait)
    }

    /// Waits until the range is locked. First completes the requests of this queue that are in flight, because other threads may wait for
    /// the locks of these requests.
    fn wait_for(&self, queue: &mut Queue, ticket: Ticket, nowait: bool) -> Result<()> {
        let content = &self.handle.inode.content;
        if !nowait && !content.has(&ticket) {
            self.handle.file.contended(Contended::Waited);
        }
        while !content.has(&ticket) {
            let waited = if nowait {
                Err(Error::would_block("another request has locked this range of the file"))
            } else if queue.state.files.is_idle() {
                InFlight::none_here().and_then(|()| content.wait(&ticket))
            } else {
                queue.pump()
            };
            if let Err(error) = waited {
                content.give_back(ticket);
                return Err(error);
            }
        }
        Ok(())
    }
}
