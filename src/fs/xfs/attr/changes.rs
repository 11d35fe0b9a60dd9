//! Changes of attributes that the log has begun and a recovery finishes: they are made when attributes are read.

use std::collections::BTreeMap;

use crate::fs::xfs::disk::attr::flags;
use crate::units::InodeNo;

/// An attribute as a change names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fs::xfs) struct Attribute {
    /// `ROOT`, `SECURE` and `PARENT` of its flags.
    pub(in crate::fs::xfs) bits: u8,
    pub(in crate::fs::xfs) name: Vec<u8>,
    pub(in crate::fs::xfs) value: Vec<u8>,
}

impl Attribute {
    /// Whether both stand for one attribute: the parent pointers of an inode can have one name.
    pub(in crate::fs::xfs) fn is_same(&self, other: &Self) -> bool {
        let is_parent = self.bits & flags::PARENT != 0;
        self.bits == other.bits
            && self.name == other.name
            && (!is_parent || self.value == other.value)
    }
}

/// A change: afterwards the inode lacks one attribute, and has another.
#[derive(Clone, Debug)]
pub(in crate::fs::xfs) struct AttributeChange {
    pub(in crate::fs::xfs) without: Option<Attribute>,
    pub(in crate::fs::xfs) with: Option<Attribute>,
}

impl AttributeChange {
    /// Makes it in a list of attributes.
    pub(in crate::fs::xfs) fn apply(&self, attributes: &mut Vec<Attribute>) {
        let gone = |one: &Attribute| {
            [&self.without, &self.with].into_iter().flatten().any(|other| one.is_same(other))
        };
        attributes.retain(|attribute| !gone(attribute));
        attributes.extend(self.with.clone());
    }
}

/// The changes of each inode that has any, in their order.
#[derive(Debug, Default)]
pub(in crate::fs::xfs) struct AttributeChanges(BTreeMap<InodeNo, Vec<AttributeChange>>);

impl AttributeChanges {
    pub(in crate::fs::xfs) fn add(&mut self, inode: InodeNo, change: AttributeChange) {
        self.0.entry(inode).or_default().push(change);
    }

    pub(in crate::fs::xfs) fn of(&self, inode: InodeNo) -> &[AttributeChange] {
        self.0.get(&inode).map_or(&[], |changes| changes)
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
        let set = AttributeChange { without: None, with: Some(attribute(0, "a", "2")) };
        let replace = AttributeChange { without: Some(old.clone()), with: Some(new.clone()) };
        for before in [vec![user.clone(), old.clone()], vec![old, new.clone(), user]] {
            let mut attributes = before;
            set.apply(&mut attributes);
            replace.apply(&mut attributes);
            assert_eq!(attributes, [attribute(0, "a", "2"), new.clone()]);
        }
    }
}
