//! Completed writes that are not yet in a file's metadata: the new size, and the parts of unwritten extents that contain data.
//!
//! A separate transaction for each write to an unwritten extent would be expensive, so this module records only the range of the write.
//! Readers check the recorded ranges before they treat an unwritten extent as zeros. Later, one transaction converts many ranges. This
//! conversion runs when the file is synced or closed, after some seconds, or when there are too many ranges. If a crash prevents the
//! conversion, the extent reads as zeros. This is permitted, because the data were not synced.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::iomap::{Iomap, IomapType, Written};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::FilePos;

/// The number of recorded written ranges above which they must be converted from unwritten to written extents.
const MANY: usize = 1024;
/// The largest number of recorded ranges of failed writes. If more writes fail, the last range grows.
const MOST_CANCELLED: usize = 16;

/// The writes that are not yet in the metadata.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The size of the file in bytes if it is larger than the size in the metadata, otherwise 0.
    size: AtomicU64,
    /// Whether any written range of an unwritten extent is recorded.
    ranges: AtomicBool,
    /// Whether any range of a failed write is recorded.
    cancels: AtomicBool,
    within: Mutex<Within>,
    /// The lock that [`Self::order`] acquires.
    order: Mutex<()>,
}

#[derive(Debug, Default)]
struct Within {
    /// The recorded parts of writes, by their positions. No two parts overlap. Adjacent parts have different kinds of work, or are not
    /// adjacent on the device.
    written: BTreeMap<u64, Written>,
    /// The ranges of writes that have failed or were cancelled.
    cancelled: Vec<Range<u64>>,
    /// The end of the last append in flight, in bytes.
    appended: u64,
    /// The largest end of the writes in flight that extend the file and are not appends.
    extended: u64,
    /// The number of writes in flight that extend the file.
    growing: u32,
}

/// The writes that the next conversion of unwritten extents adds to the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unconverted {
    /// The parts of completed writes, in order. A part with [`CompletionWork::CONVERT`] is in an unwritten extent, whose other bytes read
    /// as zeros. A part with [`CompletionWork::REMAP`] is in new blocks, which replace shared blocks in the map.
    ///
    /// [`CompletionWork::CONVERT`]: crate::iomap::CompletionWork::CONVERT
    /// [`CompletionWork::REMAP`]: crate::iomap::CompletionWork::REMAP
    pub written: Vec<Written>,
    /// The ranges of writes that have failed, or were cancelled before their transfer, in bytes. The file system may have allocated blocks
    /// for these writes. It can free blocks that contain no part of `written`, while it has locked the range
    /// [exclusively](super::OpenInode::alone).
    pub cancelled: Vec<Range<u64>>,
    /// The size of the file in bytes if it is larger than the size in the metadata, otherwise 0.
    pub size: u64,
}

impl Pending {
    /// Returns the size of the file in bytes if it is larger than the size in the metadata, otherwise 0.
    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether a written range is recorded, so that an extent that is unwritten in the metadata may contain data.
    #[inline(always)]
    pub(crate) fn has_ranges(&self) -> bool {
        self.ranges.load(Ordering::Acquire)
    }

    /// Whether all writes are in the metadata.
    pub(crate) fn is_converted(&self) -> bool {
        self.size() == 0 && !self.has_ranges() && !self.cancels.load(Ordering::Acquire)
    }

    /// Records parts of a completed write. Returns whether so many parts are recorded that they must be converted.
    pub(crate) fn wrote(&self, parts: &[Written]) -> bool {
        let mut within = self.within.lock();
        parts.iter().for_each(|part| within.insert(*part));
        self.ranges.store(true, Ordering::Release);
        within.written.len() > MANY
    }

    /// Records the range of a write that has failed or was cancelled.
    #[cold]
    pub(crate) fn cancelled(&self, range: Range<u64>) {
        let cancelled = &mut self.within.lock().cancelled;
        if cancelled.len() < MOST_CANCELLED {
            cancelled.push(range);
        } else if let Some(last) = cancelled.last_mut() {
            *last = last.start.min(range.start)..last.end.max(range.end);
        }
        self.cancels.store(true, Ordering::Release);
    }

    /// Records that the file has at least this size.
    pub(crate) fn grew(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Locks the order of appends. An append holds this lock while it may still [give back](Self::give_back) or [shorten](Self::shorten)
    /// its reserved range. Without the lock, another append could reserve the next range before the first range is given back or shortened,
    /// and a gap of zeros would remain in the file.
    pub(crate) fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock()
    }

    /// Reserves `len` bytes for an append, and returns their position. The position is after the end of the file, and after all writes in
    /// flight that extend the file. `size` is the size in the metadata. The range stays reserved until the append
    /// [ends](Self::place_ended). Returns `None` if `is_old` returns true, because the metadata have then changed and `size` may be out of
    /// date.
    pub(crate) fn append(&self, size: u64, len: u64, is_old: impl FnOnce() -> bool) -> Option<u64> {
        let mut within = self.within.lock();
        if is_old() {
            return None;
        }
        let at = within.appended.max(within.extended).max(size).max(self.size());
        within.appended = at.saturating_add(len);
        within.growing += 1;
        Some(at)
    }

    /// Reserves the range of a write that extends the file but is not an append. `end` is the end of the write. Until the write
    /// [ends](Self::place_ended), appends begin after this end.
    pub(crate) fn extends(&self, end: u64) {
        let mut within = self.within.lock();
        within.extended = within.extended.max(end);
        within.growing += 1;
    }

    /// Records that an append or another extending write has ended, with or without an error. If it has succeeded, the size already
    /// includes its bytes. After the last of these writes has ended, the next append begins at the end of the file.
    pub(crate) fn place_ended(&self) {
        self.within.lock().end_place();
    }

    /// Records that the last append ends before the end of its reserved range.
    pub(crate) fn shorten(&self, _order: &MutexGuard<'_, ()>, end: u64) {
        self.within.lock().appended = end;
    }

    /// Records that the last append does not use its reserved position. The next append gets the same position.
    pub(crate) fn give_back(&self, order: &MutexGuard<'_, ()>, at: FilePos) {
        self.shorten(order, at.0);
        self.place_ended();
    }

    /// Cuts the mapping of an unwritten extent around `pos`. If a recorded write contains `pos`, returns the written part as a mapped
    /// range. Otherwise, returns the part without data. Returns `None` if `is_old` returns true, because a conversion of extents may then
    /// have made the mapping out of date.
    pub(crate) fn refine(
        &self,
        iomap: Iomap,
        pos: FilePos,
        is_old: impl FnOnce() -> bool,
    ) -> Option<Iomap> {
        let within = self.within.lock();
        if is_old() {
            return None;
        }
        let before = within.written.range(..=pos.0).next_back().map(|(_, part)| part);
        // Data at a place other than the one in the mapping are not yet in the file's map.
        if let Some(part) = before.filter(|part| part.end() > pos && part.is_within(&iomap)) {
            let data = iomap.cut(part.pos, part.end());
            return Some(Iomap { kind: IomapType::Mapped, ..data });
        }
        let from = before.map_or(FilePos(0), Written::end).min(pos);
        let after = within.written.range(pos.0 + 1..).next();
        let to = after.map_or(u64::MAX, |(start, _)| *start);
        Some(iomap.cut(from, FilePos(to)))
    }

    /// Returns the writes that the next conversion must add to the metadata. Each write stays recorded until [`converted`](Self::converted)
    /// is called, after the conversion of its range.
    pub(crate) fn unconverted(&self) -> Unconverted {
        let within = self.within.lock();
        let written = within.written.values().copied().collect();
        Unconverted { written, cancelled: within.cancelled.clone(), size: self.size() }
    }

    /// Records that the metadata include the given writes. `changed` increments the change counter, so that other threads read the metadata
    /// again.
    pub(crate) fn converted(&self, what: &Unconverted, changed: impl FnOnce()) {
        let mut within = self.within.lock();
        what.written.iter().for_each(|part| within.remove(part));
        within.cancelled.retain(|range| !what.cancelled.contains(range));
        self.cancels.store(!within.cancelled.is_empty(), Ordering::Release);
        // The counter is incremented before the flag is cleared, so that a thread that sees the cleared flag also sees the new counter.
        changed();
        self.ranges.store(!within.written.is_empty(), Ordering::Release);
        // If another write has extended the file since the conversion began, this compare-and-exchange fails, and the larger size stays
        // recorded.
        let _ = self.size.compare_exchange(what.size, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Removes all records of writes, because the content of the file is removed.
    pub(crate) fn forget(&self) {
        let mut within = self.within.lock();
        *within = Within::default();
        self.ranges.store(false, Ordering::Release);
        self.cancels.store(false, Ordering::Release);
        self.size.store(0, Ordering::Release);
    }
}

impl Within {
    fn end_place(&mut self) {
        self.growing -= 1;
        if self.growing == 0 {
            (self.appended, self.extended) = (0, 0);
        }
    }

    fn insert(&mut self, mut part: Written) {
        // In the usual case, the new part begins within a recorded part of the same kind or at its end, and no other part follows.
        if let Some((_, last)) = self.written.range_mut(..=part.end().0).next_back()
            && last.pos <= part.pos
            && part.pos <= last.end()
            && last.continues(&part)
        {
            last.len = last.len.max(part.end().0 - last.pos.0);
            return;
        }
        self.cut_out(part.range());
        let before = self.written.range(..part.pos.0).next_back().map(|(_, before)| *before);
        if let Some(before) = before.filter(|it| it.end() == part.pos && it.continues(&part)) {
            self.written.remove(&before.pos.0);
            part = Written { len: before.len + part.len, ..before };
        }
        let after = self.written.get(&part.end().0).copied();
        if let Some(after) = after.filter(|after| part.continues(after)) {
            self.written.remove(&after.pos.0);
            part.len += after.len;
        }
        self.written.insert(part.pos.0, part);
    }

    /// Removes a range from all recorded parts.
    fn cut_out(&mut self, range: Range<u64>) {
        let overlap = self.overlap(&range);
        for part in overlap {
            self.written.remove(&part.pos.0);
            let rest = [0..range.start, range.end..u64::MAX];
            let rest = rest.into_iter().filter_map(|rest| part.cut(rest));
            self.written.extend(rest.map(|rest| (rest.pos.0, rest)));
        }
    }

    /// Returns the recorded parts that overlap a range.
    fn overlap(&self, range: &Range<u64>) -> Vec<Written> {
        let before = self.written.range(..range.end).rev().map(|(_, part)| *part);
        before.take_while(|part| part.end().0 > range.start).collect()
    }

    /// Removes a part from the recorded parts. If a later write has put data of the range in another place, these data stay recorded.
    fn remove(&mut self, part: &Written) {
        for found in self.overlap(&part.range()) {
            if found.continues(part) {
                let both = found.pos.max(part.pos).0..found.end().min(part.end()).0;
                self.cut_out(both);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iomap::{CompletionWork, IomapFlags};
    use crate::units::DevOffset;

    const EXTENT: Iomap = Iomap {
        pos: FilePos(0),
        len: 1 << 20,
        addr: DevOffset(1 << 30),
        kind: IomapType::Unwritten,
        flags: IomapFlags::empty(),
    };

    /// Returns a part of a write to the extent itself, or to new blocks elsewhere.
    fn part(range: &Range<u64>, work: CompletionWork) -> Written {
        let base = if work == CompletionWork::CONVERT { EXTENT.addr.0 } else { 7 << 30 };
        let (pos, len) = (FilePos(range.start), (range.end - range.start) as usize);
        Written::at(pos, len, DevOffset(base + range.start), work).unwrap()
    }

    /// After random changes, the recorded parts are equal to the parts of a model, which stores for each byte the work of the last write. A
    /// conversion removes only the parts of writes to the same place.
    #[test]
    fn parts_are_what_was_written_and_not_converted() {
        const LEN: u64 = 400;
        const NONE: CompletionWork = CompletionWork::empty();
        let pending = Pending::default();
        let mut model = [NONE; LEN as usize];
        let mut state = 0x2026_1121_u64; // the seed of the random numbers
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for round in 0..20_000 {
            let start = random(LEN - 1);
            let range =
                start..start + 1 + random((LEN - start).min(if round % 50 == 0 { LEN } else { 9 }));
            let kinds = [CompletionWork::CONVERT, CompletionWork::CONVERT, CompletionWork::REMAP];
            let work = kinds[random(3) as usize];
            let bytes = &mut model[range.start as usize..range.end as usize];
            if random(3) > 0 {
                pending.wrote(&[part(&range, work)]);
                bytes.fill(work);
            } else {
                let what =
                    Unconverted { written: vec![part(&range, work)], ..Unconverted::default() };
                pending.converted(&what, || {});
                bytes.iter_mut().filter(|byte| **byte == work).for_each(|byte| *byte = NONE);
            }
            let pos = random(LEN);
            let found = pending.refine(EXTENT, FilePos(pos), || false).unwrap();
            let here = model[pos as usize];
            assert_eq!(found.kind == IomapType::Mapped, here == CompletionWork::CONVERT, "{round}");
            assert_eq!(found.addr.0 - EXTENT.addr.0, found.pos.0);
            let (from, to) = (found.pos.0 as usize, found.end().0.min(LEN) as usize);
            assert!(from <= pos as usize && to > pos as usize);
            let is_data = |at: usize| model[at] == CompletionWork::CONVERT;
            assert!((from..to).all(|at| is_data(at) == is_data(pos as usize)), "{round}");
        }
        let mut recorded = [NONE; LEN as usize];
        let written = pending.unconverted().written;
        for (index, part) in written.iter().enumerate() {
            let next = written.get(index + 1);
            assert!(next.is_none_or(|next| part.end() <= next.pos), "the parts do not overlap");
            let joins = next.is_some_and(|next| part.end() == next.pos && part.continues(next));
            assert!(!joins, "parts of one write are one part");
            recorded[part.pos.0 as usize..part.end().0 as usize].fill(part.work);
        }
        assert!(recorded == model);
        assert_eq!(pending.has_ranges(), model.iter().any(|work| !work.is_empty()));
    }

    /// No position is reserved twice, even if appends fail. After all appends have ended, the next append begins at the end of the file.
    #[test]
    fn a_place_is_kept_until_it_is_used() {
        let pending = Pending::default();
        let append = |len| pending.append(100, len, || false).unwrap();
        assert_eq!((append(10), append(10)), (100, 110));
        pending.place_ended();
        pending.extends(140);
        assert_eq!(append(10), 140, "the append begins after the places that remain");
        for _ in 0..3 {
            pending.place_ended();
        }
        assert_eq!(append(10), 100, "the append begins at the end of the file");
        assert_eq!(pending.append(100, 10, || true), None);
    }

    /// The next append uses a position that was given back. No append gets a position that another write uses.
    #[test]
    fn a_place_that_is_given_back_is_the_next_ones() {
        let pending = Pending::default();
        let append = |len| pending.append(100, len, || false).unwrap();
        assert_eq!((append(10), append(10)), (100, 110));
        pending.give_back(&pending.order(), FilePos(110));
        assert_eq!(append(20), 110);
        pending.extends(125);
        pending.give_back(&pending.order(), FilePos(110));
        assert_eq!(append(10), 125);
    }

    #[test]
    fn a_size_that_grew_meanwhile_is_not_converted() {
        let pending = Pending::default();
        pending.grew(100);
        let what = pending.unconverted();
        pending.grew(200);
        pending.converted(&what, || {});
        assert_eq!(pending.size(), 200);
        let what = pending.unconverted();
        pending.converted(&what, || {});
        assert!(pending.is_converted());
    }
}
