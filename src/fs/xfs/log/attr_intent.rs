//! Intents to change attributes. The names and values follow in regions of their own, each longer than what it has by at most three bytes.

use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::xfs::attr::{Attribute, AttributeChange, AttributeChanges};
use crate::fs::xfs::disk::attr::flags;
use crate::fs::xfs::disk::log::{RawAttributeIntent, attribute};
use crate::units::InodeNo;

const PLACE: Place = Place::new("intent of an attribute");

/// Adds the change that an intent has.
pub(super) fn add_attributes(regions: &[Vec<u8>], into: &mut AttributeChanges) -> Result<()> {
    let Some(Ok((raw, _))) =
        regions.first().map(|bytes| RawAttributeIntent::ref_from_prefix(bytes))
    else {
        return Err(PLACE.corrupt("it is cut short"));
    };
    let inode = InodeNo(raw.alfi_ino.get());
    let place = PLACE.inode(inode);
    let filter = raw.alfi_attr_filter.get();
    let bits = filter as u8 & (flags::ROOT | flags::SECURE | flags::PARENT);
    if u32::from(bits) != filter || bits & (bits.wrapping_sub(1)) != 0 {
        return Err(place.field("alfi_attr_filter").corrupt(format!("{filter:#x}")));
    }
    let operation = raw.alfi_op_flags.get() & attribute::TYPE;
    let is_replacement = operation == attribute::REPLACE_PARENT;
    let (name_len, value_len) = (raw.alfi_name_len.get(), raw.alfi_value_len.get() as usize);
    // A replaced parent pointer has the lengths of both names there.
    let (name_len, new_len) = match is_replacement {
        true => (name_len & 0xFFFF, name_len >> 16),
        false => (name_len, 0),
    };
    let mut parts = regions[1..].iter();
    let mut part = |len: usize| match len {
        0 => Ok(Vec::new()),
        len => {
            let bytes = parts.next().and_then(|bytes| bytes.get(..len));
            bytes.map(<[u8]>::to_vec).ok_or_else(|| place.corrupt("a name or value is cut short"))
        }
    };
    let (name, new_name) = (part(name_len as usize)?, part(new_len as usize)?);
    let value = part(value_len)?;
    let new_value = part(if is_replacement { value_len } else { 0 })?;
    let is_parent = bits == flags::PARENT;
    if name.is_empty() || is_replacement && new_name.is_empty() {
        return Err(place.field("alfi_name_len").corrupt("a name of 0 bytes"));
    }
    let one = Some(Attribute { bits, name, value });
    let (without, with) = match (operation, is_parent) {
        (attribute::SET | attribute::REPLACE, false) | (attribute::SET_PARENT, true) => (None, one),
        (attribute::REMOVE, false) | (attribute::REMOVE_PARENT, true) => (one, None),
        (attribute::REPLACE_PARENT, true) => {
            (one, Some(Attribute { bits, name: new_name, value: new_value }))
        }
        _ => {
            let what = format!("operation {operation} of an attribute with flags {bits:#x}");
            return Err(place.field("alfi_op_flags").corrupt(what));
        }
    };
    into.add(inode, AttributeChange { without, with });
    Ok(())
}
