//! LVM2: the logical volumes on one or several disks. A physical volume is a whole disk or a partition.
//!
//! This module finds the ranges of linear and striped logical volumes. It also reads RAID, mirrors and thin volumes, which are built from
//! linear and striped logical volumes. It verifies the checksums of the metadata, and uses the newest copy.

mod group;
mod label;
mod layered;
mod mirror;
mod stack;
mod text;
mod thin;

use std::fmt;

use self::group::{Area, Group, Kind, Logical, Physical};
use self::label::{Id, Label, Range, Text};
use self::stack::Search;
pub use self::stack::Stack;
use self::text::corrupt;
use crate::device::{Device, Segment};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::md::look_within;
use crate::partition::{Partition, PartitionTable};

/// The volume groups of a disk.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<Group>,
    /// The physical volumes on the disk.
    physical: Vec<OnDisk>,
    /// The faults of the metadata, one line for each.
    faults: Vec<String>,
    /// The number of disks.
    disks: usize,
    /// Whether a physical volume may end past the end of the disk.
    truncated: bool,
}

/// A logical volume in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalVolume<'a> {
    /// The name of the volume group that contains the logical volume.
    pub group: &'a str,
    /// The name of the logical volume.
    pub name: &'a str,
    /// The size of the logical volume in bytes.
    pub size: u64,
}

/// A physical volume on a disk.
#[derive(Debug)]
struct OnDisk {
    /// The name of the partition or disk, for messages.
    what: String,
    id: Id,
    /// The first byte of the physical volume on the disk, and its length in bytes.
    range: (u64, u64),
    /// The identity of the group in the physical volume's own metadata. `None` if the physical volume has no metadata.
    group: Option<String>,
    /// The ranges of the label and of the metadata areas. Each range consists of the first byte in the physical volume, and the length.
    metadata: Vec<(u64, u64)>,
}

impl Groups {
    /// Reads the metadata of all physical volumes on a disk. Without physical volumes, the result has no groups.
    ///
    /// # Errors
    /// `Corrupt` if two physical volumes have the same identity, or two volume groups have the same name; `Io`. Damaged metadata are a
    /// fault, not an error.
    pub fn read(device: &dyn Device) -> Result<Self> {
        Self::of(&[("", device)])
    }

    /// Reads the metadata of all physical volumes on a truncated disk. The parts of logical volumes may then be past the end of the disk.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_truncated(device: &dyn Device) -> Result<Self> {
        let mut groups = Self { disks: 1, truncated: true, ..Self::default() };
        groups.read_disk("", device, 0)?;
        Ok(groups)
    }

    /// Reads the metadata of all physical volumes on several disks, each with its name. The disks are treated as if they followed each
    /// other, so a position on any disk is counted from the first byte of the first disk.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn of(disks: &[(&str, &dyn Device)]) -> Result<Self> {
        let (mut groups, mut base) = (Self { disks: disks.len(), ..Self::default() }, 0_u64);
        for (name, device) in disks {
            groups.read_disk(name, *device, base)?;
            base = base
                .checked_add(device.size())
                .ok_or_else(|| Error::invalid("the disks are too large"))?;
        }
        Ok(groups)
    }

    fn read_disk(&mut self, name: &str, device: &dyn Device, base: u64) -> Result<()> {
        let of = if name.is_empty() { String::new() } else { format!(" of {name}") };
        let table = PartitionTable::read(device).unwrap_or_else(|error| {
            self.faults.push(error.to_string());
            None
        });
        let size = if self.truncated { i64::MAX as u64 } else { device.size() };
        let whole = Range { device, start: 0, len: size };
        let what = if name.is_empty() { "the disk" } else { name };
        let Some(PartitionTable { partitions, fault, .. }) =
            table.filter(|table| !table.partitions.is_empty())
        else {
            return self.add(what, base, whole);
        };
        if self.is_member(what, whole) {
            return Ok(());
        }
        // A label before the first partition is older than the partition table. It is ignored, as by LVM.
        self.faults.extend(fault);
        for Partition { number, start, len, .. } in partitions {
            let len = len.min(size.saturating_sub(start));
            self.add(&format!("partition {number}{of}"), base, Range { device, start, len })?;
        }
        Ok(())
    }

    /// Whether a range is a member of an MD array. The logical volumes on such a range belong to the array, and are not used from the
    /// member: one member can have older content, and a write to one member would make the members differ.
    fn is_member(&mut self, what: &str, Range { device, start, len }: Range<'_>) -> bool {
        let Ok(Some(member)) = look_within(device, start, len) else { return false };
        let advice = "lvm:VG/LV@md:DISK,DISK reads its logical volumes, and mdadm --zero-superblock removes an old superblock";
        self.faults.push(format!("{what} is {member}: {advice}"));
        true
    }

    /// Adds the metadata of the physical volume in the range, if there is one.
    fn add(&mut self, what: &str, base: u64, range: Range<'_>) -> Result<()> {
        if self.is_member(what, range) {
            return Ok(());
        }
        let label = match Label::read(range) {
            Ok(None) => return Ok(()),
            Ok(Some(label)) => label,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.faults.push(format!("{what}: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if let Some(other) = self.physical.iter().find(|other| other.id == label.id) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{what} and {} have the identity of one LVM physical volume: one is a copy of the other",
                    other.what
                ),
            ));
        }
        let mut own: Option<(u64, String)> = None;
        for text in label.texts(range) {
            let parsed = text.and_then(|text| match self.is_known(&text) {
                Some(index) => Ok((self.groups[index].sequence, self.groups[index].id.clone())),
                None => {
                    let group = Group::parse(&text)?;
                    let described = (group.sequence, group.id.clone());
                    self.keep_newest(what, group)?;
                    Ok(described)
                }
            });
            match parsed {
                Ok(described) => own = own.max(Some(described)),
                Err(error) => self.faults.push(format!("{what}: {error}")),
            }
        }
        let (what, range) = (what.to_owned(), (base + range.start, range.len));
        let (id, group, metadata) = (label.id, own.map(|(_, id)| id), label.metadata());
        self.physical.push(OnDisk { what, id, range, group, metadata });
        Ok(())
    }

    /// The index of the group whose metadata text equals this text. Such a text is not parsed again.
    fn is_known(&self, text: &Text) -> Option<usize> {
        let len = text.bytes.len();
        self.groups
            .iter()
            .position(|known| (known.checksum, known.text_len) == (text.checksum, len))
    }

    /// Stores the metadata of a group. If newer metadata of the group are already stored, keeps only the newer metadata.
    fn keep_newest(&mut self, what: &str, group: Group) -> Result<()> {
        let same = |known: &Group| known.id == group.id || known.name == group.name;
        let Some(known) = self.groups.iter_mut().find(|known| same(known)) else {
            self.groups.push(group);
            return Ok(());
        };
        if known.id != group.id {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "two volume groups have the name {}: {} and {}",
                    group.name, known.id, group.id
                ),
            ));
        }
        self.faults.push(format!(
            "{what}: the copies of the metadata of {} differ; they have the sequence numbers {} and {}",
            group.name, known.sequence, group.sequence
        ));
        if group.sequence > known.sequence {
            *known = group;
        }
        Ok(())
    }

    /// One line for each fault of the metadata: damaged copies, and copies that differ.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Whether the disk contains no physical volume.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.physical.is_empty()
    }

    /// The visible logical volumes, in the order of the metadata.
    pub fn volumes(&self) -> impl Iterator<Item = LogicalVolume<'_>> {
        self.groups.iter().flat_map(|group| {
            let visible = group.logical.iter().filter(|logical| logical.visible);
            visible.map(|logical| LogicalVolume {
                group: &group.name,
                name: &logical.name,
                size: logical.len,
            })
        })
    }

    /// Finds a logical volume by the names of the group and the volume. Returns the positions of its parts on the disks.
    ///
    /// # Errors
    /// `NotFound` for an unknown name. `Unsupported` for a type that ironmap cannot read, for content that belongs to a snapshot, and for a
    /// physical volume that is not on these disks (if no other leg has the same content). `Corrupt` if the metadata contradict the disk.
    pub fn find(&self, group: &str, name: &str) -> Result<Stack> {
        let found = self.groups.iter().find(|known| known.name == group);
        let Some((group, logical)) = found.and_then(|it| Some((it, it.logical(name)?))) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no logical volume {group}/{name}; {self}"),
            ));
        };
        let stack = Search::new(self, group).stack(logical);
        let mut stack = stack.context(|| format!("the logical volume {}/{name}", group.name))?;
        if let Some(fault) = self.faults.first().or(group.fault.as_ref()) {
            stack.only_read(format!("the metadata of LVM have a fault ({fault})"));
        }
        Ok(stack)
    }

    /// The segments of a logical volume that is linear or striped. Segments that are contiguous on the disk are merged.
    fn segments(&self, group: &Group, logical: &Logical) -> Result<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::with_capacity(logical.segments.len());
        for segment in &logical.segments {
            let (stripe, areas) = match &segment.kind {
                Kind::Striped(stripe, areas) => (*stripe, areas),
                Kind::Layered(_) => {
                    return Err(corrupt(
                        "the logical volume has several segments, but not all of them are linear or striped",
                    ));
                }
                Kind::Other(kind) => {
                    return Err(Error::unsupported(format!(
                        "a segment has the type {kind}, which is not supported"
                    )));
                }
            };
            let starts = areas.iter().map(|area| self.first_byte(group, area));
            let next = Segment { len: segment.len, stripe, starts: starts.collect::<Result<_>>()? };
            match segments.last_mut() {
                Some(last) if last.continues_in(&next) => {
                    last.len += next.len;
                    last.stripe = last.len;
                }
                _ => segments.push(next),
            }
        }
        if segments.is_empty() {
            return Err(Error::unsupported("there are no segments"));
        }
        Ok(segments)
    }

    /// The first byte of an area on the disk. The area must be within its physical volume, and the metadata on this physical volume must
    /// name the same group. If they name another group, the physical volume was moved to that group and has other content.
    fn first_byte(&self, group: &Group, area: &Area) -> Result<u64> {
        let Physical { name, id, .. } = &group.physical[area.physical];
        let Some(on_disk) = self.physical.iter().find(|on_disk| on_disk.id == *id) else {
            return Err(Error::unsupported(format!(
                "the physical volume {name} ({}) is not on {}",
                shown(*id),
                if self.disks == 1 {
                    "this disk: lvm:VG/LV@DISK,DISK names several disks"
                } else {
                    "these disks"
                }
            )));
        };
        let what = &on_disk.what;
        if on_disk.group.as_ref().is_some_and(|own| *own != group.id) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the metadata on {what} say that this physical volume belongs to another volume group"
                ),
            ));
        }
        let overlaps = |(start, len): &(u64, u64)| {
            area.at < start.saturating_add(*len) && *start < area.at.saturating_add(area.len)
        };
        if on_disk.metadata.iter().any(overlaps) {
            let what = format!("a segment overlaps the label or the metadata of {what}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let (start, len) = on_disk.range;
        let end = area.at.checked_add(area.len).filter(|end| *end <= len);
        let first = end.and_then(|_| start.checked_add(area.at));
        first.ok_or_else(|| {
            let what =
                format!("{what} with {len} bytes is shorter than its physical volume {name}");
            Error::new(ErrorKind::Corrupt, what)
        })
    }
}

/// Describes the volume group that uses a device, as a clause without a subject. `None` if the device is no physical volume, or if it belongs to no group. The group of a
/// physical volume without metadata areas is not known, so such a volume counts as used.
///
/// # Errors
/// `Io`.
pub(crate) fn user_of(device: &dyn Device) -> Result<Option<String>> {
    let range = Range { device, start: 0, len: device.size() };
    let label = match Label::read(range) {
        Ok(Some(label)) => label,
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => return Err(error),
        // A damaged label names no group.
        Ok(None) | Err(_) => return Ok(None),
    };
    let texts: Vec<_> = label.texts(range).collect();
    if texts.is_empty() && label.metadata().len() > 1 {
        return Ok(None);
    }
    let name = texts.into_iter().find_map(|text| Some(Group::parse(&text.ok()?).ok()?.name));
    let name = name.map_or_else(
        || "an unknown volume group".to_owned(),
        |name| format!("the volume group {name}"),
    );
    Ok(Some(format!("is an LVM physical volume of {name}")))
}

/// Formats an identity as the tools of LVM show it.
fn shown(id: Id) -> String {
    let mut text = String::with_capacity(38);
    for (at, byte) in id.iter().enumerate() {
        // A hyphen divides the identity into groups of 6, 4, 4, 4, 4, 4 and 6 characters.
        if (6..=26).contains(&at) && at % 4 == 2 {
            text.push('-');
        }
        text.push(char::from(*byte));
    }
    text
}

/// The largest number of logical volumes of a group that a message lists.
const LISTED: usize = 20;

/// Shows the logical volumes in one line: `its LVM group vg has root (2048 MiB), home (512 MiB)`.
impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.groups.is_empty() {
            return match self.faults.first() {
                Some(fault) => write!(f, "its LVM metadata cannot be read: {fault}"),
                None if self.is_empty() => f.write_str("it has no LVM physical volume"),
                None => f.write_str("its LVM physical volume has no metadata"),
            };
        }
        for (index, group) in self.groups.iter().enumerate() {
            let and = if index == 0 { "its" } else { "; its" };
            write!(f, "{and} LVM group {} has ", group.name)?;
            let mut visible = group.logical.iter().filter(|logical| logical.visible).peekable();
            if visible.peek().is_none() {
                f.write_str("no logical volumes")?;
            }
            for (number, logical) in visible.by_ref().take(LISTED).enumerate() {
                let comma = if number == 0 { "" } else { ", " };
                let fault = if logical.is_supported() { "" } else { ", not supported" };
                write!(f, "{comma}{} ({} MiB{fault})", logical.name, logical.len >> 20)?;
            }
            if visible.peek().is_some() {
                f.write_str(", ...")?;
            }
        }
        Ok(())
    }
}
