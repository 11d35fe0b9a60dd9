//! Checks the owners of the blocks of each group. Every block has exactly one owner, except blocks that files share.
//!
//! Realtime groups are checked like allocation groups. In a zone, a used block may have no owner. Such a block contains old file data. The
//! file's present data are at another position.

use super::super::disk::tree::{owner, owner_bits};
use super::super::features::RoCompat;
use super::Checker;
use super::group::Group;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind, Pass};
use crate::units::InodeNo;

/// The owner of free space. No inode has the number 0.
pub(super) const FREE: u64 = 0;

/// An allocation group of the volume, or a realtime group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Data(u32),
    Realtime(u32),
}

impl Space {
    /// Names a structure of this group in a finding. `names` are the names of the structure in an allocation group and in a realtime group.
    pub(super) fn site(self, names: [&'static str; 2]) -> FindingSite {
        match self {
            Self::Data(group) => FindingSite::of_group(group, Place::new(names[0])),
            Self::Realtime(group) => FindingSite::of_group(group, Place::new(names[1])),
        }
    }
}

/// A run of blocks with one owner. Runs are ordered like the records of the reverse-mapping tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owned {
    pub(super) start: u32,
    pub(super) len: u32,
    /// The owner as the reverse-mapping tree encodes it, or [`FREE`].
    pub(super) owner: u64,
    /// The offset as the reverse-mapping tree encodes it: the block of the file, with flag bits.
    pub(super) offset: u64,
}

impl Owned {
    pub(super) fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }

    /// Whether the run contains data of a file. Only data can be shared.
    pub(super) fn is_data(&self) -> bool {
        let bits = owner_bits::ATTRIBUTES | owner_bits::MAP_BLOCK;
        self.has_offset() && self.offset & bits == 0
    }

    /// Whether the run belongs to a file and has an offset in that file.
    pub(super) fn has_offset(&self) -> bool {
        self.owner != FREE && self.owner >> 63 == 0 && self.offset & owner_bits::MAP_BLOCK == 0
    }

    /// The name of the owner, for messages.
    fn name(&self) -> String {
        match self.owner {
            FREE => "free space".into(),
            owner::HEADERS => "headers of the group".into(),
            owner::LOG => "the log".into(),
            owner::GROUP => "the trees of free space".into(),
            owner::INODE_TREES => "the trees of inodes".into(),
            owner::INODES => "inodes".into(),
            owner::REFCOUNTS => "the tree of reference counts".into(),
            owner::COPIES => "copies on write".into(),
            inode if self.offset & owner_bits::MAP_BLOCK != 0 => {
                format!("the map of inode {inode}")
            }
            inode if self.offset & owner_bits::ATTRIBUTES != 0 => {
                format!("attributes of inode {inode}")
            }
            inode => format!("inode {inode}"),
        }
    }
}

impl Checker<'_> {
    /// Records that an owner uses these blocks. The blocks must be within the group.
    pub(super) fn claim(
        &mut self,
        space: Space,
        (start, len): (u32, u32),
        owner: u64,
        offset: u64,
    ) {
        let owned = &mut self.group(space).owned;
        // Adjacent blocks of the same structure are merged into one run. Most inodes and trees have contiguous blocks, so this saves
        // memory.
        if let Some(last) = owned.last_mut()
            && last.owner == owner
            && last.end() == u64::from(start)
            && !last.has_offset()
            && last.offset == offset
            && owner != FREE
            && let Some(sum) = last.len.checked_add(len)
        {
            last.len = sum;
            return;
        }
        owned.push(Owned { start, len, owner, offset });
    }

    /// The data of a group that the check has read so far.
    pub(super) fn group(&mut self, space: Space) -> &mut Group {
        match space {
            Space::Data(group) => &mut self.groups[group as usize],
            Space::Realtime(group) => self.realtime.entry(group).or_default(),
        }
    }

    /// The number of blocks of a group.
    pub(super) fn group_len(&self, space: Space) -> u64 {
        let sb = &self.fs.superblock;
        match space {
            Space::Data(group) => sb.geometry.group_len(group),
            Space::Realtime(group) => {
                sb.realtime().map_or(0, |space| space.group_len(group.into()))
            }
        }
    }

    pub(super) fn check_space(&mut self) {
        let groups = self.fs.superblock.geometry.groups;
        let realtime: Vec<_> = self.realtime.keys().copied().map(Space::Realtime).collect();
        for (at, space) in (0..groups).map(Space::Data).chain(realtime).enumerate() {
            self.tell(Pass::Space, (at as u64).min(groups.into()), groups.into());
            let mut owned = std::mem::take(&mut self.group(space).owned);
            owned.sort_unstable();
            self.check_overlaps(space, &owned);
            self.check_recorded_owners(space, &owned);
            self.check_recorded_counts(space, &owned);
        }
    }

    /// Reports blocks with two owners and blocks without an owner.
    fn check_overlaps(&mut self, space: Space, owned: &[Owned]) {
        let length = self.group_len(space);
        let can_share = self.fs.superblock.ro_compat.contains(RoCompat::REFLINK);
        let site = space.site(["blocks", "realtime blocks"]);
        // `end` is the highest end of the runs so far, and `last` is the run that ends at `end`.
        let (mut end, mut last): (u64, Option<Owned>) = (0, None);
        // Runs that do not contain file data must not share blocks. `sole` is the run with the highest end among these runs.
        let mut sole: Option<Owned> = None;
        for run in owned {
            let (start, run_end) = (u64::from(run.start), run.end().min(length));
            let gap = start.saturating_sub(end);
            if gap > 0 && self.group(space).free_is_known {
                let what = Kind::MarkedUsed { first: end, count: gap };
                self.add_of_space(site, what);
            }
            let before =
                sole.filter(|sole| sole.end() > start).or(last.filter(|last| last.end() > start));
            if let Some(before) = before {
                let shared = can_share && before.is_data() && run.is_data();
                if !shared {
                    let count = run_end.min(before.end()).saturating_sub(start).max(1);
                    let pair = (before, *run);
                    self.overlap(site, (start, count), pair);
                } else {
                    self.check_may_share(&[before, *run]);
                }
            }
            if !run.is_data() && sole.is_none_or(|sole| sole.end() < run.end()) {
                sole = Some(*run);
            }
            if last.is_none_or(|last| last.end() < run.end()) {
                last = Some(*run);
            }
            if run.owner != FREE {
                self.group(space).used += run_end.saturating_sub(start.max(end));
            }
            end = end.max(run_end);
        }
        if end < length && self.group(space).free_is_known {
            let what = Kind::MarkedUsed { first: end, count: length - end };
            self.add_of_space(site, what);
        }
    }

    fn overlap(
        &mut self,
        site: FindingSite,
        (first, count): (u64, u64),
        (one, other): (Owned, Owned),
    ) {
        let is_free = one.owner == FREE || other.owner == FREE;
        let inode =
            [other, one].into_iter().find(|owned| owned.owner != FREE && owned.owner >> 63 == 0);
        let mut site = site;
        if let Some(owned) = inode {
            site.place = site.place.inode(InodeNo(owned.owner));
        }
        if is_free {
            // XFS removes blocks from all maps before it frees them. So an unfinished operation cannot explain that blocks of a file are
            // marked as free.
            self.findings.add(site, Kind::MarkedFree { first, count });
        } else {
            let what = format!(
                "{count} blocks from block {first} of the group on are used by {} and by {}",
                one.name(),
                other.name()
            );
            self.findings.add(site, Kind::Damaged { what });
        }
    }

    /// Checks that each inode with shared blocks has the reflink flag.
    fn check_may_share(&mut self, runs: &[Owned]) {
        for run in runs {
            let number = InodeNo(run.owner);
            if let Some(state) = self.inodes.get_mut(number)
                && !state.shares
            {
                state.shares = true;
                let place = Place::new("inode").inode(number).field("di_flags2");
                self.wrong(place, "the inode shares blocks, but the flag reflink is not set");
            }
        }
    }
}
