//! A file in one of the compared trees. The tree is in a volume or on the host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use ironmap::bio::Buffer;
use ironmap::fs::{Follow, Stat, Xattr};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, Queue};
use ironmap_image::Failure;
use ironmap_image::ahead::CHUNK;
use ironmap_image::host_stat;
use ironmap_image::source::Source;
use ironmap_image::transfer;
use ironmap_image::volumes::Found;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

pub(super) enum Side {
    Volume(Found),
    /// A path of the host. If it is a symbolic link, `Follow` determines whether the link is followed.
    Host(PathBuf, Follow),
}

impl Side {
    pub(super) fn stat(&self) -> Result<Stat, Failure> {
        match self {
            Self::Volume(found) => Ok(found.inode.stat().clone()),
            Self::Host(path, follow) => {
                let stat = host_stat::stat(path, *follow == Follow::All);
                stat.map_err(|errno| Failure::host(path.display(), errno))
            }
        }
    }

    /// The names in a directory, with their inode numbers. For a directory of the host, the numbers have no meaning.
    pub(super) fn names(&self) -> Result<BTreeMap<Vec<u8>, InodeNo>, Failure> {
        match self {
            Self::Volume(found) => {
                let entries = found.name.source.entries(&found.inode, found.name.path())?;
                let names = entries.into_iter().map(|entry| (entry.name, entry.inode));
                Ok(names.filter(|(name, _)| !matches!(&**name, b"." | b"..")).collect())
            }
            Self::Host(path, _) => {
                let failed = |error| Failure::host(path.display(), error);
                let entries = fs::read_dir(path).map_err(failed)?;
                let names = entries.map(|entry| {
                    let name = entry.map_err(failed)?.file_name();
                    Ok((name.as_bytes().to_vec(), InodeNo(0)))
                });
                names.collect()
            }
        }
    }

    /// The file with this name in the directory.
    pub(super) fn child(&self, name: &[u8], number: InodeNo) -> Result<Self, Failure> {
        match self {
            Self::Volume(found) => {
                let name = found.child(name);
                let inode = name.source.inode(number, name.path())?;
                Ok(Self::Volume(Found { name, inode }))
            }
            Self::Host(path, _) => {
                Ok(Self::Host(path.join(OsStr::from_bytes(name)), Follow::NotLast))
            }
        }
    }

    /// The target of a symbolic link.
    pub(super) fn link(&self) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Volume(found) => {
                let link = found.name.source.link_target(&found.inode, found.name.path())?;
                Ok(link.unwrap_or_default())
            }
            Self::Host(path, _) => {
                host_stat::link(path).map_err(|errno| Failure::host(path.display(), errno))
            }
        }
    }

    pub(super) fn xattrs(&self) -> Result<Vec<Xattr>, Failure> {
        match self {
            Self::Volume(found) => found.inode.xattrs().map_err(|error| found.failed(&error)),
            Self::Host(path, follow) => {
                let xattrs = host_stat::xattrs(path, *follow == Follow::All);
                xattrs.map_err(|errno| Failure::host(path.display(), errno))
            }
        }
    }

    fn content(&self) -> Result<Content, Failure> {
        match self {
            Self::Volume(found) => {
                let (source, path) = (&found.name.source, found.name.path());
                // The file may have changed since its inode was read, and an open file does not read its inode again. Therefore the inode
                // is read again here.
                let inode = source.inode(found.number(), path)?;
                let file = source.file(inode, path)?;
                Ok(Content::Volume { file, source: Rc::clone(source), path: path.to_vec() })
            }
            Self::Host(path, _) => {
                let file = fs::File::open(path);
                let file = file.map_err(|error| Failure::host(path.display(), error))?;
                Ok(Content::Host(file, path.clone()))
            }
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(found) => found.name.fmt(f),
            Self::Host(path, _) => path.display().fmt(f),
        }
    }
}

enum Content {
    Volume { file: File, source: Rc<Source>, path: Vec<u8> },
    Host(fs::File, PathBuf),
}

impl Content {
    /// The first range at or after `pos` that may contain data. The bytes before the range read as zeros. `None` if no data follows.
    fn data(&self, pos: u64, size: u64) -> Result<Option<Range<u64>>, Failure> {
        match self {
            Self::Volume { file, source, path } => {
                let failed = |error| source.read_failed(path, &error);
                let Some(start) = file.seek_data(pos).map_err(failed)? else { return Ok(None) };
                let end = file.seek_hole(start).map_err(failed)?;
                Ok(Some(start.0..end.map_or(size, |end| end.0)))
            }
            Self::Host(file, _) => {
                // A seek fails if the offset has more than 63 bits.
                let start = match seek(file, SeekFrom::Data(pos)) {
                    Ok(start) => start,
                    Err(Errno::NXIO) => return Ok(None),
                    // If the file system does not report holes, the complete file counts as data.
                    Err(_) => return Ok(Some(pos..u64::MAX)),
                };
                let end = seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX);
                Ok(Some(start..end))
            }
        }
    }
}

/// Reads the files of one tree. All reads use the same memory and the same queue.
pub(super) struct Reader {
    buffer: Buffer,
    queue: Option<Queue>,
}

impl Reader {
    pub(super) fn new() -> Result<Self, Failure> {
        let buffer = Buffer::aligned(CHUNK).map_err(|error| Failure::at("memory", &error))?;
        Ok(Self { buffer, queue: None })
    }

    fn read(&mut self, content: &Content, pos: u64) -> Result<&[u8], Failure> {
        let count = match content {
            Content::Volume { file, source, path } => {
                let queue = match &mut self.queue {
                    Some(queue) => queue,
                    none => none.insert(source.queue()?),
                };
                let count = transfer::read(file, queue, &mut self.buffer, FilePos(pos));
                count.map_err(|error| source.read_failed(path, &error))?
            }
            Content::Host(file, path) => {
                // The kernel refuses a read that ends after the largest file position.
                let most = (i64::MAX as u64).saturating_sub(pos).min(CHUNK as u64) as usize;
                let count = file.read_at(&mut self.buffer[..most], pos);
                count.map_err(|error| Failure::host(path.display(), error))?
            }
        };
        Ok(&self.buffer[..count])
    }
}

/// The position of the first difference between two files of equal size. Ranges that are holes in both files are not read.
pub(super) fn first_difference(
    a: &Side,
    b: &Side,
    size: u64,
    [a_reader, b_reader]: &mut [Reader; 2],
) -> Result<Option<u64>, Failure> {
    let (a, b) = (a.content()?, b.content()?);
    let mut pos = 0;
    // `end` is the end of the last range in which one of the files may have data.
    let mut end = 0;
    loop {
        if pos >= end && pos < size {
            let found = [a.data(pos, size)?, b.data(pos, size)?];
            let next = found.into_iter().flatten().min_by_key(|data| data.start);
            // Common holes are skipped up to the size of the files. A file may have grown, so the loop continues up to the end of both
            // files.
            (pos, end) = next.map_or((size, size), |data| (data.start.max(pos), data.end));
        }
        let (ours, theirs) = (a_reader.read(&a, pos)?, b_reader.read(&b, pos)?);
        let both = ours.len().min(theirs.len());
        if ours[..both] != theirs[..both] {
            let at = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(both);
            return Ok(Some(pos + at as u64));
        }
        if both == 0 {
            return Ok((ours.len() != theirs.len()).then_some(pos));
        }
        pos += both as u64;
    }
}
