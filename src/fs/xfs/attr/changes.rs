//! Attribute changes that the log contains as unfinished intents. These changes are applied when attributes are read.

use std::collections::{BTreeMap, HashMap};

use crate::fs::xfs::disk::attr::flags;
use crate::units::InodeNo;

/// An attribute in a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fs::xfs) struct Attribute {
    /// The bits `ROOT`, `SECURE` and `PARENT` of the attribute's flags.
    pub(in crate::fs::xfs) bits: u8,
    pub(in crate::fs::xfs) name: Vec<u8>,
    pub(in crate::fs::xfs) value: Vec<u8>,
}

impl Attribute {
    /// The key that identifies an attribute of an inode. The key of a parent pointer includes the value, because two parent pointers can
    /// have the same name.
    fn key(&self) -> (u8, Vec<u8>, Vec<u8>) {
        let is_parent = self.bits & flags::PARENT != 0;
        let value = if is_parent { self.value.clone() } else { Vec::new() };
        (self.bits, self.name.clone(), value)
    }
}

/// A change of attributes: it removes one attribute, adds one attribute, or does both.
#[derive(Clone, Debug)]
pub(in crate::fs::xfs) struct AttributeChange {
    /// The generation of the inode, if the change concerns parent pointers.
    pub(in crate::fs::xfs) generation: Option<u32>,
    pub(in crate::fs::xfs) without: Option<Attribute>,
    pub(in crate::fs::xfs) with: Option<Attribute>,
}

/// The changes of each inode, in order.
#[derive(Debug, Default)]
pub(in crate::fs::xfs) struct AttributeChanges(BTreeMap<InodeNo, Vec<AttributeChange>>);

impl AttributeChanges {
    pub(in crate::fs::xfs) fn add(&mut self, inode: InodeNo, change: AttributeChange) {
        self.0.entry(inode).or_default().push(change);
    }

    /// Returns the inodes that have changes. If the changes of an inode contain its generation, the generation is returned too.
    pub(in crate::fs::xfs) fn inodes(&self) -> impl Iterator<Item = (InodeNo, Option<u32>)> {
        let all = |changes: &[AttributeChange]| changes.iter().find_map(|change| change.generation);
        self.0.iter().map(move |(inode, changes)| (*inode, all(changes)))
    }

    pub(in crate::fs::xfs) fn has(&self, inode: InodeNo) -> bool {
        self.0.contains_key(&inode)
    }

    /// Applies the changes of an inode with this generation to a list of its attributes. A log can contain very many changes of one inode.
    /// So each change costs only a hash lookup.
    pub(in crate::fs::xfs) fn apply(
        &self,
        (inode, generation): (InodeNo, u32),
        attributes: &mut Vec<Attribute>,
    ) {
        let Some(changes) = self.0.get(&inode) else { return };
        let mut places: HashMap<_, usize> =
            attributes.iter().enumerate().map(|(at, attribute)| (attribute.key(), at)).collect();
        let mut all: Vec<_> = std::mem::take(attributes).into_iter().map(Some).collect();
        for change in changes {
            if change.generation.is_some_and(|of| of != generation) {
                continue;
            }
            for gone in [&change.without, &change.with].into_iter().flatten() {
                if let Some(at) = places.remove(&gone.key()) {
                    all[at] = None;
                }
            }
            if let Some(with) = &change.with {
                places.insert(with.key(), all.len());
                all.push(Some(with.clone()));
            }
        }
        attributes.extend(all.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(bits: u8, name: &str, value: &str) -> Attribute {
        Attribute { bits, name: name.into(), value: value.into() }
    }

    #[test]
    fn a_change_may_have_been_made_before() {
        let user = attribute(0, "a", "1");
        let [old, new] = ["old", "new"].map(|value| attribute(flags::PARENT, "a", value));
        let mut changes = AttributeChanges::default();
        let mut add = |generation, without, with| {
            changes.add(InodeNo(1), AttributeChange { generation, without, with });
        };
        add(None, None, Some(attribute(0, "a", "2")));
        add(Some(7), Some(old.clone()), Some(new.clone()));
        // A change for another generation is ignored.
        add(Some(8), Some(new.clone()), None);
        for before in [vec![user.clone(), old.clone()], vec![old, new.clone(), user]] {
            let mut attributes = before;
            changes.apply((InodeNo(1), 7), &mut attributes);
            assert_eq!(attributes, [attribute(0, "a", "2"), new.clone()]);
        }
    }
}
