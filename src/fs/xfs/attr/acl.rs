//! Access control lists in XFS's on-disk form.

use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::xfs::disk::attr::RawAclEntry;

/// The version of the ACL format in the system calls.
const VERSION: u32 = 2;
/// The tags of entries with an id: named user and named group.
const NAMED: [u32; 2] = [0x02, 0x08];

/// Converts the value to the format of `system.posix_acl_access`.
pub(super) fn to_xattr(bytes: &[u8], place: Place) -> Result<Vec<u8>> {
    let place = place.field("acl_cnt");
    let Some((count, rest)) = bytes.split_first_chunk() else {
        return Err(place.corrupt("the access control list has less than 4 bytes"));
    };
    let count = u32::from_be_bytes(*count) as usize;
    let Ok((entries, _)) = <[RawAclEntry]>::ref_from_prefix_with_elems(rest, count) else {
        return Err(place.corrupt(format!(
            "the access control list of {count} entries does not fit into {} bytes",
            rest.len()
        )));
    };
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let tag = entry.ae_tag.get();
        // Entries with other tags have no id, so their field `ae_id` is ignored.
        let id = if NAMED.contains(&tag) { entry.ae_id.get() } else { u32::MAX };
        value.extend((tag as u16).to_le_bytes());
        value.extend(entry.ae_perm.get().to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(value)
}
