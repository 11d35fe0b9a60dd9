//! New image files. An image is given its final name when it is complete.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ironmap::device::image::{self, CreateOptions, ImageFormat};
use ironmap::location::{LocationOptions, Medium, Part, Site};
use ironmap::units::DevOffset;
use ironmap::{Error, Location};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno as OsErrno;

use crate::context::Context;
use crate::device_name;
use crate::failure::Failure;
use crate::replaced::{Replaced, is_same};
use crate::room::Format;
use crate::stop::Stop;

/// An image file that this command has created. Dropping this value removes the file unless it was kept.
pub struct NewImage {
    /// An `O_PATH` descriptor. Any other descriptor would prevent a lease on the file, and without a lease, it is not possible to check
    /// whether a loop device uses the image.
    file: File,
    path: PathBuf,
    format: Format,
    /// The final name, if the image is made under a temporary name.
    name: Option<PathBuf>,
    /// The existing image that this image will replace.
    replaces: Option<Box<Replaced>>,
    /// The request to end the compression early, if the clusters are compressed when the image is complete.
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
    /// other program sees an incomplete image. Returns `None` if the file exists. If the name is a symbolic link to a missing file, creates
    /// the target of the link.
    pub fn create_aside(path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let name = target_of(path);
        match name.symlink_metadata() {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == IoErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        device_name::check(&name)?;
        match Self::aside(&name, path, format)? {
            Some(image) => Ok(Some(image)),
            None => Self::create(path, format),
        }
    }

    /// Creates an image under a temporary name in the directory of `path`. [`keep`](Self::keep) replaces the existing image, which stays
    /// locked until then. The new image gets the owner, permissions and extended attributes of the existing image.
    ///
    /// # Errors
    /// The errors of the host.
    pub fn create_over(
        path: &Path,
        format: Format,
        replaced: Replaced,
        context: &Context,
    ) -> Result<Self, Failure> {
        let long = || Failure::host(path.display(), io::Error::from(IoErrorKind::InvalidFilename));
        let name = target_of(path);
        let mut image = Self::aside(&name, path, format)?.ok_or_else(long)?;
        replaced.carry(&name, &image.path, context)?;
        image.replaces = Some(Box::new(replaced));
        Ok(image)
    }

    /// Creates an image under a temporary name in the directory of its final name. Returns `None` if a temporary name is too long for the
    /// host.
    fn aside(name: &Path, path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let (dir, process) = (name.parent().unwrap_or(Path::new("")), std::process::id());
        for _ in 0..NAMES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let aside = dir.join(format!(".ironmap-{process}-{number}"));
            match File::create_new(&aside) {
                Ok(made) => return Self::of(&made, aside, format, Some(name.to_owned())).map(Some),
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => {}
                // A temporary name that is longer than the final name can be too long for the host. The image is then created under its
                // final name.
                Err(error) if error.kind() == IoErrorKind::InvalidFilename => break,
                Err(error) => return Err(Failure::host(path.display(), error)),
            }
        }
        Ok(None)
    }

    /// Creates an image. Returns `None` if the file exists. If the name is a symbolic link to a missing file, creates the target of the
    /// link.
    fn create(path: &Path, format: Format) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let target = target_of(path);
        let made = match File::create_new(&target) {
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(failed)?,
        };
        Self::of(&made, target, format, None).map(Some)
    }

    /// Returns the image of a file that was just made at `path`.
    fn of(
        made: &File,
        path: PathBuf,
        format: Format,
        name: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        // The file is opened a second time by its name, because its link in /proc could be missing, for example in a chroot.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| failed(errno.into()))?);
        if !is_same(&made.metadata().map_err(failed)?, &file.metadata().map_err(failed)?) {
            return Err(replaced(&path));
        }
        Ok(Self { file, path, format, name, replaces: None, compresses: None, kept: false })
    }

    /// The current path of the image, with symbolic links followed.
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
        // Another program may have replaced the image, so the path may now name another file.
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

    /// Copies the image to a new image with compressed clusters, and returns the new image. A cluster can be compressed only at its first
    /// write, but a volume is filled by many writes to the same clusters. Therefore, the clusters are compressed after the volume is
    /// complete.
    fn packed(mut self, stop: &Stop) -> Result<Self, Failure> {
        const PIECE: u64 = 1 << 20;
        let name = self.name.clone().unwrap_or_else(|| self.path.clone());
        let failed = |error: Error| Failure::at(name.display(), &error);
        let long = || Failure::host(name.display(), io::Error::from(IoErrorKind::InvalidFilename));
        let mut packed = Self::aside(&name, &name, self.format)?.ok_or_else(long)?;
        packed.replaces = self.replaces.take();
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

    /// Keeps the file under its final name. The name becomes durable if the directory of the file can be synced.
    ///
    /// # Errors
    /// Fails if another file has the final name, or if another program has removed or replaced the image at its current path.
    pub fn keep(mut self) -> Result<(), Failure> {
        if let Some(stop) = self.compresses.take() {
            return self.packed(&stop)?.keep();
        }
        if !self.has_name() {
            return Err(replaced(&self.path));
        }
        if let Some(name) = &self.name {
            let renamed = match &self.replaces {
                Some(old) if !old.has_name(name) => return Err(replaced(name)),
                Some(_) => std::fs::rename(&self.path, name),
                None => rename_new(&self.path, name),
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

    /// Whether the name still refers to this file.
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
            // The code ignores an error, because a destructor cannot report it. The file then remains.
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
        // The file system does not support `RenameFlags::NOREPLACE`, so this code tries a hard link.
        Err(OsErrno::INVAL | OsErrno::NOSYS) => match std::fs::hard_link(from, to) {
            Ok(()) => std::fs::remove_file(from),
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => Err(error),
            Err(_) if to.symlink_metadata().is_ok() => Err(IoErrorKind::AlreadyExists.into()),
            // The file system does not support hard links either.
            Err(_) => std::fs::rename(from, to),
        },
        renamed => renamed.map_err(io::Error::from),
    }
}

/// Returns the error for an image whose path now names another file.
pub fn replaced(path: &Path) -> Failure {
    Failure::new(format!("{}: another program has replaced the image", path.display()))
}

/// Returns the target of a path. All symbolic links are followed, even if the last link points to a missing file.
pub fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    // The kernel follows at most 40 symbolic links.
    for _ in 0..40 {
        let Ok(link) = target.read_link() else { break };
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}

/// Makes the name of a file durable if its directory can be synced.
pub fn sync_name(path: &Path) {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = File::open(dir.unwrap_or(Path::new(".")));
    let _ = dir.and_then(|dir| dir.sync_all());
}
