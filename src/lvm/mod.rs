//! LVM2: the logical volumes on a disk. A physical volume is the whole disk or a partition.
//!
//! This module finds linear and striped logical volumes. It verifies the checksums of the metadata, and uses the newest copy.

mod group;
mod label;
mod text;

use std::fmt;

use self::group::{Group, Kind, Logical};
use self::label::{Id, Label, Range};
use crate::device::{Device, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::partition::PartitionTable;

/// The volume groups of a disk.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<Group>,
    /// The identity of each physical volume on the disk, and the position of its first byte.
    places: Vec<(Id, u64)>,
    /// The faults of the metadata, one line for each.
    faults: Vec<String>,
}

/// A logical volume on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalVolume {
    /// The name of the volume group.
    pub group: String,
    /// The name of the logical volume.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// The reason why the logical volume cannot be opened. `None` if it can be opened.
    pub fault: Option<String>,
}

/// The place of a logical volume on its disk.
#[derive(Debug)]
pub struct Place {
    /// The segments of the logical volume, in order. Segments that are contiguous on the disk are merged.
    pub segments: Vec<Segment>,
    /// The reason why the logical volume can only be read. `None` if it can be written.
    pub read_only: Option<String>,
}

impl Groups {
    /// Reads the metadata of all physical volumes on a disk. For a disk without physical volumes, the result contains no groups.
    ///
    /// # Errors
    /// `Corrupt` if two physical volumes have the same identity, or two volume groups have the same name; `Io`. Damaged metadata of a
    /// physical volume are a fault, not an error.
    pub fn read(device: &dyn Device) -> Result<Self> {
        let table = PartitionTable::read(device).ok().flatten();
        let partitions = table.iter().flat_map(|table| &table.partitions);
        let ranges = partitions.map(|partition| {
            let rest = device.size().saturating_sub(partition.start);
            (format!("partition {}", partition.number), partition.start, partition.len.min(rest))
        });
        let mut groups = Self::default();
        for (what, start, len) in
            std::iter::once(("the disk".to_owned(), 0, device.size())).chain(ranges)
        {
            groups.add(&what, Range { device, start, len })?;
        }
        Ok(groups)
    }

    /// Adds the metadata of a physical volume, if the range contains one.
    fn add(&mut self, what: &str, range: Range<'_>) -> Result<()> {
        let label = match Label::read(range) {
            Ok(None) => return Ok(()),
            Ok(Some(label)) => label,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.faults.push(format!("{what}: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if self.places.iter().any(|(id, _)| *id == label.id) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{what} has the identity of another LVM physical volume: one is a copy of the other"
                ),
            ));
        }
        self.places.push((label.id, range.start));
        for text in label.texts(range) {
            match text.and_then(|text| Group::parse(&text)) {
                Ok(group) => self.keep_newest(what, group)?,
                Err(error) => self.faults.push(format!("{what}: {error}")),
            }
        }
        Ok(())
    }

    /// Stores the metadata of a group, unless newer metadata of the group are already stored.
    fn keep_newest(&mut self, what: &str, group: Group) -> Result<()> {
        let Some(known) = self.groups.iter_mut().find(|known| known.name == group.name) else {
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
        if known.sequence != group.sequence {
            self.faults.push(format!(
                "{what}: the copies of the metadata of {} have different sequence numbers, {} and {}",
                group.name, known.sequence, group.sequence
            ));
        }
        if group.sequence > known.sequence {
            *known = group;
        }
        Ok(())
    }

    /// The logical volumes that users see, of all groups.
    #[must_use]
    pub fn volumes(&self) -> Vec<LogicalVolume> {
        let all = self
            .groups
            .iter()
            .flat_map(|group| group.logical.iter().map(move |logical| (group, logical)));
        let visible = all.filter(|(_, logical)| logical.visible);
        let shown = visible.map(|(group, logical)| LogicalVolume {
            group: group.name.clone(),
            name: logical.name.clone(),
            len: logical.len,
            fault: self.place_of(group, logical).err().map(|error| error.to_string()),
        });
        shown.collect()
    }

    /// The faults of the metadata, one line each: damaged copies, and copies that differ.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Whether the disk contains no physical volume.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Finds a logical volume by its names, and returns its place on the disk.
    ///
    /// # Errors
    /// `NotFound` for an unknown name. `Unsupported` if a segment is neither linear nor striped, if a physical volume is not on this disk,
    /// or if the logical volume stores the saved data of a snapshot.
    pub fn find(&self, group: &str, name: &str) -> Result<Place> {
        let found = self.groups.iter().find(|known| known.name == group);
        let logical = found.and_then(|found| {
            let logical = found.logical.iter().find(|logical| logical.name == name);
            logical.map(|logical| (found, logical))
        });
        let Some((group, logical)) = logical else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no logical volume {group}/{name}; {self}"),
            ));
        };
        let segments = self.place_of(group, logical)?;
        let read_only = logical.read_only.or(group.read_only).map(str::to_owned);
        Ok(Place { segments, read_only: read_only.or_else(|| self.faults.first().cloned()) })
    }

    fn place_of(&self, group: &Group, logical: &Logical) -> Result<Vec<Segment>> {
        let refuse = |what: String| {
            Error::unsupported(format!("the logical volume {}/{} {what}", group.name, logical.name))
        };
        if let Some(store) = logical.store {
            return Err(refuse(format!("contains {store}")));
        }
        let mut segments: Vec<Segment> = Vec::with_capacity(logical.segments.len());
        for segment in &logical.segments {
            let Kind::Striped(stripe, areas) = &segment.kind else {
                let Kind::Other(kind) = &segment.kind else { continue };
                return Err(refuse(format!(
                    "has a segment of the type {kind}, which is not supported"
                )));
            };
            let mut starts = smallvec::SmallVec::new();
            for area in areas {
                let physical = &group.physical[area.physical];
                let place = self.places.iter().find(|(id, _)| *id == physical.id);
                let (_, start) = place.ok_or_else(|| {
                    refuse(format!(
                        "needs the physical volume {} ({}), which is not on this disk",
                        physical.name,
                        shown(physical.id)
                    ))
                })?;
                starts.push(
                    start
                        .checked_add(area.at)
                        .ok_or_else(|| refuse("is past the end of the disk".to_owned()))?,
                );
            }
            let next = Segment { len: segment.len, stripe: *stripe, starts };
            match segments.last_mut() {
                Some(last) if last.continues_in(&next) => {
                    last.len += next.len;
                    last.stripe = last.len;
                }
                _ => segments.push(next),
            }
        }
        if segments.is_empty() {
            return Err(refuse("has no segments".to_owned()));
        }
        Ok(segments)
    }
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
            for (number, logical) in visible.enumerate() {
                let comma = if number == 0 { "" } else { ", " };
                write!(f, "{comma}{} ({} MiB)", logical.name, logical.len >> 20)?;
            }
        }
        Ok(())
    }
}
