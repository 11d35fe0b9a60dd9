//! Intents to change attributes. Each name and each value is in a separate region, which has at most three bytes of padding.

use zerocopy::FromBytes;

use crate::error::{Place, Result};
use crate::fs::xfs::attr::{Attribute, AttributeChange, AttributeChanges};
use crate::fs::xfs::disk::attr::{RawParent, flags};
use crate::fs::xfs::disk::log::{RawAttributeIntent, attribute};
use crate::units::InodeNo;

const PLACE: Place = Place::new("intent of an attribute");

/// The maximum lengths of a name and of a value.
const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 64 << 10;

/// Adds the change of an intent. The rules are those of the kernel's recovery. `allowed` states whether the superblock permits attribute
/// intents in the log. Intents that change parent pointers do not need this permission.
pub(super) fn add_attributes(
    regions: &[Vec<u8>],
    allowed: bool,
    into: &mut AttributeChanges,
) -> Result<()> {
    let Some(Ok((raw, _))) =
        regions.first().map(|bytes| RawAttributeIntent::ref_from_prefix(bytes))
    else {
        return Err(PLACE.corrupt("the item is truncated"));
    };
    let inode = InodeNo(raw.alfi_ino.get());
    let place = PLACE.inode(inode);
    let bits = flag_bits(raw, place)?;
    let (operation, is_parent) = (raw.alfi_op_flags.get(), bits == flags::PARENT);
    let fits = match operation {
        attribute::SET | attribute::REPLACE | attribute::REMOVE => !is_parent && allowed,
        attribute::SET_PARENT | attribute::REMOVE_PARENT | attribute::REPLACE_PARENT => is_parent,
        _ => false,
    };
    if !fits {
        let what =
            format!("operation {operation:#x} is not valid for an attribute with flags {bits:#x}");
        return Err(place.field("alfi_op_flags").corrupt(what));
    }
    let is_replacement = operation == attribute::REPLACE_PARENT;
    let (names, value_len) = (raw.alfi_name_len.get() as usize, raw.alfi_value_len.get() as usize);
    let is_long = match (is_parent, operation) {
        (true, _) => value_len != size_of::<RawParent>(),
        (_, attribute::REMOVE) => value_len != 0,
        _ => value_len > LONGEST_VALUE,
    };
    if is_long {
        return Err(place
            .field("alfi_value_len")
            .corrupt(format!("the length of the value, {value_len} bytes, is not valid")));
    }
    // If a parent pointer is replaced, the field for the name's length contains the lengths of the old name and of the new name.
    let (name_len, new_len) =
        if is_replacement { (names & 0xFFFF, names >> 16) } else { (names, 0) };
    let mut parts = regions[1..].iter();
    let mut part = |len: usize| match len {
        0 => Ok(Vec::new()),
        len => {
            let bytes = parts.next().and_then(|bytes| bytes.get(..len));
            bytes.map(<[u8]>::to_vec).ok_or_else(|| place.corrupt("a name or a value is truncated"))
        }
    };
    let (name, new_name) = (part(name_len)?, part(new_len)?);
    let value = part(value_len)?;
    let new_value = part(if is_replacement { value_len } else { 0 })?;
    if parts.next().is_some() {
        return Err(place.corrupt("the item contains more data than its names and values"));
    }
    for name in [Some(&name), is_replacement.then_some(&new_name)].into_iter().flatten() {
        check_name(name, is_parent, place)?;
    }
    let one = Some(Attribute { bits, name, value });
    let (without, with) = match operation {
        attribute::REMOVE | attribute::REMOVE_PARENT => (one, None),
        attribute::REPLACE_PARENT => {
            (one, Some(Attribute { bits, name: new_name, value: new_value }))
        }
        _ => (None, one),
    };
    let generation = is_parent.then_some(raw.alfi_igen.get());
    into.add(inode, AttributeChange { generation, without, with });
    Ok(())
}

/// The namespace of an attribute, as the bits of its flags.
fn flag_bits(raw: &RawAttributeIntent, place: Place) -> Result<u8> {
    let filter = raw.alfi_attr_filter.get();
    let known = flags::ROOT | flags::SECURE | flags::PARENT;
    let bits = filter as u8 & known;
    if filter & !u32::from(known | flags::INCOMPLETE) != 0 || bits & bits.wrapping_sub(1) != 0 {
        return Err(place.field("alfi_attr_filter").corrupt(format!("{filter:#x}")));
    }
    Ok(bits)
}

/// Checks the name of an attribute. The name of a parent pointer is the name of a directory entry.
fn check_name(name: &[u8], is_parent: bool, place: Place) -> Result<()> {
    let is_wrong = |byte: &u8| *byte == 0 || *byte == b'/' && is_parent;
    if name.is_empty() || name.len() > LONGEST_NAME || name.iter().any(is_wrong) {
        let name = String::from_utf8_lossy(name).into_owned();
        let what = format!("the name {name:?} of {} bytes is not valid", name.len());
        return Err(place.field("alfi_name_len").corrupt(what));
    }
    Ok(())
}
