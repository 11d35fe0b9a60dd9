//! A qcow2 image with its backing files. Each image names its backing file. Each file is checked before its backing file is opened.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::file::{Identity, ImageFile, identity_of};
use super::header::Header;
use crate::error::{Context, Error, ErrorKind, Result};

/// The largest number of images in a chain. A chain consists of an image and its backing files.
const MAX_DEPTH: usize = 32;

/// An image of a chain.
#[derive(Debug)]
pub(in crate::device::image) struct Link {
    pub(in crate::device::image) file: ImageFile,
    /// The header, or `None` for a raw image.
    pub(in crate::device::image) header: Option<Header>,
    /// The file with the data, if the image contains only the tables.
    pub(in crate::device::image) data: Option<ImageFile>,
}

/// Opens an image and its backing files. The image is the first element of the result. Only this image is opened for writing.
pub(in crate::device::image) fn open(path: &Path, write: bool, locked: bool) -> Result<Vec<Link>> {
    let mut links: Vec<Link> = Vec::new();
    let mut seen: Vec<Identity> = Vec::new();
    let mut next = Some((path.to_owned(), true));
    while let Some((path, is_qcow2)) = next.take() {
        let within = |error: Error| match links.last() {
            Some(above) => error.context("backing file").at(above.file.path().display()),
            None => error,
        };
        let identity = identity_of(&path).map_err(within)?;
        if seen.contains(&identity) {
            let what = format!("{} is in its own chain of backing files", path.display());
            return Err(within(Error::new(ErrorKind::Corrupt, what)));
        }
        if seen.len() == MAX_DEPTH {
            let what = format!("the chain of backing files has more than {MAX_DEPTH} images");
            return Err(within(Error::new(ErrorKind::LimitExceeded, what)));
        }
        seen.push(identity);
        let file = ImageFile::open(&path, write && links.is_empty(), locked).map_err(within)?;
        let shown = || path.display();
        let header =
            if is_qcow2 { Some(Header::read(&file).at(shown).map_err(within)?) } else { None };
        if let Some((name, format)) = header.as_ref().and_then(|header| header.backing.as_ref()) {
            let below = backing(&path, name, format.as_deref()).at(shown).map_err(within)?;
            next = Some(below);
        }
        let data = match header.as_ref().and_then(|header| header.data_file.as_ref()) {
            Some(name) => {
                let data = path_of(&path, name, "data file").at(shown).map_err(within)?;
                Some(ImageFile::open(&data, false, locked).map_err(within)?)
            }
            None => None,
        };
        links.push(Link { file, header, data });
    }
    Ok(links)
}

/// Returns the path of a file that another image names. `above` is the path of that image.
fn path_of(above: &Path, name: &[u8], what: &str) -> Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(name));
    let colon = name.iter().position(|byte| *byte == b':');
    let slash = name.iter().position(|byte| *byte == b'/');
    // If a colon precedes the first slash, QEMU interprets the name as a protocol and an address.
    if colon.is_some_and(|colon| slash.is_none_or(|slash| colon < slash)) {
        return Err(Error::unsupported(format!(
            "the image names its {what} {} by a protocol and an address: only a path is supported",
            path.display()
        )));
    }
    Ok(above.parent().unwrap_or(Path::new("")).join(path))
}

/// Returns the path of the backing file that an image names, and whether the backing file is a qcow2 image.
fn backing(above: &Path, name: &[u8], format: Option<&str>) -> Result<(PathBuf, bool)> {
    let path = path_of(above, name, "backing file")?;
    let shown = Path::new(OsStr::from_bytes(name)).display();
    match format {
        Some("qcow2") => Ok((path, true)),
        Some("raw") => Ok((path, false)),
        Some(other) => Err(Error::unsupported(format!(
            "the backing file {shown} has the format {other}, which is not supported"
        ))),
        None => Err(Error::unsupported(format!(
            "the image does not record the format of its backing file {shown}: qemu-img rebase -u -F FORMAT records it"
        ))),
    }
}
