//! A queue's view of a file that can change: size and map as last read, and the writes since.

use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::{OpenInode, QueueFile, QueueFiles};
use crate::error::{Error, Result};
use crate::iomap::{
    ExtentMap, Iomap, IomapFlags, IomapType, MapFile, Snapshot, WriteFile, WriteIntent, WriteMap,
};
use crate::units::{FilePos, InodeNo};

/// After so many lookups leaf by leaf a map is read whole, if it is a small one.
const LOOKUPS: u32 = 16;
/// One lookup in a leaf costs as much as reading so many extents.
const EXTENTS_A_LOOKUP: usize = 64;

/// No number of changes.
const NEVER: u64 = u64::MAX;

/// A handle of an open file, as its views know it.
pub(crate) struct Viewed<'a> {
    /// Nobody else has it, ever.
    pub(crate) id: u64,
    /// A small number that no other open file of the volume has.
    pub(crate) index: u32,
    pub(crate) number: InodeNo,
    pub(crate) open: &'a Arc<OpenInode>,
    pub(crate) file: &'a Arc<dyn WriteFile>,
    pub(crate) intent: WriteIntent,
    /// It writes, and where it is told to.
    pub(crate) overwrites: bool,
}

/// The files that a queue knows, by their indexes.
#[derive(Default)]
pub(crate) struct Views(Vec<Option<Box<View>>>);

/// A file as it was last read, and the way into its content.
pub(crate) struct View {
    id: u64,
    pub(crate) queue_file: Rc<QueueFile>,
    /// A user of the view has the file open. The queue has not: it keeps views longer than files are open.
    file: Weak<dyn WriteFile>,
    /// The number of changes with which it was read.
    changes: u64,
    /// The same where an overwrite by the handle needs nothing but the device, otherwise [`NEVER`].
    plain_at: u64,
    /// Size and map as read.
    map: Box<dyn WriteMap>,
    size: u64,
    /// Its map, where all of it is in memory.
    resident: OnceCell<Arc<ExtentMap>>,
    /// How often it was looked up by leaf, and how large the map was when it was last read whole.
    lookups: Cell<u32>,
    extents: Cell<usize>,
    /// Its size and map are known to be durable.
    durable: Cell<bool>,
}

/// That a request is within a file's content, by its queue's lane.
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
    pub(crate) fn get(&self, index: u32, id: u64) -> Option<&View> {
        self.0.get(index as usize)?.as_deref().filter(|view| view.id == id)
    }

    /// The view of a file, made current.
    ///
    /// # Errors
    /// What reading the inode gives; `WouldBlock` where its lock or the device would have to be waited for, with `nowait`.
    pub(crate) fn current(
        &mut self,
        files: &mut QueueFiles,
        viewed: &Viewed<'_>,
        nowait: bool,
    ) -> Result<&View> {
        let index = viewed.index as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let place = &mut self.0[index];
        let known = place.as_ref().filter(|view| view.id == viewed.id);
        let read = match known {
            Some(view) if view.is_current() => None,
            Some(view) => {
                Some(View::new(viewed, Rc::clone(&view.queue_file), view.extents.get(), nowait)?)
            }
            None => {
                let queue_file = files.learn(viewed.index, viewed.number, viewed.open);
                Some(View::new(viewed, queue_file, 0, nowait)?)
            }
        };
        if let Some(read) = read {
            *place = Some(Box::new(read));
        }
        place.as_deref().ok_or_else(|| Error::invalid("a file without a view"))
    }
}

impl View {
    fn new(
        viewed: &Viewed<'_>,
        queue_file: Rc<QueueFile>,
        extents: usize,
        nowait: bool,
    ) -> Result<Self> {
        let mut intent = viewed.intent;
        intent.set(WriteIntent::NOWAIT, nowait);
        let Snapshot { changes, plain, map } = viewed.file.read(intent)?;
        Ok(Self {
            id: viewed.id,
            queue_file,
            file: Arc::downgrade(viewed.file),
            changes,
            plain_at: if plain && viewed.overwrites { changes } else { NEVER },
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

    /// Whether nothing has changed since it was read.
    #[inline(always)]
    fn is_current(&self) -> bool {
        self.open().changes() == self.changes
    }

    /// The same, seen from within the content, and an overwrite needs nothing but the device.
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

    /// Enters the content by the lane, if that is open.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // Made only then: it leaves when it is dropped.
        self.queue_file.enter().then(|| Inside(&self.queue_file))
    }

    /// The size as the metadata had it.
    #[inline(always)]
    pub(crate) fn size_by_metadata(&self) -> u64 {
        self.size
    }

    /// The size, with ranges that are not converted.
    pub(crate) fn size(&self) -> u64 {
        self.size_at_once().unwrap_or_else(|| self.size_anew())
    }

    /// The same, if no lock is needed for it.
    pub(crate) fn size_at_once(&self) -> Option<u64> {
        self.current_size(self.open())
    }

    /// The same where the view is current.
    #[inline(always)]
    pub(crate) fn current_size(&self, inode: &OpenInode) -> Option<u64> {
        // In this order: a range that is converted meanwhile is no longer pending, but then the metadata have changed.
        let pending = inode.pending.size();
        (inode.changes() == self.changes).then(|| self.size.max(pending))
    }

    #[cold]
    fn size_anew(&self) -> u64 {
        let size = self.file.upgrade().and_then(|file| file.size().ok());
        size.unwrap_or_else(|| self.size.max(self.open().pending.size()))
    }

    /// Its map, if all of it is in memory.
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

    /// The mapping in memory of a position that is not in a written extent; of an unwritten one a part may have been written. `None`
    /// where it is out of date.
    #[cold]
    fn map_unwritten(&self, pos: FilePos) -> Option<Iomap> {
        let iomap = self.map.map_resident(pos)?;
        if iomap.kind == IomapType::Unwritten && self.open().pending.has_ranges() {
            return self.open().pending.refine(iomap, pos, || !self.is_current());
        }
        self.is_current().then_some(iomap)
    }

    /// The inode's mapping of a position, and the number of changes with which it was read. `again`: the view's is out of date.
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
            // A range that is converted meanwhile is no longer noted, but then the metadata have changed.
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
