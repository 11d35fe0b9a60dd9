//! Files of the host that appear under their names once they are whole and durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ironmap_image::Failure;
use ironmap_image::part::part_name;
use ironmap_image::spared::Spared;

use crate::room;

/// A file that is being written. An existing file stays as it is until [`keep`](Self::keep); dropped before that, it leaves nothing. Only where no
/// other file can take its place is it written itself.
pub(crate) struct Whole {
    path: PathBuf,
    /// Where it is written; `None` where the file itself is written.
    part: Option<PathBuf>,
    /// The same open file that the writer has; `None` for a pipe or a terminal, which has nothing to sync.
    file: Option<File>,
    /// The existing file keeps its inode, since it has several names or another owner.
    in_place: bool,
}

impl Whole {
    /// Begins a file that will replace the existing one of this name. That must not be `spared`, nor hold something that is known, unless by `force`; the error says
    /// what to do `instead`.
    ///
    /// # Errors
    /// It is one of these, or the host refuses.
    pub(crate) fn create(
        path: &Path,
        spared: &Spared,
        force: bool,
        instead: &str,
    ) -> Result<(Self, File), Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let named = path;
        // Through links, as every program writes.
        let path = path.canonicalize().unwrap_or_else(|_| room::target_of(path));
        let there = match named.metadata() {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if spared.has(&path) {
            let what = format!("{}: is the source volume", path.display());
            return Err(Failure::new(what));
        }
        if let Some(file) = there.as_ref().and_then(inherited) {
            return Self::itself(path, file, true).map_err(failed);
        }
        if !force {
            room::check_replaced(&path, instead)?;
        }
        let special = there.as_ref().map(fs::Metadata::file_type).filter(|kind| !kind.is_file());
        if let Some(kind) = special {
            let file = File::options().write(true).open(&path).map_err(failed)?;
            return Self::itself(path, file, kind.is_block_device()).map_err(failed);
        }
        let part = path.with_file_name(part_name());
        let file = match File::create_new(&part) {
            Ok(file) => file,
            // The user may write the file, and not its directory.
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
            whole.in_place = there.nlink() > 1 || owner(&there) != owner(&new);
        }
        Ok((whole, file))
    }

    /// A file that no other one can replace.
    fn itself(path: PathBuf, file: File, synced: bool) -> io::Result<(Self, File)> {
        let same = synced.then(|| file.try_clone()).transpose()?;
        Ok((Self { path, part: None, file: same, in_place: false }, file))
    }

    /// Gives the file its name, once its content is durable: a power cut leaves the old file or the new one.
    ///
    /// # Errors
    /// The host's.
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
            // The file is a mount by itself.
            Err(error) if is_mount(&error) => copy(part, &self.path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
        sync_name(&self.path);
        Ok(())
    }
}

/// Writes a file over another one, which keeps its inode.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(to)?;
    io::copy(&mut File::open(from)?, &mut file)?;
    file.sync_all()
}

/// The output stream of this process that a file is: /dev/stdout is one. Such a file may have no name, and it keeps the content that it has.
fn inherited(there: &fs::Metadata) -> Option<File> {
    let streams =
        [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    streams.into_iter().flatten().map(File::from).find_map(|file| {
        let stat = file.metadata().ok()?;
        let same = stat.is_file() && (stat.dev(), stat.ino()) == (there.dev(), there.ino());
        same.then_some(file)
    })
}

/// Whether a file could not be made because of its directory.
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

/// A result of a command: a file that is opened before the work and written after it.
pub(crate) struct Output {
    whole: Whole,
    file: File,
}

impl Output {
    /// Opens it. A file that holds a volume or the like is not replaced.
    ///
    /// # Errors
    /// As [`Whole::create`].
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let instead = "name another file for the results";
        let (whole, file) = Whole::create(path, &Spared::default(), false, instead)?;
        Ok(Self { whole, file })
    }

    /// Writes it.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn write(mut self, content: &str) -> Result<(), Failure> {
        let written = self.file.write_all(content.as_bytes());
        written.map_err(|error| Failure::host(self.whole.path.display(), error))?;
        self.whole.keep()
    }
}

/// Makes the name of a file durable, as far as its directory can be synced.
pub(crate) fn sync_name(path: &Path) {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = File::open(dir.unwrap_or(Path::new(".")));
    let _ = dir.and_then(|dir| dir.sync_all());
}
