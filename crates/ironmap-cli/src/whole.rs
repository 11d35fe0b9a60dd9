//! A file of the host that appears under its name once it is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::room;
use crate::spared::Spared;

/// A file that is being written. An existing file stays as it is until [`keep`](Self::keep); dropped before that, it leaves nothing.
pub(crate) struct Whole {
    path: PathBuf,
    /// Where it is written; `None` for a device or a pipe, which is written itself.
    part: Option<PathBuf>,
}

impl Whole {
    /// Begins a file that will replace the existing one of this name, which must not be `spared`, nor hold something that is known, unless by `force`.
    ///
    /// # Errors
    /// It is one of these, or the host refuses.
    pub(crate) fn create(
        path: &Path,
        spared: &Spared,
        force: bool,
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
            room::check_replaced(&path)?;
        }
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let file = File::options().write(true).open(&path).map_err(failed)?;
            return Ok((Self { path, part: None }, file));
        }
        let part = path.with_file_name(format!(".ironmap-{}.part", std::process::id()));
        let file = File::create_new(&part).map_err(failed)?;
        let whole = Self { path, part: Some(part) };
        if let Some(there) = there {
            file.set_permissions(there.permissions()).map_err(failed)?;
        }
        Ok((whole, file))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        let Some(part) = self.part.take() else { return Ok(()) };
        fs::rename(&part, &self.path).map_err(|error| {
            self.part = Some(part);
            Failure::host(self.path.display(), error)
        })
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(part);
        }
    }
}
