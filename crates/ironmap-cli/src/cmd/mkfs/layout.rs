//! Where the files of an image layout are: in a directory, or in a tar archive of one, where each is a range of the archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ironmap::fs::FileType;
use rustix::io::Errno;

use super::fill::Place;
use crate::archive::{Archive, Input, normal};
use crate::failure::Failure;

/// The longest index or manifest. The specification asks registries to take 4 MiB; archives of ten thousands of layers have longer ones.
const LARGEST: u64 = 16 << 20;
/// How often a name of an archive may lead to another one.
const LINKS: u32 = 8;

pub(super) enum Layout {
    Directory(PathBuf),
    Archive(PathBuf, HashMap<Vec<u8>, Kept>),
}

/// A member of an archive.
pub(super) enum Kept {
    /// Where its content begins, and how long it is.
    Content(u64, u64),
    /// The member that it stands for.
    Link(Vec<u8>),
}

impl Layout {
    /// A directory, or an archive where one of its members has one of these names. `None` for all else, also for an archive that is compressed
    /// or can be read once only.
    ///
    /// # Errors
    /// The archive cannot be read, or is damaged.
    pub(super) fn open(path: &Path, marks: &[&str]) -> Result<Option<Self>, Failure> {
        match path.metadata() {
            Ok(found) if found.is_dir() => return Ok(Some(Self::Directory(path.to_owned()))),
            Ok(found) if found.is_file() => {}
            _ => return Ok(None),
        }
        let mut archive = members(path)?;
        if !archive.is_plain() {
            return Ok(None);
        }
        // Most are layers, and may have millions of members.
        loop {
            let Some(member) = archive.next()? else { return Ok(None) };
            if marks.iter().any(|mark| member.path == mark.as_bytes()) {
                break;
            }
        }
        let (mut archive, mut kept) = (members(path)?, HashMap::new());
        while let Some(member) = archive.next()? {
            let (name, stat) = (member.path, &member.stat);
            let what = match (member.link, member.target, &member.data[..]) {
                (Some(link), ..) => Kept::Link(link),
                (_, Some(target), _) => {
                    let slash = name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    Kept::Link(normal(&[&name[..slash], b"/", &target].concat()))
                }
                (.., []) if stat.file_type == FileType::Regular && stat.size == 0 => {
                    Kept::Content(archive.position(), 0)
                }
                (.., [(0, len)]) if *len == stat.size => Kept::Content(archive.position(), *len),
                _ => continue,
            };
            kept.insert(name, what);
        }
        Ok(Some(Self::Archive(path.to_owned(), kept)))
    }

    /// How messages name a file of it.
    pub(super) fn shown(&self, name: &str) -> String {
        match self {
            Self::Directory(dir) => dir.join(name).display().to_string(),
            Self::Archive(path, _) => format!("{}: {name}", path.display()),
        }
    }

    /// A file of it, and its length.
    ///
    /// # Errors
    /// `NotFound`: it has no file of this name.
    pub(super) fn find(&self, name: &str) -> io::Result<(Place, u64)> {
        let missing = || io::Error::from(Errno::NOENT);
        let shown = self.shown(name);
        match self {
            Self::Directory(dir) => {
                let path = dir.join(name);
                let found = path.metadata()?;
                let len = if found.is_file() { found.len() } else { return Err(missing()) };
                Ok((Place { path, part: None, shown, in_layout: true }, len))
            }
            Self::Archive(path, kept) => {
                let mut name = name.as_bytes();
                for _ in 0..LINKS {
                    match kept.get(name).ok_or_else(missing)? {
                        Kept::Link(other) => name = other,
                        Kept::Content(at, len) => {
                            let (path, part) = (path.clone(), Some((*at, *len)));
                            return Ok((Place { path, part, shown, in_layout: true }, *len));
                        }
                    }
                }
                Err(Errno::LOOP.into())
            }
        }
    }

    /// The content of an index or a manifest; `None` where there is no such file.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let failed = |error| self.failed(name, error);
        let place = match self.find(name) {
            Ok((place, _)) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut text = Vec::new();
        let input = place.input().map_err(failed)?;
        input.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(self.wrong(name, "is longer than 16 MiB"));
        }
        Ok(Some(text))
    }

    /// The failure of finding or reading a file.
    pub(super) fn failed(&self, name: &str, error: impl Into<io::Error>) -> Failure {
        Failure::host(self.shown(name), error)
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> Failure {
        Failure::new(format!("{}: {what}", self.shown(name)))
    }
}

fn members(path: &Path) -> Result<Archive, Failure> {
    Archive::new(path.display().to_string(), || File::open(path).map(Input::new))
}
