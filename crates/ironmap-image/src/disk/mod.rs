//! Makes whole disks: a partition table, partitions, and their content.

mod build;
mod content;
mod fat;
mod ids;
mod layout;
mod out;
mod spec;
mod swap;
mod target;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::Location;
use ironmap::partition::kinds;

pub(crate) use self::ids::Ids;
use crate::context::Context;
use crate::failure::Failure;
use crate::image::{Callbacks, Image};
use crate::opening::Opening;
use crate::progress::Bar;
use crate::report::Report;
use crate::room::Overwrite;
use crate::stop::Stop;

/// Describes a new disk with a GPT. [`build`](Self::build) makes the disk.
///
/// ```
/// use ironmap_image::disk::{Disk, DiskPart};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let tree = dir.path().join("tree");
/// # std::fs::create_dir(&tree)?;
/// # std::fs::write(tree.join("hello"), "hello\n")?;
/// # let image = dir.path().join("disk.img");
/// let made = Disk::new()
///     .part(DiskPart::parse("esp:4M")?)
///     .part(DiskPart::parse(&format!("root:min:files={},label=root", tree.display()))?)
///     .part(DiskPart::parse("root-verity:min")?)
///     .source_date_epoch(1_700_000_000) // the same sources give the same bytes
///     .build(&image)?;
/// assert!(made.parts[1].root_hash.is_some());
///
/// let root = ironmap::Volume::open(format!("{}@p2", image.display()))?;
/// assert_eq!(root.read("/hello")?, b"hello\n");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Disk {
    size: Option<u64>,
    sector: Option<u32>,
    guid: Option<[u8; 16]>,
    seed: Option<String>,
    parts: Vec<DiskPart>,
    overwrite: Overwrite,
    source_date: Option<i64>,
    callbacks: Callbacks,
    stop: Stop,
}

/// A partition of a new disk.
#[derive(Debug)]
pub struct DiskPart {
    kind: [u8; 16],
    size: PartSize,
    label: String,
    guid: Option<[u8; 16]>,
    attributes: u64,
    fs_label: Option<String>,
    fs_uuid: Option<[u8; 16]>,
    fill: Fill,
}

/// The size of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSize {
    /// This number of bytes, rounded up to a multiple of 4096.
    Bytes(u64),
    /// All space that the other partitions do not need.
    Rest,
    /// The smallest size with enough space for the content.
    Min,
}

/// The content of a partition.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Fill {
    /// No content.
    #[default]
    Nothing,
    /// An ext4 volume. The disk determines its size, its time, and its UUID. [`DiskPart::fs_uuid`] can set another UUID.
    Volume(Box<Image>),
    /// A FAT file system with the entries of these directories. The type is FAT32 if the size permits it. Smaller file systems are FAT16 or
    /// FAT12.
    Fat(Vec<PathBuf>),
    /// The signature of a swap area.
    Swap,
    /// The dm-verity hash tree of an earlier partition. The type of the partition, such as `root-verity`, determines the type of the
    /// earlier partition.
    Verity,
}

/// A disk that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeDisk {
    /// The size in bytes.
    pub size: u64,
    /// The sector size in bytes.
    pub sector: u64,
    /// The GUID of the disk.
    pub guid: [u8; 16],
    /// The partitions. The first partition has number 1.
    pub parts: Vec<MadePart>,
}

/// A partition that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadePart {
    /// The GUID of the type.
    pub kind: [u8; 16],
    /// The GUID of the partition.
    pub guid: [u8; 16],
    /// The first byte on the disk.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The name in the table.
    pub label: String,
    /// The content: `ext4`, `FAT`, `swap`, `verity`, or an empty text.
    pub content: &'static str,
    /// The root hash, if the partition has a dm-verity hash tree in another partition.
    pub root_hash: Option<[u8; 32]>,
}

impl Disk {
    /// Creates the description of a disk without partitions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the disk in bytes. By default, an image file is as large as its partitions need. If a partition fills the rest of
    /// the disk, an existing image keeps its size. A device always keeps its size.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Sets the sector size of an image, 512 or 4096 bytes. By default, an image has sectors of 512 bytes. A block device has its own
    /// sector size.
    #[must_use]
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector = Some(bytes);
        self
    }

    /// Sets the GUID of the disk.
    #[must_use]
    pub fn guid(mut self, guid: [u8; 16]) -> Self {
        self.guid = Some(guid);
        self
    }

    /// Derives all GUIDs, UUIDs and salts that are not set from this text. By default, they are random, or derived from the time of
    /// [`source_date_epoch`](Self::source_date_epoch).
    #[must_use]
    pub fn seed(mut self, seed: impl Into<String>) -> Self {
        self.seed = Some(seed.into());
        self
    }

    /// Adds a partition after the partitions that were added before.
    #[must_use]
    pub fn part(mut self, part: DiskPart) -> Self {
        self.parts.push(part);
        self
    }

    /// Permits [`build`](Self::build) to overwrite a device or an image with known content. By default, `build` refuses such a target. A
    /// member of an MD array or of an LVM volume group is always refused, with `EBUSY`.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        self.overwrite(force.into())
    }

    /// Sets the content that may be overwritten. Unlike [`force`](Self::force), this can also permit overwriting members.
    #[must_use]
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets the time of a reproducible build, in seconds since 1970 (`SOURCE_DATE_EPOCH`). No value on the disk is then random, and no time
    /// stamp is later than this time.
    #[must_use]
    pub fn source_date_epoch(mut self, seconds: i64) -> Self {
        self.source_date = Some(seconds);
        self
    }

    /// Shows the progress of the copies. Several threads call the methods of `bar`.
    #[must_use]
    pub fn progress(mut self, bar: Arc<dyn Bar>) -> Self {
        self.callbacks.bar = Some(bar);
        self
    }

    /// Sets the function that receives each warning and note, as one line of text.
    #[must_use]
    pub fn on_message(mut self, print: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.callbacks.print = Some(Box::new(print));
        self
    }

    /// Sets the request to end the build early. Another thread can make this request. A new image file is then removed.
    #[must_use]
    pub fn stop(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Makes the disk at `target`: the path of an image file or a block device, or a location such as `nbd://host/export`. An image file is
    /// made under a temporary name, and gets its final name when it is complete. When the call returns, all data are on the device.
    ///
    /// # Errors
    /// The disk cannot be made, or a source cannot be copied. An image file then stays unchanged, or is not made. A device may contain a part of
    /// the content, without a partition table.
    pub fn build(mut self, target: impl AsRef<OsStr>) -> Result<MadeDisk, Failure> {
        let target = Location::parse(target.as_ref()).map_err(|error| Failure::usage(&error))?;
        let callbacks = Box::new(std::mem::take(&mut self.callbacks));
        let (stop, opening) = (self.stop.clone(), Opening::default());
        let context = Context::new(callbacks, stop, opening, Ok(self.source_date));
        let mut report = Report::new(context);
        let made = self.build_with(&target, &mut report)?;
        report.result().map(|()| made)
    }

    /// Makes the disk for a caller with its own [`Context`], which provides the callbacks, the time and the request to stop.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn build_with(self, target: &Location, report: &mut Report) -> Result<MadeDisk, Failure> {
        let stop = report.stop().clone();
        build::build(self, target, report).map_err(|failure| stop.cause(failure))
    }
}

impl DiskPart {
    /// Creates a partition without content. The type is a name of the Discoverable Partitions Specification, as systemd-repart uses it
    /// (`esp`, `root`, `root-arm64`, `home`, ...), or a GUID.
    ///
    /// # Errors
    /// Fails if the type is not known.
    pub fn new(kind: &str, size: PartSize) -> Result<Self, Failure> {
        Ok(Self {
            kind: spec::kind(kind).map_err(Failure::usage)?,
            size,
            label: String::new(),
            guid: None,
            attributes: 0,
            fs_label: None,
            fs_uuid: None,
            fill: Fill::Nothing,
        })
    }

    /// Parses a description `TYPE:SIZE[:KEY=VALUE,...]`. SIZE is a number of bytes with an optional K, M, G or T; `rest`, the space that
    /// the other partitions leave; or `min`, the smallest size for the content. `\,` is a comma in a value. The keys are:
    ///
    /// - `fs`: `ext4`, `fat`, `swap`, `verity` or `none`. The default depends on the type: `fat` for `esp` and `xbootldr`, `swap` for
    ///   `swap`, `verity` for the types that end in `-verity`; for others `ext4` if there are files, and otherwise `none`.
    /// - `files`: a directory whose entries are copied, or for ext4 also an archive. The key can be repeated.
    /// - `label`: the name of the partition, and the label of its file system if the file system can store it.
    /// - `fs-label`, `fs-uuid`: the label and the UUID of the file system.
    /// - `guid`: the GUID of the partition.
    /// - `attrs`: names joined by `+` (`required`, `no-block-io`, `legacy-boot`, `grow-file-system`, `read-only`, `no-auto`), or a
    ///   number.
    /// - `owner`: `UID:GID`, the owner of all files of an ext4.
    ///
    /// # Errors
    /// Fails if the text is not such a description. The message names the wrong word.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        spec::parse(text).map_err(Failure::usage)
    }

    /// Sets the name of the partition: at most 36 characters. It is also the label of the file system, if the file system can store it.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the GUID of the partition.
    #[must_use]
    pub fn guid(mut self, guid: [u8; 16]) -> Self {
        self.guid = Some(guid);
        self
    }

    /// Sets the attributes of the partition, as in the UEFI specification and the Discoverable Partitions Specification.
    #[must_use]
    pub fn attributes(mut self, attributes: u64) -> Self {
        self.attributes = attributes;
        self
    }

    /// Sets the label of the file system.
    #[must_use]
    pub fn fs_label(mut self, label: impl Into<String>) -> Self {
        self.fs_label = Some(label.into());
        self
    }

    /// Sets the UUID of the file system. The serial number of a FAT file system is the first 32 bits of the UUID.
    #[must_use]
    pub fn fs_uuid(mut self, uuid: [u8; 16]) -> Self {
        self.fs_uuid = Some(uuid);
        self
    }

    /// Sets the content.
    #[must_use]
    pub fn fill(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// Returns the type as users write it.
    fn kind_name(&self) -> String {
        kind_name(&self.kind)
    }
}

/// Returns the name of a partition type, or its GUID if it has no name.
pub fn kind_name(kind: &[u8; 16]) -> String {
    kinds::name_of(kind).unwrap_or_else(|| ironmap::fs::uuid_text(kind))
}
