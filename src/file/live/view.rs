//! A file that can change, as a queue knows it: its inode as it was last read, and what was written since.

use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::Live;
use crate::dio::{Holding, Known, Lives, Target};
use crate::error::{Error, Result};
use crate::fs::ext4::{Ext4, Inode, InodeFlags};
use crate::inode::OpenInode;
use crate::iomap::{ExtentMap, Iomap, IomapType, MapFile};
use crate::units::FilePos;

/// After so many lookups leaf by leaf a map is read whole, if it is a small one.
const LOOKUPS: u32 = 16;
/// One lookup in a leaf costs as much as reading so many extents.
const EXTENTS_A_LOOKUP: usize = 64;

/// No number of changes.
const NEVER: u64 = u64::MAX;

/// The files that a queue knows, each in its slot.
#[derive(Default)]
pub(crate) struct Views(Vec<Option<Box<View>>>);

/// A file as it was last read, and the way into its content.
pub(super) struct View {
    id: u64,
    pub(super) known: Rc<Known>,
    /// The number of changes with which it was read.
    changes: u64,
    /// The same where an overwrite needs nothing but the device, otherwise [`NEVER`].
    plain_at: u64,
    pub(super) inode: Inode,
    /// Its map, where all of it is in memory.
    resident: OnceCell<Arc<ExtentMap>>,
    /// How often it was looked up by leaf, and how large the map was when it was last read whole.
    lookups: Cell<u32>,
    extents: Cell<usize>,
    /// Its size and map are known to be durable.
    durable: Cell<bool>,
}

/// That a request is within a file's content, by its queue's lane.
pub(super) struct Inside<'a>(&'a Known);

impl Deref for Inside<'_> {
    type Target = OpenInode;

    #[inline(always)]
    fn deref(&self) -> &OpenInode {
        &self.0.inode
    }
}

impl Views {
    /// The view of a file, current or not.
    #[inline(always)]
    pub(super) fn get(&self, live: &Live) -> Option<&View> {
        self.0.get(live.slot.number as usize)?.as_deref().filter(|view| view.id == live.id)
    }

    /// The view of a file, made current.
    ///
    /// # Errors
    /// What reading the inode gives; `WouldBlock` where its lock or the device would have to be waited for, with `nowait`.
    pub(super) fn current(
        &mut self,
        lives: &mut Lives,
        live: &Live,
        nowait: bool,
    ) -> Result<&View> {
        let slot = live.slot.number as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let place = &mut self.0[slot];
        let known = place.as_ref().filter(|view| view.id == live.id);
        let read = match known {
            Some(view) if view.is_current() => None,
            Some(view) => {
                Some(View::new(live, Rc::clone(&view.known), view.extents.get(), nowait)?)
            }
            None => {
                let known = lives.learn(live.slot.number, live.number(), &live.open);
                Some(View::new(live, known, 0, nowait)?)
            }
        };
        if let Some(read) = read {
            *place = Some(Box::new(read));
        }
        place.as_deref().ok_or_else(|| Error::invalid("a file without a view"))
    }
}

impl View {
    fn new(live: &Live, known: Rc<Known>, extents: usize, nowait: bool) -> Result<Self> {
        let fs = live.fs();
        let locks = &fs.writing()?.locks;
        let _shared = if nowait {
            let busy = || Error::would_block("someone changes the file's inode");
            locks.try_shared(live.number()).ok_or_else(busy)?
        } else {
            locks.shared(live.number())
        };
        let changes = live.open.changes();
        let (inode, plain) = fs.watch(|| {
            if nowait && !fs.has_inode(live.number())? {
                return Err(Error::would_block("the file's inode would have to be read"));
            }
            let inode = live.held.inode()?;
            inode.keep_small_map()?;
            let plain = fs.admit_write(&inode, FilePos(0), 0, None).is_ok()
                && !inode.flags().contains(InodeFlags::APPEND)
                && !inode.has_inline_data()
                && !Ext4::has_privileges(&inode, live.keep_set_id)?;
            Ok((inode, plain))
        })?;
        Ok(Self {
            id: live.id,
            known,
            changes,
            plain_at: if plain { changes } else { NEVER },
            resident: OnceCell::new(),
            inode,
            lookups: Cell::new(0),
            extents: Cell::new(extents),
            durable: Cell::default(),
        })
    }

    /// Whether nothing has changed since it was read.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.open().changes() == self.changes
    }

    /// The same, seen from within the content, and an overwrite needs nothing but the device.
    #[inline(always)]
    pub(super) fn takes_overwrites(&self, inode: &OpenInode) -> bool {
        inode.changes() == self.plain_at
    }

    /// Whether an overwrite needed nothing but the device when it was read.
    pub(super) fn is_plain(&self) -> bool {
        self.plain_at != NEVER
    }

    #[inline(always)]
    pub(super) fn open(&self) -> &OpenInode {
        &self.known.inode
    }

    /// Whether all is durable that is needed to read what is overwritten.
    pub(super) fn is_durable(&self, live: &Live) -> bool {
        // What changes the map or the size makes the view an old one; only what is pending does not.
        if !self.durable.get() {
            self.durable.set(live.fs().map_is_durable(&live.open));
        }
        self.durable.get() && !self.open().pending.has_ranges() && self.open().pending.size() == 0
    }

    /// A write leaves its time: the first one since somebody asked for that of the file does. What follows is only noted, and is as old as
    /// the next question (POSIX calls it marked for update): a clock for each would be a good part of what a volume costs.
    #[inline(always)]
    pub(super) fn stamp_write(&self, live: &Live) {
        if self.known.wrote() {
            live.stamp_write();
        }
    }

    /// Enters the content by the lane, if that is open.
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Made only then: it leaves when it is dropped.
        self.known.enter().then(|| Inside(&self.known))
    }

    /// The size, with what was written and is not converted.
    pub(super) fn size(&self) -> u64 {
        self.current_size(self.open()).unwrap_or_else(|| self.size_anew())
    }

    /// The same, if no lock is to be had for it.
    pub(super) fn size_at_once(&self) -> Option<u64> {
        self.current_size(self.open())
    }

    /// The same where the view is current.
    #[inline(always)]
    fn current_size(&self, inode: &OpenInode) -> Option<u64> {
        // In this order: what is converted meanwhile no longer waits, but then the metadata have changed.
        let pending = inode.pending.size();
        (inode.changes() == self.changes).then(|| self.inode.size().max(pending))
    }

    #[cold]
    fn size_anew(&self) -> u64 {
        let fs = self.inode.file_system();
        let _shared = fs.writing().map(|writing| writing.locks.shared(self.inode.number()));
        let inode = fs.inode_or_orphan(self.inode.number());
        inode.map_or(self.inode.size(), |inode| inode.size()).max(self.open().pending.size())
    }

    /// The file as a request meets it that is at its content, where the view is current.
    #[inline(always)]
    pub(super) fn current_target<'a>(
        &'a self,
        live: &'a Live,
        inode: &OpenInode,
        holding: Option<Holding>,
    ) -> Option<Target<'a, Self>> {
        let size = self.current_size(inode)?;
        Some(Target { size, ..self.target_by_metadata(live, holding) })
    }

    /// The file as a request meets it.
    pub(super) fn target<'a>(
        &'a self,
        live: &'a Live,
        holding: Option<Holding>,
    ) -> Target<'a, Self> {
        Target { size: self.size(), ..self.target_by_metadata(live, holding) }
    }

    /// The same, ending where its metadata say: an overwrite behind that is not a simple one.
    #[inline(always)]
    pub(super) fn target_by_metadata<'a>(
        &'a self,
        live: &'a Live,
        holding: Option<Holding>,
    ) -> Target<'a, Self> {
        Target {
            map: self,
            dev: crate::bio::Dev::OWN,
            geometry: &live.geometry,
            inode: self.inode.number(),
            size: self.inode.size(),
            strict: live.strict,
            live: holding,
        }
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
        let map = self.inode.resident_map()?;
        Some(self.resident.get_or_init(|| Arc::clone(map)))
    }

    /// The mapping in memory of a position that is not in a written extent; of an unwritten one a part may have been written. `None`
    /// where it is out of date.
    #[cold]
    fn map_unwritten(&self, pos: FilePos) -> Option<Iomap> {
        let iomap = self.inode.map_resident(pos)?;
        if iomap.kind == IomapType::Unwritten && self.open().pending.has_ranges() {
            return self.open().pending.refine(iomap, pos, || !self.is_current());
        }
        self.is_current().then_some(iomap)
    }

    /// The inode's mapping of a position, and the number of changes with which it was read. `again`: the view's is out of date.
    fn look_up(&self, pos: FilePos, again: bool) -> Result<(Iomap, u64)> {
        self.inode.file_system().watch(|| {
            if let Some(iomap) = self.inode.map_resident(pos).filter(|_| !again) {
                return Ok((iomap, self.changes));
            }
            let fs = self.inode.file_system();
            let _shared = fs.writing()?.locks.shared(self.inode.number());
            let changes = self.open().changes();
            if changes != self.changes {
                let inode = fs.inode_or_orphan(self.inode.number())?;
                return Ok((inode.map_by_leaf(pos)?, changes));
            }
            let lookups = self.lookups.get();
            if lookups as usize > LOOKUPS as usize + self.extents.get() / EXTENTS_A_LOOKUP {
                let iomap = self.inode.map(pos, 1)?;
                let resident = self.inode.resident_map();
                self.extents.set(resident.map_or(usize::MAX / 2, |map| map.extents().len()));
                return Ok((iomap, changes));
            }
            self.lookups.set(lookups + 1);
            Ok((self.inode.map_by_leaf(pos)?, changes))
        })
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
            // What is converted meanwhile is no longer noted, but then the metadata have changed.
            let is_old = || self.open().changes() != changes;
            if let Some(refined) = self.open().pending.refine(iomap, pos, is_old) {
                return Ok(refined);
            }
            again = true;
        }
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
        self.inode.read_inline(buf, pos)
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}
