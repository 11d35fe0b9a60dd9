//! A queue's view of a file that can change: size and map at the last read, and the writes since.

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

/// The number of lookups by leaf after which a small map is read whole.
const LOOKUPS: u32 = 16;
/// The number of extents whose reading costs as much as one lookup in a leaf.
const EXTENTS_A_LOOKUP: usize = 64;

/// A value that no number of changes has.
const NEVER: u64 = u64::MAX;

/// The files that a queue knows, by their indexes.
#[derive(Default)]
pub(crate) struct Views(Vec<Option<Box<View>>>);

/// A file as it was last read, and the lane to its content.
pub(crate) struct View {
    id: u64,
    pub(crate) queue_file: Rc<QueueFile>,
    /// The file, which a user of the view keeps open. The queue does not: it keeps views longer than files are open.
    file: Weak<dyn WriteFile>,
    /// The number of changes at the time of the read.
    changes: u64,
    /// The number of changes if an overwrite by the handle needs only the device, otherwise [`NEVER`].
    plain_at: u64,
    /// The size and the map that were read.
    map: Box<dyn WriteMap>,
    size: u64,
    /// The map, if all of it is in memory.
    resident: OnceCell<Arc<ExtentMap>>,
    /// The number of lookups by leaf, and the size of the map when it was last read whole.
    lookups: Cell<u32>,
    extents: Cell<usize>,
    /// Whether the size and the map are known to be durable.
    durable: Cell<bool>,
}

/// A proof that a request is inside a file's content, by its queue's lane.
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
    /// The view of a file, current or not.
    #[inline(always)]
    pub(crate) fn get(&self, handle: &FileHandle) -> Option<&View> {
        self.0.get(handle.index() as usize)?.as_deref().filter(|view| view.id == handle.id)
    }

    /// The view of a file, made current.
    ///
    /// # Errors
    /// The errors of reading the inode; with `nowait`, `WouldBlock` if the call would wait for its lock or the device.
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
        place.as_deref().ok_or_else(|| Error::invalid("the file has no view of its map"))
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

    /// The file as it was read.
    pub(crate) fn map(&self) -> &dyn WriteMap {
        &*self.map
    }

    /// Whether nothing has changed since the read.
    #[inline(always)]
    fn is_current(&self) -> bool {
        self.open().changes() == self.changes
    }

    /// Whether the view is current and an overwrite needs only the device. The caller is inside the content.
    #[inline(always)]
    pub(crate) fn takes_overwrites(&self, inode: &OpenInode) -> bool {
        inode.changes() == self.plain_at
    }

    #[inline(always)]
    pub(crate) fn open(&self) -> &OpenInode {
        &self.queue_file.inode
    }

    /// Whether all metadata that a read of the overwritten range needs are durable.
    pub(crate) fn is_durable(&self) -> bool {
        // A change of the map or the size makes the view old; pending writes do not.
        if !self.durable.get() {
            self.durable.set(self.file.upgrade().is_some_and(|file| file.is_durable()));
        }
        self.durable.get() && !self.open().pending.has_ranges() && self.open().pending.size() == 0
    }

    /// Enters the content by the lane, if the lane is open.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // The guard is created only on success, because its drop leaves the content.
        self.queue_file.enter().then(|| Inside(&self.queue_file))
    }

    /// The size in the metadata that were read.
    #[inline(always)]
    pub(crate) fn size_by_metadata(&self) -> u64 {
        self.size
    }

    /// The size, including ranges that are not converted.
    pub(crate) fn size(&self) -> u64 {
        self.size_at_once().unwrap_or_else(|| self.size_anew())
    }

    /// The size, if reading it needs no lock.
    pub(crate) fn size_at_once(&self) -> Option<u64> {
        self.current_size(self.open())
    }

    /// The size, if the view is current.
    #[inline(always)]
    pub(crate) fn current_size(&self, inode: &OpenInode) -> Option<u64> {
        // The order matters: a range that is converted in between is not pending afterwards, but then the metadata have changed.
        let pending = inode.pending.size();
        (inode.changes() == self.changes).then(|| self.size.max(pending))
    }

    #[cold]
    fn size_anew(&self) -> u64 {
        let size = self.file.upgrade().and_then(|file| file.size().ok());
        size.unwrap_or_else(|| self.size.max(self.open().pending.size()))
    }

    /// The map, if all of it is in memory.
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

    /// The mapping in memory of a position that is not in a written extent. A part of an unwritten extent may have been written. `None` if
    /// the view is out of date.
    #[cold]
    fn map_unwritten(&self, pos: FilePos) -> Option<Iomap> {
        let iomap = self.map.map_resident(pos)?;
        if iomap.kind == IomapType::Unwritten && self.open().pending.has_ranges() {
            return self.open().pending.refine(iomap, pos, || !self.is_current());
        }
        self.is_current().then_some(iomap)
    }

    /// The inode's mapping of a position, and the number of changes at the time of the read. `again`: the view's mapping is out of date.
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
            // A range that is converted in between is no longer recorded, but then the metadata have changed.
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
