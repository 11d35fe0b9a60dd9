//! A VMDK image, for reading. The image is either one file that contains its descriptor, or a descriptor file with separate extent files in
//! the same directory.
//!
//! Source: VMware's technical note "Virtual Disk Format 1.1".

use std::path::{Path, PathBuf};

use super::driver::Driver;
use super::file::ImageFile;
use super::vmdk_sparse::{MAGIC, Sparse};
use crate::error::{Context, Error, ErrorKind, Place, Result};

/// The sector size in bytes. Positions and lengths in a VMDK image are in sectors.
pub(super) const SECTOR: u64 = 512;
/// The length in bytes of the longest descriptor, and the largest number of extents.
const MAX_DESCRIPTOR: u64 = 1 << 20;
const MAX_EXTENTS: usize = 256;

/// An open VMDK image.
#[derive(Debug)]
pub(super) struct Vmdk {
    /// The type of the image, as its descriptor names it: `monolithicSparse`.
    pub(super) kind: String,
    extents: Vec<Extent>,
    size: u64,
}

/// A part of the disk, and its content.
#[derive(Debug)]
struct Extent {
    start: u64,
    end: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Zeros,
    /// The file contains the bytes of this part contiguously, starting at this position.
    Flat(ImageFile, u64),
    Sparse(Sparse),
}

/// The fields of a descriptor that this reader uses.
#[derive(Debug, Default)]
struct Descriptor {
    kind: String,
    has_parent: bool,
    extents: Vec<Line>,
}

/// A line of the descriptor that describes an extent.
#[derive(Debug)]
struct Line {
    len: u64,
    kind: String,
    file: String,
    offset: u64,
}

fn corrupt(what: impl Into<String>) -> Error {
    Place::new("VMDK descriptor").corrupt(what.into())
}

impl Descriptor {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut found = Self::default();
        // A descriptor within the file of an extent is padded with zeros.
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(bytes);
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let value = |name: &str| {
                let rest = line.strip_prefix(name)?.trim_start().strip_prefix('=')?;
                Some(rest.trim().trim_matches('"'))
            };
            if let Some(kind) = value("createType") {
                kind.clone_into(&mut found.kind);
            } else if let Some(id) = value("parentCID") {
                found.has_parent |= !id.eq_ignore_ascii_case("ffffffff");
            } else if value("parentFileNameHint").is_some() {
                found.has_parent = true;
            } else if ["RW ", "RDONLY ", "NOACCESS "].iter().any(|way| line.starts_with(way)) {
                if found.extents.len() == MAX_EXTENTS {
                    let what = format!("the image has more than {MAX_EXTENTS} extents");
                    return Err(Error::new(ErrorKind::LimitExceeded, what));
                }
                found.extents.push(Line::parse(line)?);
            }
        }
        if found.has_parent {
            return Err(Error::unsupported("the image has a parent (a delta link)"));
        }
        Ok(found)
    }
}

impl Line {
    /// Parses a line such as `RW 4192256 SPARSE "disk-s001.vmdk"`. In the line of a flat extent, an offset may follow the name.
    fn parse(line: &str) -> Result<Self> {
        let wrong = || corrupt(format!("the extent line {line:?} is not valid"));
        let mut quoted = line.splitn(3, '"');
        let (head, file, tail) =
            (quoted.next().unwrap_or_default(), quoted.next(), quoted.next().unwrap_or_default());
        let mut words = head.split_whitespace();
        let way = words.next().ok_or_else(wrong)?;
        let len = words.next().and_then(|len| len.parse::<u64>().ok()).ok_or_else(wrong)?;
        let len = len.checked_mul(SECTOR).filter(|len| *len > 0).ok_or_else(wrong)?;
        let kind = words.next().ok_or_else(wrong)?.to_owned();
        if way == "NOACCESS" {
            return Err(Error::unsupported("the image has an extent with access NOACCESS"));
        }
        let offset = match tail.split_whitespace().next() {
            Some(offset) => {
                offset.parse::<u64>().ok().and_then(|offset| offset.checked_mul(SECTOR))
            }
            None => Some(0),
        };
        let offset = offset.ok_or_else(wrong)?;
        Ok(Self { len, kind, file: file.unwrap_or_default().to_owned(), offset })
    }

    /// Returns the path of the extent's file. The file must be in the directory of the descriptor, so that an image cannot name any other
    /// file of the host.
    fn path(&self, descriptor: &Path) -> Result<PathBuf> {
        if self.file.is_empty() || self.file.contains('/') || self.file == ".." {
            let what = format!("the extent {:?} is not in the directory of the image", self.file);
            return Err(Error::unsupported(what));
        }
        let path = descriptor.parent().unwrap_or(Path::new("")).join(&self.file);
        // The image may come from an untrusted archive, which may also contain a symbolic link. Therefore, the file of an extent must not
        // be a symbolic link.
        if path.is_symlink() {
            let what = format!("the extent {:?} is a symbolic link", self.file);
            return Err(Error::unsupported(what));
        }
        Ok(path)
    }

    fn open(&self, descriptor: &Path, locked: bool) -> Result<Content> {
        let file = || ImageFile::open(&self.path(descriptor)?, false, locked);
        match self.kind.as_str() {
            "ZERO" => Ok(Content::Zeros),
            "FLAT" | "VMFS" => {
                let file = file()?;
                let end = self.offset.checked_add(self.len).filter(|end| *end <= file.len());
                if end.is_none() {
                    let shown = file.path();
                    return Err(corrupt(format!(
                        "the file {} is shorter than the descriptor says",
                        shown.display()
                    )));
                }
                Ok(Content::Flat(file, self.offset))
            }
            "SPARSE" => {
                let (sparse, _) = Sparse::open(file()?)?;
                if sparse.size() < self.len {
                    return Err(corrupt(format!(
                        "the sparse extent {:?} is smaller than the descriptor says",
                        self.file
                    )));
                }
                Ok(Content::Sparse(sparse))
            }
            other => Err(Error::unsupported(format!("extents of type {other} are not supported"))),
        }
    }
}

impl Vmdk {
    pub(super) fn open(path: &Path, locked: bool) -> Result<Self> {
        let file = ImageFile::open(path, false, locked)?;
        Self::over(file, path, locked).at(|| path.display())
    }

    fn over(file: ImageFile, path: &Path, locked: bool) -> Result<Self> {
        let mut magic = [0; 21];
        file.read_at(&mut magic, 0)?;
        if &magic[..4] == MAGIC {
            let (sparse, (at, len)) = Sparse::open(file)?;
            let descriptor = read_descriptor(sparse.file(), at, len)?;
            let size = sparse.size();
            let extents = vec![Extent { start: 0, end: size, content: Content::Sparse(sparse) }];
            return Ok(Self { kind: descriptor.kind, extents, size });
        }
        if !magic.eq_ignore_ascii_case(b"# Disk DescriptorFile") {
            return Err(Error::new(ErrorKind::UnknownFormat, "this is not a VMDK image"));
        }
        let descriptor = read_descriptor(&file, 0, file.len())?;
        let (mut extents, mut size) = (Vec::new(), 0_u64);
        for line in &descriptor.extents {
            let end = size.checked_add(line.len).filter(|end| i64::try_from(*end).is_ok());
            let end = end.ok_or_else(|| corrupt("the disk has more than 2^63 bytes"))?;
            let content =
                line.open(path, locked).context(|| format!("open the extent {:?}", line.file))?;
            extents.push(Extent { start: size, end, content });
            size = end;
        }
        if extents.is_empty() {
            return Err(corrupt("the descriptor has no extents"));
        }
        Ok(Self { kind: descriptor.kind, extents, size })
    }

    /// Returns the allocation unit of the first extent in bytes, or 0 if this extent has none.
    pub(super) fn grain(&self) -> u64 {
        match self.extents.first().map(|extent| &extent.content) {
            Some(Content::Sparse(sparse)) => sparse.grain(),
            _ => 0,
        }
    }

    /// The files of the extents.
    pub(super) fn files(&self) -> Vec<(PathBuf, &'static str)> {
        let of = |extent: &Extent| match &extent.content {
            Content::Zeros => None,
            Content::Flat(file, _) => Some((file.path(), "flat")),
            Content::Sparse(sparse) => Some((sparse.file().path(), "sparse")),
        };
        self.extents.iter().filter_map(of).collect()
    }
}

fn read_descriptor(file: &ImageFile, at: u64, len: u64) -> Result<Descriptor> {
    if len > MAX_DESCRIPTOR {
        return Err(corrupt(format!("{len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, at)?;
    Descriptor::parse(&bytes)
}

impl Driver for Vmdk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let index = self.extents.partition_point(|extent| extent.end <= at);
            let Some(extent) = self.extents.get(index) else {
                return Err(Error::invalid(format!("byte {at} is past the end of the disk")));
            };
            let left = (extent.end - at).min(buf.len() as u64) as usize;
            let (part, rest) = buf.split_at_mut(left);
            let within = at - extent.start;
            match &extent.content {
                Content::Zeros => part.fill(0),
                Content::Flat(file, offset) => file.read_at(part, offset + within)?,
                Content::Sparse(sparse) => sparse.read(part, within)?,
            }
            at += left as u64;
            buf = rest;
        }
        Ok(())
    }
}
