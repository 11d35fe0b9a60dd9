//! Checks the lists of unlinked inodes. The next mount removes the inodes in these lists.

use super::super::disk::tree::NONE;
use super::Checker;
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind};
use crate::units::InodeNo;

/// The number of unlinked lists of a group. The number of an inode's list is the inode number modulo this constant.
const LISTS: u32 = 64;

impl Checker<'_> {
    pub(super) fn check_unlinked(&mut self) {
        let mut orphans = 0;
        for group in 0..self.fs.superblock.geometry.groups {
            let heads = std::mem::take(&mut self.groups[group as usize].unlinked);
            for (list, head) in heads.into_iter().enumerate() {
                orphans += self.follow(group, list as u32, head);
            }
        }
        self.check_strays();
        if orphans > 0 {
            let place = Place::new("header of inodes").field("agi_unlinked");
            self.findings.add(place, Kind::Orphans { count: orphans });
        }
    }

    /// Checks that `di_next_unlinked` is set only in inodes that are in a list.
    fn check_strays(&mut self) {
        for chunk in &self.inodes.chunks {
            for (number, state) in (chunk.first..).zip(chunk.states.iter()) {
                if state.has_next && !state.unlinked {
                    let place = Place::new("inode").inode(InodeNo(number));
                    let what = "the inode is in no unlinked list, but points to a next inode";
                    self.findings.wrong(place.field("di_next_unlinked"), what);
                }
            }
        }
    }

    /// Follows a list and returns the number of inodes in the list.
    fn follow(&mut self, group: u32, list: u32, head: u32) -> u64 {
        let geometry = self.fs.superblock.geometry;
        let place = Place::new("header of inodes").field("agi_unlinked");
        let (mut next, mut count) = (head, 0);
        while next != NONE {
            let log = geometry.inodes_per_block_log;
            let number =
                InodeNo(u64::from(group) << geometry.group_blocks_log << log | u64::from(next));
            let site = FindingSite::of_group(group, place.inode(number));
            let inside = u64::from(next) >> log < geometry.group_len(group);
            if !inside || next % LISTS != list {
                let what = format!(
                    "unlinked list {list} leads to inode {next} of the group, which cannot be in this list"
                );
                self.findings.add(site, Kind::Damaged { what });
                break;
            }
            let state = self.inodes.get_mut(number).filter(|state| state.used);
            let Some(state) = state else {
                let what = format!("unlinked list {list} contains an inode that is not in use");
                self.findings.add(site, Kind::Damaged { what });
                break;
            };
            // The walk ends at an inode that it visits a second time. So the walk of a circular list also ends.
            if std::mem::replace(&mut state.unlinked, true) {
                let what = format!("unlinked list {list} contains an inode twice");
                self.findings.add(site, Kind::Damaged { what });
                break;
            }
            if state.links != 0 {
                let links = state.links;
                self.wrong(
                    site,
                    format!("the inode has {links} links, but is in unlinked list {list}"),
                );
            }
            count += 1;
            let Some(found) = self.again(number) else { break };
            next = found.raw.di_next_unlinked.get();
        }
        count
    }
}
