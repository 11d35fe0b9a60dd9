//! Changes that damage a volume. The fuzzer chooses the changes by code coverage. The seeded tests choose them at random.

use arbitrary::Arbitrary;

use super::scratch::Scratch;
use super::spots::{Spot, Target};

/// A change of one structure.
#[derive(Arbitrary, Clone, Debug)]
pub struct Change {
    spot: u16,
    /// The position of the change in the structure. A value below 128 is a byte position, because fields are usually in the first bytes.
    /// Larger values are spread evenly over the whole structure.
    offset: u16,
    value: Value,
}

#[derive(Arbitrary, Clone, Debug)]
enum Value {
    Byte(u8),
    Half(u16),
    Word(u32),
    Flip(u8),
    Add(i8),
    /// A word that is written `count + 1` times in succession.
    Fill {
        word: u32,
        count: u8,
    },
    /// The block number of another structure. It can make a cycle, or a block with two owners.
    BlockOf {
        spot: u16,
        big_endian: bool,
    },
    /// The inode number of another structure.
    InodeOf {
        spot: u16,
        big_endian: bool,
    },
    /// Bytes that are copied from another structure of the same kind.
    Copy {
        spot: u16,
        len: u8,
    },
    Extreme(u8),
}

/// Boundary values that a change stores in fields.
const EXTREMES: [u32; 12] =
    [0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];

impl Change {
    /// Changes a structure of the kind `target`, or of any kind if `target` is `None`.
    pub(crate) fn apply(&self, scratch: &mut Scratch, target: Option<Target>) {
        let spots = &scratch.base().spots;
        let matching =
            spots.iter().filter(|spot| target.is_none_or(|target| spot.target == target));
        let count = matching.clone().count();
        let Some(spot) = matching.clone().nth(usize::from(self.spot) % count.max(1)).copied()
        else {
            return;
        };
        let any = |number: u16| spots[usize::from(number) % spots.len()];
        let block = |number: u16| (any(number).at / scratch.block_size()) as u32;
        let word =
            |value: u32, big: bool| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let at = self.place(&spot);
        let old = scratch.bytes()[at];
        let bytes = match self.value {
            Value::Byte(byte) => vec![byte],
            Value::Half(half) => half.to_le_bytes().to_vec(),
            Value::Word(value) => word(value, false).to_vec(),
            Value::Flip(bit) => vec![old ^ 1 << (bit % 8)],
            Value::Add(add) => vec![old.wrapping_add_signed(add)],
            Value::Fill { word: value, count } => word(value, false).repeat(usize::from(count) + 1),
            Value::BlockOf { spot, big_endian } => word(block(spot), big_endian).to_vec(),
            Value::InodeOf { spot, big_endian } => word(any(spot).inode, big_endian).to_vec(),
            Value::Copy { spot: number, len } => {
                let like: Vec<_> = matching.collect();
                let from = like[usize::from(number) % count];
                let start = from.at + (at - spot.at) % from.len;
                let end = (start + usize::from(len) * 4).min(from.at + from.len);
                scratch.bytes()[start..end].to_vec()
            }
            Value::Extreme(index) => {
                let width = if index & 0x80 == 0 { 4 } else { 2 };
                word(EXTREMES[usize::from(index & 0x7F) % EXTREMES.len()], false)[..width].to_vec()
            }
        };
        let len = bytes.len().min(spot.at + spot.len - at);
        scratch.write(at, &bytes[..len]);
    }

    /// The position of the first changed byte. It is aligned to the size of the value.
    fn place(&self, spot: &Spot) -> usize {
        let offset = usize::from(self.offset);
        let offset = if offset & 0x8000 == 0 { offset % 128 } else { offset & 0x7FFF } % spot.len;
        let width = match self.value {
            Value::Byte(_) | Value::Flip(_) | Value::Add(_) => 1,
            Value::Half(_) => 2,
            _ => 4,
        };
        spot.at + (offset & !(width - 1))
    }
}
