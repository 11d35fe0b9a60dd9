//! The maps of sparse files of GNU tar ("Storing Sparse Files" in its manual).

use super::pax::Wrong;

/// How many ranges a file may have: a map is held in memory.
pub(super) const MOST: usize = 1 << 20;

/// Checks a map: ranges in order, within the file, and as long together as the content; gives those that are not empty.
pub(super) fn checked(
    map: &[(u64, u64)],
    size: u64,
    content: u64,
) -> Result<Vec<(u64, u64)>, Wrong> {
    let (mut ranges, mut behind, mut sum) = (Vec::new(), 0_u64, 0_u64);
    for (offset, len) in map.iter().copied() {
        if len == 0 {
            continue;
        }
        let end = offset.checked_add(len).filter(|end| offset >= behind && *end <= size);
        behind = end.ok_or("the ranges of a sparse file overlap or exceed its size")?;
        sum += len;
        ranges.push((offset, len));
    }
    if sum != content {
        return Err("the ranges of a sparse file do not add up to the length of its content");
    }
    Ok(ranges)
}

/// Reads the map that stands in front of the content, in blocks of 512 bytes: numbers, each with a line break; how many ranges there are comes
/// first. `block` gives the next block.
pub(super) fn in_front<E: From<Wrong>>(
    mut block: impl FnMut() -> Result<[u8; 512], E>,
) -> Result<Vec<(u64, u64)>, E> {
    const WRONG: Wrong = "the map of a sparse file is wrong";
    let (mut bytes, mut at) = ([0; 512], 512);
    let mut number = || -> Result<u64, E> {
        let mut value: Option<u64> = None;
        loop {
            if at == bytes.len() {
                (bytes, at) = (block()?, 0);
            }
            let byte = bytes[at];
            at += 1;
            match (byte, value) {
                (b'\n', Some(value)) => return Ok(value),
                (b'0'..=b'9', _) => {
                    let next = value.unwrap_or(0).checked_mul(10);
                    value = next.and_then(|next| next.checked_add(u64::from(byte - b'0')));
                    if value.is_none() {
                        return Err(WRONG.into());
                    }
                }
                _ => return Err(WRONG.into()),
            }
        }
    };
    let count = number()?;
    if count > MOST as u64 {
        return Err("a sparse file has too many ranges".into());
    }
    (0..count).map(|_| Ok((number()?, number()?))).collect()
}
