//! Makes the disk that a [`Disk`] describes.
//!
//! The build has three steps. First, the sizes of all partitions are determined. Second, the ext4 volumes are made; the disk is opened and
//! closed for each of them. Third, the disk is opened once more for the other contents, and finally for the partition table. So an
//! incomplete disk has no table.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::device::Device;
use ironmap::location::{LocationOptions, Site};
use ironmap::partition::{NewPartition, NewTable, kinds};
use ironmap::{Engine, Location, Part};

use super::layout::{UNIT, place, smallest_disk};
use super::out::Out;
use super::target::Target;
use super::{Disk, DiskPart, Fill, Ids, MadeDisk, MadePart, PartSize, fat};
use crate::context::Context;
use crate::device_name;
use crate::failure::{Failure, Reason};
use crate::image::Image;
use crate::part::part_name;
use crate::report::Report;
use crate::room::Overwrite;
use crate::spared::Spared;

/// The number of bytes at the beginning and at the end of a device, and of each partition, that are overwritten with zeros, because these
/// bytes contain the signatures of older content.
const WIPED: u64 = 1 << 20;
/// The maximum length of a partition's name in UTF-16 code units, and the maximum number of partitions of a GPT.
const MAX_LABEL: usize = 36;
const MAX_PARTS: usize = 128;
/// The bit in a partition's attributes that requests a read-only mount.
const READ_ONLY: u64 = 1 << 60;

/// The content of a partition whose size is known.
pub(super) enum Ready {
    Nothing,
    Volume(Box<Image>),
    /// A volume in a temporary file, whose content is copied into the partition.
    Copy(Scratch),
    Fat(fat::Dir),
    Swap,
    /// The hash tree of the partition with this index.
    Verity(usize),
}

impl Ready {
    fn name(&self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Volume(_) | Self::Copy(_) => "ext4",
            Self::Fat(_) => "FAT",
            Self::Swap => "swap",
            Self::Verity(_) => "verity",
        }
    }
}

/// A temporary file. The drop removes it.
pub(super) struct Scratch(pub(super) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // The code ignores an error, because a destructor cannot report it. The file may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The work on one disk.
pub(super) struct Job<'a> {
    pub(super) target: &'a Location,
    pub(super) context: Arc<Context>,
    pub(super) ids: Ids,
    pub(super) sector: u64,
    /// The temporary name of a new image.
    aside: Option<PathBuf>,
}

/// Makes a disk.
///
/// # Errors
/// The errors of [`Disk::build`].
pub(super) fn build(
    mut disk: Disk,
    target: &Location,
    report: &mut Report,
) -> Result<MadeDisk, Failure> {
    let context = Arc::clone(report.context());
    context.check_changes(target)?;
    let found = Target::find(target, disk.size, disk.sector, disk.overwrite, &context)?;
    let date = context.source_date()?;
    let seed = disk.seed.take().or_else(|| date.map(|date| date.to_string()));
    context.caller.catch_signals();
    let mut job = Job { target, context, ids: Ids::new(seed), sector: found.sector, aside: None };
    let (mut ready, mut lengths) = (Vec::new(), Vec::new());
    let fills: Vec<_> = disk.parts.iter_mut().map(|part| std::mem::take(&mut part.fill)).collect();
    for (index, fill) in fills.into_iter().enumerate() {
        let made = job.prepare(&disk.parts, index, fill, &lengths, report);
        let (made, len) = made.map_err(|failure| job.named(&disk.parts, index, failure))?;
        ready.push(made);
        lengths.push(len);
    }
    if lengths.iter().filter(|len| len.is_none()).count() > 1 {
        return Err(Failure::usage("only one partition can have the size rest"));
    }
    let size = match (found.size, found.existing) {
        (Some(size), _) => size,
        (None, _) if !lengths.contains(&None) => smallest_disk(&lengths),
        (None, Some(size)) => size,
        (None, None) => {
            return Err(Failure::usage(format!(
                "{target}: a partition has the size rest: add the size of the disk, as in {target} 4G"
            )));
        }
    };
    let size = size / job.sector * job.sector;
    let ranges = place(&lengths, size, job.sector)?;
    job.check(&disk, &ready, &ranges)?;
    let image = found.create(target, size, &job.context)?;
    job.aside = image.as_ref().map(|image| image.path().to_owned());
    let is_zeroed = image.is_some();
    let made = (|| {
        let ready = job.volumes(&disk.parts, ready, &ranges, is_zeroed, report)?;
        job.rest(&disk, ready, &ranges, is_zeroed)
    })();
    let made = made.and_then(|made| match image {
        Some(image) => image.keep().map(|()| made),
        None => Ok(made),
    });
    job.context.end_aside(made)
}

impl Job<'_> {
    /// Checks the names of the partitions, their number, and their contents, before the old content of a device is destroyed.
    fn check(&self, disk: &Disk, ready: &[Ready], ranges: &[Range<u64>]) -> Result<(), Failure> {
        for (index, part) in disk.parts.iter().enumerate() {
            let units = part.label.encode_utf16().count();
            if units > MAX_LABEL {
                let what =
                    format!("the label {:?} is longer than {MAX_LABEL} characters", part.label);
                return Err(self.named(&disk.parts, index, Failure::usage(what)));
            }
        }
        if ranges.len() > MAX_PARTS {
            return Err(Failure::usage(format!("a disk has at most {MAX_PARTS} partitions")));
        }
        for (index, ready) in ready.iter().enumerate() {
            let checked = self.check_content(&disk.parts[index], index, ready, ranges);
            checked.map_err(|failure| self.named(&disk.parts, index, failure))?;
        }
        Ok(())
    }

    /// Prepares the content of a partition, and returns the size of the partition, or `None` for the rest of the disk. `lengths` contains
    /// the sizes of the earlier partitions.
    fn prepare(
        &self,
        parts: &[DiskPart],
        index: usize,
        fill: Fill,
        lengths: &[Option<u64>],
        report: &mut Report,
    ) -> Result<(Ready, Option<u64>), Failure> {
        let part = &parts[index];
        let given = match part.size {
            PartSize::Bytes(bytes) => {
                Some(bytes.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX))
            }
            PartSize::Rest | PartSize::Min => None,
        };
        let wants_min = part.size == PartSize::Min;
        let no_min = || {
            Failure::usage(
                "the size min is not possible for a partition without files: write a size such as 512M",
            )
        };
        match fill {
            Fill::Nothing | Fill::Swap if wants_min => Err(no_min()),
            Fill::Nothing => Ok((Ready::Nothing, given)),
            Fill::Swap => Ok((Ready::Swap, given)),
            Fill::Volume(image) if !wants_min => Ok((Ready::Volume(image), given)),
            Fill::Volume(image) if image.is_empty() => Err(no_min()),
            Fill::Volume(image) => {
                let (made, len) = self.smallest_ext4(part, index, *image, report)?;
                Ok((Ready::Copy(made), Some(len)))
            }
            Fill::Fat(sources) => {
                let own = Spared::of(self.target, &self.context);
                let mut root = fat::Dir::default();
                for source in &sources {
                    root.add(source, self.context.source_date()?, &own)?;
                }
                let len = if wants_min { fat::smallest(&root, self.sector) } else { given };
                Ok((Ready::Fat(root), len))
            }
            Fill::Verity => {
                let data = data_of(parts, index)?;
                let len = match (wants_min, lengths[data]) {
                    (false, _) => given,
                    (true, Some(len)) => Some(self.parameters(part, index, len)?.tree_size()),
                    (true, None) => {
                        return Err(Failure::usage(
                            "the data partition has the size rest, so the size of its hash tree is not known: write a size, about a hundredth of the data",
                        ));
                    }
                };
                Ok((Ready::Verity(data), len))
            }
        }
    }

    /// Makes the smallest volume for the files, in a temporary file beside the disk.
    fn smallest_ext4(
        &self,
        part: &DiskPart,
        index: usize,
        image: Image,
        report: &mut Report,
    ) -> Result<(Scratch, u64), Failure> {
        let beside = self.target.whole_file().filter(|path| !device_name::is_of_node(path));
        let dir = beside.map_or_else(std::env::temp_dir, |path| {
            path.parent().unwrap_or(Path::new("")).to_owned()
        });
        let scratch = Scratch(dir.join(part_name()));
        let location = Location::Plain(Site::file(&scratch.0));
        let image = self.described(part, index, image)?.shrink();
        let made = image.build_with(&location, report);
        made.map_err(|failure| {
            failure.renamed(|text| text.replace(&location.to_string(), &self.target.to_string()))
        })?;
        let len =
            scratch.0.metadata().map_err(|error| Failure::host(scratch.0.display(), error))?;
        Ok((scratch, len.len().next_multiple_of(UNIT)))
    }

    /// Sets the label and the UUID of a volume to those of its partition.
    fn described(&self, part: &DiskPart, index: usize, image: Image) -> Result<Image, Failure> {
        let uuid = match part.fs_uuid {
            Some(uuid) => uuid,
            None => self.ids.uuid(&format!("file system {}", index + 1))?,
        };
        let usual = Some(&part.label).filter(|label| label.len() <= 16);
        let label = part.fs_label.as_ref().or(usual).filter(|label| !label.is_empty());
        let date = self.context.source_date()?;
        Ok(image.for_partition(label.map(String::as_str), uuid, date))
    }

    /// Makes the ext4 volumes.
    fn volumes(
        &self,
        parts: &[DiskPart],
        ready: Vec<Ready>,
        ranges: &[Range<u64>],
        is_zeroed: bool,
        report: &mut Report,
    ) -> Result<Vec<Ready>, Failure> {
        let place = self.context.place_of(self.target);
        if !is_zeroed {
            self.wipe(&place, ranges, &ready)?;
        }
        let mut rest = Vec::new();
        for (index, ready) in ready.into_iter().enumerate() {
            let Ready::Volume(image) = ready else {
                rest.push(ready);
                continue;
            };
            let Range { start: offset, end } = ranges[index];
            let medium = place.data().medium.clone();
            let location =
                Location::Plain(Site { medium, part: Part::Range { offset, len: end - offset } });
            // Each call of `build_with` ends the use of the temporary name, so this code sets the name again for each volume.
            if let Some(path) = &self.aside {
                self.context.make_aside(self.target, path);
            }
            let image = self.described(&parts[index], index, *image)?;
            let made =
                image.zeroed(is_zeroed).overwrite(Overwrite::Members).build_with(&location, report);
            made.map_err(|failure| {
                let failure = advise(failure, &parts[index]);
                self.named(parts, index, failure)
            })?;
            rest.push(Ready::Volume(Box::new(Image::ext4())));
        }
        if let Some(path) = &self.aside {
            self.context.make_aside(self.target, path);
        }
        Ok(rest)
    }

    /// Overwrites the beginning and the end of a device and of its new partitions, because a signature of older content there could be
    /// recognised.
    fn wipe(
        &self,
        place: &Location,
        ranges: &[Range<u64>],
        ready: &[Ready],
    ) -> Result<(), Failure> {
        let device = self.open(place)?;
        let mut out = Out::new(&*device, 0, false).map_err(|error| self.failed(&error))?;
        let size = device.size() / self.sector * self.sector;
        let whole = 0..size;
        // A partition with an ext4 volume is skipped, because mkfs overwrites older signatures itself.
        let parts =
            ranges.iter().zip(ready).filter(|(_, ready)| !matches!(ready, Ready::Volume(_)));
        for Range { start, end } in std::iter::once(&whole).chain(parts.map(|(range, _)| range)) {
            let len = WIPED.min(end - start);
            out.zero(*start, len).map_err(|error| self.failed(&error))?;
            out.zero(end - len, len).map_err(|error| self.failed(&error))?;
        }
        device.flush().map_err(|error| self.failed(&error))
    }

    fn open(&self, place: &Location) -> Result<Arc<dyn Device>, Failure> {
        let how = LocationOptions::new().engine(Engine::Psync).write(true);
        let how = how.block_size(self.sector as u32);
        let opened = self.context.open_device(place, &how);
        opened.map(|opened| opened.device).map_err(|error| Failure::open(&error))
    }

    /// Makes all contents except ext4 volumes, and finally the table.
    fn rest(
        &self,
        disk: &Disk,
        ready: Vec<Ready>,
        ranges: &[Range<u64>],
        is_zeroed: bool,
    ) -> Result<MadeDisk, Failure> {
        let device = self.open(&self.context.place_of(self.target))?;
        let mut hashes = vec![None; ranges.len()];
        let names: Vec<_> = ready.iter().map(Ready::name).collect();
        for (index, ready) in ready.into_iter().enumerate() {
            self.context.stop().check()?;
            let made = self.content(&disk.parts, index, ready, ranges, (&*device, is_zeroed));
            let root = made.map_err(|failure| self.named(&disk.parts, index, failure))?;
            hashes[index] = root;
        }
        let guid = match disk.guid {
            Some(guid) => guid,
            None => self.ids.uuid("disk")?,
        };
        let (mut partitions, mut parts) = (Vec::new(), Vec::new());
        for (index, part) in disk.parts.iter().enumerate() {
            // By default, the first half of a root hash is the GUID of the data partition, and the second half is the GUID of the partition
            // with the hash tree.
            let root =
                hashes.iter().flatten().find(|(data, _)| *data == index).map(|(_, root)| *root);
            let half = root.as_ref().map(|root| &root[..16]);
            let half = half.or(hashes[index].as_ref().map(|(_, root)| &root[16..]));
            let mut guid = [0; 16];
            match (part.guid, half) {
                (Some(given), _) => guid = given,
                (None, Some(half)) => guid.copy_from_slice(half),
                (None, None) => {
                    guid =
                        self.ids.uuid(&format!("partition {} {}", index + 1, part.kind_name()))?;
                }
            }
            let attributes = part.attributes | if half.is_some() { READ_ONLY } else { 0 };
            let Range { start, end } = ranges[index];
            let (kind, label, len) = (part.kind, part.label.clone(), end - start);
            let name = label.clone();
            partitions.push(NewPartition { kind, guid, start, len, attributes, name });
            let content = names[index];
            parts.push(MadePart { kind, guid, start, len, label, content, root_hash: root });
        }
        let table = NewTable { guid, sector: self.sector, partitions };
        table.write(&*device).map_err(|error| self.failed(&error))?;
        Ok(MadeDisk { size: device.size(), sector: self.sector, guid, parts })
    }

    pub(super) fn failed(&self, error: &ironmap::Error) -> Failure {
        Failure::at(self.target, error)
    }

    /// Adds the number and the type of the partition to a failure.
    fn named(&self, parts: &[DiskPart], index: usize, failure: Failure) -> Failure {
        if matches!(failure.reason(), Reason::Stopped(_)) {
            return failure;
        }
        let name = format!("partition {} ({})", index + 1, parts[index].kind_name());
        failure.renamed(|text| format!("{name}: {text}"))
    }
}

/// Returns the index of the data partition that belongs to the hash tree in partition `index`: the last earlier partition with the type
/// that this tree can verify.
fn data_of(parts: &[DiskPart], index: usize) -> Result<usize, Failure> {
    let wanted = kinds::verified_by(&parts[index].kind);
    let found = parts[..index].iter().rposition(|part| Some(part.kind) == wanted);
    found.ok_or_else(|| {
        let name = wanted.map(|kind| super::kind_name(&kind)).unwrap_or_default();
        Failure::usage(format!(
            "a hash tree needs an earlier partition of the type {name} with its data: add that partition"
        ))
    })
}

/// Adds a sufficient size to the failure of a volume that is too small.
fn advise(failure: Failure, part: &DiskPart) -> Failure {
    let Some(small) = failure.too_small() else { return failure };
    let needs = small.needs.bytes;
    let enough = (needs + needs / 3).div_ceil(1 << 20) + 16;
    let name = part.kind_name();
    failure.because(format_args!("write a larger size, such as {name}:{enough}M, or {name}:min"))
}
