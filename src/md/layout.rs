//! The layout of an array: the position of each byte of the array on the members.

use super::superblock::{Superblock, corrupt};
use crate::error::{Error, Result};
use crate::sorting::Sorting;

/// The chunk size of mirrors in bytes. The superblock of a mirror contains no chunk size.
const MIRROR: u64 = 1 << 20;
/// The largest number of members of an array.
pub(super) const DISKS: usize = 1920;
/// The maximum number of members of RAID 6. With more members, two data chunks of a row would have equal coefficients.
const COEFFICIENTS: usize = 257;

/// The layout of an array.
#[derive(Debug)]
pub(super) enum Layout {
    /// Linear, and RAID 0. The fields are the zones in order, the length of a chunk, and a flag. If the flag is set, the first chunk of
    /// each zone is on the zone's first member. If it is not set, the number of the chunk in the whole array determines the member.
    Zones(Vec<Zone>, u64, bool),
    /// RAID 1 and RAID 10.
    Copies(Copies),
    /// RAID 4, 5 and 6.
    Parity(Parity),
}

/// A zone: a part of an array of level linear or 0 that is distributed over a fixed list of members.
#[derive(Debug)]
pub(super) struct Zone {
    /// The first byte of the zone in the array.
    start: u64,
    /// The length of the zone in the array, in bytes.
    len: u64,
    /// The first byte of the zone in the data of each member.
    first: u64,
    /// The roles of the members.
    members: Vec<usize>,
}

/// RAID 1 and RAID 10: the copies of a chunk are on consecutive members. The copies of the next chunk are on the members that follow.
#[derive(Debug)]
pub(super) struct Copies {
    disks: usize,
    copies: usize,
    chunk: u64,
}

/// RAID 4, 5 and 6: a row consists of one chunk on each member. One or two chunks of a row contain parity.
#[derive(Debug)]
pub(super) struct Parity {
    pub(super) disks: usize,
    chunk: u64,
    /// The number of parity chunks in a row: 1 or 2.
    pub(super) count: usize,
    order: Order,
    /// Whether the second parity is always on the last member.
    fixed: bool,
    /// Set for the layouts of the format DDF. In these layouts, the coefficients of the second parity are counted over all members,
    /// including the parity members.
    ddf: Option<Ddf>,
}

/// The RAID 6 layouts of the format DDF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ddf {
    ZeroRestart,
    NRestart,
    /// The second parity is on the member before the first parity.
    NContinue,
}

/// The rule that determines the member with the first parity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    First,
    Last,
    /// The parity moves to another member in each row: from the last member to the first one (left), or from the first member to the last
    /// one (right). The data chunks of a row begin on the member after the parity (symmetric), or on the first member.
    Rotating {
        left: bool,
        symmetric: bool,
    },
}

/// The members that contain the first parity (`p`) and the second parity (`q`) of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) p: usize,
    pub(super) q: Option<usize>,
}

/// A range of bytes of an array that is contiguous on each member that contains it.
#[derive(Debug)]
pub(super) struct Piece {
    /// The position in the data of each member that contains the bytes. For copies, the position of the first copy.
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) on: On,
}

/// A range of bytes of an array that is striped over ranges of members.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) len: u64,
    pub(super) stripe: u64,
    /// The members, each as its role and the position in the data of the member.
    pub(super) places: Vec<(usize, u64)>,
}

/// The members that contain a range of bytes of the array.
#[derive(Clone, Copy, Debug)]
pub(super) enum On {
    One(usize),
    /// The bytes have a copy on each of several consecutive members. This is the first of these members.
    Copies(usize),
    /// The bytes are on one member of a row with parity.
    Row(usize, Row),
}

impl Layout {
    /// Returns the layout of an array, and the size of the array in bytes. `lens` contains the length of each member's data. Only the
    /// levels linear and 0 use `lens`.
    ///
    /// # Errors
    /// `Unsupported` for levels and layouts that ironmap cannot read; `Corrupt` for contradictory numbers in the superblock.
    pub(super) fn new(array: &Superblock, lens: &[u64]) -> Result<(Self, u64)> {
        let Superblock { level, chunk, disks, layout, .. } = *array;
        let whole = |unit: u64| match unit {
            0 => Err(corrupt("the chunk size is 0")),
            unit => Ok(array.size / unit),
        };
        let too_long = || corrupt("the size of the array exceeds 64 bits");
        match level {
            -1 | 0 => Self::zones(level, chunk, layout, lens),
            1 => Ok((Self::Copies(Copies { disks, copies: disks, chunk: MIRROR }), array.size)),
            10 => {
                let layout = layout.unwrap_or_default();
                let copies = (layout & 0xFF) as usize;
                if layout >> 8 != 1 {
                    let kind = if layout >> 16 == 0 { "far" } else { "offset" };
                    return Err(Error::unsupported(format!(
                        "the layout of RAID 10 is {kind} (0x{layout:x}), which is not supported"
                    )));
                }
                if copies == 0 || copies > disks {
                    return Err(corrupt(format_args!("{copies} copies are not valid")));
                }
                let size = whole(chunk)?.checked_mul(disks as u64);
                let size = size.and_then(|size| (size / copies as u64).checked_mul(chunk));
                Ok((Self::Copies(Copies { disks, copies, chunk }), size.ok_or_else(too_long)?))
            }
            4..=6 => {
                let parity = Parity::new(level, layout.unwrap_or_default(), disks, chunk)?;
                let data = (disks - parity.count) as u64;
                let size = (whole(chunk)? * chunk).checked_mul(data).ok_or_else(too_long)?;
                Ok((Self::Parity(parity), size))
            }
            level => Err(Error::unsupported(format!("the level {level} is not supported"))),
        }
    }

    fn zones(level: i32, chunk: u64, layout: Option<u32>, lens: &[u64]) -> Result<(Self, u64)> {
        let unit = match (level, chunk) {
            (0, 0) => return Err(corrupt("the chunk size is 0")),
            (_, chunk) => chunk.max(1),
        };
        let lens: Vec<u64> = lens.iter().map(|len| len / unit * unit).collect();
        let (mut zones, mut size) = (Vec::new(), 0_u64);
        let mut add = |first, len: u64, members: Vec<usize>| {
            let len = len.checked_mul(members.len() as u64);
            let end = len.and_then(|len| size.checked_add(len));
            let (Some(len), Some(end)) = (len, end) else {
                return Err(corrupt("the size of the array exceeds 64 bits"));
            };
            zones.push(Zone { start: size, len, first, members });
            size = end;
            Ok(())
        };
        if level == 0 {
            let mut ends = lens.clone();
            ends.order();
            ends.dedup();
            let mut first = 0;
            for end in ends.into_iter().filter(|end| *end > 0) {
                let members = (0..lens.len()).filter(|member| lens[*member] > first).collect();
                add(first, end - first, members)?;
                first = end;
            }
            // Linux computes the size with a mask. If the chunk size is not a power of two, the array is therefore shorter.
            size = lens.iter().map(|len| len & !(unit - 1)).sum();
        } else {
            for (member, len) in lens.into_iter().enumerate().filter(|(_, len)| *len > 0) {
                add(0, len, vec![member])?;
            }
        }
        let by_zone = match layout {
            _ if zones.len() < 2 || level != 0 => true,
            Some(1) => false,
            Some(2) => true,
            Some(other) => {
                return Err(Error::unsupported(format!("the layout {other} of RAID 0 is unknown")));
            }
            None => {
                return Err(Error::unsupported(
                    "the members have different sizes, and the superblock does not name the layout of RAID 0 (mdadm --assemble --update=layout-original or layout-alternate sets it)",
                ));
            }
        };
        Ok((Self::Zones(zones, unit, by_zone), size))
    }

    /// The parts of an array of `size` bytes without parity. For a member without bad blocks, `state` returns the length of the valid data,
    /// and whether the member has the newest superblock. Returns `None` if the layout has parity, if no copy of some chunk is completely
    /// valid, or if the number of members is not a multiple of the number of copies.
    pub(super) fn parts(
        &self,
        size: u64,
        state: impl Fn(usize) -> Option<(u64, bool)>,
    ) -> Option<Vec<Part>> {
        match self {
            Self::Zones(zones, chunk, by_zone) => {
                let part = |zone: &Zone| {
                    let mut places: Vec<_> =
                        zone.members.iter().map(|role| (*role, zone.first)).collect();
                    let count = places.len() as u64;
                    if !by_zone {
                        places.rotate_left((zone.start / chunk % count) as usize);
                    }
                    let end = zone.first + zone.len / count;
                    let is_valid = |role: &usize| state(*role).is_some_and(|(len, _)| len >= end);
                    let stripe = if count == 1 { zone.len } else { *chunk };
                    let all_valid = zone.members.iter().all(is_valid);
                    all_valid.then_some(Part { len: zone.len, stripe, places })
                };
                zones.iter().map(part).collect()
            }
            Self::Copies(Copies { disks, copies, chunk }) => {
                let columns = disks.checked_div(*copies).filter(|it| it * copies == *disks)?;
                let each = size / columns as u64;
                let place = |column: usize| {
                    let roles = column * copies..(column + 1) * copies;
                    let valid = roles.filter_map(|role| {
                        let (_, newest) = state(role).filter(|(len, _)| *len >= each)?;
                        Some((!newest, role))
                    });
                    valid.min().map(|(_, role)| (role, 0))
                };
                let places = (0..columns).map(place).collect::<Option<Vec<_>>>()?;
                let stripe = if columns == 1 { size } else { *chunk };
                Some(vec![Part { len: size, stripe, places }])
            }
            Self::Parity(_) => None,
        }
    }

    /// Returns the contiguous range that begins with the byte `at` of the array. `None` past the end of the array.
    pub(super) fn piece(&self, at: u64) -> Option<Piece> {
        match self {
            Self::Zones(zones, chunk, by_zone) => {
                let index = zones.partition_point(|zone| zone.start <= at).checked_sub(1)?;
                zones[index].piece(at, *chunk, *by_zone)
            }
            Self::Copies(Copies { disks, copies, chunk }) => {
                let slot = (at / chunk).checked_mul(*copies as u64)?;
                let disks = *disks as u64;
                let inside = at % chunk;
                Some(Piece {
                    at: (slot / disks).checked_mul(*chunk)? + inside,
                    len: chunk - inside,
                    on: On::Copies((slot % disks) as usize),
                })
            }
            Self::Parity(parity) => Some(parity.piece(at)),
        }
    }
}

impl Copies {
    /// The chunks of an array have their copies on different groups of members. Returns the first member of each group.
    pub(super) fn groups(&self) -> impl Iterator<Item = usize> {
        let firsts = (1..self.disks).map(|chunk| chunk * self.copies % self.disks);
        std::iter::once(0).chain(firsts.take_while(|first| *first != 0))
    }

    /// The members with the copies of a chunk, and the position of each copy. The first copy is on the member `first`, at the position
    /// `at`. If the copies reach the last member, the remaining copies are on the first members, in the next row.
    pub(super) fn places(&self, first: usize, at: u64) -> impl Iterator<Item = (usize, u64)> {
        (first..first + self.copies).map(move |slot| {
            let next = if slot < self.disks { 0 } else { self.chunk };
            (slot % self.disks, at + next)
        })
    }
}

impl Zone {
    fn piece(&self, at: u64, chunk: u64, by_zone: bool) -> Option<Piece> {
        let into = at - self.start;
        if into >= self.len {
            return None;
        }
        if let [only] = self.members[..] {
            return Some(Piece { at: self.first + into, len: self.len - into, on: On::One(only) });
        }
        let (number, inside, count) = (into / chunk, into % chunk, self.members.len() as u64);
        // All zones begin at a multiple of the chunk size.
        let chooser = if by_zone { number } else { at / chunk };
        Some(Piece {
            at: self.first + number / count * chunk + inside,
            len: chunk - inside,
            on: On::One(self.members[(chooser % count) as usize]),
        })
    }
}

impl Parity {
    fn new(level: i32, layout: u32, disks: usize, chunk: u64) -> Result<Self> {
        let (count, least) = if level == 6 { (2, 4) } else { (1, 2) };
        let most = if level == 6 { COEFFICIENTS } else { DISKS };
        if !(least..=most).contains(&disks) {
            return Err(corrupt(format_args!("{disks} members are not valid for RAID {level}")));
        }
        // RAID 6 has more layouts. In the layouts from number 16 on, the last member contains the second parity, and the other members have
        // a layout of RAID 5.
        let ddf = match (level, layout) {
            (6, 8) => Some(Ddf::ZeroRestart),
            (6, 9) => Some(Ddf::NRestart),
            (6, 10) => Some(Ddf::NContinue),
            _ => None,
        };
        if ddf.is_some() && disks > COEFFICIENTS - 2 {
            return Err(corrupt(format_args!("{disks} members are not valid for RAID 6")));
        }
        let (order, fixed) = match (level, layout) {
            (6, 8) => (Order::rotating(1), false),
            (6, 9) => (Order::rotating(0), false),
            (6, 10) => (Order::rotating(2), false),
            (4, _) => (Order::Last, false),
            (_, 0..=3) => (Order::rotating(layout), false),
            (_, 4) => (Order::First, false),
            (_, 5) => (Order::Last, false),
            (6, 16..=19) => (Order::rotating(layout - 16), true),
            (6, 20) => (Order::First, true),
            _ => {
                return Err(Error::unsupported(format!(
                    "the layout {layout} of RAID {level} is not supported"
                )));
            }
        };
        Ok(Self { disks, chunk, count, order, fixed, ddf })
    }

    fn piece(&self, at: u64) -> Piece {
        let data = (self.disks - self.count) as u64;
        let (number, inside) = (at / self.chunk, at % self.chunk);
        let (row, index) = (number / data, (number % data) as usize);
        let found = self.row(row);
        Piece {
            at: row * self.chunk + inside,
            len: self.chunk - inside,
            on: On::Row(self.data(found, index), found),
        }
    }

    /// The number of members on which the first parity can be.
    fn rotating(&self) -> usize {
        self.disks - usize::from(self.fixed)
    }

    fn row(&self, number: u64) -> Row {
        let count = self.rotating();
        let ahead = u64::from(self.ddf == Some(Ddf::NRestart));
        let turn = ((number + ahead) % count as u64) as usize;
        let p = match self.order {
            Order::First => 0,
            Order::Last => self.disks - self.count,
            Order::Rotating { left: true, .. } => count - 1 - turn,
            Order::Rotating { left: false, .. } => turn,
        };
        let q = match self.fixed {
            true => self.disks - 1,
            false if self.ddf == Some(Ddf::NContinue) => (p + self.disks - 1) % self.disks,
            false => (p + 1) % self.disks,
        };
        Row { p, q: (self.count == 2).then_some(q) }
    }

    /// The member that contains the data chunk number `index` of a row.
    fn data(&self, row: Row, index: usize) -> usize {
        if let Order::Rotating { symmetric: true, .. } = self.order {
            let last = row.q.filter(|_| !self.fixed && self.ddf.is_none()).unwrap_or(row.p);
            return (last + 1 + index) % self.rotating();
        }
        let mut data = (0..self.disks).filter(|member| *member != row.p && Some(*member) != row.q);
        data.nth(index).unwrap_or_default()
    }

    /// The data members of a row, in the order of their coefficients in the second parity. `None` stands for a coefficient that belongs to
    /// no data.
    pub(super) fn terms(&self, row: Row) -> impl Iterator<Item = Option<usize>> + use<> {
        let (disks, has_gaps) = (self.disks, self.ddf.is_some());
        let first = row.q.filter(|_| !has_gaps).map_or(0, |q| q + 1);
        let all = (0..disks).map(move |step| (first + step) % disks);
        let is_data = move |member: &usize| *member != row.p && Some(*member) != row.q;
        let terms = all.map(move |member| Some(member).filter(is_data));
        terms.filter(move |term| has_gaps || term.is_some())
    }
}

impl Order {
    fn rotating(layout: u32) -> Self {
        Self::Rotating { left: layout & 1 == 0, symmetric: layout & 2 != 0 }
    }
}
