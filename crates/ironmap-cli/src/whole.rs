//! Files of the host that appear under their names once they are whole and durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::failure::Failure;
use crate::room;
use crate::spared::Spared;

/// A file that is being written. An existing file stays as it is until [`keep`](Self::keep); dropped before that, it leaves nothing.
pub(crate) struct Whole {
    path: PathBuf,
    /// Where it is written; `None` for a device or a pipe, which is written itself.
    part: Option<PathBuf>,
    /// The same open file that the writer has; `None` for a pipe or a terminal, which has nothing to sync.
    file: Option<File>,
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
        // Through links, as every program writes.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let there = match path.metadata() {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if spared.has(&path) {
            let what = format!("{}: is the source volume", path.display());
            return Err(Failure::new(what));
        }
        if !force {
            room::check_replaced(&path, instead)?;
        }
        let special = there.as_ref().map(fs::Metadata::file_type).filter(|kind| !kind.is_file());
        if let Some(kind) = special {
            let file = File::options().write(true).open(&path).map_err(failed)?;
            let synced = kind.is_block_device().then(|| file.try_clone()).transpose();
            return Ok((Self { path, part: None, file: synced.map_err(failed)? }, file));
        }
        // A command may write several at a time.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let part = path.with_file_name(format!(".ironmap-{}-{number}.part", std::process::id()));
        let file = File::create_new(&part).map_err(failed)?;
        let mut whole = Self { path, part: Some(part), file: None };
        whole.file = Some(file.try_clone().map_err(failed)?);
        if let Some(there) = there {
            file.set_permissions(there.permissions()).map_err(failed)?;
        }
        Ok((whole, file))
    }

    /// Gives the file its name, once its content is durable: a power cut leaves the old file or the new one.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            file.sync_all().map_err(|error| Failure::host(self.path.display(), error))?;
        }
        let Some(part) = self.part.take() else { return Ok(()) };
        fs::rename(&part, &self.path).map_err(|error| {
            self.part = Some(part);
            Failure::host(self.path.display(), error)
        })?;
        sync_name(&self.path);
        Ok(())
    }
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
