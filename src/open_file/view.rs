//! A queue's view of a file that can change. The view is a copy of the file's size and map. Look-ups through the view also include writes
//! that are not yet in the metadata.

use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::{FileHandle, OpenInode, QueueFile, QueueFiles};
use crate::error::{Error, Result};
use crate::iomap::{
    ExtentMap, Iomap, IomapFlags, IomapType, MapFile, Snapshot, WriteFile, WriteIntent, WriteMap,
};
use crate::units::FilePos;

/// If a map is not in memory, each look-up reads one leaf of the extent tree. After this number of look-ups, a small map is read as a
/// whole.
const LOOKUPS: u32 = 16;
/// The number of extents that can be read in the time of one look-up. It determines which maps count as small.
const EXTENTS_A_LOOKUP: usize = 64;

/// A value that the change counter of an inode never has.
const NEVER: u64 = u64::MAX;

/// The views of a queue: its copies of the sizes and maps of files. A view has the index of its file.
#[derive(Default)]
pub(crate) struct Views(Vec<Option<Box<View>>>);

/// A copy of the size and the map of a file, and the counter (lane) with which the queue locks the file's content.
pub(crate) struct View {
    id: u64,
    pub(crate) queue_file: Rc<QueueFile>,
    /// The file. The reference is weak, because a queue may have views of closed files. The code that uses a view keeps the file open.
    file: Weak<dyn WriteFile>,
    /// The value of the inode's change counter when the view was read.
    changes: u64,
    /// Equal to `changes` if an overwrite through the handle only transfers data, without a change of metadata or a sync; otherwise
    /// [`NEVER`].
    plain_at: u64,
    /// The size and the map as the file system returned them.
    map: Box<dyn WriteMap>,
    size: u64,
    /// The map, if the whole map is in memory.
    resident: OnceCell<Arc<ExtentMap>>,
    /// The number of look-ups that have read a leaf of the extent tree. The next field, `extents`, is the number of extents at the last
    /// read of the whole map.
    lookups: Cell<u32>,
    extents: Cell<usize>,
    /// Whether the size and the map are known to be durable.
    durable: Cell<bool>,
}

/// A guard for a request that has locked the content of a file, and is counted in the lane (counter) of its queue.
pub(crate) struct Inside<'a>(&'a QueueFile);

impl Deref for Inside<'_> {
    type Target = OpenInode;

    #[inline(always)]
    fn deref(&self) -> &OpenInode {
        &self.0.inode
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Views {
    /// Returns the view of a file. The view may be out of date.
    #[inline(always)]
    pub(crate) fn get(&self, handle: &FileHandle) -> Option<&View> {
        self.0.get(handle.index() as usize)?.as_deref().filter(|view| view.id == handle.id)
    }

    /// Returns an up-to-date view of a file. If the inode has changed, reads the view again.
    ///
    /// # Errors
    /// The errors of reading the inode; `WouldBlock` if `nowait` is set and the call would have to wait.
    pub(crate) fn current(
        &mut self,
        files: &mut QueueFiles,
        handle: &FileHandle,
        nowait: bool,
    ) -> Result<&View> {
        let index = handle.index() as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let place = &mut self.0[index];
        let known = place.as_ref().filter(|view| view.id == handle.id);
        let read = match known {
            Some(view) if view.is_current() => None,
            Some(view) => {
                Some(View::new(handle, Rc::clone(&view.queue_file), view.extents.get(), nowait)?)
            }
            None => {
                let queue_file = files.learn(handle);
                Some(View::new(handle, queue_file, 0, nowait)?)
            }
        };
        if let Some(read) = read {
            *place = Some(Box::new(read));
        }
        place.as_deref().ok_or_else(|| Error::invalid("the queue has no copy of the file's map"))
    }
}

impl View {
    fn new(
        handle: &FileHandle,
        queue_file: Rc<QueueFile>,
        extents: usize,
        nowait: bool,
    ) -> Result<Self> {
        let mut intent = handle.intent;
        intent.set(WriteIntent::NOWAIT, nowait);
        let Snapshot { changes, plain, map } = handle.file.read(intent)?;
        Ok(Self {
            id: handle.id,
            queue_file,
            file: Arc::downgrade(&handle.file),
            changes,
            plain_at: if plain && handle.overwrites { changes } else { NEVER },
            resident: OnceCell::new(),
            size: map.size(),
            map,
            lookups: Cell::new(0),
            extents: Cell::new(extents),
            durable: Cell::default(),
        })
    }

    /// The metadata as they were when the view was read.
    pub(crate) fn map(&self) -> &dyn WriteMap {
        &*self.map
    }

    /// Whether the inode has not changed since the view was read.
    #[inline(always)]
    fn is_current(&self) -> bool {
        self.open().changes() == self.changes
    }

    /// Whether the view is up to date and an overwrite only transfers data, without a change of metadata or a sync. The caller has locked
    /// the content.
    #[inline(always)]
    pub(crate) fn takes_overwrites(&self, inode: &OpenInode) -> bool {
        inode.changes() == self.plain_at
    }

    #[inline(always)]
    pub(crate) fn open(&self) -> &OpenInode {
        &self.queue_file.inode
    }

    /// Whether all metadata that a read of the file needs are durable. If so, a durable overwrite needs no commit: it is sufficient that
    /// the data reach the medium.
    pub(crate) fn is_durable(&self) -> bool {
        // Once the file system has answered that the size and the map are durable, the view stores the answer. It stays true for this view,
        // because a change of the map or the size makes the view out of date. Pending writes do not make the view out of date, so they are
        // checked in each call.
        if !self.durable.get() {
            self.durable.set(self.file.upgrade().is_some_and(|file| file.is_durable()));
        }
        self.durable.get() && !self.open().pending.has_ranges() && self.open().pending.size() == 0
    }

    /// Locks the content by an increment of the queue's counter (lane). Returns `None` if a thread has or wants an exclusive lock on a
    /// range, because requests must then lock ranges.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // Dropping the guard releases the lock, so the guard is created only if the lock was acquired.
        self.queue_file.enter().then(|| Inside(&self.queue_file))
    }

    /// The size according to the metadata in the view.
    #[inline(always)]
    pub(crate) fn size_by_metadata(&self) -> u64 {
        self.size
    }

    /// Returns the size, including writes that are not yet in the metadata.
    pub(crate) fn size(&self) -> u64 {
        self.size_at_once().unwrap_or_else(|| self.size_anew())
    }

    /// Returns the size, including pending writes. Returns `None` if the size cannot be read without a lock, because the view is out of
    /// date.
    pub(crate) fn size_at_once(&self) -> Option<u64> {
        self.current_size(self.open())
    }

    /// Returns the size, including pending writes, or `None` if the view is out of date.
    #[inline(always)]
    pub(crate) fn current_size(&self, inode: &OpenInode) -> Option<u64> {
        // The pending size must be read before the change counter. A conversion first increments the counter, and then removes the pending
        // size. So a thread that reads the size after its removal sees the new counter.
        let pending = inode.pending.size();
        (inode.changes() == self.changes).then(|| self.size.max(pending))
    }

    #[cold]
    fn size_anew(&self) -> u64 {
        let size = self.file.upgrade().and_then(|file| file.size().ok());
        size.unwrap_or_else(|| self.size.max(self.open().pending.size()))
    }

    /// The map, if the whole map is in memory.
    #[inline(always)]
    fn resident(&self) -> Option<&ExtentMap> {
        match self.resident.get() {
            Some(map) => Some(map),
            None => self.find_map(),
        }
    }

    #[cold]
    fn find_map(&self) -> Option<&ExtentMap> {
        let map = self.map.resident_map()?;
        Some(self.resident.get_or_init(|| Arc::clone(map)))
    }

    /// Returns the mapping of a position that is unwritten or a hole according to the metadata. If pending writes have written to the
    /// unwritten extent, the mapping includes them. Returns `None` if the mapping is not in memory, or if the view is out of date.
    #[cold]
    fn map_unwritten(&self, pos: FilePos) -> Option<Iomap> {
        let iomap = self.map.map_resident(pos)?;
        if iomap.kind == IomapType::Unwritten && self.open().pending.has_ranges() {
            return self.open().pending.refine(iomap, pos, || !self.is_current());
        }
        self.is_current().then_some(iomap)
    }

    /// Returns the mapping of a position in the current metadata, and the current change counter. If `again` is true, the map of this view
    /// is out of date and is not used.
    fn look_up(&self, pos: FilePos, again: bool) -> Result<(Iomap, u64)> {
        if let Some(iomap) = self.map.map_resident(pos).filter(|_| !again) {
            return Ok((iomap, self.changes));
        }
        let lookups = self.lookups.get();
        let whole = lookups as usize > LOOKUPS as usize + self.extents.get() / EXTENTS_A_LOOKUP;
        let (iomap, changes) = self.map.map_now(pos, self.changes, whole)?;
        if changes != self.changes {
            return Ok((iomap, changes));
        }
        if whole {
            let resident = self.map.resident_map();
            self.extents.set(resident.map_or(usize::MAX / 2, |map| map.extents().len()));
        } else {
            self.lookups.set(lookups + 1);
        }
        Ok((iomap, changes))
    }
}

impl MapFile for View {
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        let mut again = false;
        loop {
            let (iomap, changes) = self.look_up(pos, again)?;
            if iomap.kind != IomapType::Unwritten {
                return Ok(iomap);
            }
            // At the same time, a conversion of unwritten extents may remove the range from the pending writes. The conversion also changes
            // the counter, so `is_old` detects it.
            let is_old = || self.open().changes() != changes;
            if let Some(refined) = self.open().pending.refine(iomap, pos, is_old) {
                return Ok(refined);
            }
            again = true;
        }
    }

    fn map_to_write(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        let iomap = MapFile::map(self, pos, len)?;
        if iomap.flags.contains(IomapFlags::SHARED) {
            return self.map.map_to_write(pos, len);
        }
        Ok(iomap)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        let recorded = self.map_recorded(pos);
        recorded
            .filter(|iomap| iomap.kind != IomapType::Unwritten)
            .or_else(|| self.map_unwritten(pos))
    }

    #[inline(always)]
    fn map_recorded(&self, pos: FilePos) -> Option<Iomap> {
        Some(self.resident()?.lookup(pos))
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.map.read_inline(buf, pos)
    }
}
