//! The layers of a disk: partitions, logical volumes and volumes, each with the location to type.

use std::io::Write;
use std::sync::Arc;

use ironmap::device::{Device, Segment, Segmented};
use ironmap::fs::uuid_text;
use ironmap::location::{LocationOptions, Medium, Part, Site};
use ironmap::lvm::Groups;
use ironmap::partition::PartitionTable;
use ironmap::units::DevOffset;
use ironmap::{Location, VolumeOptions, md, probe};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::once::Once;
use crate::output::print_json;
use crate::show::human;
use crate::terminal::{one_line, stdout};

/// The maximum number of layers on top of each other, and the maximum number of layers that are shown. A hostile disk can contain more
/// layers.
const LAYERS: usize = 6;
const SHOWN: usize = 500;
/// The end of the text `content` of a layer, if some parts of this layer are not shown.
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
    /// The format, such as `ext4` or `GPT partition table`, or the reason why the layer cannot be read.
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

/// A disk that is open, whose metadata are read once.
pub(super) struct Disk {
    site: Site,
    device: Arc<dyn Device>,
    notices: Vec<String>,
}

impl Disk {
    /// Opens a disk. `None` if it cannot be opened as a disk.
    pub(super) fn open(location: &Location, report: &Report) -> Option<Self> {
        let Location::Plain(site) = location else { return None };
        let opened = report.context().open_device(location, &LocationOptions::new()).ok()?;
        let is_image = matches!(site.medium, Medium::Image(_));
        let notices = if is_image { opened.notices } else { Vec::new() };
        Some(Self { site: site.clone(), device: Arc::new(Once::over(opened.device)), notices })
    }

    /// Whether the disk begins with the magic number of a file system. It is then opened as a volume.
    pub(super) fn has_volume(&self) -> bool {
        let holds = |at: u64, magic: &[u8]| {
            let mut bytes = vec![0; magic.len()];
            let read = self.device.read_exact_at(&mut bytes, DevOffset(at));
            read.is_ok() && bytes == magic
        };
        holds(1024 + 56, &[0x53, 0xEF]) || holds(0, b"XFSB")
    }

    /// The layers of the disk. `None` if the disk has no parts.
    pub(super) fn layers(self, report: &Report) -> Option<Layer> {
        let mut walk = Walk { shown: SHOWN, report };
        let disk = walk.look(&self.site, None, Ok(self.device), LAYERS);
        if disk.parts.is_empty() {
            return None;
        }
        self.notices.iter().for_each(|notice| report.context().note(notice));
        Some(disk)
    }
}

/// A walk over the layers of a disk.
struct Walk<'a> {
    /// The number of layers that may still be shown.
    shown: usize,
    report: &'a Report,
}

impl Walk<'_> {
    /// Describes a disk or a part of a disk, and the layers in it. `layers` is the maximum number of layers from here on.
    fn look(
        &mut self,
        site: &Site,
        name: Option<String>,
        device: ironmap::Result<Arc<dyn Device>>,
        layers: usize,
    ) -> Layer {
        let mut layer = Layer {
            location: Location::Plain(site.clone()).to_string(),
            name: name.filter(|name| !name.is_empty()),
            size: None,
            content: String::new(),
            label: None,
            uuid: None,
            used: None,
            parts: Vec::new(),
        };
        let filled = device.and_then(|device| {
            layer.size = Some(device.size());
            self.fill(&mut layer, site, &device, layers)
        });
        if let Err(error) = filled {
            layer.content = error.to_string();
        }
        layer
    }

    fn fill(
        &mut self,
        layer: &mut Layer,
        site: &Site,
        device: &Arc<dyn Device>,
        layers: usize,
    ) -> ironmap::Result<()> {
        if layers == 0 {
            "more layers follow".clone_into(&mut layer.content);
            return Ok(());
        }
        let table = PartitionTable::read(&**device)?;
        let table = table.filter(|table| !table.partitions.is_empty());
        // A fault of LVM must not hide the partitions.
        let (groups, fault) = match Groups::read(&**device) {
            Ok(groups) => (groups, None),
            Err(error) => (Groups::default(), Some(error)),
        };
        layer.content = content(&**device, table.as_ref(), &groups);
        if let Some(fault) = fault {
            layer.content = format!("{}; {fault}", layer.content);
        }
        if layer.content.is_empty() {
            return self.fill_volume(layer, device);
        }
        for partition in table.iter().flat_map(|table| &table.partitions) {
            let part = site.within(Part::Partition(partition.number));
            let range = partition.within(device.size(), self.report.context().is_truncated());
            let opened = range.and_then(|(start, len)| {
                let segment = Segment { len, stripe: len, starts: [start].into() };
                segmented(device, &[segment])
            });
            let fault = table.as_ref().and_then(|table| table.fault.as_ref());
            self.tell(&part, fault);
            self.add(layer, &part, Some(&partition.name), opened, layers);
        }
        // Logical volumes are shown once, below the disk, whose volume groups contain them. So they are not shown again below the partition
        // that is their physical volume.
        let is_part = matches!(site.part, Part::Partition(_));
        for volume in groups.volumes().filter(|_| !is_part) {
            let (group, name) = (volume.group, volume.name);
            let logical = Part::Logical { group: group.to_owned(), volume: name.to_owned() };
            let mut faults = groups.faults().to_vec();
            let stack = groups.find(group, name);
            let disks = std::slice::from_ref(device);
            let opened = stack.and_then(|stack| stack.open(disks, &mut faults));
            let part = site.within(logical);
            self.tell(&part, faults.first());
            self.add(layer, &part, None, opened, layers);
        }
        Ok(())
    }

    /// Prints a note for a fault that was tolerated when a part was found.
    fn tell(&self, part: &Site, fault: Option<&String>) {
        if let Some(fault) = fault {
            let location = Location::Plain(part.clone());
            self.report.context().tell_faults(&location, std::slice::from_ref(fault));
        }
    }

    /// Adds a part, unless too many layers are shown already.
    fn add(
        &mut self,
        layer: &mut Layer,
        part: &Site,
        name: Option<&String>,
        device: ironmap::Result<Arc<dyn Device>>,
        layers: usize,
    ) {
        let Some(rest) = self.shown.checked_sub(1) else { return };
        self.shown = rest;
        layer.parts.push(self.look(part, name.cloned(), device, layers - 1));
        if self.shown == 0 && !layer.content.ends_with(MORE) {
            layer.content.push_str(MORE);
        }
    }

    fn fill_volume(&self, layer: &mut Layer, device: &Arc<dyn Device>) -> ironmap::Result<()> {
        let context = self.report.context();
        let options = context.with_opening(VolumeOptions::new().no_load(context.no_load()));
        let volume = options.open_on(Arc::clone(device))?;
        layer.content = volume.fs().format().to_owned();
        let usage = volume.fs().usage();
        layer.used = Some(
            (usage.blocks - usage.free.blocks.min(usage.blocks)) * u64::from(usage.block_size),
        );
        let (label, uuid) = match (volume.ext4(), volume.xfs()) {
            (Some(fs), _) => (fs.superblock().label.clone(), fs.superblock().uuid),
            (_, Some(fs)) => (fs.superblock().label.clone(), fs.superblock().uuid),
            _ => return Ok(()),
        };
        let label = String::from_utf8_lossy(&label).into_owned();
        layer.label = Some(label).filter(|label| !label.is_empty());
        layer.uuid = Some(uuid_text(&uuid));
        Ok(())
    }
}

/// The part of a device that consists of these segments.
fn segmented(device: &Arc<dyn Device>, segments: &[Segment]) -> ironmap::Result<Arc<dyn Device>> {
    Ok(Arc::new(Segmented::new(Arc::clone(device), segments)?))
}

impl Layer {
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
