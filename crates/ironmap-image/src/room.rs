//! Prepares the image file for a new volume: makes a new file, or extends an existing file.

use std::fmt::Display;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, IoSlice};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironmap::device::image::{self, Compression, CreateOptions, ImageFormat};
use ironmap::device::{BlockFile, Device, OpenMode, Psync};
use ironmap::location::{LocationOptions, Medium, Part, Site};
use ironmap::units::DevOffset;
use ironmap::{Errno, Error, ErrorKind, Location};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno as OsErrno;

use crate::failure::Failure;
use crate::stop::Stop;

/// The change that gave an image the requested size.
pub enum Room {
    /// The image is new.
    New(NewImage),
    /// The image was extended.
    Extended {
        /// The path of the image.
        path: PathBuf,
        /// The previous length.
        from: u64,
    },
    /// The image already had the requested size.
    Old,
}

impl Room {
    /// Undoes the change after a failure. If the undo fails too, the image keeps its new length.
    pub fn undo(self) {
        if let Self::Extended { path, from } = self {
            let _ = set_len(&path, from);
        }
    }

    /// Keeps the image, because the volume was made.
    ///
    /// # Errors
    /// Fails if another program has replaced or removed a new image.
    pub fn keep(self) -> Result<(), Failure> {
        match self {
            Self::New(image) => image.keep(),
            _ => Ok(()),
        }
    }
}

/// The format of a new image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the disk.
    Raw,
    /// qcow2, with this method for compressed clusters.
    Qcow2(Compression),
}

/// The file of a location that is a whole image, and the format that a new file gets. `None` for other locations: a new file cannot be made
/// for them.
#[must_use]
pub fn file_of(location: &Location) -> Option<(&Path, Format)> {
    match location {
        Location::Plain(Site { medium: Medium::Image(address), part: Part::Whole })
            if address.format == ImageFormat::Qcow2 && address.snapshot.is_none() =>
        {
            Some((&address.path, Format::Qcow2(Compression::default())))
        }
        _ => location.whole_file().map(|path| (path, Format::Raw)),
    }
}

/// An image file that this command has created. The drop removes the file if it was not kept.
pub struct NewImage {
    /// An `O_PATH` descriptor. Any other descriptor would prevent a lease on the file. The check whether a loop device uses the image needs
    /// a lease.
    file: File,
    path: PathBuf,
    format: Format,
    /// The final name, if the image is made under a temporary name.
    name: Option<PathBuf>,
    /// Whether the image replaces an existing file of its final name.
    replaces: bool,
    /// If the clusters are compressed when the image is complete: the request to end this early.
    compresses: Option<Stop>,
    kept: bool,
}

/// The length of a cluster of a new image.
const CLUSTER: usize = 64 << 10;
/// The number of temporary names to try.
const NAMES: u32 = 1000;
/// A number that distinguishes the temporary names of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl NewImage {
    /// Creates an image under a temporary name in the directory of `path`. [`keep`](Self::keep) renames the image to its final name, so no
    /// other program sees an incomplete image. `None` if the file exists. If the name is a symbolic link to a missing file, the target of
    /// the link is created.
    pub fn create_aside(path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let name = target_of(path);
        match name.symlink_metadata() {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == IoErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        match Self::aside(&name, path, format)? {
            Some(image) => Ok(Some(image)),
            None => Self::create(path, format),
        }
    }

    /// Creates an image under a temporary name in the directory of `path`. [`keep`](Self::keep) replaces the file of the final name, if it
    /// exists.
    ///
    /// # Errors
    /// The errors of the host.
    pub fn create_over(path: &Path, format: Format) -> Result<Self, Failure> {
        let long = || Failure::host(path.display(), io::Error::from(IoErrorKind::InvalidFilename));
        let mut image = Self::aside(&target_of(path), path, format)?.ok_or_else(long)?;
        image.replaces = true;
        Ok(image)
    }

    /// Creates an image under a temporary name, beside its final name. `None` if a temporary name is too long for the host.
    fn aside(name: &Path, path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let (dir, process) = (name.parent().unwrap_or(Path::new("")), std::process::id());
        for _ in 0..NAMES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let aside = dir.join(format!(".ironmap-{process}-{number}"));
            match File::create_new(&aside) {
                Ok(made) => return Self::of(&made, aside, format, Some(name.to_owned())).map(Some),
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => {}
                // A temporary name that is longer than the final name can be too long for the host. In this case, the image is created
                // under its final name.
                Err(error) if error.kind() == IoErrorKind::InvalidFilename => break,
                Err(error) => return Err(Failure::host(path.display(), error)),
            }
        }
        Ok(None)
    }

    /// Creates an image. `None` if the file exists. If the name is a symbolic link to a missing file, the target of the link is created.
    pub fn create(path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let target = target_of(path);
        let made = match File::create_new(&target) {
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(failed)?,
        };
        Self::of(&made, target, format, None).map(Some)
    }

    /// The image of a file that was just made at `path`.
    fn of(
        made: &File,
        path: PathBuf,
        format: Format,
        name: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        // The file is opened by its name, because /proc may be missing (in a chroot, for example).
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| failed(errno.into()))?);
        if !is_same(&made.metadata().map_err(failed)?, &file.metadata().map_err(failed)?) {
            return Err(replaced(&path));
        }
        Ok(Self { file, path, format, name, replaces: false, compresses: None, kept: false })
    }

    /// The present path of the image, with symbolic links followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file an empty disk of this size in bytes.
    pub fn empty(&self, len: u64) -> Result<(), Failure> {
        let failed = |error| Failure::host(self.path.display(), error);
        if !self.has_name() {
            return Err(replaced(&self.path));
        }
        let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(no_follow).open(&self.path);
        let file = file.map_err(failed)?;
        // Another program may have replaced the file, so the name may belong to another file.
        if !self.is(&file.metadata().map_err(failed)?) {
            return Err(replaced(&self.path));
        }
        file.set_len(0).map_err(failed)?;
        let Format::Qcow2(compression) = self.format else {
            return file.set_len(len).map_err(failed);
        };
        let mut options = CreateOptions::new(len.next_multiple_of(512));
        options.compression = compression;
        image::create(&self.path, &options).map_err(|error| Failure::open(&error))
    }

    /// Compresses the clusters of the complete image before it gets its final name. The image must have the format qcow2 and a temporary
    /// name.
    pub(crate) fn compress(&mut self, stop: &Stop) {
        self.compresses = Some(stop.clone());
    }

    /// Copies the image to a new image with compressed clusters, which takes its place. A cluster is compressed only when it is written for
    /// the first time, and a volume is filled by many writes to the same clusters. So the clusters of a complete volume are compressed.
    fn packed(mut self, stop: &Stop) -> Result<Self, Failure> {
        const PIECE: u64 = 1 << 20;
        let name = self.name.clone().unwrap_or_else(|| self.path.clone());
        let failed = |error: Error| Failure::at(name.display(), &error);
        let long = || Failure::host(name.display(), io::Error::from(IoErrorKind::InvalidFilename));
        let mut packed = Self::aside(&name, &name, self.format)?.ok_or_else(long)?;
        packed.replaces = self.replaces;
        let open = |path: &Path, write| {
            let address = image::Address::new(ImageFormat::Qcow2, path);
            let location = Site { medium: Medium::Image(Box::new(address)), part: Part::Whole };
            let how = LocationOptions::new().write(write).compress(write);
            Location::Plain(location).open(&how).map(|opened| opened.device).map_err(failed)
        };
        let source = open(&self.path, false)?;
        packed.empty(source.size())?;
        let target = open(&packed.path, true)?;
        let (mut at, mut buffer) = (0, vec![0; PIECE as usize]);
        while at < source.size() {
            stop.check()?;
            let data = source.data_from(DevOffset(at)).map_err(failed)?;
            let start = (data.start.0.max(at) / PIECE * PIECE).max(at);
            let end = (start + PIECE).min(source.size());
            at = if data.is_empty() { start.max(at + 1).next_multiple_of(PIECE) } else { end };
            if !data.is_empty() && start < end {
                let piece = &mut buffer[..(end - start) as usize];
                source.read_exact_at(piece, DevOffset(start)).map_err(failed)?;
                for (from, cluster) in (start..).step_by(CLUSTER).zip(piece.chunks(CLUSTER)) {
                    if cluster.iter().any(|byte| *byte != 0) {
                        let bufs = [IoSlice::new(cluster)];
                        target.write_all_at(&bufs, DevOffset(from), false).map_err(failed)?;
                    }
                }
            }
        }
        target.flush().map_err(failed)?;
        self.compresses = None;
        Ok(packed)
    }

    /// Keeps the file, under its final name. The name becomes durable if the directory of the file can be synced.
    ///
    /// # Errors
    /// Fails if another file has the final name, or if another program has removed or replaced the image at its present path.
    pub fn keep(mut self) -> Result<(), Failure> {
        if let Some(stop) = self.compresses.take() {
            return self.packed(&stop)?.keep();
        }
        if !self.has_name() {
            return Err(replaced(&self.path));
        }
        if let Some(name) = &self.name {
            let renamed = if self.replaces {
                std::fs::rename(&self.path, name)
            } else {
                rename_new(&self.path, name)
            };
            renamed.map_err(|error| match error.kind() {
                IoErrorKind::AlreadyExists => replaced(name),
                _ => Failure::host(name.display(), error),
            })?;
        }
        self.kept = true;
        sync_name(self.name.as_deref().unwrap_or(&self.path));
        Ok(())
    }

    /// Whether the name still leads to this file.
    fn has_name(&self) -> bool {
        self.path.symlink_metadata().is_ok_and(|named| self.is(&named))
    }

    /// Whether `metadata` belongs to this file.
    fn is(&self, metadata: &Metadata) -> bool {
        self.file.metadata().is_ok_and(|own| is_same(&own, metadata))
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if !self.kept && self.has_name() {
            // An error is ignored, because a destructor cannot report it. The file then remains.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Renames a file to a name that does not exist.
///
/// # Errors
/// `AlreadyExists`; the errors of the host.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support `RenameFlags::NOREPLACE`.
        Err(OsErrno::INVAL | OsErrno::NOSYS) => match std::fs::hard_link(from, to) {
            Ok(()) => std::fs::remove_file(from),
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => Err(error),
            Err(_) if to.symlink_metadata().is_ok() => Err(IoErrorKind::AlreadyExists.into()),
            // The file system also does not support hard links.
            Err(_) => std::fs::rename(from, to),
        },
        renamed => renamed.map_err(io::Error::from),
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn replaced(path: &Path) -> Failure {
    Failure::new(format!("{}: another program has replaced the image", path.display()))
}

/// The target of a path. All symbolic links are followed, even if the last link leads to a missing file.
pub fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    // The kernel follows at most 40 symbolic links.
    for _ in 0..40 {
        let Ok(link) = target.read_link() else { break };
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}

/// Creates an image file of this size, or extends an existing raw image. Without `force`, an existing image must be empty.
pub fn make(path: &Path, format: Format, size: u64, force: bool) -> Result<Room, Failure> {
    let Some(image) = NewImage::create(path, format)? else {
        if format != Format::Raw {
            return Ok(Room::Old);
        }
        // Guard tags and the backup of a partition table are found from the end of the file. An extension would move the end away from
        // them.
        if !force && path.is_file() {
            let file = BlockFile::open(path, &OpenMode { write: true, ..OpenMode::default() });
            let file = file.map_err(|error| Failure::open(&error))?;
            check_empty(&Psync::new(Arc::new(file)), path.display())?;
        }
        return extend(path, size);
    };
    image.empty(size)?;
    Ok(Room::New(image))
}

/// Refuses to write a raw image under a name that suggests another format, except if the content has the format `holds`. With `force`, an
/// existing file is overwritten.
pub fn refuse_name(target: &Location, holds: Option<&str>, force: bool) -> Result<(), Failure> {
    let Some(path) = target.whole_file() else { return Ok(()) };
    let is_one = |format: &str| {
        holds.is_some_and(|what| what.to_ascii_lowercase().contains(&format!(" {format} image")))
    };
    if force && path.exists() || format_of(path).is_some_and(|format| is_one(&format)) {
        return Ok(());
    }
    match instead_of(path) {
        Some(instead) => Err(other_name(path, "a raw image", &instead)),
        None => Ok(()),
    }
}

/// Refuses to write an archive under a name that suggests an image format.
pub fn refuse_archive(path: &Path) -> Result<(), Failure> {
    match instead_of(path) {
        Some(_) => {
            let instead = format!("write {}", path.with_extension("tar").display());
            Err(other_name(path, "a tar archive", &instead))
        }
        None => Ok(()),
    }
}

fn other_name(path: &Path, content: &str, instead: &str) -> Failure {
    Failure::usage(format!("{}: the name is not suitable for {content}: {instead}", path.display()))
}

/// The way to create an image of the format that a name suggests; `None` if the name suggests no such format.
fn instead_of(path: &Path) -> Option<String> {
    let name = path.display();
    Some(match format_of(path).as_deref() {
        Some("qcow2") => {
            format!("write qcow2:{name} to make a qcow2 image")
        }
        // ironmap can only read images in the formats VMDK and VHDX. The prefix of the format must be before the name.
        Some(format @ ("vmdk" | "vhdx")) => {
            format!(
                "{format}:{name} can only be read; qemu-img convert -O {format} makes an image of this format from a raw image"
            )
        }
        Some("vdi") => {
            format!("qemu-img convert -O vdi RAW {name} makes a VDI image from a raw image")
        }
        Some("vhd") => {
            format!("qemu-img convert -O vpc RAW {name} makes a VHD image from a raw image")
        }
        _ => return None,
    })
}

/// The format that the extension of a name suggests.
fn format_of(path: &Path) -> Option<String> {
    Some(path.extension()?.to_string_lossy().to_ascii_lowercase())
}

/// The error for a target that cannot be made with compressed clusters.
pub fn not_compressed(target: &Location) -> Failure {
    Failure::usage(format!("{target}: only a new image can be compressed: name it qcow2:FILE"))
}

/// The error for a new volume whose image cannot be opened. Unlike a raw image, a missing virtual disk image is not created.
pub fn missing(volume: &Location, error: Error) -> Error {
    let Medium::Image(address) = &volume.data().medium else { return error };
    if error.errno() != Errno::ENOENT || address.path.symlink_metadata().is_ok() {
        return error;
    }
    let what = "the image does not exist: a size is needed to make it";
    Error::new(ErrorKind::NotFound, what).at(volume)
}

/// Refuses a device that is not empty.
///
/// # Errors
/// A failure of the kind `Exists` if the device is not empty; the errors of the device.
pub fn check_empty(device: &dyn Device, place: impl Display) -> Result<(), Failure> {
    ironmap::tools::check_empty(device).map_err(|error| Failure::open(&error.at(place)))
}

/// Refuses to replace a block device or image with content. A pipe or a terminal has no content.
///
/// # Errors
/// A failure of the kind `Exists` if the file has content that is not empty; the errors of the host.
pub fn check_replaced(path: &Path) -> Result<(), Failure> {
    let kind = path.metadata().map(|metadata| metadata.file_type());
    if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        return Ok(());
    }
    let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
    match BlockFile::open(path, &mode) {
        Ok(file) => check_empty(&Psync::new(Arc::new(file)), path.display()),
        // The file cannot be read, so its content is unknown. The host's permissions decide whether the file can be replaced.
        Err(error) if error.errno() == Errno::EACCES => Ok(()),
        Err(error) => Err(Failure::open(&error)),
    }
}

/// Extends an image file that is too short. A device, and an image that is long enough, are not changed.
pub fn extend(path: &Path, size: u64) -> Result<Room, Failure> {
    let failed = |error| Failure::host(path.display(), error);
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() >= size {
        return Ok(Room::Old);
    }
    // The image is opened for writing as a test: the open fails if another program uses the image.
    let mode = OpenMode { write: true, ..OpenMode::default() };
    drop(BlockFile::open(path, &mode).map_err(|error| Failure::open(&error))?);
    set_len(path, size).map_err(failed)?;
    Ok(Room::Extended { path: path.to_owned(), from: metadata.len() })
}

/// Sets the length of an image file.
pub fn set_len(path: &Path, len: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(len)
}

/// Makes the name of a file durable, if its directory can be synced.
pub fn sync_name(path: &Path) {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = File::open(dir.unwrap_or(Path::new(".")));
    let _ = dir.and_then(|dir| dir.sync_all());
}
