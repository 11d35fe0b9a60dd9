//! Opens the device at a location. An integrity device consists of one or two devices.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::{Assembly, AssemblyKind, Bounds, Location, Medium, Part, Site, Window};
use crate::device::image;
use crate::device::nbd::{self, Nbd};
use crate::device::{
    BlockFile, CutShort, Device, Engine, FileId, Finer, NoIoUring, Null, OpenMode, OpenedEngine,
    Segment, Segmented, open_engine,
};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::fs::block_size_on;
use crate::integrity::{self, Integrity, IntegrityOptions};
use crate::setters::setters;

/// The options for opening the device at a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocationOptions {
    /// The engine that transfers file data.
    pub engine: Engine,
    /// Whether to open the device for writing as well.
    pub write: bool,
    /// The value of [`IntegrityOptions::force`] for an integrity device.
    pub force: bool,
    /// Whether a partition may end past the end of a truncated device. The bytes that exist are then opened for reading.
    pub truncated: bool,
    /// Whether metadata and small writes of an image file use the page cache, so that the kernel combines many of them. Requests of queues
    /// stay direct. A flush makes the data durable in both cases. The option has no effect on devices, on a part of an image, and on a
    /// volume whose blocks are smaller than a memory page.
    pub cached: bool,
    /// The value of [`ImageOptions::compress`](image::ImageOptions::compress) for an image of a virtual machine.
    pub compress: bool,
    /// The block size of a volume that will be created on the device. `None` selects the block size of the existing volume.
    pub block_size: Option<u32>,
    /// The file of the location, if the caller has already opened and locked it. The file is then opened without locks, and the open fails
    /// if the path names another file.
    #[doc(hidden)]
    pub held: Option<FileId>,
}

impl LocationOptions {
    /// Creates options for reading, with the best engine for the device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(LocationOptions {
    engine: Engine,
    write: bool,
    force: bool,
    truncated: bool,
    cached: bool,
    compress: bool,
    block_size: impl Into<Option<u32>>,
});

impl LocationOptions {
    /// Returns the block size of the existing volume on a device, or of the volume that will be created.
    fn blocks_on(&self, device: &dyn Device) -> Option<usize> {
        self.block_size.map(|size| size as usize).or_else(|| block_size_on(device))
    }

    /// If the smallest request of the device is larger than a block of the volume, adds a layer to the device, and a notice for the user.
    fn fit(&self, opened: OpenedEngine) -> OpenedEngine {
        let OpenedEngine { device, engine, no_io_uring, mut notices } = opened;
        let (device, notice) = Finer::for_blocks(device, |device| self.blocks_on(device));
        notices.extend(notice);
        OpenedEngine { device, engine, no_io_uring, notices }
    }
}

/// The device at a location, opened exclusively for this process.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenLocation {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The engine in use; never [`Engine::Auto`].
    pub engine: Engine,
    /// The reason why io_uring is not used although the requested engine permits it.
    pub no_io_uring: Option<NoIoUring>,
    /// One line for each requested setting that could not be applied.
    pub notices: Vec<String>,
    /// One line for each fault that was ignored, for example the loss of the first copy of a partition table.
    pub faults: Vec<String>,
    /// The integrity device at the location, if there is one, and the result of its recovery.
    pub integrity: Option<integrity::Opened>,
}

/// Two parts of one device or image. The device was opened for writing, and locked once for both parts.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenParts {
    /// The whole device.
    pub device: Arc<dyn Device>,
    /// The range of the part to write, in bytes.
    pub written: Range<u64>,
    /// The range of the part to read, in bytes.
    pub read: Range<u64>,
    /// The notices: see [`OpenLocation::notices`].
    pub notices: Vec<String>,
    /// The faults that were ignored: see [`OpenLocation::faults`].
    pub faults: Vec<String>,
}

/// The two halves of an integrity device: data and tags. They are open, but nothing has been read from them yet.
pub struct Halves {
    /// The device with the data. It may not be protected yet.
    pub data: OpenedEngine,
    /// The device of the tags. `None` if the tags are in the tail of the data device.
    pub tags: Option<Arc<dyn Device>>,
    /// The [identity](BlockFile::identity) of the data device.
    pub identity: [u8; 16],
    /// The faults that were ignored: see [`OpenLocation::faults`].
    pub faults: Vec<String>,
}

/// An open device, image or export, or the selected part of it.
struct OpenSite {
    opened: OpenedEngine,
    identity: [u8; 16],
    fault: Option<String>,
}

/// Refuses to open a [`Location::NoLoad`] for writing.
pub(crate) fn refuse_to_write(write: bool) -> Result<()> {
    if write {
        Err(Error::invalid("without its journal, a volume can be read but not written"))
    } else {
        Ok(())
    }
}

impl Location {
    /// Opens the device exclusively. Recovers an integrity device that was not closed if it is opened for writing.
    ///
    /// # Errors
    /// `Busy` if another program uses the device; `InvalidInput` if a [`Location::NoLoad`] is opened for writing; the errors of
    /// [`Integrity::open`]. An error of an integrity device names the half that caused it (data or tags).
    pub fn open(&self, options: &LocationOptions) -> Result<OpenLocation> {
        if let Self::NoLoad(inner) = self {
            refuse_to_write(options.write)?;
            return inner.open(options);
        }
        let halves = self.halves(options)?;
        let faults = halves.faults;
        let OpenedEngine { device: data, engine, no_io_uring, mut notices } = halves.data;
        if matches!(self, Self::Plain(_)) {
            let device = data;
            let integrity = None;
            return Ok(OpenLocation { device, engine, no_io_uring, notices, faults, integrity });
        }
        if engine == Engine::Null {
            return Err(Error::invalid(
                "an integrity device cannot use the engine null, which reads no data",
            ));
        }
        let how = IntegrityOptions {
            data_uuid: halves.identity,
            force: options.force,
            ..IntegrityOptions::default()
        };
        let (below, tags) = (Arc::clone(&data), halves.tags.clone());
        let opened = Integrity::open_with(data, halves.tags, &how)
            .map_err(|error| self.explain(error, &*below, tags.as_deref()))?;
        notices.extend(opened.recovered.notices(options.write));
        let (sector, unit) = (opened.device.info().interval, below.limits().logical_block);
        notices.extend((unit > sector).then(|| Finer::notice(sector as usize, unit)));
        let device = Arc::new(opened.device.clone());
        let fit = options.fit(OpenedEngine { device, engine, no_io_uring, notices });
        let OpenedEngine { device, engine, no_io_uring, notices } = fit;
        let integrity = Some(opened);
        Ok(OpenLocation { device, engine, no_io_uring, notices, faults, integrity })
    }

    /// Opens the halves of an integrity device exclusively, in order to create or examine the integrity device.
    ///
    /// # Errors
    /// `Busy` if another program uses a half; `InvalidInput` if the halves overlap, or if a [`Location::NoLoad`] is opened for writing.
    pub fn open_halves(&self, engine: Engine, write: bool) -> Result<Halves> {
        if let Self::NoLoad(inner) = self {
            refuse_to_write(write)?;
            return inner.open_halves(engine, write);
        }
        self.halves(&LocationOptions::new().engine(engine).write(write))
    }

    fn halves(&self, options: &LocationOptions) -> Result<Halves> {
        let Self::Integrity { data, tags: Some(tags) } = self else {
            let OpenSite { opened: data, identity, fault } = self.data().open(options, true)?;
            return Ok(Halves { data, tags: None, identity, faults: Vec::from_iter(fault) });
        };
        let shared = data.shares_device(tags);
        if shared && data.overlaps(tags).at(|| self)? {
            return Err(Error::invalid(format!("{data} and {tags} overlap")));
        }
        let data = data.open(options, true).context(|| "the data device")?;
        // If both halves are on one device, the device is locked only once, for the data half. This lock also covers the tag half.
        let how = options.engine(Engine::Auto);
        let tags = tags.open(&how, !shared).context(|| "the tag device")?;
        let OpenSite { opened: data, identity, fault } = data;
        let faults = fault.into_iter().chain(tags.fault).collect();
        Ok(Halves { data, tags: Some(tags.opened.device), identity, faults })
    }

    /// Adds the half (data or tags) that caused an error to the message.
    fn explain(&self, error: Error, data: &dyn Device, tags: Option<&dyn Device>) -> Error {
        let place = self.tags().unwrap_or(self.data());
        if matches!(error.kind(), ErrorKind::UnknownFormat | ErrorKind::Corrupt) {
            let swapped = tags.is_some_and(|tags| Integrity::probe(tags, Some(data)).is_ok());
            if swapped {
                let data = self.data();
                return Error::invalid(format!(
                    "{self}: DATA and TAGS are swapped: the tags are on {data}"
                ));
            }
            if tags.is_none() && Integrity::probe(data, Some(data)).is_ok() {
                return Error::invalid(format!(
                    "{self}: {place} contains the tags of another device: name both devices, as in DATA,TAGS"
                ));
            }
        }
        if error.kind() == ErrorKind::UnknownFormat {
            return Error::new(
                ErrorKind::UnknownFormat,
                format!("{place} contains no tags: ironmap integrity format writes tags"),
            )
            .at(self);
        }
        error.at(self)
    }
}

impl Site {
    /// Opens this part for writing, and the part `read` of the same device or image for reading. The device is opened once.
    ///
    /// # Errors
    /// `InvalidInput` if the parts overlap; the errors of [`Location::open`].
    pub fn open_with(&self, read: &Self, options: &LocationOptions) -> Result<OpenParts> {
        let whole = Self { medium: self.medium.clone(), part: Part::Whole };
        let OpenSite { opened, fault, .. } = whole.open(&options.write(true), true)?;
        let mut faults: Vec<_> = fault.into_iter().collect();
        let device = opened.device;
        let mut range = |site: &Self, write| {
            let window = site.part.of(&*device, options.truncated, write).at(|| site)?;
            let Opening { window, above, fault } = Opening::of(window, write).at(|| site)?;
            faults.extend(fault);
            if above.is_some() {
                let what = "the logical volume is not one range of the device";
                return Err(Error::unsupported(what).at(site));
            }
            let (start, len) = window.unwrap_or((0, device.size()));
            Ok(start..start + len)
        };
        let (written, read_range) = (range(self, true)?, range(read, false)?);
        if written.start < read_range.end && read_range.start < written.end {
            return Err(Error::invalid(format!("{read} and {self} overlap")));
        }
        Ok(OpenParts { device, written, read: read_range, notices: opened.notices, faults })
    }

    fn open(&self, options: &LocationOptions, exclusive: bool) -> Result<OpenSite> {
        match &self.medium {
            Medium::File(path) => {
                let window = self.window_of_file(path, options.truncated, options.write)?;
                let opening = Opening::of(window, options.write).at(|| self)?;
                let first = (self.part != Part::Whole).then(|| opening.place());
                let Opening { window, above, mut fault } = opening;
                let exclusive = exclusive && options.held.is_none();
                let mode =
                    OpenMode { window, write: options.write, exclusive, ..OpenMode::default() };
                let blocks = |device: &dyn Device| options.blocks_on(device);
                let file = match options.engine {
                    // A DAX mapping accepts requests of any length, so the block size of the volume does not matter.
                    Engine::Dax => Arc::new(BlockFile::open(path, &mode)?),
                    _ => BlockFile::for_blocks(path, &mode, options.cached, blocks)?,
                };
                if options.held.is_some_and(|held| file.file_id() != held) {
                    let what = "the file was replaced by another file";
                    return Err(Error::new(ErrorKind::Busy, what).at(self));
                }
                if let Some(first) = &first {
                    self.check_unchanged(path, &file, options, first)?;
                }
                // The identity of a file identifies one range of the file. It cannot identify a part that consists of several ranges.
                let identity = if above.is_some() { [0; 16] } else { file.identity() };
                let opened = open_engine(file, options.engine)?;
                let opened = part_of(opened, above, options.truncated, &mut fault).at(|| self)?;
                let opened = match options.engine {
                    Engine::Dax => opened,
                    // An NVMe namespace cannot use the page cache, so `fit` adds a layer that accepts shorter requests.
                    _ => options.fit(opened),
                };
                Ok(OpenSite { opened, identity, fault })
            }
            // The address of an NBD export is not an identity, because it may name another export later.
            Medium::Nbd(address) => self.open_export(address, options),
            Medium::Image(address) => self.open_image(address, options),
            Medium::Assembly(assembly) => {
                self.open_assembly(assembly, options).map_err(|error| assembly.advise(error))
            }
        }
    }

    /// Checks that the part is still where it was found before the file was locked. Another program may have changed the disk since.
    fn check_unchanged(
        &self,
        path: &Path,
        file: &BlockFile,
        options: &LocationOptions,
        first: &Place,
    ) -> Result<()> {
        let window = self.window_of_file(path, options.truncated, options.write)?;
        let again = Opening::of(window, options.write).at(|| self)?.place();
        if again == *first && file.is_at(path) {
            return Ok(());
        }
        let what = "the parts of the disk changed while ironmap opened it: try again";
        Err(Error::new(ErrorKind::Busy, what).at(self))
    }

    fn open_export(&self, address: &nbd::Address, options: &LocationOptions) -> Result<OpenSite> {
        let mut export = Nbd::open(address, options.write)?;
        let window = self.part.of(&export, options.truncated, options.write).at(|| address)?;
        let Opening { window, above, mut fault } =
            Opening::of(window, options.write).at(|| self)?;
        if let Some((start, len)) = window {
            export = export.part(start, len)?;
        }
        let notices = export.notices();
        let device: Arc<dyn Device> = Arc::new(export);
        if above.is_some() && options.write {
            return Err(on_export().at(self));
        }
        let opened = only_engine(device, Engine::Nbd, notices);
        let opened = part_of(opened, above, options.truncated, &mut fault).at(|| self)?;
        let opened = options.fit(opened);
        let opened = match options.engine {
            Engine::Dax => {
                return Err(Error::invalid("the engine dax cannot map an NBD export").at(address));
            }
            Engine::Null => nulled(opened.device, opened.notices),
            _ => opened,
        };
        Ok(OpenSite { opened, identity: [0; 16], fault })
    }

    fn open_image(&self, address: &image::Address, options: &LocationOptions) -> Result<OpenSite> {
        let how = image::ImageOptions { write: options.write, compress: options.compress };
        let (mut fault, mut above) = (None, None);
        let (device, notices) = image::open(address, how, |device| {
            let opening = Opening::of(
                self.part.of(device, options.truncated, options.write)?,
                options.write,
            )?;
            (fault, above) = (opening.fault, opening.above);
            Ok(opening.window)
        })?;
        let opened = only_engine(device, Engine::Image, notices);
        let opened = part_of(opened, above, options.truncated, &mut fault).at(|| self)?;
        let OpenedEngine { device, notices, .. } = opened;
        let opened = match options.engine {
            Engine::Dax => {
                return Err(
                    Error::invalid("the engine dax cannot map an image of this format").at(address)
                );
            }
            Engine::Null => nulled(device, notices),
            _ => only_engine(device, Engine::Image, notices),
        };
        Ok(OpenSite { opened, identity: [0; 16], fault })
    }

    /// Returns the part of a single export that the assembled disk consists of, if it is such a part.
    fn on_one_export(&self, assembly: &Assembly) -> Option<Self> {
        let [Self { medium, part: Part::Whole }] = &assembly.disks[..] else { return None };
        let part = match (&assembly.kind, &self.part) {
            (AssemblyKind::Same, part) => part.clone(),
            (AssemblyKind::Logical { group, volume }, Part::Whole) => {
                Part::Logical { group: group.clone(), volume: volume.clone() }
            }
            _ => return None,
        };
        Some(Self { medium: medium.clone(), part })
    }

    /// Opens all disks of an assembled disk, and assembles them. The disks are locked as the options require.
    fn open_assembly(&self, assembly: &Assembly, options: &LocationOptions) -> Result<OpenSite> {
        if options.write && assembly.kind == AssemblyKind::Md {
            return Err(Error::read_only("an MD array can be read but not written").at(self));
        }
        if options.write && assembly.disks.iter().any(|disk| matches!(disk.medium, Medium::Nbd(_)))
        {
            return match self.on_one_export(assembly) {
                Some(site) => site.open(options, true),
                None => Err(on_export().at(self)),
            };
        }
        if options.engine == Engine::Dax {
            return Err(Error::invalid("the engine dax cannot map an assembled disk").at(self));
        }
        let (mut disks, mut faults, mut notices) = (Vec::new(), Vec::new(), Vec::new());
        let (mut engine, mut no_io_uring) = (options.engine, None);
        // The disks are opened without layers for short requests, because the assembled device has its own layer.
        let how = options.block_size(512);
        for (number, disk) in assembly.disks.iter().enumerate() {
            if let Some(same) = assembly.disks[..number].iter().find(|one| *one == disk) {
                return Err(Error::invalid(format!("{same} is named twice")).at(self));
            }
            let OpenSite { opened, fault, .. } = disk.open(&how, true)?;
            faults.extend(fault.map(|fault| format!("{disk}: {fault}")));
            notices.extend(opened.notices);
            (engine, no_io_uring) = (opened.engine, opened.no_io_uring);
            disks.push((disk.to_string(), opened.device));
        }
        let device = assemble(&assembly.kind, disks, options.write, &mut faults).at(|| self)?;
        let window = self.part.of(&*device, options.truncated, options.write).at(|| self)?;
        let Opening { window, above, fault } = Opening::of(window, options.write).at(|| self)?;
        faults.extend(fault);
        let range = window.map(|(start, len)| Above::Segments(vec![Segment::linear(start, len)]));
        let opened = OpenedEngine { device, engine, no_io_uring, notices };
        let mut fault = (!faults.is_empty()).then(|| faults.join("; "));
        let opened = options
            .fit(part_of(opened, above.or(range), options.truncated, &mut fault).at(|| self)?);
        Ok(OpenSite { opened, identity: [0; 16], fault })
    }

    /// Whether `self` and `other` are on one device or image, even if their names differ.
    #[must_use]
    pub fn shares_device(&self, other: &Self) -> bool {
        // A device node is identified by its device number, so two nodes of one device are equal. An image is identified by its file.
        let id = |path: &Path| match path.metadata() {
            Ok(found) if found.rdev() != 0 => Some((found.rdev(), 0)),
            Ok(found) => Some((found.dev(), found.ino())),
            Err(_) => None,
        };
        match (&self.medium, &other.medium) {
            (Medium::Assembly(one), _) => one.disks.iter().any(|disk| disk.shares_device(other)),
            (_, Medium::Assembly(_)) => other.shares_device(self),
            (Medium::File(one), Medium::File(other)) => id(one).is_some() && id(one) == id(other),
            (Medium::Nbd(one), Medium::Nbd(other)) => {
                (&one.server, &one.export) == (&other.server, &other.export)
            }
            (Medium::Image(one), Medium::Image(other)) => {
                id(&one.path).is_some() && id(&one.path) == id(&other.path)
            }
            _ => false,
        }
    }

    fn overlaps(&self, other: &Self) -> Result<bool> {
        let (Some((start, len)), Some((begin, count))) = (self.window()?, other.window()?) else {
            return Ok(true);
        };
        Ok(start < begin.saturating_add(count) && begin < start.saturating_add(len))
    }
}

/// Returns the error for a write through several ranges of an NBD export. A new connection is checked for other users at only one position.
fn on_export() -> Error {
    Error::read_only("on an NBD export, a logical volume can be written only if it is one range")
}

/// Assembles open disks, each with its name. Returns the assembled device, and adds ignored faults to the list.
fn assemble(
    kind: &AssemblyKind,
    mut disks: Vec<(String, Arc<dyn Device>)>,
    write: bool,
    faults: &mut Vec<String>,
) -> Result<Arc<dyn Device>> {
    match kind {
        AssemblyKind::Same => match disks.pop() {
            Some((_, disk)) => Ok(disk),
            None => Err(Error::invalid("the name of the disk is missing")),
        },
        #[cfg(feature = "lvm")]
        AssemblyKind::Logical { group, volume } => {
            let named: Vec<_> = disks.iter().map(|(name, disk)| (&**name, &**disk)).collect();
            let groups = crate::lvm::Groups::of(&named)?;
            let stack = groups.find(group, volume)?;
            if write {
                stack.check_writable()?;
            }
            faults.extend(groups.faults().iter().cloned());
            let disks: Vec<_> = disks.into_iter().map(|(_, disk)| disk).collect();
            stack.open(&disks, faults).context(|| format!("the logical volume {group}/{volume}"))
        }
        #[cfg(not(feature = "lvm"))]
        AssemblyKind::Logical { .. } => {
            let _ = (faults, write);
            Err(Error::unsupported("this build of ironmap has no support for LVM (feature lvm)"))
        }
        #[cfg(feature = "md")]
        AssemblyKind::Md => {
            let member = |(name, device)| crate::md::Member { name, device };
            let array = crate::md::assemble(disks.into_iter().map(member).collect())?;
            faults.extend(array.faults().iter().cloned());
            Ok(array.device())
        }
        #[cfg(not(feature = "md"))]
        AssemblyKind::Md => {
            Err(Error::unsupported("this build of ironmap has no support for MD (feature md)"))
        }
    }
}

/// The place of a part on its device: the range to open, and how the part is built from this range.
type Place = (Option<(u64, u64)>, Option<Above>);

/// How a part is built from the device that contains it.
#[derive(Clone, PartialEq, Eq)]
enum Above {
    /// The part is a sequence of segments, in order.
    Segments(Vec<Segment>),
    /// The part is a logical volume, as the LVM metadata describe it.
    #[cfg(feature = "lvm")]
    Stack(crate::lvm::Stack),
}

/// How a part of a device is opened.
struct Opening {
    /// The range of the device to open. `None` for the whole device.
    window: Option<(u64, u64)>,
    /// How the part is built from the open device. `None` if the open device is the part.
    above: Option<Above>,
    /// A text for the user about a fault that was ignored.
    fault: Option<String>,
}

impl Opening {
    fn place(&self) -> Place {
        (self.window, self.above.clone())
    }

    /// # Errors
    /// If `write` is set and the part can be read but not written, returns the reason.
    fn of(window: Option<Window>, write: bool) -> Result<Self> {
        let Some(Window { bounds, fault, only_read }) = window else {
            return Ok(Self { window: None, above: None, fault: None });
        };
        if let Some(error) = only_read.filter(|_| write) {
            return Err(error);
        }
        let (window, above) = match bounds {
            Bounds::Range(start, len) => (Some((start, len)), None),
            #[cfg(feature = "lvm")]
            Bounds::Stack(stack) => (None, Some(Above::Stack(stack))),
        };
        Ok(Self { window, above, fault })
    }
}

/// Builds a part from an open device. If `truncated` is set, the part may end past the end of the device. An ignored fault is added to
/// `fault`.
fn part_of(
    opened: OpenedEngine,
    above: Option<Above>,
    truncated: bool,
    fault: &mut Option<String>,
) -> Result<OpenedEngine> {
    let Some(above) = above else { return Ok(opened) };
    if opened.engine == Engine::Dax {
        return Err(Error::invalid(
            "the engine dax cannot map a logical volume that is not one range of the device",
        ));
    }
    let below: Arc<dyn Device> =
        if truncated { Arc::new(CutShort::new(opened.device)) } else { opened.device };
    let (device, faults): (Arc<dyn Device>, Vec<String>) = match above {
        Above::Segments(segments) => {
            (Arc::new(Segmented::new(below, &segments)?.writable()), Vec::new())
        }
        #[cfg(feature = "lvm")]
        Above::Stack(stack) => {
            let mut faults = Vec::new();
            (stack.open(&[below], &mut faults)?, faults)
        }
    };
    let all: Vec<String> = fault.take().into_iter().chain(faults).collect();
    *fault = (!all.is_empty()).then(|| all.join("; "));
    Ok(OpenedEngine { device, ..opened })
}

/// Returns the device with the engine `null`, which transfers no file data.
fn nulled(device: Arc<dyn Device>, notices: Vec<String>) -> OpenedEngine {
    only_engine(Arc::new(Null::over(device)), Engine::Null, notices)
}

/// Returns the result of opening a device that supports only one engine.
fn only_engine(device: Arc<dyn Device>, engine: Engine, notices: Vec<String>) -> OpenedEngine {
    OpenedEngine { device, engine, no_io_uring: None, notices }
}
