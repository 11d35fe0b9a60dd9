//! Converts POSIX access control lists between the on-disk form and the form of the system calls. In the form of the system calls, every
//! entry has an id. This module also applies two rules of acl(5): the relation between a list and the permission bits, and the inheritance
//! of lists by new files.

use zerocopy::{FromBytes, IntoBytes};

use super::super::disk::xattr::{ACL_VERSION, RawAclEntry};
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::Attributes;
use super::fields::Times;
use super::name::{Name, NameIndex};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::{FileType, SetXattr};

/// The version number in the value that `getxattr` returns.
const SYSCALL_VERSION: u32 = 2;
/// The value of the id field in entries that have no id, in the form of the system calls.
const UNDEFINED_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const ACCESS: Name<'_> = Name { index: NameIndex::ACL_ACCESS, name: b"" };
const DEFAULT: Name<'_> = Name { index: NameIndex::ACL_DEFAULT, name: b"" };
/// The lengths of the version field and of an entry in the system calls' form.
const VERSION: usize = 4;
const ENTRY: usize = 8;

/// Converts a stored list into the value that `getxattr` returns.
pub(super) fn to_syscall_format(stored: &[u8], place: Place) -> Result<Vec<u8>> {
    let place = place.field("access control list");
    let cut_short = || place.corrupt("the access control list is truncated");
    let (version, mut rest) = stored.split_first_chunk::<4>().ok_or_else(cut_short)?;
    let version = u32::from_le_bytes(*version);
    if version != ACL_VERSION {
        return Err(place.corrupt(format!(
            "the access control list has version {version} instead of {ACL_VERSION}"
        )));
    }
    let mut value = SYSCALL_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (entry, behind) = RawAclEntry::ref_from_prefix(rest).map_err(|_| cut_short())?;
        rest = behind;
        let id = match entry.e_tag.get() {
            USER | GROUP => {
                let (id, behind) = rest.split_first_chunk::<4>().ok_or_else(cut_short)?;
                rest = behind;
                u32::from_le_bytes(*id)
            }
            USER_OBJ | GROUP_OBJ | MASK | OTHER => UNDEFINED_ID,
            tag => return Err(place.corrupt(format!("tag {tag:#x}"))),
        };
        value.extend_from_slice(&entry.e_tag.to_bytes());
        value.extend_from_slice(&entry.e_perm.to_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(value)
}

/// The mode and the lists of a new inode, after inheritance from its directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// The permissions and the type.
    pub(crate) mode: u32,
    /// The access list in the on-disk form; `None` if the permission bits express the complete list.
    access: Option<Vec<u8>>,
    /// The default list of a new directory, in the on-disk form.
    default: Option<Vec<u8>>,
}

struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid access control list.
struct Acl(Vec<Entry>);

impl Inode {
    /// The mode and the lists that a new inode in this directory inherits. `mode` is the requested mode. The umask applies only if the
    /// directory has no default list.
    ///
    /// # Errors
    /// The errors of reading attributes.
    pub(crate) fn inherited_acl(&self, mode: u32, umask: u32) -> Result<Inherited> {
        let file_type = FileType::from_mode(mode);
        if file_type == Some(FileType::Symlink) {
            return Ok(Inherited { mode, ..Inherited::default() });
        }
        let Some(mut acl) = Acl::of(self, b"system.posix_acl_default")? else {
            return Ok(Inherited { mode: mode & !(umask & 0o777), ..Inherited::default() });
        };
        let default = (file_type == Some(FileType::Directory)).then(|| acl.stored());
        acl.restrict(mode);
        let mode = acl.apply(mode);
        let access = (!acl.is_minimal()).then(|| acl.stored());
        Ok(Inherited { mode, access, default })
    }
}

impl Attributes<'_> {
    /// Stores the inherited lists in a new inode. The caller sets the mode.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn set_inherited(&self, h: &mut Handle<'_>, inherited: &Inherited) -> Result<()> {
        if let Some(default) = &inherited.default {
            self.put(h, &DEFAULT, default, SetXattr::Any)?;
        }
        let Some(access) = &inherited.access else { return Ok(()) };
        if inherited.default.is_none() {
            return self.put(h, &ACCESS, access, SetXattr::Any);
        }
        let inode = self.again()?;
        Attributes(&inode).put(h, &ACCESS, access, SetXattr::Any)
    }

    /// Adapts the inode's access list to a new mode. Does nothing if the inode has no access list. The caller sets the mode.
    ///
    /// # Errors
    /// The errors of reading attributes.
    pub(crate) fn chmod_acl(&self, h: &mut Handle<'_>, mode: u32) -> Result<()> {
        let Some(mut acl) = Acl::of(self, b"system.posix_acl_access")? else { return Ok(()) };
        acl.replace(mode);
        self.put(h, &ACCESS, &acl.stored(), SetXattr::Any)
    }

    /// Sets the access list and updates the permissions. If `value` is empty, removes the list.
    pub(super) fn set_access_acl(&self, h: &mut Handle<'_>, value: &[u8]) -> Result<()> {
        let Some(acl) = Acl::parse(value)? else {
            return self.remove(h, &ACCESS).map(|_| ());
        };
        if acl.is_minimal() {
            self.remove(h, &ACCESS)?;
        } else {
            self.put(h, &ACCESS, &acl.stored(), SetXattr::Any)?;
        }
        let (mode, now) = (acl.apply(self.stat().mode), h.now());
        h.update_inode(self.0, |raw| {
            raw.set_mode(mode)?;
            raw.set_times(&Times::changed(now))
        })
    }

    /// Sets the default list of a directory. If `value` is empty, removes the list.
    pub(super) fn set_default_acl(&self, h: &mut Handle<'_>, value: &[u8]) -> Result<()> {
        match Acl::parse(value)? {
            None => self.remove(h, &DEFAULT).map(|_| ()),
            Some(acl) if self.file_type == FileType::Directory => {
                self.put(h, &DEFAULT, &acl.stored(), SetXattr::Any)
            }
            Some(_) => {
                let what = "only a directory can have a default access control list";
                Err(Error::new(ErrorKind::NotPermitted, what))
            }
        }
    }
}

impl Acl {
    /// The access control list that the inode has under this attribute name.
    fn of(inode: &Inode, name: &[u8]) -> Result<Option<Self>> {
        inode.xattr(name)?.map_or(Ok(None), |value| Self::parse(&value))
    }

    /// Parses a list in the system calls' form; `None` for a list without entries.
    fn parse(value: &[u8]) -> Result<Option<Self>> {
        let Some((version, rest)) = value.split_first_chunk::<VERSION>() else {
            return if value.is_empty() {
                Ok(None)
            } else {
                Err(invalid("the access control list is truncated"))
            };
        };
        if u32::from_le_bytes(*version) != SYSCALL_VERSION {
            return Err(Error::unsupported("the access control list has an unknown version"));
        }
        if rest.len() % ENTRY != 0 {
            return Err(invalid("the last entry is truncated"));
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let (chunks, _) = rest.as_chunks::<ENTRY>();
        let entries = chunks.iter().map(|[t0, t1, p0, p1, id @ ..]| Entry {
            tag: u16::from_le_bytes([*t0, *t1]),
            perm: u16::from_le_bytes([*p0, *p1]),
            id: u32::from_le_bytes(*id),
        });
        let acl = Self(entries.collect());
        acl.check()?;
        Ok(Some(acl))
    }

    /// Checks the order: owner, named users, group, named groups, mask, others. A list with named entries must have a mask.
    fn check(&self) -> Result<()> {
        let tags: Vec<_> = self.0.iter().map(|entry| entry.tag).collect();
        let count = |tag| tags.iter().filter(|other| **other == tag).count();
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        if tags.iter().any(|tag| !known.contains(tag)) || !tags.is_sorted() {
            return Err(invalid("an entry has an unknown tag, or the entries are out of order"));
        }
        if [USER_OBJ, GROUP_OBJ, OTHER].into_iter().any(|tag| count(tag) != 1) || count(MASK) > 1 {
            return Err(invalid(
                "the entry of the owner, the group, others or the mask is missing or duplicate",
            ));
        }
        if count(USER) + count(GROUP) > 0 && count(MASK) == 0 {
            return Err(invalid("there are entries for named users or groups, but no mask"));
        }
        let named = |entry: &&Entry| matches!(entry.tag, USER | GROUP);
        if self.0.iter().any(|entry| entry.perm > 7)
            || self.0.iter().filter(named).any(|entry| entry.id == UNDEFINED_ID)
        {
            return Err(invalid("an entry has invalid permissions or an invalid id"));
        }
        Ok(())
    }

    /// The list in its on-disk form.
    fn stored(&self) -> Vec<u8> {
        let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
        for Entry { tag, perm, id } in &self.0 {
            let raw = RawAclEntry { e_tag: (*tag).into(), e_perm: (*perm).into() };
            bytes.extend_from_slice(raw.as_bytes());
            if matches!(*tag, USER | GROUP) {
                bytes.extend_from_slice(&id.to_le_bytes());
            }
        }
        bytes
    }

    /// Whether the permission bits express the complete list.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The indexes of the three entries that correspond to permission bits, each with the shift of its bits in a mode. The group bits of
    /// the mode correspond to the mask, or to the group entry if the list has no mask.
    fn classes(&self) -> Vec<(usize, u32)> {
        let masked = self.0.iter().any(|entry| entry.tag == MASK);
        let shift = |entry: &Entry| match entry.tag {
            USER_OBJ => Some(6),
            MASK => Some(3),
            GROUP_OBJ if !masked => Some(3),
            OTHER => Some(0),
            _ => None,
        };
        let shifts = self.0.iter().map(shift).enumerate();
        shifts.filter_map(|(at, shift)| shift.map(|shift| (at, shift))).collect()
    }

    /// In the entries for owner, group class and others, removes the permissions that the mode does not contain.
    fn restrict(&mut self, mode: u32) {
        for (at, shift) in self.classes() {
            self.0[at].perm &= (mode >> shift) as u16 & 7;
        }
    }

    /// Sets the entries for owner, group class and others to the permissions in the mode.
    fn replace(&mut self, mode: u32) {
        for (at, shift) in self.classes() {
            self.0[at].perm = (mode >> shift) as u16 & 7;
        }
    }

    /// Returns the mode with its permission bits replaced by the permissions of the list.
    fn apply(&self, mode: u32) -> u32 {
        let bits = |all, (at, shift): (usize, u32)| all | u32::from(self.0[at].perm) << shift;
        mode & !0o777 | self.classes().into_iter().fold(0, bits)
    }
}

fn invalid(what: &'static str) -> Error {
    Error::invalid(format!("access control list: {what}"))
}
