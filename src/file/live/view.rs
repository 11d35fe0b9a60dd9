//! A file that can change, as a queue knows it: its inode as it was last read, and what was written since.

use std::cell::Cell;
use std::sync::Arc;

use super::Live;
use crate::dio::{Holding, Lives, Target};
use crate::error::{Error, Result};
use crate::fs::ext4::{Ext4, Inode, InodeFlags};
use crate::inode::{Lane, OpenInode};
use crate::iomap::{Iomap, IomapType, MapFile};
use crate::units::FilePos;

/// After so many lookups leaf by leaf a map is read whole, if it is a small one.
const LOOKUPS: u32 = 16;
/// One lookup in a leaf costs as much as reading so many extents.
const EXTENTS_A_LOOKUP: usize = 64;

/// The files that a queue knows, each in its slot.
#[derive(Default)]
pub(crate) struct Views(Vec<Option<View>>);

/// A file as it was last read, and the way into its content.
pub(super) struct View {
    id: u64,
    lane: Arc<Lane>,
    pub(super) open: Arc<OpenInode>,
    /// The number of changes with which it was read.
    changes: u64,
    pub(super) inode: Inode,
    /// An overwrite needs nothing but the device.
    pub(super) plain: bool,
    /// How often it was looked up by leaf, and how large the map was when it was last read whole.
    lookups: Cell<u32>,
    extents: Cell<usize>,
    /// The batch of requests with the last write.
    batch: Cell<u64>,
    /// Its size and map are known to be durable.
    durable: Cell<bool>,
}

/// That a request is within a file's content, by its queue's lane.
pub(super) struct Inside<'a>(&'a View);

impl Views {
    /// The view of a file, current or not.
    #[inline(always)]
    pub(super) fn get(&self, live: &Live) -> Option<&View> {
        match self.0.get(live.slot.number as usize) {
            Some(Some(view)) if view.id == live.id => Some(view),
            _ => None,
        }
    }

    /// The view of a file, made current.
    pub(super) fn current(&mut self, lives: &mut Lives, live: &Live) -> Result<&View> {
        let slot = live.slot.number as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let place = &mut self.0[slot];
        let known = place.as_ref().filter(|view| view.id == live.id);
        let read = match known {
            Some(view) if view.is_current() => None,
            Some(view) => Some(View::new(live, Arc::clone(&view.lane), view.extents.get())?),
            None => {
                let lane = lives.learn(live.slot.number, live.number(), &live.open);
                Some(View::new(live, lane, 0)?)
            }
        };
        if read.is_some() {
            *place = read;
        }
        place.as_ref().ok_or_else(|| Error::invalid("a file without a view"))
    }
}

impl View {
    fn new(live: &Live, lane: Arc<Lane>, extents: usize) -> Result<Self> {
        let fs = live.fs();
        let _shared = fs.writing()?.locks.shared(live.number());
        let changes = live.open.changes();
        let inode = live.held.inode()?;
        inode.keep_small_map()?;
        let plain = fs.admit_write(&inode, FilePos(0), 0, 0).is_ok()
            && !inode.flags().contains(InodeFlags::APPEND)
            && !inode.has_inline_data()
            && !Ext4::has_privileges(&inode, live.keep_set_id)?;
        Ok(Self {
            id: live.id,
            lane,
            open: Arc::clone(&live.open),
            changes,
            inode,
            plain,
            lookups: Cell::new(0),
            extents: Cell::new(extents),
            batch: Cell::default(),
            durable: Cell::default(),
        })
    }

    /// Whether nothing has changed since it was read.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.open.changes() == self.changes
    }

    /// Whether all is durable that is needed to read what is overwritten.
    pub(super) fn is_durable(&self, live: &Live) -> bool {
        // What changes the map or the size makes the view an old one; only what is pending does not.
        if !self.durable.get() {
            self.durable.set(live.fs().map_is_durable(&live.open));
        }
        self.durable.get() && !self.open.pending.has_ranges() && self.open.pending.size() == 0
    }

    /// Whether a write is the first one of a batch.
    #[inline(always)]
    pub(super) fn is_first_in(&self, batch: u64) -> bool {
        self.batch.replace(batch) != batch
    }

    /// Enters the content by the lane, if that is open.
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Made only then: it leaves when it is dropped.
        self.open.content.enter(&self.lane).then(|| Inside(self))
    }

    /// Enters by the lane, to leave when a request completes.
    pub(super) fn enter_for_long(&self) -> bool {
        self.open.content.enter(&self.lane)
    }

    #[inline(always)]
    pub(super) fn leave(&self) {
        self.open.content.leave(&self.lane);
    }

    /// The size, with what was written and is not settled.
    #[inline(always)]
    pub(super) fn size(&self) -> u64 {
        let pending = self.open.pending.size();
        // What is settled meanwhile no longer waits, but then the metadata have changed.
        if self.is_current() { self.inode.size().max(pending) } else { self.size_anew() }
    }

    #[cold]
    fn size_anew(&self) -> u64 {
        let fs = self.inode.file_system();
        let _shared = fs.writing().map(|writing| writing.locks.shared(self.inode.number()));
        let inode = fs.inode_or_orphan(self.inode.number());
        inode.map_or(self.inode.size(), |inode| inode.size()).max(self.open.pending.size())
    }

    /// The file as a request meets it.
    #[inline(always)]
    pub(super) fn target<'a>(
        &'a self,
        live: &'a Live,
        holding: Option<Holding>,
    ) -> Target<'a, Self> {
        Target { size: self.size(), ..self.settled_target(live, holding) }
    }

    /// The same, ending where its metadata say: an overwrite behind that is not a simple one.
    #[inline(always)]
    pub(super) fn settled_target<'a>(
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

    /// The mapping of a position in an unwritten extent, of which a part may have been written. `None` where it is out of date.
    #[cold]
    fn refined(&self, iomap: Iomap, pos: FilePos) -> Option<Iomap> {
        if self.open.pending.has_ranges() {
            return self.open.pending.refine(iomap, pos, || !self.is_current());
        }
        self.is_current().then_some(iomap)
    }

    /// The inode's mapping of a position, and the number of changes with which it was read. `again`: the view's is out of date.
    fn look_up(&self, pos: FilePos, again: bool) -> Result<(Iomap, u64)> {
        if let Some(iomap) = self.inode.map_resident(pos).filter(|_| !again) {
            return Ok((iomap, self.changes));
        }
        let fs = self.inode.file_system();
        let _shared = fs.writing()?.locks.shared(self.inode.number());
        let changes = self.open.changes();
        if changes != self.changes {
            let inode = fs.inode_or_orphan(self.inode.number())?;
            return Ok((inode.map_by_leaf(pos)?, changes));
        }
        let lookups = self.lookups.get();
        if lookups as usize > LOOKUPS as usize + self.extents.get() / EXTENTS_A_LOOKUP {
            let iomap = self.inode.map(pos, 1)?;
            self.extents.set(self.inode.resident_extents());
            return Ok((iomap, changes));
        }
        self.lookups.set(lookups + 1);
        Ok((self.inode.map_by_leaf(pos)?, changes))
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
            // What is settled meanwhile is no longer noted, but then the metadata have changed.
            let is_old = || self.open.changes() != changes;
            if let Some(refined) = self.open.pending.refine(iomap, pos, is_old) {
                return Ok(refined);
            }
            again = true;
        }
    }

    #[inline(always)]
    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        let iomap = self.inode.map_resident(pos)?;
        if iomap.kind == IomapType::Unwritten {
            return self.refined(iomap, pos);
        }
        Some(iomap)
    }

    #[inline(always)]
    fn map_resident_for_write(&self, pos: FilePos) -> Option<Iomap> {
        self.inode.map_resident(pos)
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
