//! Makes, fills, reads and resizes images of ext4 volumes.

mod build;
mod callbacks;
mod fit;
mod opened;
#[cfg(feature = "disk")]
mod partition;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::Location;
use ironmap::device::image::Compression;
use ironmap::fs::FileType;
use ironmap::fs::ext4::{Features, Incompat, MkfsOptions, Superblock};
use ironmap::location::Medium;

pub(crate) use self::callbacks::Callbacks;
pub use self::opened::OpenImage;
use crate::content::Content;
use crate::context::Context;
use crate::device_table::{self, Node};
use crate::failure::{Failure, TooSmall};
use crate::opening::Opening;
use crate::owners::Owners;
use crate::progress::Bar;
use crate::report::Report;
use crate::room::Overwrite;
use crate::sources::{Sources, refuse_own};
use crate::stop::Stop;

/// Describes a new volume and its content. [`build`](Self::build) makes the volume.
///
/// Everything happens in this process: no external program runs, nothing is mounted, and no privilege is needed. Owners, modes, times, hard
/// links, devices, holes, extended attributes and access control lists of the sources are kept. Sources are copied in the order of the
/// calls of [`add`](Self::add); a later source replaces files of earlier sources.
///
/// ```
/// use ironmap_image::{Content, Image};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # std::fs::create_dir(dir.path().join("tree"))?;
/// # std::fs::write(dir.path().join("tree/hello"), "hello\n")?;
/// # let (tree, disk) = (dir.path().join("tree"), dir.path().join("disk.img"));
/// let made = Image::ext4()
///     .add(&tree)
///     .inject("/etc/hostname", "box\n", 0o644, (0, 0))
///     .label("root")
///     .source_date_epoch(1_700_000_000) // the same sources give the same bytes
///     .shrink()
///     .build(&disk)?;
/// assert!(made.blocks_count > 0);
///
/// let image = Image::open(&disk)?;
/// image.extract("/", dir.path().join("copy"))?;
/// assert_eq!(std::fs::read(dir.path().join("copy/hello"))?, b"hello\n");
/// image.grow(64 << 20)?;
/// assert!(image.check()?.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Image {
    options: MkfsOptions,
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    overwrite: Option<Overwrite>,
    size: Size,
    contents: Vec<Content>,
    nodes: Vec<Node>,
    device_table: Option<PathBuf>,
    owner: Option<(u32, u32)>,
    owner_map: Option<PathBuf>,
    compression: Option<Compression>,
    is_strict: bool,
    source_date: Option<i64>,
    callbacks: Callbacks,
    stop: Stop,
}

/// The size of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Bytes(u64),
    /// The size of the device. A new image file gets space for its content, plus 10 percent.
    Device,
    /// The size of a new image file that has hardly more space than its content needs.
    Shrink,
}

/// The options of an [`Image`] that all steps of a build need.
struct Plan<'a> {
    volume: &'a Location,
    options: &'a MkfsOptions,
    size: Size,
    overwrite: Overwrite,
    compression: Option<Compression>,
    is_strict: bool,
    /// Whether the build keeps a new image of a given size if only a part of the content could be copied.
    keeps_part: bool,
}

impl Image {
    /// Creates the description of a new volume with the features and the geometry that mke2fs(8) chooses for ext4.
    #[must_use]
    pub fn ext4() -> Self {
        Self {
            options: MkfsOptions::new(),
            label: None,
            uuid: None,
            overwrite: None,
            size: Size::Device,
            contents: Vec::new(),
            nodes: Vec::new(),
            device_table: None,
            owner: None,
            owner_map: None,
            compression: None,
            is_strict: true,
            source_date: None,
            callbacks: Callbacks::default(),
            stop: Stop::default(),
        }
    }

    /// Opens an existing image to read, check or resize it.
    ///
    /// # Errors
    /// Fails if the text is not a location. This function does not check whether the location has a volume; each operation checks this.
    pub fn open(volume: impl AsRef<OsStr>) -> Result<OpenImage, Failure> {
        OpenImage::new(parse(volume.as_ref())?)
    }

    /// Sets the options of the file system: block size, features, number of inodes and more. Methods of this type can set the label, the
    /// UUID, the time and `force` too. Their values take precedence over `options`, regardless of the order of the calls. A size in the
    /// options counts as a call of [`size`](Self::size).
    #[must_use]
    pub fn options(mut self, options: MkfsOptions) -> Self {
        self.size = options.size.map_or(self.size, Size::Bytes);
        self.options = options;
        self
    }

    /// Checks that the sources of the host exist and can be read.
    #[cfg(feature = "disk")]
    pub(crate) fn check_sources(&self) -> Result<(), Failure> {
        for content in &self.contents {
            if let crate::content::Origin::Path { path, .. } = &content.0
                && path.as_os_str() != "-"
            {
                let read = std::fs::File::open(path).map(drop);
                read.map_err(|error| Failure::host(path.display(), error))?;
            }
        }
        Ok(())
    }

    /// Gives the volume this size in bytes. A missing image file is made, and a shorter one is extended.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Size::Bytes(bytes);
        self
    }

    /// Gives a new image file enough space for its content, plus 10 percent. A device or an existing image keeps its size. This is the
    /// default.
    #[must_use]
    pub fn fit(mut self) -> Self {
        self.size = Size::Device;
        self
    }

    /// Makes a new image file as small as its content allows.
    #[must_use]
    pub fn shrink(mut self) -> Self {
        self.size = Size::Shrink;
        self
    }

    /// Adds a source. A path is a directory or a tar archive, which may be compressed by gzip or zstd. [`Content`] describes other sources.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "builders of images and archives use this name"
    )]
    pub fn add(mut self, content: impl Into<Content>) -> Self {
        self.contents.push(content.into());
        self
    }

    /// Gives all files of all sources this user and group.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Maps the owners of all source files. `map` is a file with lines `FROM-UID:FROM-GID TO-UID:TO-GID`. Users and groups are mapped
    /// independently. [`owner`](Self::owner) takes precedence.
    #[must_use]
    pub fn owners(mut self, map: impl Into<PathBuf>) -> Self {
        self.owner_map = Some(map.into());
        self
    }

    /// Applies a table in the format of genext2fs after the sources are copied: makes devices and directories, and sets owners and modes.
    #[must_use]
    pub fn device_table(mut self, table: impl Into<PathBuf>) -> Self {
        self.device_table = Some(table.into());
        self
    }

    /// Makes a regular file after the sources are copied. An existing file is replaced, and missing directories are made. Only the lower
    /// twelve bits of `mode` are used. `owner` is the user and the group.
    #[must_use]
    pub fn inject(
        mut self,
        path: impl AsRef<[u8]>,
        bytes: impl Into<Vec<u8>>,
        mode: u32,
        owner: (u32, u32),
    ) -> Self {
        let names = path.as_ref().split(|byte| *byte == b'/');
        let names: Vec<_> = names.filter(|name| !name.is_empty() && *name != b".").collect();
        self.nodes.push(Node {
            path: names.join(&b'/'),
            file_type: FileType::Regular,
            mode: mode & 0o7777,
            owner,
            device: None,
            content: Some(Arc::from(bytes.into())),
        });
        self
    }

    /// Sets the label: at most 16 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<Vec<u8>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the UUID. By default, the UUID is random. With [`source_date_epoch`](Self::source_date_epoch), the default UUID is derived from
    /// the options.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Sets the time of a reproducible build, in seconds since 1970 (`SOURCE_DATE_EPOCH`). No value in the image is then random, and no
    /// timestamp is later than this time, so the same sources and options always produce the same bytes.
    #[must_use]
    pub fn source_date_epoch(mut self, seconds: i64) -> Self {
        self.source_date = Some(seconds);
        self
    }

    /// Makes a new qcow2 image with compressed clusters. The volume is filled first, and its clusters are compressed afterwards, so the
    /// directory of the image needs space for both forms during the build.
    #[must_use]
    pub fn compress(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Permits [`build`](Self::build) to overwrite a device or an image with known content: a file system, a partition table or an archive.
    /// By default, `build` refuses such a target. Content of an unknown format is always overwritten. A member of an MD array or of an LVM
    /// volume group is always refused, with `EBUSY`.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        self.overwrite(force.into())
    }

    /// Sets the content that may be overwritten. Unlike [`force`](Self::force), this can also permit overwriting members.
    #[must_use]
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = Some(overwrite);
        self
    }

    /// If a file of a directory or of a volume cannot be copied, reports this through [`on_message`](Self::on_message) and continues
    /// without the file. By default, the first failure ends the build. A failure for lack of space and a failure of an archive always end
    /// the build.
    #[must_use]
    pub fn skip_failed(mut self, skip: bool) -> Self {
        self.is_strict = !skip;
        self
    }

    /// Shows the progress of the build. Several threads call the methods of `bar`.
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

    /// Makes the volume and fills it. The volume is a path of an image file or a block device, or a location: `disk.img@p2`,
    /// `qcow2:disk.qcow2`, `nbd://host/export`. When the call returns, the volume is on the device.
    ///
    /// # Errors
    /// The volume cannot be made, or a source cannot be copied. A new image file is then removed. If the volume is too small,
    /// [`Failure::too_small`] contains the space that the content needs.
    pub fn build(mut self, volume: impl AsRef<OsStr>) -> Result<Superblock, Failure> {
        let volume = parse(volume.as_ref())?;
        if matches!(volume.data().medium, Medium::Nbd(_))
            && self.options.features == Features::MODERN
        {
            // Other machines may open the export. Only MMP (multiple mount protection) shows them that the volume is in use.
            self.options.features.incompat |= Incompat::MMP;
        }
        let callbacks = Box::new(std::mem::take(&mut self.callbacks));
        let (stop, opening) = (self.stop.clone(), Opening::default());
        let context = Context::new(callbacks, stop, opening, Ok(self.source_date));
        let mut report = Report::new(context);
        let is_strict = self.is_strict;
        let made = self.carry_out(&volume, false, &mut report).map_err(with_needs)?;
        if is_strict { report.result().map(|()| made) } else { Ok(made) }
    }

    /// Makes the volume and fills it for a caller with its own [`Context`], which provides the callbacks, the time and the request to stop.
    /// With [`skip_failed`](Self::skip_failed), the report contains the failures. A new image of a given size is then kept, with the files
    /// that could be copied.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn build_with(self, volume: &Location, report: &mut Report) -> Result<Superblock, Failure> {
        let keeps_part = !self.is_strict;
        self.carry_out(volume, keeps_part, report)
    }

    fn carry_out(
        mut self,
        volume: &Location,
        keeps_part: bool,
        report: &mut Report,
    ) -> Result<Superblock, Failure> {
        let Self { options, label, uuid, source_date, .. } = &mut self;
        options.label = label.take().unwrap_or(std::mem::take(&mut options.label));
        options.uuid = uuid.or(options.uuid);
        options.time = source_date.or(options.time);
        // If a signal interrupts a read of a source, the signal is reported instead of the failed read.
        let stop = report.stop().clone();
        self.make_and_fill(volume, keeps_part, report).map_err(|failure| stop.cause(failure))
    }

    fn make_and_fill(
        &mut self,
        volume: &Location,
        keeps_part: bool,
        report: &mut Report,
    ) -> Result<Superblock, Failure> {
        let context = Arc::clone(report.context());
        let tables = [&self.owner_map, &self.device_table];
        refuse_own(volume, tables.into_iter().flatten().map(PathBuf::as_path), &context)?;
        let owners = Owners::new(self.owner, self.owner_map.as_deref())?;
        let table = self.device_table.as_deref().map(device_table::read).transpose()?;
        let mut nodes = table.unwrap_or_default();
        nodes.append(&mut self.nodes);
        let contents = std::mem::take(&mut self.contents);
        let mut sources = Sources::new(volume, contents, nodes, owners, &context)?;
        if !sources.is_empty() {
            context.caller.catch_signals();
        }
        let Self { options, overwrite, size, compression, is_strict, .. } = self;
        let (size, compression, is_strict) = (*size, *compression, *is_strict);
        let overwrite = overwrite.unwrap_or(options.force.into());
        let plan = Plan { volume, options, size, overwrite, compression, is_strict, keeps_part };
        plan.carry_out(&mut sources, report)
    }
}

/// Adds the inodes and the space that the content needs to the failure of a volume that is too small.
fn with_needs(failure: Failure) -> Failure {
    let Some(TooSmall { needs, .. }) = failure.too_small() else { return failure };
    let needs = format!("{} inodes and about {} bytes", needs.inodes, needs.bytes);
    failure.because(format_args!("the volume is too small: the content needs {needs}"))
}

fn parse(volume: &OsStr) -> Result<Location, Failure> {
    Location::parse(volume).map_err(|error| Failure::usage(&error))
}
