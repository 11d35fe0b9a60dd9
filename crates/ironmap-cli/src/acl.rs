//! Formats access control lists as `getfacl` prints them.
//!
//! An extended attribute contains the list in the format of the xattr system calls: a version, then entries of eight bytes
//! (`include/uapi/linux/posix_acl_xattr.h`).

use crate::show::Owners;

/// The extended attributes that contain the lists.
pub(crate) const NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// The prefix that `getfacl` prints before each entry of an attribute in `NAMES`.
const PREFIXES: [&str; 2] = ["", "default:"];
const VERSION: u32 = 2;
/// The length of an entry in bytes. Tag and permissions have 16 bits each. The user or group has 32 bits.
const ENTRY: usize = 8;

/// Returns the lines that `getfacl` prints for an attribute. Returns `None` if the attribute's value is not a valid list.
pub(crate) fn lines(name: &[u8], value: &[u8], owners: &Owners) -> Option<Vec<String>> {
    let (_, prefix) = NAMES.iter().zip(PREFIXES).find(|(known, _)| **known == name)?;
    let (version, entries) = value.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<ENTRY>() else { return None };
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let entries: Option<Vec<_>> = entries.iter().map(Entry::parse).collect();
    let entries = entries?;
    let mask = entries.iter().find(|entry| entry.tag == Tag::Mask).map_or(7, |mask| mask.rights);
    Some(entries.iter().map(|entry| entry.line(prefix, mask, owners)).collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Other,
}

struct Entry {
    tag: Tag,
    rights: u16,
    id: u32,
}

impl Entry {
    fn parse(bytes: &[u8; ENTRY]) -> Option<Self> {
        let [tag, tag_high, rights, rights_high, id @ ..] = *bytes;
        let tag = match u16::from_le_bytes([tag, tag_high]) {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::OwningGroup,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        };
        let rights = u16::from_le_bytes([rights, rights_high]);
        Some(Self { tag, rights, id: u32::from_le_bytes(id) })
    }

    fn line(&self, prefix: &str, mask: u16, owners: &Owners) -> String {
        let (kind, id) = match self.tag {
            Tag::Owner => ("user", String::new()),
            Tag::User => ("user", owners.user(self.id)),
            Tag::OwningGroup => ("group", String::new()),
            Tag::Group => ("group", owners.group(self.id)),
            Tag::Mask => ("mask", String::new()),
            Tag::Other => ("other", String::new()),
        };
        let masked = matches!(self.tag, Tag::User | Tag::OwningGroup | Tag::Group);
        let (rights, left) = (letters(self.rights), letters(self.rights & mask));
        if masked && rights != left {
            return format!("{prefix}{kind}:{id}:{rights}\t#effective:{left}");
        }
        format!("{prefix}{kind}:{id}:{rights}")
    }
}

fn letters(rights: u16) -> String {
    let letters = [(4, 'r'), (2, 'w'), (1, 'x')];
    letters.iter().map(|(bit, letter)| if rights & bit != 0 { *letter } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value in a wrong format is not shown as a list.
    #[test]
    fn an_invalid_acl_is_not_changed() {
        let owners = Owners::new(true);
        let name = b"system.posix_acl_access";
        let entry = [1, 0, 6, 0, 255, 255, 255, 255];
        let list = |parts: &[&[u8]]| lines(name, &parts.concat(), &owners);
        assert_eq!(list(&[&[2, 0, 0, 0], &entry]), Some(vec!["user::rw-".to_owned()]));
        assert_eq!(list(&[&[2, 0, 0, 0]]), Some(Vec::new()));
        assert_eq!(list(&[&[3, 0, 0, 0], &entry]), None);
        assert_eq!(list(&[&[2, 0, 0, 0], &entry[..7]]), None);
        assert_eq!(list(&[&[2, 0, 0, 0], &[64], &entry[1..]]), None);
        assert_eq!(list(&[&[2, 0]]), None);
        assert_eq!(lines(b"user.x", &[2, 0, 0, 0], &owners), None);
    }
}
