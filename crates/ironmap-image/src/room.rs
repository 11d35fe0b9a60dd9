//! Prepares the image file for a new volume: makes a new file, or extends an existing file.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::image::{Compression, ImageFormat};
use ironmap::device::{BlockFile, Device, FileId, OpenMode, Psync, Segment, Segmented};
use ironmap::location::{Medium, Part, Site};
use ironmap::{Errno, Error, ErrorKind, Location};

use crate::context::Context;
use crate::failure::Failure;
use crate::new_image::{self, NewImage};

/// The content of a device or image that may be overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overwrite {
    /// Only content of an unknown format.
    #[default]
    Unknown,
    /// Any content, except for members of arrays and of volume groups.
    Content,
    /// Any content.
    Members,
}

impl From<bool> for Overwrite {
    fn from(force: bool) -> Self {
        if force { Self::Content } else { Self::Unknown }
    }
}

/// How an image got the requested size.
pub enum Room {
    /// The image is new.
    New(NewImage),
    /// The image was extended.
    Extended {
        /// The image, open for writing.
        file: File,
        /// The previous length.
        from: u64,
    },
    /// The image already had the requested size.
    Old,
}

impl Room {
    /// Undoes the change after a failure. If the undo fails too, the image keeps its new length.
    pub fn undo(self) {
        if let Self::Extended { file, from } = self {
            let _ = file.set_len(from);
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
    /// A raw image: the bytes of the disk, without a header.
    Raw,
    /// A qcow2 image, with this method for compressed clusters.
    Qcow2(Compression),
}

/// Returns the file of a location that is a whole image, and the format of a file that is made there. Returns `None` for other locations,
/// because no file can be made for them.
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

/// Creates an image file of this size under a temporary name, or extends an existing raw image. `path` and `format` are those of `volume`.
/// The content of an existing image must be content that may be overwritten. The caller must hold the existing image (see
/// [`Context::hold`]), and must call [`Context::end_aside`] afterwards.
pub fn make(
    volume: &Location,
    (path, format): (&Path, Format),
    size: u64,
    overwrite: Overwrite,
    context: &Context,
) -> Result<Room, Failure> {
    let Some(image) = NewImage::create_aside(path, format)? else {
        if format != Format::Raw {
            return Ok(Room::Old);
        }
        // The positions of guard tags, and of the backup of a partition table, are relative to the end of the file. An extension would move
        // the end, so the tags and the backup would not be found.
        let held = context.held_file(volume);
        if path.is_file() {
            let file = BlockFile::open(path, &OpenMode { exclusive: false, ..OpenMode::default() });
            let file = file.map_err(|error| Failure::open(&error))?;
            if held != Some(file.file_id()) {
                return Err(new_image::replaced(path));
            }
            check(&Psync::new(Arc::new(file)), path.display(), overwrite)?;
        }
        return extend(path, size, held);
    };
    context.make_aside(volume, image.path());
    image.empty(size)?;
    Ok(Room::New(image))
}

/// Refuses to write a raw image under a name that suggests another format. The name is accepted if the content to write is itself an image
/// of that format (`holds` describes the content), or if `force` is set and the file exists.
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

/// Returns a hint on how to make an image of the format that a name suggests, or `None` if the name suggests no such format.
fn instead_of(path: &Path) -> Option<String> {
    let name = path.display();
    Some(match format_of(path).as_deref() {
        Some("qcow2") => {
            format!("write qcow2:{name} to make a qcow2 image")
        }
        // ironmap can read images in the formats VMDK and VHDX, but not write them. A user names such an image with the prefix of the
        // format.
        Some(format @ ("vmdk" | "vhdx")) => {
            format!(
                "{format}:{name} can be read but not written; qemu-img convert -O {format} makes an image of this format from a raw image"
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

/// Returns the format that the extension of a name suggests.
fn format_of(path: &Path) -> Option<String> {
    Some(path.extension()?.to_string_lossy().to_ascii_lowercase())
}

/// Returns the error for a target that cannot be made with compressed clusters.
pub fn not_compressed(target: &Location) -> Failure {
    Failure::usage(format!("{target}: only a new image can be compressed: name it qcow2:FILE"))
}

/// Returns the error for a new volume whose image cannot be opened. Unlike a raw image, a missing virtual disk image is not created.
pub fn missing(volume: &Location, error: Error) -> Error {
    let Medium::Image(address) = &volume.data().medium else { return error };
    if error.errno() != Errno::ENOENT || address.path.symlink_metadata().is_ok() {
        return error;
    }
    let what = "the image does not exist: give a size to make a new image";
    Error::new(ErrorKind::NotFound, what).at(volume)
}

/// Refuses a device whose content must not be overwritten.
///
/// # Errors
/// A failure of the kind `Exists` if the device has known content; the errors of [`check_member`].
pub fn check(
    device: &dyn Device,
    place: impl Display,
    overwrite: Overwrite,
) -> Result<(), Failure> {
    check_member(device, &place, overwrite)?;
    match overwrite {
        Overwrite::Unknown => {
            ironmap::tools::check_empty(device).map_err(|error| Failure::open(&error.at(place)))
        }
        _ => Ok(()),
    }
}

/// Refuses a device that an array or a volume group uses, or that has a partition that they use, unless members may be overwritten.
///
/// # Errors
/// [`Failure::is_of_member`]; the errors of the device.
pub fn check_member(
    device: &dyn Device,
    place: impl Display,
    overwrite: Overwrite,
) -> Result<(), Failure> {
    if overwrite == Overwrite::Members {
        return Ok(());
    }
    ironmap::tools::check_member(device).map_err(|error| {
        let is_member = error.kind() == ErrorKind::Busy;
        let error = error.at(place);
        if is_member { Failure::of_member(&error) } else { Failure::open(&error) }
    })
}

/// Refuses a range of a device whose content must not be overwritten.
///
/// # Errors
/// The errors of [`check`].
pub fn check_range(
    device: &Arc<dyn Device>,
    range: &Range<u64>,
    place: impl Display,
    overwrite: Overwrite,
) -> Result<(), Failure> {
    if *range == (0..device.size()) {
        return check(&**device, place, overwrite);
    }
    let part = [Segment::linear(range.start, range.end - range.start)];
    let part = Segmented::new(Arc::clone(device), &part);
    check(&part.map_err(|error| Failure::open(&error))?, place, overwrite)
}

/// Refuses to replace a block device or an image whose content must not be overwritten. A pipe or a terminal has no content, so it is
/// accepted.
///
/// # Errors
/// The errors of [`check`]; the errors of the host.
pub fn check_replaced(path: &Path, overwrite: Overwrite) -> Result<(), Failure> {
    let kind = path.metadata().map(|metadata| metadata.file_type());
    if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        return Ok(());
    }
    let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
    match BlockFile::open(path, &mode) {
        Ok(file) => check(&Psync::new(Arc::new(file)), path.display(), overwrite),
        // The file cannot be read, so it is not known whether it has content. The permissions of the host decide whether it can be
        // replaced.
        Err(error) if error.errno() == Errno::EACCES => Ok(()),
        Err(error) => Err(Failure::open(&error)),
    }
}

/// Extends an image file that is too short. Does not change a device, or an image that is long enough. `held` is the file whose lock the
/// caller holds (see [`Context::hold`]).
///
/// # Errors
/// The path names an image that is not held; the errors of the host.
pub fn extend(path: &Path, size: u64, held: Option<FileId>) -> Result<Room, Failure> {
    let failed = |error| Failure::host(path.display(), error);
    if !path.metadata().map_err(failed)?.is_file() {
        return Ok(Room::Old);
    }
    let file = open_held(path, held)?;
    let from = file.metadata().map_err(failed)?.len();
    if from >= size {
        return Ok(Room::Old);
    }
    file.set_len(size).map_err(failed)?;
    Ok(Room::Extended { file, from })
}

/// Opens an image for a change of its length. The caller holds the lock of the image.
///
/// # Errors
/// The path names another file; the errors of the host.
pub fn open_held(path: &Path, held: Option<FileId>) -> Result<File, Failure> {
    let failed = |error| Failure::host(path.display(), error);
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if held.is_some_and(|held| held.is_of(&found)) {
        Ok(file)
    } else {
        Err(new_image::replaced(path))
    }
}
