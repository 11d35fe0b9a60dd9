//! Checks names. Each used inode must be reachable from the root, and must have as many names as its link count says.

use std::collections::HashSet;

use super::{Checker, Pass};
use crate::error::Place;
use crate::fs::check::{Kind, Severity};
use crate::fs::ext4::{ROOT, RoCompat};
use crate::units::InodeNo;

const PLACE: Place = Place::new("inode");
const ROOT_NUMBER: u32 = ROOT.0 as u32;

impl Checker<'_> {
    pub(super) fn check_names(&mut self) {
        self.check_parents();
        let groups = self.fs.superblock.groups;
        for group in 0..groups {
            self.check_links(group);
            self.tell(Pass::Names, u64::from(group) + 1, u64::from(groups));
        }
    }

    /// Checks that each directory is reachable from the root, and that its entry `..` refers to its parent.
    fn check_parents(&mut self) {
        if self.inodes.get(ROOT_NUMBER).is_none_or(|record| !record.is_directory()) {
            let what = Kind::Damaged { what: "the root is not a directory in use".to_owned() };
            self.findings.add_as(Severity::Fatal, PLACE.inode(ROOT), what);
        }
        // The state of each directory: not visited, on the current path, reachable from the root, or lost.
        let mut state = vec![Reach::Unknown; self.directories.len()];
        // For each loop of directories, the index of one directory in the loop.
        let mut looped = HashSet::new();
        for index in 0..self.directories.len() {
            let mut walked = Vec::new();
            let mut at = index;
            let good = loop {
                match state[at] {
                    Reach::Good => break true,
                    Reach::Lost => break false,
                    Reach::Walked => {
                        looped.insert(at);
                        break false;
                    }
                    Reach::Unknown => {}
                }
                state[at] = Reach::Walked;
                walked.push(at);
                let directory = &self.directories[at];
                if directory.number == ROOT_NUMBER {
                    break true;
                }
                match self.directories.binary_search_by_key(&directory.parent, |dir| dir.number) {
                    Ok(parent) => at = parent,
                    Err(_) => break false,
                }
            };
            for at in walked {
                state[at] = if good { Reach::Good } else { Reach::Lost };
            }
        }
        for (index, directory) in self.directories.iter().enumerate() {
            let place = PLACE.inode(directory.inode()).block(directory.inode_block);
            let root = directory.number == ROOT_NUMBER;
            let actual = if root { ROOT_NUMBER } else { directory.parent };
            let orphan = self.orphans.contains(&directory.number);
            // If a complete subtree is lost, only its topmost directory is reported.
            let lost = actual == 0 || looped.contains(&index);
            if lost && !orphan {
                self.findings.add(place, Kind::Unconnected);
            } else if directory.dot_dot != actual && directory.dot_dot != 0 && !orphan {
                let stored = InodeNo(u64::from(directory.dot_dot));
                let actual = InodeNo(u64::from(actual));
                self.findings.add(place, Kind::WrongParent { stored, actual });
            }
        }
    }

    fn check_links(&mut self, group: u32) {
        let sb = &self.fs.superblock;
        let first = group * sb.inodes_per_group + 1;
        let many = sb.ro_compat.contains(RoCompat::DIR_NLINK);
        for (index, record) in self.inodes.of_group(group) {
            let number = first + index;
            let reserved = number < sb.first_inode && number != ROOT_NUMBER;
            if reserved || record.is_value || self.is_hidden(number) {
                continue;
            }
            let place = PLACE.inode(InodeNo(u64::from(number))).field("i_links_count");
            let directory = record.is_directory();
            let (links, names) = (record.links, record.names);
            if names == 0 && !directory {
                if !self.orphans.contains(&number) {
                    self.findings.add(place, Kind::Unconnected);
                }
            } else if directory && many && links == 1 {
                // If a directory's link count would exceed the maximum of the field, the count is set to 1, and remains 1 from then on.
            } else if links != names && !(links == 0 && self.orphans.contains(&number)) {
                let (stored, names) = (u32::from(links), u32::from(names));
                self.findings.add(place, Kind::LinkCount { stored, names });
            }
        }
    }

    /// Whether the superblock names this inode. No directory contains such an inode.
    pub(super) fn is_hidden(&self, number: u32) -> bool {
        let raw = &self.superblock;
        let named = [
            raw.s_journal_inum.get(),
            raw.s_usr_quota_inum.get(),
            raw.s_grp_quota_inum.get(),
            raw.s_prj_quota_inum.get(),
        ];
        named.contains(&number)
            || self.fs.superblock.orphan_file == Some(InodeNo(u64::from(number)))
    }
}

#[derive(Clone, Copy)]
enum Reach {
    Unknown,
    Walked,
    Good,
    Lost,
}
