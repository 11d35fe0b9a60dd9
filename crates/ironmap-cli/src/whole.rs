//! Writes output files on the host. A file gets its name only when its content is complete and durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ironmap_image::new_image::{sync_name, target_of};
use ironmap_image::part::part_name;
use ironmap_image::replaced::carry_xattrs;
use ironmap_image::room::Overwrite;
use ironmap_image::spared::Spared;
use ironmap_image::{Failure, device_name, room};

use crate::failure::hint_at;

/// A new output file. [`keep`](Self::keep) replaces the existing file by the new file. If the value is dropped without `keep`, the new file
/// is removed. An existing file that cannot be replaced is written directly.
pub(crate) struct Whole {
    path: PathBuf,
    /// The path of the temporary file, or `None` if the file is written directly.
    part: Option<PathBuf>,
    /// A duplicate of the writer's descriptor, which is used to sync the file. `None` for a pipe or a terminal.
    file: Option<File>,
    /// Whether the content of the existing file is overwritten. The file then keeps its inode. This is done if the file has several names
    /// or another owner, or if an extended attribute cannot be set.
    in_place: bool,
}

impl Whole {
    /// Begins a file that will replace the existing file with this name. The existing file must not be in `spared`, and `overwrite` must
    /// permit the loss of its content. The error message suggests `instead`.
    ///
    /// # Errors
    /// Fails if the existing file must not be replaced, or if an operation of the host fails.
    pub(crate) fn create(
        path: &Path,
        spared: &Spared,
        overwrite: Overwrite,
        instead: &str,
    ) -> Result<(Self, File), Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let named = path;
        // Symbolic links are followed, as in every program that writes a file.
        let path = path.canonicalize().unwrap_or_else(|_| target_of(path));
        let there = match named.metadata() {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        device_name::check(named)?;
        if spared.has(&path) {
            let what = format!("{}: the file is the source volume", path.display());
            return Err(Failure::new(what));
        }
        if let Some(file) = there.as_ref().and_then(inherited) {
            return Self::itself(path, file, true).map_err(failed);
        }
        room::check_replaced(&path, overwrite).map_err(hint_at(instead))?;
        let special = there.as_ref().map(fs::Metadata::file_type).filter(|kind| !kind.is_file());
        if let Some(kind) = special {
            let file = File::options().write(true).open(&path).map_err(failed)?;
            return Self::itself(path, file, kind.is_block_device()).map_err(failed);
        }
        let part = path.with_file_name(part_name());
        let file = match File::create_new(&part) {
            Ok(file) => file,
            // The user may write to the existing file, but cannot create files in its directory. Therefore the file is written directly.
            Err(error) if there.is_some() && is_of_directory(&error) => {
                let file = File::options().write(true).truncate(true).open(&path);
                return Self::itself(path, file.map_err(failed)?, true).map_err(failed);
            }
            Err(error) => return Err(failed(error)),
        };
        let mut whole = Self { path, part: Some(part), file: None, in_place: false };
        whole.file = Some(file.try_clone().map_err(failed)?);
        if let Some(there) = there {
            file.set_permissions(there.permissions()).map_err(failed)?;
            let new = file.metadata().map_err(failed)?;
            let owner = |stat: &fs::Metadata| (stat.uid(), stat.gid());
            let carried = carry_xattrs(&whole.path, whole.part.as_deref().unwrap_or(named));
            let is_carried = carried.is_ok_and(|failed| failed.is_empty());
            whole.in_place = there.nlink() > 1 || owner(&there) != owner(&new) || !is_carried;
        }
        Ok((whole, file))
    }

    /// Returns a `Whole` for a file that cannot be replaced. The file is written directly.
    fn itself(path: PathBuf, file: File, synced: bool) -> io::Result<(Self, File)> {
        let same = synced.then(|| file.try_clone()).transpose()?;
        Ok((Self { path, part: None, file: same, in_place: false }, file))
    }

    /// Makes the content durable, and then gives the file its name. After a power cut, either the old file or the complete new file exists.
    ///
    /// # Errors
    /// The errors of the host.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        let failed = |error| Failure::host(self.path.display(), error);
        if let Some(file) = &self.file {
            file.sync_all().map_err(failed)?;
        }
        let Some(part) = &self.part else { return Ok(()) };
        let renamed =
            if self.in_place { Ok(false) } else { fs::rename(part, &self.path).map(|()| true) };
        match renamed {
            Ok(true) => self.part = None,
            Ok(false) => copy(part, &self.path).map_err(failed)?,
            // The existing file is a mount point. It cannot be replaced.
            Err(error) if is_mount(&error) => copy(part, &self.path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
        sync_name(&self.path);
        Ok(())
    }
}

/// Overwrites the file `to` with the content of `from`. The file `to` keeps its inode.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(to)?;
    io::copy(&mut File::open(from)?, &mut file)?;
    file.sync_all()
}

/// Returns a descriptor if the file is standard output or standard error of this process (for example /dev/stdout). Such a file may have no
/// name. Its existing content is kept.
fn inherited(there: &fs::Metadata) -> Option<File> {
    let streams =
        [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    streams.into_iter().flatten().map(File::from).find_map(|file| {
        let stat = file.metadata().ok()?;
        let same = stat.is_file() && (stat.dev(), stat.ino()) == (there.dev(), there.ino());
        same.then_some(file)
    })
}

/// Whether the error means that the directory does not accept a new file.
fn is_of_directory(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn is_mount(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices)
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(part);
        }
    }
}

/// An output file of a command. The command opens the file before its work, and writes the file after its work.
pub(crate) struct Output {
    whole: Whole,
    file: File,
}

impl Output {
    /// Opens the file. A file with a known format, such as a volume, is not replaced.
    ///
    /// # Errors
    /// The errors of [`Whole::create`].
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let instead = "name another file for the results";
        let (whole, file) = Whole::create(path, &Spared::default(), Overwrite::Unknown, instead)?;
        Ok(Self { whole, file })
    }

    /// Writes the content to the file, and gives the file its final name.
    ///
    /// # Errors
    /// The errors of the host.
    pub(crate) fn write(mut self, content: &str) -> Result<(), Failure> {
        let written = self.file.write_all(content.as_bytes());
        written.map_err(|error| Failure::host(self.whole.path.display(), error))?;
        self.whole.keep()
    }
}
