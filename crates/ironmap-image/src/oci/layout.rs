//! The files of an image layout: in a directory, or in a tar archive, where each file is a range of the archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::fs::FileType;
use rustix::io::Errno;

use super::is_of_images;
use crate::archive::{Archive, Input, Member, decompressed, normal};
use crate::copy::into::Role;
use crate::failure::Failure;
use crate::place::Place;
use crate::stop::Stop;

/// The maximum length of an index or manifest. The specification asks registries to accept 4 MiB, but an image with tens of thousands of
/// layers needs more.
const LARGEST: u64 = 16 << 20;
/// The maximum memory for the names of an archive. An archive of images contains a few hundred names for each image.
const NAMES: usize = 16 << 20;
/// The maximum number of links to follow from a name of an archive.
const LINKS: u32 = 8;

/// An image layout.
pub(super) struct Layout {
    files: Files,
    stop: Stop,
}

enum Files {
    Directory(PathBuf),
    Archive(Packed, HashMap<Vec<u8>, Kept>),
}

/// An archive of images.
struct Packed {
    path: PathBuf,
    /// The decompressed content, if the archive is compressed.
    unpacked: Option<Arc<File>>,
}

/// A member of an archive.
enum Kept {
    /// The content of a file: its position and its length in the archive.
    Content(u64, u64),
    /// A link: the path of the member to which it points.
    Link(Vec<u8>),
}

impl Layout {
    /// Opens a directory, or an archive of images. One of its members identifies an archive of images. Returns `None` for any other file,
    /// and for an archive that can be read only once. `spool` stores the content of a compressed archive that may contain images.
    ///
    /// # Errors
    /// Fails if the archive cannot be read, or if it is damaged.
    pub(super) fn open(
        path: &Path,
        marks: &[&str],
        stop: &Stop,
        spool: &dyn Fn(&mut dyn Read) -> Result<File, Failure>,
    ) -> Result<Option<Self>, Failure> {
        match path.metadata() {
            Ok(found) if found.is_dir() => {
                let (files, stop) = (Files::Directory(path.to_owned()), stop.clone());
                return Ok(Some(Self { files, stop }));
            }
            Ok(found) if found.is_file() => {}
            _ => return Ok(None),
        }
        let mut packed = Packed { path: path.to_owned(), unpacked: None };
        let mut archive = packed.members(stop)?;
        let is_plain = archive.is_plain();
        // Most archives are layers, which may have millions of members. Therefore, the loop ends at the first member that an archive of
        // images does not have.
        loop {
            let Some(member) = archive.next()? else { return Ok(None) };
            if marks.iter().any(|mark| member.path == mark.as_bytes())
                && shows_images(&mut archive, &member)?
            {
                break;
            }
            // Only a compressed archive is abandoned early. In an uncompressed archive, a member can be skipped without reading it, so all
            // members are checked.
            if !is_plain && !may_be_of_images(&member) {
                return Ok(None);
            }
        }
        if !is_plain {
            let content =
                File::open(path).map(|file| Input::new(file, stop)).and_then(decompressed);
            let mut content = content.map_err(|error| Failure::host(path.display(), error))?;
            packed.unpacked = Some(Arc::new(spool(&mut content)?));
        }
        let (mut archive, mut kept) = (packed.members(stop)?, HashMap::new());
        let mut memory = 0;
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
            let link = if let Kept::Link(link) = &what { link.len() } else { 0 };
            memory += name.len() + link + size_of::<(Vec<u8>, Kept)>();
            if memory > NAMES {
                return Ok(None);
            }
            kept.insert(name, what);
        }
        Ok(Some(Self { files: Files::Archive(packed, kept), stop: stop.clone() }))
    }

    /// Returns the name of a file of the layout for messages.
    pub(super) fn shown(&self, name: &str) -> String {
        match &self.files {
            Files::Directory(dir) => dir.join(name).display().to_string(),
            Files::Archive(packed, _) => format!("{}: {name}", packed.path.display()),
        }
    }

    /// Returns a file of the layout, and its length.
    ///
    /// # Errors
    /// `NotFound` if the layout has no file of this name.
    pub(super) fn find(&self, name: &str) -> io::Result<(Place, u64)> {
        let missing = || io::Error::from(Errno::NOENT);
        let shown = self.shown(name);
        match &self.files {
            Files::Directory(dir) => {
                let path = dir.join(name);
                let found = path.metadata()?;
                let len = if found.is_file() { found.len() } else { return Err(missing()) };
                Ok((Place { path, part: None, unpacked: None, shown, role: Role::Layer }, len))
            }
            Files::Archive(Packed { path, unpacked }, kept) => {
                let mut name = name.as_bytes();
                for _ in 0..LINKS {
                    match kept.get(name).ok_or_else(missing)? {
                        Kept::Link(other) => name = other,
                        Kept::Content(at, len) => {
                            let (path, part) = (path.clone(), Some((*at, *len)));
                            let unpacked = unpacked.clone();
                            let place = Place { path, part, unpacked, shown, role: Role::Layer };
                            return Ok((place, *len));
                        }
                    }
                }
                Err(Errno::LOOP.into())
            }
        }
    }

    /// Returns the content of an index or a manifest, or `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if it is too long.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let failed = |error| self.failed(name, error);
        let place = match self.find(name) {
            Ok((place, _)) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut text = Vec::new();
        let input = place.input(&self.stop).map_err(failed)?;
        input.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(self.wrong(name, "is longer than 16 MiB"));
        }
        Ok(Some(text))
    }

    /// Returns the failure to find or read a file.
    pub(super) fn failed(&self, name: &str, error: impl Into<io::Error>) -> Failure {
        Failure::host(self.shown(name), error)
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> Failure {
        Failure::new(format!("{}: {what}", self.shown(name)))
    }
}

impl Packed {
    fn members(&self, stop: &Stop) -> Result<Archive, Failure> {
        Archive::new(self.path.display().to_string(), || match &self.unpacked {
            Some(file) => Input::shared(file, 0, file.metadata()?.len()),
            None => File::open(&self.path).map(|file| Input::new(file, stop)),
        })
    }
}

/// Whether a member shows that the archive contains images. The member's content is checked too, because any tree may contain a file with
/// the same name.
fn shows_images(archive: &mut Archive, member: &Member) -> Result<bool, Failure> {
    let len = match member.data[..] {
        [(0, len)] if len == member.stat.size && len <= LARGEST => len,
        _ => return Ok(true),
    };
    let mut content = vec![0; len as usize];
    archive.read(&mut content)?;
    Ok(is_of_images(&member.path, &content))
}

/// Whether an archive with this member may contain images: the member is a directory, or its name occurs in layouts or in the output of
/// `docker save`. At least one of the first members of a layer has another name.
fn may_be_of_images(member: &Member) -> bool {
    if member.stat.file_type == FileType::Directory {
        return true;
    }
    let name = member.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let ends = [&b".json"[..], b".tar", b".tar.gz", b".tgz"];
    member.path.starts_with(b"blobs/")
        || [&b"json"[..], b"VERSION", b"repositories"].contains(&name)
        || ends.iter().any(|end| name.ends_with(end))
}
