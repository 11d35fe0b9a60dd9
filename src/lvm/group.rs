//! A volume group, as the LVM metadata describe it.

use smallvec::SmallVec;

use super::label::Id;
use super::text::{Section, corrupt};
use crate::error::Result;

/// The unit of sizes and positions in LVM metadata, in bytes.
const SECTOR: u64 = 512;
/// The largest length of an extent in bytes: 4 GiB.
const LARGEST: u64 = 1 << 32;

/// A volume group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) id: String,
    /// The sequence number of the metadata. Each change of the metadata increases it.
    pub(super) sequence: u64,
    /// The reason why no logical volume of the group can be written. `None` if there is no such reason.
    pub(super) read_only: Option<&'static str>,
    pub(super) physical: Vec<Physical>,
    pub(super) logical: Vec<Logical>,
}

/// A physical volume.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) name: String,
    pub(super) id: Id,
    /// The position of the first extent in bytes, and the number of extents.
    extents: (u64, u64),
}

/// A logical volume.
#[derive(Debug)]
pub(super) struct Logical {
    pub(super) name: String,
    /// The length in bytes.
    pub(super) len: u64,
    /// Whether users see the logical volume. A hidden logical volume is a part of other logical volumes, or describes a snapshot.
    pub(super) visible: bool,
    /// The reason why the logical volume cannot be written. `None` if there is no such reason.
    pub(super) read_only: Option<&'static str>,
    /// A description of the content, if the logical volume contains saved data of a snapshot instead of a volume. Otherwise `None`.
    pub(super) store: Option<&'static str>,
    pub(super) segments: Vec<Segment>,
}

/// A part of a logical volume.
#[derive(Debug)]
pub(super) struct Segment {
    /// The length in bytes.
    pub(super) len: u64,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// The length of a stripe in bytes, and ranges of physical volumes. The first stripe is on the first range, the second stripe on the
    /// second range; the stripe after the last range is on the first range again. With one range, the segment is linear.
    Striped(u64, SmallVec<[Area; 1]>),
    /// A segment that ironmap cannot read: its type.
    Other(String),
}

/// A range of a physical volume.
#[derive(Debug)]
pub(super) struct Area {
    /// The index of the physical volume.
    pub(super) physical: usize,
    /// The first byte on the physical volume.
    pub(super) at: u64,
}

fn beyond() -> crate::error::Error {
    corrupt("a position exceeds 64 bits")
}

fn product(one: u64, other: u64) -> Result<u64> {
    one.checked_mul(other).ok_or_else(beyond)
}

impl Group {
    /// Interprets the text of a metadata area.
    ///
    /// # Errors
    /// `Corrupt` for a text that contradicts itself.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        let all = Section::parse(text)?;
        let mut groups = all.sections();
        let (Some((name, group)), None) = (groups.next(), groups.next()) else {
            return Err(corrupt("the text does not describe one volume group"));
        };
        let extent = product(group.number("extent_size")?, SECTOR)?;
        if extent == 0 || extent > LARGEST {
            return Err(corrupt(format!("an extent size of {extent} bytes is not valid")));
        }
        let physical = group.section("physical_volumes")?.sections();
        let physical = physical.map(|(name, section)| Physical::parse(name, section));
        let physical = physical.collect::<Result<Vec<_>>>()?;
        // A group without logical volumes has no such section.
        let volumes = group.section("logical_volumes").ok();
        let volumes = volumes.into_iter().flat_map(Section::sections);
        let mut logical = volumes
            .map(|(name, section)| Logical::parse(name, section, extent, &physical))
            .collect::<Result<Vec<_>>>()?;
        mark_snapshots(&mut logical, group.section("logical_volumes").ok())?;
        let read_only = match () {
            () if !group.lists("status", "WRITE") => Some("its volume group is read-only"),
            () if group.lists("status", "EXPORTED") => Some("its volume group is exported"),
            () if group.find_text("lock_type").is_some_and(|kind| kind != "none") => {
                Some("its volume group is shared with other computers")
            }
            () => None,
        };
        let (name, id) = (name.to_owned(), group.text("id")?.to_owned());
        Ok(Self { name, id, sequence: group.number("seqno")?, read_only, physical, logical })
    }
}

impl Physical {
    fn parse(name: &str, section: &Section) -> Result<Self> {
        let id: Vec<u8> = section.text("id")?.bytes().filter(|byte| *byte != b'-').collect();
        let id = id.try_into().map_err(|_| corrupt(format!("the id of {name} is wrong")))?;
        let start = product(section.number("pe_start")?, SECTOR)?;
        Ok(Self { name: name.to_owned(), id, extents: (start, section.number("pe_count")?) })
    }

    /// Returns the position of the extent `first` on the physical volume, in bytes. Fails if the physical volume does not contain the
    /// `count` extents from `first` on. `extent` is the length of an extent.
    fn byte_of(&self, first: u64, count: u64, extent: u64) -> Result<u64> {
        let (start, extents) = self.extents;
        if first.checked_add(count).is_none_or(|end| end > extents) {
            return Err(corrupt(format!(
                "{} has {extents} extents, not {count} from {first} on",
                self.name
            )));
        }
        product(first, extent)?.checked_add(start).ok_or_else(beyond)
    }
}

impl Logical {
    fn parse(name: &str, section: &Section, extent: u64, physical: &[Physical]) -> Result<Self> {
        let mut segments = Vec::new();
        let (mut next, count) = (0, section.number("segment_count")?);
        for number in 1..=count {
            // `count` may be any number in damaged metadata. The loop still ends soon, because a missing section of a segment is an error.
            let segment = section.section(&format!("segment{number}"))?;
            if segment.number("start_extent")? != next {
                return Err(corrupt(format!(
                    "segment {number} of {name} does not begin at extent {next}"
                )));
            }
            let extents = segment.number("extent_count")?;
            next = next.checked_add(extents).filter(|_| extents > 0).ok_or_else(beyond)?;
            segments.push(Segment::parse(name, segment, extents, extent, physical)?);
        }
        let read_only = match () {
            () if !section.lists("status", "VISIBLE") => {
                Some("it is a part of other logical volumes")
            }
            () if !section.lists("status", "WRITE") => Some("it is read-only"),
            () if section.lists("status", "LOCKED") => Some("LVM has locked it"),
            () => None,
        };
        Ok(Self {
            name: name.to_owned(),
            len: product(next, extent)?,
            visible: section.lists("status", "VISIBLE"),
            read_only,
            store: None,
            segments,
        })
    }
}

impl Segment {
    fn parse(
        name: &str,
        segment: &Section,
        extents: u64,
        extent: u64,
        physical: &[Physical],
    ) -> Result<Self> {
        let (len, kind) = (product(extents, extent)?, segment.text("type")?);
        if kind != "striped" {
            return Ok(Self { len, kind: Kind::Other(kind.to_owned()) });
        }
        let pairs = segment.pairs("stripes")?;
        let stripes = pairs.len() as u64;
        if stripes == 0
            || stripes != segment.number("stripe_count")?
            || !extents.is_multiple_of(stripes)
        {
            return Err(corrupt(format!(
                "the {extents} extents of a segment of {name} cannot be divided into {stripes} stripes"
            )));
        }
        let size =
            if stripes == 1 { len } else { product(segment.number("stripe_size")?, SECTOR)? };
        if size == 0 || stripes > 1 && !extent.is_multiple_of(size) {
            return Err(corrupt(format!("a stripe size of {size} bytes is not valid for {name}")));
        }
        let mut areas = SmallVec::new();
        for (on, first) in pairs {
            let Some(index) = physical.iter().position(|physical| physical.name == on) else {
                // The stripe is on a logical volume instead of a physical volume. For example, this is the case while `pvmove` runs.
                return Ok(Self { len, kind: Kind::Other(format!("striped over {on}")) });
            };
            let at = physical[index].byte_of(first, extents / stripes, extent)?;
            areas.push(Area { physical: index, at });
        }
        Ok(Self { len, kind: Kind::Striped(size, areas) })
    }
}

/// Marks the origins of snapshots, and the logical volumes that store the saved data of snapshots. A hidden logical volume describes each
/// snapshot. Before LVM changes an origin, it copies the old data to the snapshot. ironmap does not do this, so a write to an origin would
/// damage the snapshot.
fn mark_snapshots(logical: &mut [Logical], sections: Option<&Section>) -> Result<()> {
    for (_, section) in sections.into_iter().flat_map(Section::sections) {
        let Ok(segment) = section.section("segment1") else { continue };
        if segment.find_text("type") != Some("snapshot") {
            continue;
        }
        let (origin, store) = (
            segment.text("origin")?,
            segment.find_text("cow_store").or(segment.find_text("merging_store")),
        );
        for volume in logical.iter_mut() {
            if volume.name == origin {
                volume.read_only = Some(
                    "it has a snapshot: a write would have to copy the old data to the snapshot first",
                );
            }
            if Some(volume.name.as_str()) == store {
                volume.store = Some("the changes of a snapshot");
            }
        }
    }
    Ok(())
}
