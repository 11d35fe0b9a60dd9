//! Checks parent pointers. For each name of an inode, the inode has an attribute that contains the directory, the directory's generation,
//! and the name.
//!
//! The first comparison needs little memory. The check stores only one sum of fingerprints for each inode. Each name in a directory adds
//! its fingerprint, and each parent pointer subtracts its fingerprint. Only inodes whose sum is not 0 are read again and compared in full.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::disk::attr::{RawParent, flags};
use super::super::features::Incompat;
use super::Checker;
use super::found::Found;
use super::map::Which;
use crate::error::Place;
use crate::fs::check::{Findings, Kind};
use crate::fs::xfs::Xfs;
use crate::fs::xfs::attr::Attribute;
use crate::sorting::Sorting;
use crate::units::InodeNo;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum number of inodes whose differences are reported in detail.
const DETAILED: usize = 1000;
/// The maximum length of a name.
const LONGEST_NAME: usize = 255;

/// A name of an inode, from a directory or from a parent pointer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Link {
    directory: InodeNo,
    name: Vec<u8>,
    generation: u32,
}

impl Link {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn told(&self) -> String {
        let (name, number) = (String::from_utf8_lossy(&self.name), self.directory);
        format!("the name {name:?} in directory {number}, of generation {}", self.generation)
    }
}

/// The names of an inode: from directories, and from the inode's parent pointers.
#[derive(Default)]
struct Both {
    names: Vec<Link>,
    attributes: Vec<Link>,
}

/// The inodes that are read again for a comparison in full; `None` during the first comparison.
#[derive(Default)]
pub(super) struct Parents(Option<BTreeMap<InodeNo, Both>>);

impl Parents {
    /// Whether this is the second pass. This pass reads directories and attributes again, and only collects names.
    pub(super) fn are_collected(&self) -> bool {
        self.0.is_some()
    }
}

impl Xfs {
    fn has_parents(&self) -> bool {
        self.superblock.incompat.contains(Incompat::PARENT)
    }

    /// The hash of a parent pointer. It is computed from the hash of the name and from the directory's inode number.
    fn hash_parent(&self, name: &[u8], directory: u64) -> u32 {
        self.hash_name(name) ^ (directory >> 32) as u32 ^ directory as u32
    }
}

impl Checker<'_> {
    /// Records a name in a directory.
    pub(super) fn name_of(&mut self, target: InodeNo, directory: &Found, name: &[u8]) {
        if !self.fs.has_parents() {
            return;
        }
        let generation = directory.raw.di_gen.get();
        let link = Link { directory: directory.number, name: name.to_vec(), generation };
        if let Some(again) = &mut self.parents.0 {
            if let Some(both) = again.get_mut(&target) {
                both.names.push(link);
            }
        } else if let Some(state) = self.inodes.get_mut(target) {
            state.parents = state.parents.wrapping_add(link.fingerprint());
        }
    }

    /// Checks and records an attribute that is a parent pointer. `hash` is from the attribute's entry in a leaf. `value` is `None` if the
    /// value is in separate blocks.
    pub(super) fn check_parent(
        &mut self,
        found: &Found,
        place: Place,
        (name, value): (&[u8], Option<&[u8]>),
        hash: Option<u32>,
    ) {
        if !self.fs.has_parents() {
            let what = "the attribute is a parent pointer, but the feature parent is not set";
            return self.wrong(place.field("flags"), what);
        }
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(&b'/') || name.contains(&0)
        {
            let name = name.to_vec();
            self.findings.add(place, Kind::BadName { name });
        }
        let Some(raw) = value.and_then(|value| RawParent::ref_from_bytes(value).ok()) else {
            let what =
                "the parent pointer does not contain the number and the generation of a directory"
                    .into();
            return self.findings.add(place.field("valuelen"), Kind::Damaged { what });
        };
        let (number, generation) = (raw.p_ino.get(), raw.p_gen.get());
        if let Some(stored) = hash {
            let expected = self.fs.hash_parent(name, number);
            self.findings.expect(place.field("hashval"), stored, expected);
        }
        if !self.fs.attribute_changes.has(found.number) {
            let link = Link { directory: InodeNo(number), name: name.to_vec(), generation };
            self.add_pointer(found.number, link);
        } else {
            let (name, value) = (name.to_vec(), raw.as_bytes().to_vec());
            self.changing.push(Attribute { bits: flags::PARENT, name, value });
        }
    }

    /// Checks the inodes for which the log contains unfinished attribute changes. Each of these inodes must exist.
    pub(super) fn check_intents(&mut self) {
        for (number, generation) in self.fs.attribute_changes.inodes() {
            let found = self.again(number).filter(|found| found.mode() != 0);
            let fits = found.is_some_and(|found| {
                generation.is_none_or(|generation| generation == found.raw.di_gen.get())
            });
            if !fits {
                let place = Place::new("intent of an attribute").inode(number);
                self.wrong(place, "the inode is not in use, or has another generation");
            }
        }
    }

    fn add_pointer(&mut self, number: InodeNo, link: Link) {
        if let Some(again) = &mut self.parents.0 {
            if let Some(both) = again.get_mut(&number) {
                both.attributes.push(link);
            }
        } else {
            self.pointers = self.pointers.wrapping_add(link.fingerprint());
        }
    }

    /// Records the parent pointers of an inode for which the log contains unfinished attribute changes. The parent pointers are recorded in
    /// their state after these changes.
    pub(super) fn change_parents(&mut self, found: &Found) {
        let number = found.number;
        let mut pointers = std::mem::take(&mut self.changing);
        let generation = found.raw.di_gen.get();
        self.fs.attribute_changes.apply((number, generation), &mut pointers);
        for Attribute { bits, name, value } in pointers {
            let Ok(raw) = RawParent::ref_from_bytes(&value) else { continue };
            if Self::is_parent(bits) {
                let (directory, generation) = (InodeNo(raw.p_ino.get()), raw.p_gen.get());
                self.add_pointer(number, Link { directory, name, generation });
            }
        }
    }

    /// Compares the parent pointers of all inodes with the names that were found in directories.
    pub(super) fn check_parent_pointers(&mut self) {
        if !self.fs.has_parents() {
            return;
        }
        let differ = self.inodes.numbered().filter(|(_, state)| state.used && state.parents != 0);
        let mut differ: Vec<InodeNo> = differ.map(|(number, _)| number).collect();
        let more = differ.split_off(differ.len().min(DETAILED));
        for (number, both) in self.names_again(&differ) {
            self.compare_parents(number, both);
        }
        for number in more {
            let what = "the parent pointers of the inode differ from its names".into();
            self.findings.add(pointers_of(number), Kind::Records { what });
        }
    }

    /// Collects the names of the inodes `numbers`. Reads the attributes of these inodes and all directories again.
    fn names_again(&mut self, numbers: &[InodeNo]) -> BTreeMap<InodeNo, Both> {
        if numbers.is_empty() {
            return BTreeMap::new();
        }
        let findings = std::mem::take(&mut self.findings);
        let wanted = numbers.iter().map(|number| (*number, Both::default()));
        self.parents = Parents(Some(wanted.collect()));
        for number in numbers {
            let Some(found) = self.again(*number) else { continue };
            if found.attributes().is_some() {
                let mut quiet = Findings::default();
                let map = self.fs.check_map(&mut quiet, &found, Which::Attributes);
                self.check_attributes(&found, &map);
            }
            self.change_parents(&found);
        }
        self.check_directories();
        self.findings = findings;
        std::mem::take(&mut self.parents).0.unwrap_or_default()
    }

    fn compare_parents(&mut self, number: InodeNo, both: Both) {
        let Both { mut names, mut attributes } = both;
        names.order();
        attributes.order();
        let told = |link: &Link| link.told();
        let (recorded, found) = (&attributes[..], &names[..]);
        self.compare_records(pointers_of(number), (recorded, found), told, Self::add);
        let doubled = attributes.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some([link, _]) = doubled {
            let what = format!("the inode has {} more than once", link.told());
            self.findings.add(pointers_of(number), Kind::Records { what });
        }
    }

    /// Whether an attribute is a parent pointer.
    pub(super) fn is_parent(bits: u8) -> bool {
        bits & flags::PARENT != 0
    }
}

fn pointers_of(number: InodeNo) -> Place {
    Place::new("parent pointers").inode(number)
}
