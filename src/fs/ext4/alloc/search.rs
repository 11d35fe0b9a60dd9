//! The search for free clusters within a group.

use std::ops::Range;

use super::bitmap::Bits;

/// The length in clusters that is sufficient for any request. If a free run has this length, a longer run is not preferred.
const LONG: u32 = 2048;
/// The number of groups that the search skips because their free runs are too short, before it accepts a shorter run. A group whose bitmap
/// was searched without success counts as `BITMAP` groups.
pub(super) const PATIENCE: u32 = 1024;
pub(super) const BITMAP: u32 = 64;
/// A new run for a growing file should begin with at least this many free blocks.
pub(super) const ROOM: u32 = 64;

/// The request of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The maximum number of clusters.
    pub(super) want: u32,
    /// The alignment of the run's start for a growing file, in clusters. The alignment leaves free space for the growth. 0 for other files.
    pub(super) room: u32,
    /// The number of clusters in a RAID stripe, or 0.
    pub(super) stripe: u32,
}

/// The result of a search in a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The clusters that were found.
    Run(Range<u32>),
    /// No free run of the group is long enough; the longest free run has this length in clusters.
    Longest(u32),
}

/// The available clusters of one group.
pub(super) struct Space<'a> {
    pub(super) bits: Bits<'a>,
    pub(super) clusters: Range<u32>,
    /// The distance in clusters from the last stripe boundary before the group to the start of the group.
    pub(super) phase: u32,
}

impl Wish {
    /// The minimum lengths of a run for successive searches. The first length is sufficient for the request; the last length is 1.
    pub(super) fn lengths(self) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(self.want.max(self.room).min(LONG)), |length| {
            (*length > 1).then_some(length / 8).map(|length| length.max(1))
        })
    }

    /// Finds the free run that begins at the goal. If the goal is in use, finds the first run of at least `length` clusters after the goal.
    /// If no run after the goal is long enough, finds the first sufficient run before the goal.
    pub(super) fn find(self, space: &Space<'_>, goal: Option<u32>, length: u32) -> Found {
        let Range { start, end } = space.clusters;
        let from = goal.unwrap_or(start).clamp(start, end);
        let mut longest = 0;
        // A run that extends across the goal is split at the goal. The first search covers the part after the goal. The second search
        // covers the part before the goal.
        for range in [from..end, start..from] {
            match self.find_within(space, range, goal, length) {
                Found::Longest(within) => longest = longest.max(within),
                run => return run,
            }
        }
        Found::Longest(longest)
    }

    fn find_within(
        self,
        space: &Space<'_>,
        range: Range<u32>,
        goal: Option<u32>,
        length: u32,
    ) -> Found {
        // Free runs are measured only up to this length, because a free run may be as long as the group.
        let limit = self.want.saturating_add(self.stripe).max(2 * self.room);
        let (mut longest, mut at) = (0, range.start);
        loop {
            let start = space.bits.next_clear(at, range.end);
            if start == range.end {
                return Found::Longest(longest);
            }
            let end = space.bits.next_set(start, range.end.min(start.saturating_add(limit)));
            // A run that continues a file may have any length. A short run at the end of a group is also useful: the file's next run may
            // follow directly in the next group.
            if goal == Some(start) {
                return Found::Run(start..end.min(start.saturating_add(self.want)));
            }
            if end - start >= length {
                let first = self.aligned(space, start..end, length);
                return Found::Run(first..end.min(first.saturating_add(self.want)));
            }
            longest = longest.max(end - start);
            at = end;
        }
    }

    /// The first cluster to allocate in a free run that does not continue a file. A large request begins at a stripe boundary. A growing
    /// file begins at a multiple of `room`. If fewer than `length` clusters remained after the aligned start, the start is not aligned.
    fn aligned(self, space: &Space<'_>, run: Range<u32>, length: u32) -> u32 {
        let start = if self.stripe > 0 && self.want >= self.stripe {
            (run.start + space.phase).next_multiple_of(self.stripe) - space.phase
        } else {
            run.start.next_multiple_of(self.room.max(1))
        };
        if start + length <= run.end { start } else { run.start }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bitmap;
    use super::*;

    fn find(used: &[(u32, u32)], from: u32, want: u32, length: u32, stripe: u32) -> Found {
        let mut bytes = [0; 128];
        used.iter().for_each(|(start, end)| bitmap::set(&mut bytes, *start..*end));
        let space = Space { bits: Bits::new(&bytes, None), clusters: 0..1000, phase: 4 };
        Wish { want, room: 0, stripe }.find(&space, Some(from), length)
    }

    #[test]
    fn a_growing_file_gets_room_unless_it_continues() {
        let mut bytes = [0; 128];
        let mut find = |from, expected: Range<u32>| {
            let space = Space { bits: Bits::new(&bytes, None), clusters: 0..1000, phase: 0 };
            let wish = Wish { want: 1, room: 64, stripe: 0 };
            assert_eq!(wish.lengths().collect::<Vec<_>>(), [64, 8, 1]);
            assert_eq!(wish.find(&space, Some(from), 64), Found::Run(expected.clone()));
            bitmap::set(&mut bytes, expected);
        };
        find(10, 10..11);
        find(11, 11..12);
        // The goal is in use, so the next two files cannot continue the run at the goal. Each of the two files gets a separate aligned
        // start.
        find(11, 64..65);
        find(11, 128..129);
        find(65, 65..66);
        find(129, 129..130);
        // The last file also gets an aligned start. The free clusters directly after the other files are left for the growth of the other
        // files.
        find(11, 192..193);
    }

    #[test]
    fn the_next_run_that_is_long_enough_is_taken() {
        let used = [(0, 10), (20, 100), (150, 1000)];
        assert_eq!(find(&used, 0, 5, 5, 0), Found::Run(10..15));
        assert_eq!(find(&used, 12, 5, 5, 0), Found::Run(12..17));
        assert_eq!(
            find(&used, 18, 5, 5, 0),
            Found::Run(18..20),
            "a run at the goal is found, although the run is short"
        );
        assert_eq!(find(&used, 20, 5, 5, 0), Found::Run(100..105));
        assert_eq!(
            find(&used, 160, 60, 8, 0),
            Found::Run(10..20),
            "a run before the goal is found, although the run is shorter than requested"
        );
        assert_eq!(find(&used, 20, 60, 60, 0), Found::Longest(50));
    }

    #[test]
    fn large_requests_begin_with_a_stripe() {
        assert_eq!(find(&[(0, 10)], 0, 32, 32, 16), Found::Run(12..44));
        assert_eq!(
            find(&[(0, 10)], 10, 32, 32, 16),
            Found::Run(10..42),
            "a run that begins at the goal is not aligned, because the file's previous block is before the goal"
        );
        assert_eq!(
            find(&[(0, 10)], 0, 15, 15, 16),
            Found::Run(10..25),
            "a request of less than a stripe is not aligned"
        );
        assert_eq!(
            find(&[(0, 10), (43, 1000)], 0, 32, 32, 16),
            Found::Run(10..42),
            "the free run is too short to be aligned"
        );
    }

    #[test]
    fn less_is_asked_for_until_it_is_one() {
        let lengths = |want| Wish { want, room: 0, stripe: 0 }.lengths().collect::<Vec<_>>();
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(9), [9, 1]);
        assert_eq!(lengths(100_000), [2048, 256, 32, 4, 1]);
    }
}
