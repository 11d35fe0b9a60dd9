//! POSIX access control lists: from the form on disk to that of the system calls, where each entry has an id.

use zerocopy::FromBytes;

use super::disk::xattr::{ACL_VERSION, RawAclEntry};
use crate::error::{Place, Result};

/// Version of the form that `getxattr` gives.
pub(super) const SYSCALL_VERSION: u32 = 2;
/// The id of an entry that has none.
pub(super) const UNDEFINED_ID: u32 = u32::MAX;

pub(super) const USER_OBJ: u16 = 0x01;
pub(super) const USER: u16 = 0x02;
pub(super) const GROUP_OBJ: u16 = 0x04;
pub(super) const GROUP: u16 = 0x08;
pub(super) const MASK: u16 = 0x10;
pub(super) const OTHER: u16 = 0x20;

/// Turns a list as ext4 stores it into the value that `getxattr` gives.
pub(super) fn to_syscall_format(stored: &[u8], place: Place) -> Result<Vec<u8>> {
    let place = place.field("access control list");
    let cut_short = || place.corrupt("it is cut short");
    let (version, mut rest) = stored.split_first_chunk::<4>().ok_or_else(cut_short)?;
    let version = u32::from_le_bytes(*version);
    if version != ACL_VERSION {
        return Err(place.corrupt(format!("version {version} instead of {ACL_VERSION}")));
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
