//! A volume group, as the LVM metadata describe it.

use smallvec::SmallVec;

use super::label::{Id, Text};
use super::layered::Layered;
use super::text::{Section, corrupt};
use crate::error::{ErrorKind, Result};
use crate::sorting::Sorting;

/// The unit of sizes and positions in LVM metadata: 512 bytes.
pub(super) const SECTOR: u64 = 512;
/// The reason why a logical volume cannot be read while a snapshot is being merged into it.
const MERGING: &str = "a snapshot is being merged into it: lvchange -ay completes the merge";
/// The largest length of an extent in bytes: 4 GiB.
const LARGEST: u64 = 1 << 32;

/// A volume group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) id: String,
    /// The sequence number of the metadata. Each change of the metadata increases it.
    pub(super) sequence: u64,
    /// The checksum of the metadata text, and the length of the text in bytes.
    pub(super) checksum: u32,
    pub(super) text_len: usize,
    pub(super) physical: Vec<Physical>,
    pub(super) logical: Vec<Logical>,
    /// A contradiction in the metadata. If there is one, all logical volumes of the group can only be read.
    pub(super) fault: Option<String>,
}

/// A physical volume.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) name: String,
    pub(super) id: Id,
    /// The position of the first extent in bytes, and the number of extents.
    extents: (u64, u64),
    /// Whether the physical volume was missing when the group was last changed. If so, its content may be old.
    pub(super) was_missing: bool,
}

/// A logical volume.
#[derive(Debug)]
pub(super) struct Logical {
    pub(super) name: String,
    /// The length in bytes.
    pub(super) len: u64,
    /// Whether LVM shows the logical volume to users. A hidden logical volume is a component of another logical volume, or describes a
    /// snapshot.
    pub(super) visible: bool,
    /// The reason why the logical volume cannot be read. `None` if it can be read.
    pub(super) fault: Option<String>,
    /// The reason why the logical volume can be read but not written. `None` if there is no such reason.
    pub(super) only_read: Option<&'static str>,
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
    /// The length of a stripe in bytes, and the ranges of physical volumes that contain the stripes. Consecutive stripes are on consecutive
    /// ranges; the stripe after the last range is on the first range again. A linear segment has one range.
    Striped(u64, SmallVec<[Area; 1]>),
    /// A segment whose content is on other logical volumes.
    Layered(Layered),
    /// The type of a segment that ironmap cannot read.
    Other(String),
}

/// A range of a physical volume.
#[derive(Debug)]
pub(super) struct Area {
    /// The index of the physical volume.
    pub(super) physical: usize,
    /// The first byte on the physical volume.
    pub(super) at: u64,
    /// The number of bytes.
    pub(super) len: u64,
}

fn beyond() -> crate::error::Error {
    corrupt("a position exceeds 64 bits")
}

pub(super) fn product(one: u64, other: u64) -> Result<u64> {
    one.checked_mul(other).ok_or_else(beyond)
}

impl Group {
    /// The logical volume with a name.
    pub(super) fn logical(&self, name: &str) -> Option<&Logical> {
        // The names in a section are sorted.
        let index = self.logical.binary_search_by(|logical| logical.name.as_str().cmp(name));
        index.ok().map(|index| &self.logical[index])
    }

    /// Parses the text of a metadata area.
    ///
    /// # Errors
    /// `Corrupt` if the text contains contradictions.
    pub(super) fn parse(text: &Text) -> Result<Self> {
        let all = Section::parse(&text.bytes)?;
        let mut groups = all.sections();
        let (Some((name, group)), None) = (groups.next(), groups.next()) else {
            return Err(corrupt("the text does not describe one volume group"));
        };
        let extent = product(group.number("extent_size")?, SECTOR)?;
        if extent == 0 || extent > LARGEST {
            return Err(corrupt(format!("an extent size of {extent} bytes is not valid")));
        }
        let physical = group.section("physical_volumes")?.sections();
        let physical = PhysicalVolumes::parse(physical)?;
        // In the metadata of a group without logical volumes, this section is missing.
        let volumes = group.section("logical_volumes").ok();
        let volumes = volumes.into_iter().flat_map(Section::sections);
        let mut logical = Vec::new();
        for (name, section) in volumes {
            logical.push(Logical::parse(check_name(name)?, section, extent, &physical)?);
        }
        mark_snapshots(&mut logical, group.section("logical_volumes").ok())?;
        if let Some(reason) = only_read(group) {
            logical.iter_mut().for_each(|logical| logical.only_read = Some(reason));
        }
        let (name, id) = (check_name(name)?.to_owned(), group.text("id")?.to_owned());
        let (sequence, physical) = (group.number("seqno")?, physical.0);
        let (checksum, text_len) = (text.checksum, text.bytes.len());
        let fault = overlap(&logical, &physical);
        Ok(Self { name, id, sequence, checksum, text_len, physical, logical, fault })
    }
}

/// Finds two segments that use the same extents of a physical volume. LVM does not make such segments: a logical volume that shares the
/// content of another logical volume refers to it by name.
fn overlap(logical: &[Logical], physical: &[Physical]) -> Option<String> {
    let mut all = Vec::new();
    for Logical { name, segments, .. } in logical {
        let areas = segments.iter().filter_map(|segment| match &segment.kind {
            Kind::Striped(_, areas) => Some(areas),
            _ => None,
        });
        all.extend(areas.flatten().map(|Area { physical, at, len }| (*physical, *at, *len, name)));
    }
    all.order();
    all.windows(2).find_map(|pair| {
        let [(on, at, len, name), (next_on, next, _, other)] = *pair else { return None };
        let overlaps = on == next_on && next < at.saturating_add(len);
        let on = &physical[on].name;
        overlaps.then(|| format!("segments of {name} and {other} overlap on {on}"))
    })
}

/// The status words with which a logical volume or a group can be written. LVM refuses a group that has an unknown status word.
const KNOWN: [&str; 5] = ["READ", "WRITE", "VISIBLE", "FIXED_MINOR", "RESIZEABLE"];

/// Whether a section has a status word that is not in [`KNOWN`].
fn has_other_status(section: &Section) -> bool {
    let words = section.texts("status").unwrap_or_default();
    words.iter().any(|word| !KNOWN.contains(word))
}

/// The reason why no logical volume of a group can be written.
fn only_read(group: &Section) -> Option<&'static str> {
    match () {
        () if group.lists("status", "WRITE_LOCKED") => Some(
            "the volume group has a system ID, so only the system with this ID may write the group",
        ),
        () if !group.lists("status", "WRITE") => Some("the volume group is read-only"),
        () if group.lists("status", "EXPORTED") => {
            Some("the volume group is exported: run vgimport first")
        }
        () if group.lists("status", "SHARED")
            || group.lists("flags", "SHARED")
            || group.lists("status", "CLUSTERED") =>
        {
            Some("the volume group is shared, so other nodes may use the group")
        }
        () if group.find_text("lock_type").is_some_and(|kind| kind != "none") => {
            Some("the volume group is shared, so other nodes may use the group")
        }
        () if has_other_status(group) => Some("the status of the volume group is not known"),
        () => None,
    }
}

/// The physical volumes of a group, in the order of their names.
struct PhysicalVolumes(Vec<Physical>);

impl PhysicalVolumes {
    fn parse<'a>(sections: impl Iterator<Item = (&'a str, &'a Section)>) -> Result<Self> {
        let all = sections.map(|(name, section)| Physical::parse(check_name(name)?, section));
        Ok(Self(all.collect::<Result<_>>()?))
    }

    /// The index of a physical volume.
    fn index_of(&self, name: &str) -> Option<usize> {
        // The names in a section are sorted.
        self.0.binary_search_by(|physical| physical.name.as_str().cmp(name)).ok()
    }
}

/// Checks a name. Returns an error if the name is longer than LVM permits.
pub(super) fn check_name(name: &str) -> Result<&str> {
    const LONGEST: usize = 127;
    if name.len() > LONGEST {
        return Err(corrupt(format!("a name of {} bytes is not valid", name.len())));
    }
    Ok(name)
}

impl Physical {
    fn parse(name: &str, section: &Section) -> Result<Self> {
        let id: Vec<u8> = section.text("id")?.bytes().filter(|byte| *byte != b'-').collect();
        let id = id.try_into().map_err(|_| corrupt(format!("the id of {name} is wrong")))?;
        let start = product(section.number("pe_start")?, SECTOR)?;
        let extents = (start, section.number("pe_count")?);
        let was_missing = section.lists("flags", "MISSING");
        Ok(Self { name: name.to_owned(), id, extents, was_missing })
    }

    /// Returns the position of the extent `first` on the physical volume, in bytes. Fails if the `count` extents that begin with `first`
    /// are not all on the physical volume. `extent` is the length of an extent in bytes.
    fn byte_of(&self, first: u64, count: u64, extent: u64) -> Result<u64> {
        let (start, extents) = self.extents;
        if first.checked_add(count).is_none_or(|end| end > extents) {
            return Err(corrupt(format!(
                "a segment uses {count} extents of {} from extent {first} on, but the physical volume has only {extents} extents",
                self.name
            )));
        }
        product(first, extent)?.checked_add(start).ok_or_else(beyond)
    }
}

impl Logical {
    /// Parses a logical volume. Damaged segments do not end the parsing of the group, because other logical volumes do not depend on them.
    /// They are recorded as the fault of this logical volume.
    fn parse(
        name: &str,
        section: &Section,
        extent: u64,
        physical: &PhysicalVolumes,
    ) -> Result<Self> {
        let only_read = match () {
            () if !section.lists("status", "WRITE") => {
                Some("it is read-only (permission r): lvchange -p rw makes it writable")
            }
            () if section.lists("status", "LOCKED") => {
                Some("it is being changed: pvmove or lvconvert has not ended")
            }
            () if has_other_status(section) => Some("its status in the metadata is not known"),
            () => None,
        };
        let mut logical = Self {
            name: name.to_owned(),
            len: 0,
            visible: section.lists("status", "VISIBLE"),
            fault: None,
            only_read,
            segments: Vec::new(),
        };
        match logical.read_segments(section, extent, physical) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                logical.fault = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(logical)
    }

    /// Whether the logical volume can be read if all of its physical volumes are present.
    pub(super) fn is_supported(&self) -> bool {
        let is_supported = |segment: &Segment| match &segment.kind {
            Kind::Striped(..) => true,
            Kind::Layered(layered) => !matches!(layered, Layered::Pool(_)),
            Kind::Other(_) => false,
        };
        self.fault.is_none() && self.segments.iter().all(is_supported)
    }

    fn read_segments(
        &mut self,
        section: &Section,
        extent: u64,
        physical: &PhysicalVolumes,
    ) -> Result<()> {
        let (mut next, count) = (0_u64, section.number("segment_count")?);
        for number in 1..=count {
            // The loop ends at the first segment that is missing in the text. Therefore a wrong segment count does not cause an endless
            // loop.
            let segment = section.section(&format!("segment{number}"))?;
            if segment.number("start_extent")? != next {
                return Err(corrupt(format!(
                    "segment {number} of {} does not begin at extent {next}",
                    self.name
                )));
            }
            let extents = segment.number("extent_count")?;
            next = next.checked_add(extents).filter(|_| extents > 0).ok_or_else(beyond)?;
            self.segments.push(Segment::parse(&self.name, segment, extents, extent, physical)?);
        }
        self.len = product(next, extent)?;
        Ok(())
    }
}

impl Segment {
    fn parse(
        name: &str,
        segment: &Section,
        extents: u64,
        extent: u64,
        physical: &PhysicalVolumes,
    ) -> Result<Self> {
        let (len, kind) = (product(extents, extent)?, segment.text("type")?);
        if kind != "striped" {
            let kind = match Layered::parse(kind, segment)? {
                Some(layered) => Kind::Layered(layered),
                None => Kind::Other(check_name(kind)?.to_owned()),
            };
            return Ok(Self { len, kind });
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
        let each = product(extents / stripes, extent)?;
        if size == 0 || !each.is_multiple_of(size) {
            return Err(corrupt(format!("a stripe size of {size} bytes is not valid for {name}")));
        }
        let mut areas = SmallVec::new();
        for (on, first) in pairs {
            let Some(index) = physical.index_of(on) else {
                // The text names a logical volume instead of a physical volume, for example while pvmove runs.
                return Ok(Self {
                    len,
                    kind: Kind::Other(format!("striped over {}", check_name(on)?)),
                });
            };
            let at = physical.0[index].byte_of(first, extents / stripes, extent)?;
            areas.push(Area { physical: index, at, len: each });
        }
        Ok(Self { len, kind: Kind::Striped(size, areas) })
    }
}

/// Marks the logical volumes that are related to snapshots. Two kinds of them cannot be read: those that contain the changes of a snapshot,
/// and origins into which a snapshot is being merged. The origin of any other snapshot can be read but not written, because a write would
/// also change the snapshot. In the metadata, a hidden logical volume describes each snapshot.
fn mark_snapshots(logical: &mut [Logical], sections: Option<&Section>) -> Result<()> {
    let (mut marks, mut origins) = (Vec::new(), Vec::new());
    for (_, section) in sections.into_iter().flat_map(Section::sections) {
        let Ok(segment) = section.section("segment1") else { continue };
        if let Some(origin) = segment.find_text("merge") {
            marks.push((origin, MERGING));
        }
        origins.extend(segment.find_text("external_origin"));
        if segment.find_text("type") != Some("snapshot") {
            continue;
        }
        origins.extend(segment.find_text("origin"));
        if let Some(store) = segment.find_text("cow_store") {
            marks.push((store, "it contains the changes of a snapshot"));
        }
        if let Some(store) = segment.find_text("merging_store") {
            marks.push((store, "it contains the changes of a snapshot"));
            marks.push((segment.text("origin")?, MERGING));
        }
    }
    // The names in a section are sorted.
    let index = |logical: &[Logical], name: &str| {
        logical.binary_search_by(|volume| volume.name.as_str().cmp(name)).ok()
    };
    for (name, mark) in marks {
        if let Some(at) = index(logical, name) {
            logical[at].fault = Some(mark.to_owned());
        }
    }
    for name in origins {
        if let Some(at) = index(logical, name) {
            logical[at].only_read = Some("its snapshots would change too");
        }
    }
    Ok(())
}
