//! The location of a source's content.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::archive::{Archive, Input};
use crate::copy::into::Role;
use crate::failure::Failure;
use crate::stop::Stop;

/// The location of a source's content: a file, or a part of a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// The position and length, if the content is only a part of the file.
    pub(crate) part: Option<(u64, u64)>,
    /// If the file at `path` is compressed: the decompressed file, which contains the part.
    pub(crate) unpacked: Option<Arc<File>>,
    /// The name of the source in messages.
    pub(crate) shown: String,
    pub(crate) role: Role,
}

impl Place {
    pub(crate) fn of(path: &Path, role: Role) -> Self {
        let (path, shown) = (path.to_owned(), shown(path));
        Self { path, part: None, unpacked: None, shown, role }
    }

    pub(crate) fn input(&self, stop: &Stop) -> io::Result<Input> {
        match (self.part, &self.unpacked) {
            _ if is_stdin(&self.path) => Input::stdin(stop),
            (Some((at, len)), Some(file)) => Input::shared(file, at, len),
            (Some((at, len)), None) => Input::part(&self.path, at, len),
            (None, _) => Input::open(&self.path, stop),
        }
    }

    pub(crate) fn archive(&self, stop: &Stop) -> Result<Archive, Failure> {
        Archive::new(self.shown.clone(), || self.input(stop))
    }
}

/// Returns the name of a source for messages.
pub fn shown(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Whether a path is `-`, which names standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The number of bytes that are stored between two checks of the request to stop.
const SPOOLED: u64 = 1 << 20;

/// Stores the content of a stream in an unnamed temporary file.
pub(crate) fn spool(
    dir: &Path,
    name: &str,
    input: &mut dyn Read,
    stop: &Stop,
) -> Result<File, Failure> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(|errno| Failure::host(dir.display(), errno))?);
    let failed = |error| {
        Failure::host(format_args!("write {name} to a temporary file in {}", dir.display()), error)
    };
    loop {
        stop.check()?;
        let count = io::copy(&mut input.take(SPOOLED), &mut file).map_err(failed)?;
        if count < SPOOLED {
            break;
        }
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}
