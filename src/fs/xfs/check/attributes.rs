//! Checks extended attributes: in the inode, or in leaves with a hash index.

use zerocopy::FromBytes;

use super::super::disk::attr::{RawShort, RawShortEntry, flags};
use super::super::disk::inode::format;
use super::Checker;
use super::attr_leaf::Leaves;
use super::found::Found;
use super::hash_tree::Index;
use super::map::Map;
use crate::error::Place;
use crate::fs::check::Kind;

/// The names of attributes that contain access control lists.
const ACLS: [&[u8]; 2] = [b"SGI_ACL_FILE", b"SGI_ACL_DEFAULT"];
/// The tags of ACL entries: owner, named user, owning group, named group, mask, others.
const TAGS: [u32; 6] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20];

impl Checker<'_> {
    pub(super) fn check_attributes(&mut self, found: &Found, map: &Map) {
        match found.raw.di_aformat {
            format::LOCAL => self.check_short_attributes(found),
            _ if map.pieces.is_empty() => {}
            _ => {
                let structure = "attribute leaf";
                let index = Index { found, map, structure, root: 0, count: 1 };
                let mut leaves = Leaves::new(found, map);
                self.walk_index(&index, &mut |checker, block| leaves.check(checker, block));
            }
        }
    }

    fn check_short_attributes(&mut self, found: &Found) {
        let place = found.part("short attributes");
        let bytes = found.attributes().unwrap_or_default();
        let Ok((header, _)) = RawShort::ref_from_prefix(bytes) else { return };
        let size = usize::from(header.totsize.get());
        let Some(mut rest) = bytes.get(size_of::<RawShort>()..size) else {
            let what = format!("the list has {size} bytes, but the fork has {}", bytes.len());
            return self.findings.add(place.field("totsize"), Kind::Damaged { what });
        };
        let mut names: Vec<(u8, &[u8])> = Vec::new();
        for _ in 0..header.count {
            let entry = RawShortEntry::ref_from_prefix(rest).ok().and_then(|(entry, content)| {
                let len = usize::from(entry.namelen) + usize::from(entry.valuelen);
                Some((entry, content.split_at_checked(len)?))
            });
            let Some((entry, (content, after))) = entry else {
                let what = "the list of attributes is truncated".into();
                return self.findings.add(place, Kind::Damaged { what });
            };
            let (name, value) = content.split_at(entry.namelen.into());
            let allowed = flags::ROOT | flags::SECURE | flags::PARENT;
            if entry.flags & !allowed != 0 {
                self.wrong(
                    place.field("flags"),
                    format!("the attribute in the inode has unknown flags in {:#x}", entry.flags),
                );
            }
            self.check_attribute(place, entry.flags, name, value);
            if Self::is_parent(entry.flags) {
                self.check_parent(found, place, (name, Some(value)), None);
            } else if names.contains(&(entry.flags, name)) {
                let name = name.to_vec();
                self.findings.add(place, Kind::DuplicateName { name });
            }
            names.push((entry.flags, name));
            rest = after;
        }
        if !rest.is_empty() {
            self.wrong(
                place.field("totsize"),
                format!("{} bytes follow the last attribute", rest.len()),
            );
        }
    }

    /// Checks the flags, the name and the value of an attribute. The attribute may be stored in the inode or in a leaf.
    pub(super) fn check_attribute(&mut self, place: Place, bits: u8, name: &[u8], value: &[u8]) {
        let spaces = flags::ROOT | flags::SECURE | flags::PARENT;
        if (bits & spaces).count_ones() > 1 {
            let (stored, rule) =
                (bits.into(), "the attribute's name belongs to several name spaces");
            self.findings.add(place.field("flags"), Kind::Invalid { stored, rule });
        }
        if !Self::is_parent(bits) && (name.is_empty() || name.contains(&0)) {
            let name = name.to_vec();
            self.findings.add(place, Kind::BadName { name });
        }
        if bits & spaces == flags::ROOT && ACLS.contains(&name) && !is_acl(value) {
            let what = "the access control list cannot be decoded".into();
            self.findings.add(place, Kind::Damaged { what });
        }
    }
}

fn is_acl(value: &[u8]) -> bool {
    let word = |at: usize| u32::from_be_bytes(super::super::header::array(value, at));
    let Some(room) = value.len().checked_sub(4) else { return false };
    let entries = room / 12;
    // Linux accepts an access control list that is too long for its number of entries.
    word(0) as usize <= entries && (0..word(0) as usize).all(|at| TAGS.contains(&word(4 + at * 12)))
}
