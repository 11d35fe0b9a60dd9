//! The content of an array. Data are read from the members, or reconstructed if a member lacks them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::layout::{Layout, On, Parity, Part, Piece, Row};
use super::parity;
use crate::device::{
    AnyQueue, Device, InRange, Limits, OnlyReads, QueueOptions, Ranges, Segment, Segmented,
};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::units::DevOffset;

/// The maximum number of bytes that are reconstructed in one step.
const REBUILT: u64 = 256 << 10;

/// A member of the array that is in use.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) device: Arc<dyn Device>,
    /// The first byte of the array's data on the member's device.
    pub(super) start: u64,
    /// The length of the part of the data that is in sync.
    pub(super) synced: u64,
    /// The ranges of the device that cannot be read, in ascending order, without overlaps.
    pub(super) bad: Vec<Range<u64>>,
    /// Whether the member has the newest superblock.
    pub(super) newest: bool,
}

impl Slot {
    /// Whether the member contains valid data at a position. Also returns the number of bytes from this position on for which the answer is
    /// equal.
    fn state(&self, at: u64) -> (bool, u64) {
        if at >= self.synced {
            return (false, u64::MAX);
        }
        let on_device = self.start + at;
        let next = self.bad.partition_point(|bad| bad.end <= on_device);
        match self.bad.get(next) {
            Some(bad) if bad.start <= on_device => (false, bad.end - on_device),
            Some(bad) => (true, (bad.start - on_device).min(self.synced - at)),
            None => (true, self.synced - at),
        }
    }
}

/// An assembled array.
#[derive(Debug)]
pub(super) struct Body {
    /// The members. The index is the role of the member.
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) layout: Layout,
    pub(super) size: u64,
    /// Whether the parity of every row matches the row's data.
    pub(super) parity_is_valid: bool,
}

impl Body {
    /// The device of the array. If no data need to be reconstructed, the device consists of ranges of the members. If a range of a mirrored
    /// array cannot be read, its data are read from other members.
    ///
    /// # Errors
    /// `InvalidInput` if there are no members.
    pub(super) fn into_device(self) -> Result<Arc<dyn Device>> {
        let segmented = self.segmented();
        let has_copies = matches!(self.layout, Layout::Copies(_));
        let limits = self.slots.iter().flatten().map(|slot| *slot.device.limits());
        let limits = limits.reduce(Limits::joined);
        let limits = limits.ok_or_else(|| Error::invalid("an array needs members"))?;
        let body = Arc::new(self);
        Ok(match segmented {
            Some(segmented) if has_copies => Arc::new(segmented.or(body)),
            Some(segmented) => Arc::new(segmented),
            None => Arc::new(Assembled::new(body, limits)),
        })
    }

    /// The array as ranges of its members. `None` if the layout has parity, or if no copy of some chunk is completely valid.
    fn segmented(&self) -> Option<Segmented> {
        let parts = self.layout.parts(self.size, |role| {
            let slot = self.slots[role].as_ref()?;
            slot.bad.is_empty().then_some((slot.synced, slot.newest))
        })?;
        let starts = self.slots.iter().scan(0_u64, |end, slot| {
            let before = *end;
            let Some(slot) = slot else { return Some(before) };
            *end = before.checked_add(slot.device.size())?;
            Some(before + slot.start)
        });
        let starts: Vec<u64> = starts.collect();
        if starts.len() < self.slots.len() {
            return None;
        }
        let segment = |part: Part| Segment {
            len: part.len,
            stripe: part.stripe,
            starts: part.places.iter().map(|(role, at)| starts[*role] + at).collect(),
        };
        let segments: Vec<Segment> = parts.into_iter().map(segment).collect();
        let below = self.slots.iter().flatten().map(|slot| Arc::clone(&slot.device)).collect();
        let segmented = Segmented::over(below, &segments).ok()?;
        (segmented.size() == self.size).then_some(segmented)
    }

    fn state(&self, role: usize, at: u64) -> (bool, u64) {
        self.slots[role].as_ref().map_or((false, u64::MAX), |slot| slot.state(at))
    }

    /// Fills `buf` with data of a member, from the position `at` in the member's data.
    fn read_member(&self, role: usize, buf: &mut [u8], at: u64) -> Result<()> {
        match &self.slots[role] {
            Some(slot) if slot.state(at).0 => {
                slot.device.read_exact_at(buf, DevOffset(slot.start + at))
            }
            _ => Err(self.lost(&[(role, at)])),
        }
    }

    /// The error for bytes that no member contains. `places` are the members that should contain the bytes, and the positions in their
    /// data.
    fn lost(&self, places: &[(usize, u64)]) -> Error {
        let mut text = "no member contains the data:".to_owned();
        for (index, (role, at)) in places.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let shown = match self.slots[*role].as_ref() {
                Some(Slot { name, synced, .. }) if at >= synced => {
                    format!(" {name} is not in sync at byte {at} of its data")
                }
                Some(Slot { name, .. }) => format!(" {name} has a bad block at byte {at}"),
                None => format!(" the member with the role {role} is missing"),
            };
            text.push_str(comma);
            text.push_str(&shown);
        }
        Error::io(Errno::EIO, text)
    }

    /// Reads from the position `at` of the array on. Returns the number of bytes that were read.
    fn read_piece(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        let piece = self.layout.piece(at).filter(|_| at < self.size);
        let Some(Piece { at: on_member, len, on }) = piece else {
            return Err(Error::invalid(format!("byte {at} is past the end of the array")));
        };
        let len = len.min(buf.len() as u64);
        match on {
            On::One(role) => {
                let len = len.min(self.state(role, on_member).1) as usize;
                self.read_member(role, &mut buf[..len], on_member)?;
                Ok(len)
            }
            On::Copies(first) => self.read_copy(buf, len, on_member, first),
            On::Row(role, row) => match self.state(role, on_member) {
                (true, whole) => {
                    let len = len.min(whole) as usize;
                    match self.read_member(role, &mut buf[..len], on_member) {
                        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => {
                            // If the reconstruction fails too, the error of the member is returned, because it is more useful.
                            let rebuilt = self.rebuild(buf, len as u64, on_member, role, row);
                            rebuilt.map_err(|_| error)
                        }
                        result => result.map(|()| len),
                    }
                }
                (false, _) => self.rebuild(buf, len, on_member, role, row),
            },
        }
    }

    /// Reads one of several copies. A member with the newest superblock is preferred.
    fn read_copy(&self, buf: &mut [u8], len: u64, at: u64, first: usize) -> Result<usize> {
        let Layout::Copies(copies) = &self.layout else { return Err(self.lost(&[])) };
        let places: SmallVec<[(usize, u64); 4]> = copies.places(first, at).collect();
        let valid = places.iter().map(|(role, at)| self.state(*role, *at).1);
        let len = valid.fold(len, u64::min) as usize;
        let is_newest = |role: usize| self.slots[role].as_ref().is_some_and(|slot| slot.newest);
        let mut failed = None;
        for newest in [true, false] {
            for (role, at) in places.iter().copied() {
                if is_newest(role) != newest || !self.state(role, at).0 {
                    continue;
                }
                match self.read_member(role, &mut buf[..len], at) {
                    Ok(()) => return Ok(len),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        Err(failed.unwrap_or_else(|| self.lost(&places)))
    }

    /// Reconstructs the data of the member `wanted` from the other members of the row.
    fn rebuild(&self, buf: &mut [u8], len: u64, at: u64, wanted: usize, row: Row) -> Result<usize> {
        let Layout::Parity(parity) = &self.layout else { return Err(self.lost(&[])) };
        if !self.parity_is_valid {
            return Err(Error::io(
                Errno::EIO,
                format!(
                    "{}; the array was not stopped cleanly, so its parity may be wrong",
                    self.lost(&[(wanted, at)])
                ),
            ));
        }
        let roles = 0..parity.disks;
        let len = roles.clone().fold(len.min(REBUILT), |len, role| len.min(self.state(role, at).1));
        let mut lost: SmallVec<[usize; 4]> = SmallVec::from_slice(&[wanted]);
        lost.extend(roles.filter(|role| *role != wanted && !self.state(*role, at).0));
        // Each iteration returns, or adds a member to `lost`.
        while lost.len() <= parity.count {
            let row = Lost { body: self, parity, row, at, lost: &lost };
            match row.solve(&mut buf[..len as usize]) {
                Ok(()) => return Ok(len as usize),
                Err((role, error)) if lost.len() == parity.count || lost.contains(&role) => {
                    return Err(error);
                }
                Err((role, _)) => lost.push(role),
            }
        }
        Err(self.lost_in_row(&lost, at))
    }

    /// The error if several members of a row are lost.
    fn lost_in_row(&self, roles: &[usize], at: u64) -> Error {
        self.lost(&roles.iter().map(|role| (*role, at)).collect::<Vec<_>>())
    }
}

/// A part of a row in which some members are lost. The data of the first lost member are wanted.
struct Lost<'a> {
    body: &'a Body,
    parity: &'a Parity,
    row: Row,
    at: u64,
    lost: &'a [usize],
}

impl Lost<'_> {
    /// Reads a member of the row. An error names the member.
    fn read(&self, role: usize, buf: &mut [u8]) -> Result<(), (usize, Error)> {
        self.body.read_member(role, buf, self.at).map_err(|error| (role, error))
    }

    /// Fills `sum` with the data of the first lost member.
    fn solve(&self, sum: &mut [u8]) -> Result<(), (usize, Error)> {
        let Self { row, lost, .. } = *self;
        let mut other = vec![0; sum.len()];
        let has_p = !lost.contains(&row.p);
        let data_is_lost = lost[1..].iter().any(|role| *role != row.p && Some(*role) != row.q);
        // The first parity (P) is the sum of all data of the row. Without a second lost data member, the wanted data are the sum of P and
        // the other data.
        let mut all: SmallVec<[Option<usize>; 8]> = self.parity.terms(row).collect();
        sum.fill(0);
        if has_p {
            self.read(row.p, sum)?;
        }
        if has_p && !data_is_lost {
            for role in all.into_iter().flatten().filter(|role| *role != lost[0]) {
                self.read(role, &mut other)?;
                parity::add(sum, &other);
            }
            return Ok(());
        }
        let Some(q) = row.q else {
            return Err((lost[0], self.body.lost_in_row(lost, self.at)));
        };
        let place = |role: usize| all.iter().position(|it| *it == Some(role)).unwrap_or(0);
        let (wanted, also) = (place(lost[0]), place(*lost.last().unwrap_or(&0)));
        // The second parity (Q) is the sum of the data, each multiplied by a power of x. After the loop, `weighted` contains the share of
        // the lost data in Q, and `sum` contains the sum of the lost data.
        let mut weighted = vec![0; sum.len()];
        all.reverse();
        for role in all {
            parity::shift(&mut weighted);
            if let Some(role) = role.filter(|role| !lost.contains(role)) {
                self.read(role, &mut other)?;
                parity::add(&mut weighted, &other);
                parity::add(sum, &other);
            }
        }
        self.read(q, &mut other)?;
        parity::add(&mut weighted, &other);
        let mut factor = parity::power(wanted);
        if data_is_lost {
            // Let a and b be the lost data, and m and n their factors. `sum` is a + b, and `weighted` is m a + n b. So a is (weighted + n
            // sum) / (m + n).
            factor ^= parity::power(also);
            parity::multiply(sum, parity::power(also));
            parity::add(&mut weighted, sum);
        }
        parity::multiply(&mut weighted, parity::inverse(factor));
        sum.copy_from_slice(&weighted);
        Ok(())
    }
}

impl Ranges for Body {
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            // The loop ends, because each piece has at least one byte.
            done += self.read_piece(&mut buf[done..], at.0 + done as u64)?;
        }
        Ok(())
    }
}

/// The device of an array that is read through its [`Body`].
struct Assembled {
    body: Arc<Body>,
    limits: Limits,
}

impl Assembled {
    /// The device, with limits that are valid on all members.
    fn new(body: Arc<Body>, limits: Limits) -> Self {
        let limits =
            Limits { read_only: true, atomic_write: 0, nowait: false, poll: false, ..limits };
        Self { body, limits }
    }
}

impl fmt::Debug for Assembled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.body.fmt(f)
    }
}

impl Device for Assembled {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.body.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.body.read(buf, at)
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(OnlyReads::queue(Arc::clone(&self.body) as Arc<dyn Ranges>, options))
    }
}
