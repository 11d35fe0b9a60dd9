//! Completed writes that are not in a file's metadata yet: the new size, and the parts of unwritten extents that contain data.
//!
//! A separate transaction for each write to an unwritten extent would be expensive. Therefore only the range of the write is recorded here.
//! Readers check the recorded ranges before they treat an unwritten extent as zeros. One transaction later converts many ranges. This
//! conversion runs when the file is synced or closed, after some seconds, or when there are too many ranges. If a crash prevents the
//! conversion, the extent reads as zeros. This is permitted, because the data were not synced.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::iomap::{Iomap, IomapType};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::FilePos;

/// If more written ranges than this number are recorded, they must be converted from unwritten to written extents.
const MANY: usize = 1024;

/// The writes that are not in the metadata yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The size of the file in bytes, if it is larger than the size in the metadata. Otherwise 0.
    size: AtomicU64,
    /// Whether any written range of an unwritten extent is recorded.
    ranges: AtomicBool,
    within: Mutex<Within>,
    /// The lock that [`Self::order`] acquires.
    order: Mutex<()>,
}

#[derive(Debug, Default)]
struct Within {
    /// The recorded ranges. The key is the start of a range, and the value is its end. No two ranges overlap or touch each other.
    written: BTreeMap<u64, u64>,
    /// Whether the inode is on the orphan list, because blocks past the end of the file were allocated. After a crash, the recovery frees
    /// these blocks.
    orphan: bool,
    /// The end of the blocks that were allocated for writes since the inode became an orphan.
    reach: u64,
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
    /// The ranges in unwritten extents that contain data, in bytes and in order. The other bytes of these extents read as zeros.
    pub written: Vec<Range<u64>>,
    /// The size of the file in bytes, if it is larger than the size in the metadata. Otherwise 0.
    pub size: u64,
    /// Whether the inode is an orphan, because blocks past the end of the file were allocated.
    pub(crate) orphan: bool,
    /// The end of the blocks that were allocated for writes since the inode became an orphan.
    pub(crate) reach: u64,
}

impl Pending {
    /// The size of the file in bytes, if it is larger than the size in the metadata. Otherwise 0.
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
        self.size() == 0 && !self.has_ranges()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.is_converted() && !self.within.lock().orphan
    }

    /// Records a written range of an unwritten extent. Returns whether so many ranges are recorded that they must be converted to written
    /// extents.
    pub(crate) fn wrote(&self, range: Range<u64>) -> bool {
        let mut within = self.within.lock();
        within.insert(range);
        self.ranges.store(true, Ordering::Release);
        within.written.len() > MANY
    }

    /// Records that the file has at least this size.
    pub(crate) fn grew(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Locks the order of appends. An append has this lock while it may still [give back](Self::give_back) or [shorten](Self::shorten) its
    /// reserved range. Without the lock, another append could reserve the next range before the first range is given back or shortened. A
    /// gap of zeros would then remain in the file.
    pub(crate) fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock()
    }

    /// Reserves `len` bytes for an append, and returns their position. The position is after the end of the file, and after all writes in
    /// flight that extend the file. `size` is the size in the metadata. The range stays reserved until the append
    /// [ends](Self::place_ended). If `is_old` returns true, the metadata have changed and `size` may be out of date, so the result is
    /// `None`.
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

    pub(crate) fn set_orphan(&self) {
        self.within.lock().orphan = true;
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.within.lock().orphan
    }

    /// If the inode is an orphan, records the end of the blocks that were allocated for a write.
    pub(crate) fn allocated(&self, end: u64) {
        let mut within = self.within.lock();
        if within.orphan {
            within.reach = within.reach.max(end);
        }
    }

    /// Records that the blocks past the end of the file were freed. The inode stays an orphan until the next conversion of unwritten
    /// extents.
    pub(crate) fn forget_reach(&self) {
        self.within.lock().reach = 0;
    }

    /// Records that the blocks past the end of the file were freed, and that the inode is no longer an orphan.
    pub(crate) fn forget_orphan(&self) {
        let mut within = self.within.lock();
        (within.orphan, within.reach) = (false, 0);
    }

    /// Cuts the mapping of an unwritten extent around `pos`. If a recorded write contains `pos`, returns the written part as a mapped
    /// range. If not, returns the part without data. If `is_old` returns true, a conversion of extents may have made the mapping out of
    /// date, and the result is `None`.
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
        let before = within.written.range(..=pos.0).next_back();
        if let Some((start, end)) = before.filter(|(_, end)| **end > pos.0) {
            let data = iomap.cut(FilePos(*start), FilePos(*end));
            return Some(Iomap { kind: IomapType::Mapped, ..data });
        }
        let from = before.map_or(0, |(_, end)| *end);
        let to = within.written.range(pos.0..).next().map_or(u64::MAX, |(start, _)| *start);
        Some(iomap.cut(FilePos(from), FilePos(to)))
    }

    /// The writes that the next conversion must add to the metadata. Each write stays recorded until [`converted`](Self::converted) is
    /// called, after the conversion of its range.
    pub(crate) fn unconverted(&self) -> Unconverted {
        let within = self.within.lock();
        let written = within.written.iter().map(|(start, end)| *start..*end).collect();
        Unconverted { written, size: self.size(), orphan: within.orphan, reach: within.reach }
    }

    /// Records that the metadata include the given writes. `changed` increments the change counter, so that other threads read the metadata
    /// again.
    pub(crate) fn converted(&self, what: &Unconverted, changed: impl FnOnce()) {
        let mut within = self.within.lock();
        what.written.iter().for_each(|range| within.remove(range));
        if what.orphan {
            (within.orphan, within.reach) = (false, 0);
        }
        // The counter is incremented before the flag is cleared. So a thread that sees the cleared flag also sees the new counter.
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

    fn insert(&mut self, mut range: Range<u64>) {
        // The usual case: the new range begins within a recorded range, or at its end.
        if let Some((start, end)) = self.written.range_mut(..=range.end).next_back()
            && *start <= range.start
            && *end >= range.start
        {
            *end = range.end.max(*end);
            return;
        }
        while let Some((start, end)) = self.touching(&range) {
            if start == range.start && end >= range.end {
                return;
            }
            range = range.start.min(start)..range.end.max(end);
            self.written.remove(&start);
        }
        self.written.insert(range.start, range.end);
    }

    /// Returns the last recorded range that overlaps or touches `range`.
    fn touching(&self, range: &Range<u64>) -> Option<(u64, u64)> {
        let last = self.written.range(..=range.end).next_back();
        last.map(|(start, end)| (*start, *end)).filter(|(_, end)| *end >= range.start)
    }

    fn remove(&mut self, range: &Range<u64>) {
        let within = self.written.range(..range.end).rev();
        let overlap: Vec<_> = within
            .map(|(start, end)| (*start, *end))
            .take_while(|(_, end)| *end > range.start)
            .collect();
        for (start, end) in overlap {
            self.written.remove(&start);
            if start < range.start {
                self.written.insert(start, range.start);
            }
            if end > range.end {
                self.written.insert(range.end, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iomap::IomapFlags;
    use crate::units::DevOffset;

    const EXTENT: Iomap = Iomap {
        pos: FilePos(0),
        len: 1 << 20,
        addr: DevOffset(1 << 30),
        device: crate::iomap::IomapDevice::Data,
        kind: IomapType::Unwritten,
        flags: IomapFlags::empty(),
    };

    /// After random changes, the recorded ranges are equal to the ranges of a model. The model stores one flag for each byte.
    #[test]
    fn ranges_are_what_was_written_and_not_converted() {
        const LEN: u64 = 400;
        let pending = Pending::default();
        let mut model = [false; LEN as usize];
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
            if random(3) > 0 {
                pending.wrote(range.clone());
                model[range.start as usize..range.end as usize].fill(true);
            } else {
                let what = Unconverted { written: vec![range.clone()], ..Unconverted::default() };
                pending.converted(&what, || {});
                model[range.start as usize..range.end as usize].fill(false);
            }
            let pos = random(LEN);
            let found = pending.refine(EXTENT, FilePos(pos), || false).unwrap();
            assert_eq!(found.kind == IomapType::Mapped, model[pos as usize], "round {round}");
            assert_eq!(found.addr.0 - EXTENT.addr.0, found.pos.0);
            let (from, to) = (found.pos.0 as usize, found.end().0.min(LEN) as usize);
            assert!(from <= pos as usize && to > pos as usize);
            assert!(model[from..to].iter().all(|byte| *byte == model[pos as usize]));
            assert!(
                from == 0 || model[from - 1] != model[from],
                "the mapping is as long as possible"
            );
            assert!(to == LEN as usize || model[to - 1] != model[to]);
        }
        assert_eq!(pending.has_ranges(), model.contains(&true));
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

    /// A position that was given back is used by the next append. No append gets a position that another write uses.
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
        assert!(pending.is_empty());
    }
}
