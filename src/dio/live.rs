//! Requests for files that can change: the content that each holds from its submission to its completion, and what a write leaves to be
//! done then.

use std::any::Any;
use std::sync::Arc;

use super::Completion;
use crate::bio::Left;
use crate::inode::{InFlight, Lane, OpenInode, Ticket};
use crate::units::{FilePos, InodeNo};

/// What keeps a file open.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// The files that a queue has requests for, each in its slot.
#[derive(Default)]
pub(crate) struct Lives {
    slots: Vec<Option<Slot>>,
    in_flight: InFlight,
    /// Requests that are complete but for a sync of their files.
    unsynced: Vec<Unsynced>,
    /// Among the requests in flight may be some that leave something to be done.
    expects: bool,
    /// Files of which so much is to be settled that it should not wait.
    full: Vec<Keep>,
}

struct Slot {
    inode: Arc<OpenInode>,
    lane: Arc<Lane>,
    number: InodeNo,
    /// Requests that are in by the lane. All of them count once there, so that only the first and the last write what others read.
    by_lane: u32,
    /// Requests that have a range.
    by_range: u32,
    /// Keeps the file open while there are requests in flight.
    keep: Option<Keep>,
}

/// A request that waits for a sync of its file.
pub(crate) struct Unsynced {
    pub(crate) keep: Keep,
    pub(crate) left: Left,
    pub(crate) completion: Completion,
}

/// The content of a file that a request is at, and how it holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) slot: u32,
    pub(crate) hold: Hold,
}

/// How a request holds the content that it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By the lane.
    Lane,
    Range(Ticket),
}

/// What a request owes its file when it is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub(super) slot: u32,
    pub(super) hold: Hold,
    pub(super) left: Left,
    pub(super) pos: FilePos,
    pub(super) len: usize,
}

impl Holding {
    /// Whether one bio can carry it.
    #[inline(always)]
    pub(super) fn is_light(&self) -> bool {
        self.hold == Hold::Lane
    }

    pub(super) fn owes(&self, left: Left, pos: FilePos, len: usize) -> Owed {
        Owed { slot: self.slot, hold: self.hold, left, pos, len }
    }
}

impl Slot {
    fn hold_open(&mut self, in_flight: &InFlight, keep: impl FnOnce() -> Keep) {
        if self.keep.is_none() {
            self.keep = Some(keep());
            in_flight.add();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.inode.content.remove_lane(&self.lane);
    }
}

impl Lives {
    /// Takes a file into a slot, which none has that is in use.
    pub(crate) fn learn(
        &mut self,
        slot: u32,
        number: InodeNo,
        inode: &Arc<OpenInode>,
    ) -> Arc<Lane> {
        let lane = inode.content.add_lane();
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        let (inode, own) = (Arc::clone(inode), Arc::clone(&lane));
        self.slots[index] =
            Some(Slot { inode, lane: own, number, by_lane: 0, by_range: 0, keep: None });
        lane
    }

    /// Whether none of this queue's requests is at the content of a file.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    /// A request enters the content of a file by the lane, to leave when it is complete. False where it is to ask for a range, or the queue
    /// does not know the file.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: u32, keep: impl FnOnce() -> Keep) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(slot as usize) else { return false };
        if slot.by_lane == 0 {
            if !slot.inode.content.enter(&slot.lane) {
                return false;
            }
            slot.hold_open(&self.in_flight, keep);
        } else if slot.inode.content.is_wanted() {
            return false;
        }
        slot.by_lane += 1;
        true
    }

    /// A request that holds its content is being submitted.
    pub(crate) fn begin(&mut self, holding: Holding, keep: impl FnOnce() -> Keep) {
        let Some(Some(slot)) = self.slots.get_mut(holding.slot as usize) else { return };
        slot.hold_open(&self.in_flight, keep);
        match holding.hold {
            Hold::Lane => {
                if slot.by_lane > 0 {
                    slot.inode.content.leave(&slot.lane);
                }
                slot.by_lane += 1;
            }
            Hold::Range(_) => slot.by_range += 1,
        }
    }

    /// A request that was begun was not submitted.
    #[cold]
    pub(crate) fn cancel(&mut self, holding: Holding) {
        self.leave(holding.slot, holding.hold);
    }

    /// A request ends with its queue.
    pub(super) fn abandon(&mut self, owed: Owed) {
        self.leave(owed.slot, owed.hold);
    }

    /// The inode of a slot, for an error's event.
    pub(super) fn number(&self, slot: u32) -> InodeNo {
        self.slots
            .get(slot as usize)
            .and_then(Option::as_ref)
            .map_or(InodeNo(0), |slot| slot.number)
    }

    /// A request is complete.
    pub(super) fn end(&mut self, owed: Owed, completion: Completion) -> Option<Completion> {
        if owed.left.is_empty() || completion.result.is_err() {
            self.leave(owed.slot, owed.hold);
            return Some(completion);
        }
        self.end_write(owed, completion)
    }

    #[inline]
    fn end_write(&mut self, owed: Owed, completion: Completion) -> Option<Completion> {
        let Owed { slot, hold, left, pos, len } = owed;
        let Some(Some(file)) = self.slots.get(slot as usize) else { return Some(completion) };
        let full = file.inode.wrote(pos, len, left);
        let keep = || file.keep.clone();
        if full && self.full.is_empty() {
            self.full.extend(keep());
            self.expects = true;
        }
        let sync = left.intersects(Left::DATASYNC | Left::SYNC);
        let keep = if sync { keep() } else { None };
        self.leave(slot, hold);
        match keep {
            None => Some(completion),
            Some(keep) => {
                self.unsynced.push(Unsynced { keep, left, completion });
                None
            }
        }
    }

    /// A request that leaves nothing to be done is complete.
    #[inline(always)]
    pub(super) fn leave(&mut self, slot: u32, hold: Hold) {
        let Some(Some(slot)) = self.slots.get_mut(slot as usize) else { return };
        match hold {
            Hold::Lane => {
                slot.by_lane -= 1;
                if slot.by_lane > 0 {
                    return;
                }
                slot.inode.content.leave(&slot.lane);
            }
            Hold::Range(ticket) => {
                slot.by_range -= 1;
                slot.inode.content.give_back(ticket);
            }
        }
        if slot.by_lane + slot.by_range == 0 {
            self.in_flight.remove();
            // The file may end here.
            slot.keep = None;
        }
    }

    /// A request was submitted that leaves this to be done when it is complete.
    pub(crate) fn expect(&mut self, left: Left) {
        self.expects |= left.intersects(Left::DATASYNC | Left::SYNC);
    }

    /// Whether completions are to be looked at before they are popped, since something may be left to be done.
    #[inline(always)]
    pub(crate) fn expects(&self) -> bool {
        self.expects
    }

    /// How many requests wait for a sync.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    pub(crate) fn take_unsynced(&mut self) -> Vec<Unsynced> {
        self.expects = !self.in_flight.is_none();
        std::mem::take(&mut self.unsynced)
    }

    /// Files that are to be settled.
    pub(crate) fn take_full(&mut self) -> Vec<Keep> {
        std::mem::take(&mut self.full)
    }
}
