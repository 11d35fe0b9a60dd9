//! A file of a volume that is open for writing: its inode changes, and so does its content.
//!
//! Each queue has a view of the file: the inode as it was last read, which is valid while the number of changes stays the same. Reads and
//! overwrites enter the content by the queue's lane, check that number, and go to the device. They take no lock to which other threads
//! write.

mod append;
mod copied;
mod read;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod target;
#[cfg(test)]
mod tests;
mod unaligned;
mod write;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::dio::{Geometry, Hold};
use crate::error::{Error, Result};
use crate::file::FileOptions;
use crate::fs::{Held, KeepSetId};
use crate::iomap::{Contended, Iomap, IomapType, WriteAt, WriteFile, WriteIntent};
use crate::open_file::Owner;
use crate::open_file::{InFlight, OpenHandle, OpenInode, QueueFiles, Ticket, View, Viewed, Views};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// An open file that can change.
#[derive(Clone)]
pub(crate) struct LiveFile(Arc<Live>);

pub(crate) struct Live {
    /// The identity of the file. No other file ever gets it.
    id: u64,
    index: FileIndex,
    /// The timer that commits written data regularly, even if the file outlives its volume's last handle. It is declared before the inode
    /// that is held, because the timer's thread must not be the last owner of the file system.
    _timer: Option<Arc<dyn Any + Send + Sync>>,
    file: Arc<dyn WriteFile>,
    open: Arc<OpenInode>,
    held: Held,
    number: InodeNo,
    strict: bool,
    writing: Writing,
    /// The options of all writes by this handle.
    intent: WriteIntent,
    volume: Owner,
    geometry: Geometry,
}

/// The positions at which a handle writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// The handle only reads.
    Nowhere,
    /// Each write has a position.
    Anywhere,
    /// Each write goes to the end of the file.
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

    /// The position of a write that requests the position `at`.
    fn admit(self, at: WriteAt) -> Result<WriteAt> {
        match self {
            Self::Anywhere => Ok(at),
            Self::AtEnd => Ok(WriteAt::End),
            Self::Nowhere => Err(Error::read_only("the file was opened for reading")),
        }
    }
}

/// The numbers of a volume's open files. They are small, because queues use them as indexes of their views.
#[derive(Debug, Default)]
pub(crate) struct FileIndexes(Mutex<(u32, Vec<u32>)>);

struct FileIndex {
    indexes: Arc<FileIndexes>,
    number: u32,
}

impl FileIndex {
    fn take(indexes: &Arc<FileIndexes>) -> Self {
        let mut inner = indexes.0.lock();
        let number = inner.1.pop().unwrap_or_else(|| {
            inner.0 += 1;
            inner.0 - 1
        });
        Self { indexes: Arc::clone(indexes), number }
    }
}

impl Drop for FileIndex {
    fn drop(&mut self) {
        self.indexes.0.lock().1.push(self.number);
    }
}

impl Live {
    /// A queue's view of the file, current or not.
    #[inline(always)]
    fn view<'q>(&self, views: &'q Views) -> Option<&'q View> {
        views.get(self.index.number, self.id)
    }

    /// A queue's view of the file, made current.
    fn current<'q>(
        &self,
        views: &'q mut Views,
        files: &mut QueueFiles,
        nowait: bool,
    ) -> Result<&'q View> {
        views.current(files, &self.viewed(), nowait)
    }

    fn viewed(&self) -> Viewed<'_> {
        Viewed {
            id: self.id,
            index: self.index.number,
            number: self.number,
            open: &self.open,
            file: &self.file,
            intent: self.intent,
            overwrites: self.writing == Writing::Anywhere,
        }
    }
}

impl OpenHandle for Live {
    fn id(&self) -> u64 {
        self.id
    }

    fn number(&self) -> InodeNo {
        self.number
    }

    fn inode(&self) -> &OpenInode {
        &self.open
    }

    fn file(&self) -> &dyn WriteFile {
        &*self.file
    }
}

impl LiveFile {
    /// Creates the file. `None` on a read-only volume.
    pub(crate) fn new(
        held: Held,
        timer: Option<Arc<dyn Any + Send + Sync>>,
        options: FileOptions,
        volume: Owner,
        geometry: Geometry,
        indexes: &Arc<FileIndexes>,
    ) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (open, file) = held.writes()?;
        let mut intent = WriteIntent::empty();
        intent.set(WriteIntent::KEEP_SET_ID, options.keep_set_id == KeepSetId::Yes);
        intent.set(WriteIntent::WRITE_BACK, options.write_back);
        Some(Self(Arc::new(Live {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            index: FileIndex::take(indexes),
            _timer: timer,
            file,
            open,
            number: held.number(),
            held,
            strict: options.direct,
            writing: Writing::of(&options),
            intent,
            volume,
            geometry,
        })))
    }

    pub(super) fn number(&self) -> InodeNo {
        self.0.number
    }

    pub(super) fn size(&self) -> u64 {
        self.0.file.size().unwrap_or(0)
    }

    pub(super) fn appends(&self) -> bool {
        self.0.writing == Writing::AtEnd
    }

    /// The mapping of a position. Written ranges that are not converted yet count as written.
    pub(super) fn map(&self, pos: FilePos) -> Result<Iomap> {
        let open = &self.0.open;
        loop {
            let (iomap, changes) = self.0.file.map(pos)?;
            if iomap.kind != IomapType::Unwritten {
                return Ok(iomap);
            }
            if let Some(refined) = open.pending.refine(iomap, pos, || open.changes() != changes) {
                return Ok(refined);
            }
        }
    }

    pub(super) fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.0.file.read_inline(buf, pos)
    }

    /// Enters a range of the content, by the lane if it is open. The view is current afterwards.
    fn enter(&self, queue: &mut Queue, range: Range<u64>, nowait: bool) -> Result<Hold> {
        let live = &*self.0;
        let view = live.current(&mut queue.views, &mut queue.state.files, nowait)?;
        let hold = if view.queue_file.enter() {
            Hold::Lane
        } else {
            let ticket = live.open.content.ask(range, false);
            self.wait_for(queue, ticket, nowait)?;
            Hold::Range(ticket)
        };
        // The previous holder may have changed the file.
        match live.current(&mut queue.views, &mut queue.state.files, nowait) {
            Ok(_) => Ok(hold),
            Err(error) => {
                self.leave(queue, hold);
                Err(error)
            }
        }
    }

    fn leave(&self, queue: &Queue, hold: Hold) {
        match hold {
            Hold::Lane => {
                self.0.view(&queue.views).into_iter().for_each(|view| view.queue_file.leave());
            }
            Hold::Range(ticket) => self.0.open.content.give_back(ticket),
        }
    }

    /// Waits for a range. It first waits for the requests of this queue in flight, because other threads may wait for them.
    fn wait_for(&self, queue: &mut Queue, ticket: Ticket, nowait: bool) -> Result<()> {
        let content = &self.0.open.content;
        if !nowait && !content.has(&ticket) {
            self.0.file.contended(Contended::Waited);
        }
        while !content.has(&ticket) {
            let waited = if nowait {
                Err(Error::would_block("another request holds this range of the file"))
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
