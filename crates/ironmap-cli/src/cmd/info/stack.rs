//! The layers of a disk: partitions, logical volumes and volumes, each with the location to type.

use std::io::Write;

use ironmap::device::Device;
use ironmap::fs::uuid_text;
use ironmap::location::{LocationOptions, Part, Site};
use ironmap::lvm::Groups;
use ironmap::partition::PartitionTable;
use ironmap::{Error, Location, md, probe};
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::output::print_json;
use crate::show::human;
use crate::terminal::{one_line, stdout};

/// The most layers on top of each other, and the most layers that are shown. A hostile disk can contain more.
const LAYERS: usize = 6;
const SHOWN: usize = 500;
/// The end of the content of a layer some of whose parts are not shown.
const MORE: &str = "; more parts follow";

/// A disk, a part of a disk, or a logical volume.
#[derive(Debug, Serialize)]
pub(super) struct Layer {
    location: String,
    /// The name of the partition. `None` if the partition table has no name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The format: `ext4`, `GPT partition table`, or the reason why they cannot be read.
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    /// The used bytes of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Layer>,
}

/// The layers of a disk without a file system of its own. `None` if the disk has no parts.
pub(super) fn of(location: &Location, report: &Report) -> Option<Layer> {
    let Location::Plain(site) = location else { return None };
    let disk = look(site, None, LAYERS, &mut SHOWN.clone(), report);
    (!disk.parts.is_empty()).then_some(disk)
}

/// Looks at a disk or at a part. `layers` is the number of layers that may follow, and `shown` the number of layers that may still be shown.
fn look(
    site: &Site,
    name: Option<String>,
    layers: usize,
    shown: &mut usize,
    report: &Report,
) -> Layer {
    let location = Location::Plain(site.clone());
    let mut layer = Layer {
        location: location.to_string(),
        name: name.filter(|name| !name.is_empty()),
        size: None,
        content: String::new(),
        label: None,
        uuid: None,
        used: None,
        parts: Vec::new(),
    };
    if let Err(error) = layer.fill(site, &location, layers, shown, report) {
        layer.content = error.to_string();
    }
    layer
}

impl Layer {
    fn fill(
        &mut self,
        site: &Site,
        location: &Location,
        layers: usize,
        shown: &mut usize,
        report: &Report,
    ) -> Result<(), Failure> {
        // The device is closed before its parts are opened, because an open device is locked.
        let (table, groups) = {
            let opened = report.context().open_device(location, &LocationOptions::new());
            let opened = opened.map_err(|error| Failure::open(&error))?;
            let device = &*opened.device;
            self.size = Some(device.size());
            if layers == 0 {
                "more layers follow".clone_into(&mut self.content);
                return Ok(());
            }
            let failed = |error: Error| Failure::open(&error);
            let table = PartitionTable::read(device).map_err(failed)?;
            let table = table.filter(|table| !table.partitions.is_empty());
            // A fault of LVM must not hide the partitions.
            let (groups, fault) = match Groups::read(device) {
                Ok(groups) => (groups, None),
                Err(error) => (Groups::default(), Some(error)),
            };
            self.content = content(device, table.as_ref(), &groups);
            if let Some(fault) = fault {
                self.content = format!("{}; {fault}", self.content);
            }
            (table, groups)
        };
        if self.content.is_empty() {
            return self.fill_volume(location, report);
        }
        for partition in table.iter().flat_map(|table| &table.partitions) {
            let part = site.within(Part::Partition(partition.number));
            self.add(&part, Some(partition.name.clone()), layers, shown, report);
        }
        // The physical volume of a partition belongs to the groups of the disk, which are shown once.
        let is_part = matches!(site.part, Part::Partition(_));
        for volume in groups.volumes().filter(|_| !is_part) {
            let logical =
                Part::Logical { group: volume.group.to_owned(), volume: volume.name.to_owned() };
            self.add(&site.within(logical), None, layers, shown, report);
        }
        Ok(())
    }

    /// Adds a part, unless too many layers are shown already.
    fn add(
        &mut self,
        part: &Site,
        name: Option<String>,
        layers: usize,
        shown: &mut usize,
        report: &Report,
    ) {
        let Some(rest) = shown.checked_sub(1) else { return };
        *shown = rest;
        self.parts.push(look(part, name, layers - 1, shown, report));
        if *shown == 0 && !self.content.ends_with(MORE) {
            self.content.push_str(MORE);
        }
    }

    fn fill_volume(&mut self, location: &Location, report: &Report) -> Result<(), Failure> {
        let source = Source::open(location, report.context())?;
        let volume = &source.volume;
        self.content = volume.fs().format().to_owned();
        let usage = volume.fs().usage();
        self.used = Some(
            (usage.blocks - usage.free.blocks.min(usage.blocks)) * u64::from(usage.block_size),
        );
        let (label, uuid) = match (volume.ext4(), volume.xfs()) {
            (Some(fs), _) => (fs.superblock().label.clone(), fs.superblock().uuid),
            (_, Some(fs)) => (fs.superblock().label.clone(), fs.superblock().uuid),
            _ => return Ok(()),
        };
        self.label = Some(String::from_utf8_lossy(&label).into_owned()).filter(|it| !it.is_empty());
        self.uuid = Some(uuid_text(&uuid));
        Ok(())
    }

    /// Prints the layers as JSON or as a tree.
    pub(super) fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        let mut rows = Vec::new();
        self.rows("", "", &mut rows);
        let width = rows.iter().map(|(location, ..)| location.chars().count()).max().unwrap_or(0);
        let mut out = stdout();
        for (location, size, what) in rows {
            writeln!(out, "{location:width$}  {size:>6}  {what}")?;
        }
        Ok(out.flush()?)
    }

    fn rows(&self, branch: &str, below: &str, rows: &mut Vec<(String, String, String)>) {
        let size = self.size.map(human).unwrap_or_default();
        let mut what = self.content.clone();
        let label = self.label.as_ref().map(|label| format!("label {label}"));
        let uuid = self.uuid.as_ref().map(|uuid| format!("UUID {uuid}"));
        let used = self.used.map(|used| format!("{} used", human(used)));
        let name = self.name.as_ref().map(|name| format!("name {name}"));
        for more in [name, label, uuid, used].into_iter().flatten() {
            what = format!("{what}, {more}");
        }
        rows.push((format!("{branch}{}", one_line(&self.location)), size, one_line(&what)));
        let last = self.parts.len().saturating_sub(1);
        for (number, part) in self.parts.iter().enumerate() {
            let (fork, line) = if number == last { ("`-- ", "    ") } else { ("|-- ", "|   ") };
            part.rows(&format!("{below}{fork}"), &format!("{below}{line}"), rows);
        }
    }
}

/// The content of a device that is not a volume. An empty text means that the device can be a volume.
fn content(device: &dyn Device, table: Option<&PartitionTable>, groups: &Groups) -> String {
    if let Some(table) = table {
        return format!("{} partition table", table.kind);
    }
    match md::look(device) {
        Ok(Some(member)) => format!("Linux MD: {member}"),
        Ok(None) if !groups.is_empty() => "LVM physical volume".to_owned(),
        Ok(None) => probe(device).map_or_else(String::new, str::to_owned),
        Err(error) => error.to_string(),
    }
}
