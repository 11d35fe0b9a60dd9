//! Checks the names of inodes. Every inode must be reachable from the root, and its number of names must equal its link count.

use super::Checker;
use super::table::CHUNK;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Kind, Pass, Severity};
use crate::units::InodeNo;

const PLACE: Place = Place::new("inode");

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    Walked,
    Good,
    Lost,
}

impl Checker<'_> {
    pub(super) fn check_names(&mut self) {
        let root = self.fs.superblock.root;
        let is_root = self.inodes.get(root);
        if is_root.is_none_or(|state| state.file_type != Some(FileType::Directory)) {
            let what = Kind::Damaged { what: "the root inode is not a directory".into() };
            self.findings.add_as(Severity::Fatal, PLACE.inode(root), what);
        }
        for number in self.fs.superblock.internal.clone() {
            let state = self.inodes.get(number);
            if state.is_none_or(|state| state.file_type != Some(FileType::Regular)) {
                let what = "an internal file is not a regular file".into();
                self.findings.add(PLACE.inode(number), Kind::Damaged { what });
            }
        }
        self.check_parents(root);
        let groups = self.fs.superblock.geometry.groups;
        for at in 0..self.inodes.chunks.len() {
            let group = self.inodes.chunks[at].group;
            self.tell(Pass::Names, group.into(), groups.into());
            self.check_links(at);
        }
    }

    /// Checks that each directory is reachable from the root. Checks that `..` in each directory names the parent.
    fn check_parents(&mut self, root: InodeNo) {
        let position = |checker: &Self, number: InodeNo| {
            checker.directories.binary_search_by_key(&number, |directory| directory.number).ok()
        };
        let mut reach = vec![Reach::Unknown; self.directories.len()];
        let metadata_root = self.fs.superblock.metadata_root;
        let is_root = |number| number == root || metadata_root == Some(number);
        for number in [Some(root), metadata_root].into_iter().flatten() {
            if let Some(at) = position(self, number) {
                reach[at] = Reach::Good;
            }
        }
        let mut circles = Vec::new();
        for start in 0..reach.len() {
            let (mut way, mut at) = (Vec::new(), Some(start));
            let end = loop {
                let Some(here) = at else { break Reach::Lost };
                match reach[here] {
                    Reach::Unknown => {
                        reach[here] = Reach::Walked;
                        way.push(here);
                        at = position(self, self.directories[here].parent);
                    }
                    Reach::Walked => {
                        circles.push(here);
                        break Reach::Lost;
                    }
                    end => break end,
                }
            };
            for here in way {
                reach[here] = end;
            }
        }
        for at in 0..self.directories.len() {
            let directory = &self.directories[at];
            let (number, stored, parent) = (directory.number, directory.dot_dot, directory.parent);
            let actual = if is_root(number) { number } else { parent };
            let unlinked = self.inodes.get(number).is_some_and(|state| state.unlinked);
            if unlinked {
                continue;
            }
            // Only the top of an unreachable subtree is reported, not the directories below it.
            if actual.0 == 0 || circles.contains(&at) {
                self.findings.add(PLACE.inode(number), Kind::Unconnected);
            } else if stored != actual {
                self.findings.add(PLACE.inode(number), Kind::WrongParent { stored, actual });
            }
        }
    }

    fn check_links(&mut self, at: usize) {
        let first = self.inodes.chunks[at].first;
        let roots = [Some(self.fs.superblock.root), self.fs.superblock.metadata_root];
        for index in 0..CHUNK {
            let state = self.inodes.chunks[at].states[index as usize];
            let number = InodeNo(first + index);
            if !state.used || self.fs.superblock.internal.contains(&number) {
                continue;
            }
            let place = PLACE.inode(number).field("di_nlink");
            let is_directory = state.file_type == Some(FileType::Directory);
            if state.unlinked {
                if state.names > 0 {
                    let what =
                        format!("the inode is in an unlinked list, but has {} names", state.names);
                    self.wrong(place, what);
                }
                continue;
            }
            if state.links == 0 {
                self.wrong(
                    place,
                    "the inode is in use, but has no links and is in no unlinked list",
                );
            }
            if state.names == 0 && !is_directory {
                self.findings.add(place, Kind::Unconnected);
                continue;
            }
            let mut names = state.names;
            if is_directory {
                let directory =
                    self.directories.binary_search_by_key(&number, |directory| directory.number);
                let children = directory.map_or(0, |at| self.directories[at].children);
                names = children + 2;
                if state.names == 0 && !roots.contains(&Some(number)) {
                    continue;
                }
            }
            if state.links != names && state.links != 0 {
                let stored = state.links;
                self.findings.add(place, Kind::LinkCount { stored, names });
            }
        }
    }
}
