//! Reads the members of an archive in order.

use std::io::{self, Read};

use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::units::InodeNo;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::pax::Overrides;
use super::stream::{Input, Stream};
use super::{sparse, stream};
use crate::failure::Failure;

/// The maximum length of the headers before a member (a long name, extended headers). These headers are read into memory.
const HEADERS_MAX: u64 = 8 << 20;
const BLOCK: u64 = 512;

/// An archive being read.
pub(crate) struct Archive {
    name: String,
    input: Stream,
    /// The position in the decompressed stream.
    position: u64,
    /// The global extended headers, which apply to all later members.
    global: Overrides,
    /// The number of unread bytes of the last member's content, and of the padding after this content.
    content: u64,
    padding: u64,
    ended: bool,
}

/// A member of an archive. The archive contains the ranges in `data`, in their order. The rest of the member's content is holes.
pub(crate) struct Member {
    /// The path from the root, without `.` and `..`, and without a slash at the beginning or end. Empty for the root.
    pub(crate) path: Vec<u8>,
    /// The attributes from the archive.
    pub(crate) stat: Stat,
    /// For a hard link, the normalised path of the member to which the link points.
    pub(crate) link: Option<Vec<u8>>,
    /// The target of a symbolic link.
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) xattrs: Vec<Xattr>,
    /// Whether the member has an access control list in text form. Such a list is not read.
    pub(crate) access_list: bool,
    /// The positions and lengths of the ranges that are in the archive.
    pub(crate) data: Vec<(u64, u64)>,
}

/// The reason why an archive cannot be read.
enum Wrong {
    /// A fault in the content of the archive.
    Format(String),
    /// An error of the device, the pipe or the decompression.
    Read(io::Error),
}

impl From<&'static str> for Wrong {
    fn from(what: &'static str) -> Self {
        Self::Format(what.to_owned())
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl Archive {
    /// Opens an archive. The name is for messages.
    ///
    /// # Errors
    /// Fails if the archive cannot be read, or if its compression is not supported.
    pub(crate) fn new(
        name: String,
        open: impl FnOnce() -> io::Result<Input>,
    ) -> Result<Self, Failure> {
        let input = open().and_then(stream::open).map_err(|error| Failure::host(&name, error))?;
        Ok(Self {
            name,
            input,
            position: 0,
            global: Overrides::default(),
            content: 0,
            padding: 0,
            ended: false,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the archive is an uncompressed file.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.input, Stream::Plain(_))
    }

    /// The position in the decompressed stream. After [`next`](Self::next), it is the beginning of the member's content.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Reads the next member. Unread content of the last member is skipped.
    ///
    /// # Errors
    /// Fails if the next bytes are not a member, or if the archive ends before its end mark.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Failure> {
        if self.ended {
            return Ok(None);
        }
        let begin = self.position;
        self.try_next().map_err(|wrong| self.failed(wrong, begin))
    }

    /// Fills `bytes` with the next content of the last member.
    ///
    /// # Errors
    /// Fails if the archive or the member's content ends before `bytes` is full.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        let position = self.position;
        let read = match self.content.checked_sub(bytes.len() as u64) {
            Some(rest) => self.fill(bytes).map(|()| self.content = rest),
            None => Err("the content of the member ends early".into()),
        };
        read.map_err(|wrong| self.failed(wrong, position))
    }

    fn failed(&self, wrong: Wrong, position: u64) -> Failure {
        let name = &self.name;
        match wrong {
            Wrong::Format(what) => Failure::new(format!("{name}: at byte {position}: {what}")),
            Wrong::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Failure::new(format!(
                    "{name}: the archive is truncated: the end mark is missing at byte {}",
                    self.position
                ))
            }
            Wrong::Read(error) => Failure::host(name, error),
        }
    }

    fn try_next(&mut self) -> Result<Option<Member>, Wrong> {
        self.skip(self.content.checked_add(self.padding).ok_or("a size is too large")?)?;
        (self.content, self.padding) = (0, 0);
        let (mut own, mut path, mut link) = (self.global.clone(), None, None);
        loop {
            let block = self.block()?;
            if block == [0; BLOCK as usize] {
                // The format requires two empty blocks. Like GNU tar, this code accepts a single empty block.
                self.ended = true;
                self.drain()?;
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            if !has_checksum(header) {
                let what = if self.position == BLOCK {
                    "the file is not a tar archive"
                } else {
                    "a header has a wrong checksum"
                };
                return Err(what.into());
            }
            match header.entry_type() {
                EntryType::GNULongName => path = Some(self.long_name(header)?),
                EntryType::GNULongLink => link = Some(self.long_name(header)?),
                EntryType::XHeader => {
                    let records = self.headers(header)?;
                    own.add(&records)?;
                }
                EntryType::XGlobalHeader => {
                    let records = self.headers(header)?;
                    self.global.add(&records)?;
                    own.add(&records)?;
                }
                // This code skips the label of a volume, and access control lists of Solaris.
                kind if matches!(kind.as_byte(), b'V' | b'A') => {
                    let size = number(header.entry_size(), &header.as_old().size)?;
                    self.skip(padded(size).ok_or("a size is too large")?)?;
                }
                _ => {
                    own.path = own.sparse.name.take().or(own.path).or(path);
                    own.link = own.link.or(link);
                    return self.member(header, own).map(Some);
                }
            }
        }
    }

    /// Returns the member that the last header and the headers before it describe.
    fn member(&mut self, header: &Header, mut own: Overrides) -> Result<Member, Wrong> {
        let path = own.path.take().unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = kind_of(header, &path)?;
        let again = header.entry_type().as_byte() == b'1';
        let place = normal(&path);
        // An empty path is the root. If the member were not a directory, it would replace the root with all content of the volume.
        if place.is_empty() && (again || kind != FileType::Directory) {
            let path = String::from_utf8_lossy(&path);
            return Err(Wrong::Format(format!("{path} is the root, but not a directory")));
        }
        let (whole, data) = self.ranges(header, kind, again, &mut own)?;
        let target = own.link.take();
        let target = target.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let target = target.unwrap_or_default();
        if kind == FileType::Symlink && target.contains(&0) {
            let path = String::from_utf8_lossy(&path);
            return Err(Wrong::Format(format!(
                "the target of the symbolic link {path} contains a NUL"
            )));
        }
        let (link, target) = match kind {
            _ if again => (Some(normal(&target)), None),
            FileType::Symlink => (None, Some(target)),
            _ => (None, None),
        };
        let size = match (&target, kind) {
            (Some(target), _) => target.len() as u64,
            (_, FileType::Regular) if !again => whole,
            _ => 0,
        };
        let device = device_of(header, kind, &path)?;
        let stat = stat_of(header, kind, &own)?.size(size).device(device);
        let (xattrs, access_list) = (own.xattrs, own.access_list);
        Ok(Member { path: place, stat, link, target, xattrs, access_list, data })
    }

    /// Returns the size of a member, and the ranges of its content that the archive contains. The next bytes of the archive are the content
    /// of these ranges.
    fn ranges(
        &mut self,
        header: &Header,
        kind: FileType,
        again: bool,
        own: &mut Overrides,
    ) -> Result<(u64, Vec<(u64, u64)>), Wrong> {
        let size = match own.size {
            Some(size) => size,
            None => number(header.entry_size(), &header.as_old().size)?,
        };
        // A hard link or a device has no content, even if its header has a size. This code skips the content of a directory.
        let follows = !again && matches!(kind, FileType::Regular | FileType::Directory);
        self.content = if follows { size } else { 0 };
        self.padding = padded(self.content).ok_or("a size is too large")? - self.content;
        let file = kind == FileType::Regular && !again;
        let mut map = own.sparse.map.take();
        if header.entry_type() == EntryType::GNUSparse {
            map = Some(self.old_map(header)?);
        } else if file && own.sparse.major.is_some_and(|major| major >= 1) {
            map = Some(self.map_in_front()?);
        }
        let whole = match header.as_gnu() {
            Some(gnu) if header.entry_type() == EntryType::GNUSparse => gnu.real_size()?,
            _ if map.is_some() => own.sparse.size.ok_or("the size of a sparse file is missing")?,
            _ => size,
        };
        let map = map.unwrap_or_else(|| vec![(0, self.content)]);
        let data = if file { sparse::checked(&map, whole, self.content)? } else { Vec::new() };
        Ok((whole, data))
    }

    /// Reads the map of GNU tar's old sparse format from the header, and from the blocks after the header.
    fn old_map(&mut self, header: &Header) -> Result<Vec<(u64, u64)>, Wrong> {
        let gnu = header.as_gnu().ok_or("a sparse file has a header of another format")?;
        let (mut map, mut more) = (Vec::new(), gnu.is_extended());
        let mut add = |entries: &[GnuSparseHeader]| {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                map.push((entry.offset()?, entry.length()?));
            }
            if map.len() > sparse::MOST {
                return Err(Wrong::from("a sparse file has too many ranges"));
            }
            Ok(())
        };
        add(&gnu.sparse)?;
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.fill(block.as_mut_bytes())?;
            add(block.sparse())?;
            more = block.is_extended();
        }
        Ok(map)
    }

    fn map_in_front(&mut self) -> Result<Vec<(u64, u64)>, Wrong> {
        sparse::in_front(|| {
            let rest = self.content.checked_sub(BLOCK);
            self.content = rest.ok_or("the map of a sparse file is longer than its content")?;
            self.block()
        })
    }

    /// Reads a long name of GNU tar, which is stored as the content of a separate member.
    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>, Wrong> {
        let mut name = self.headers(header)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    /// Reads the content of an extended header, or of a long name, before a member.
    fn headers(&mut self, header: &Header) -> Result<Vec<u8>, Wrong> {
        let size = number(header.entry_size(), &header.as_old().size)?;
        if size > HEADERS_MAX {
            return Err("the header of a member is too long".into());
        }
        let mut bytes = vec![0; size.next_multiple_of(BLOCK) as usize];
        self.fill(&mut bytes)?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    fn block(&mut self) -> Result<[u8; BLOCK as usize], Wrong> {
        let mut block = [0; BLOCK as usize];
        self.fill(&mut block)?;
        Ok(block)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Wrong> {
        let mut have = 0;
        while have < bytes.len() {
            match self.input.read(&mut bytes[have..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    have += count;
                    self.position += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn skip(&mut self, len: u64) -> Result<(), Wrong> {
        let skipped = self.input.skip(len)?;
        self.position += skipped;
        if skipped < len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }

    /// Reads the rest of the stream after the end mark, so that the writer of a pipe does not get SIGPIPE.
    fn drain(&mut self) -> Result<(), Wrong> {
        io::copy(&mut self.input, &mut io::sink())?;
        Ok(())
    }
}

/// Returns the type of a member with this path.
fn kind_of(header: &Header, path: &[u8]) -> Result<FileType, Wrong> {
    Ok(match header.entry_type().as_byte() {
        0 | b'0' if path.ends_with(b"/") => FileType::Directory,
        0 | b'0' | b'1' | b'7' | b'S' => FileType::Regular,
        b'2' => FileType::Symlink,
        b'3' => FileType::CharDevice,
        b'4' => FileType::BlockDevice,
        b'5' | b'D' => FileType::Directory,
        b'6' => FileType::Fifo,
        other => {
            let (path, kind) = (String::from_utf8_lossy(path), char::from(other));
            return Err(Wrong::Format(format!("{path} has the unknown type {kind:?}")));
        }
    })
}

/// Returns the major and minor number of a device, or `None` for any other type.
fn device_of(header: &Header, kind: FileType, path: &[u8]) -> Result<Option<(u32, u32)>, Wrong> {
    if !matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
        return Ok(None);
    }
    let (major, minor) = (header.device_major()?, header.device_minor()?);
    let number = (major.unwrap_or(0), minor.unwrap_or(0));
    if !is_device_number(number) {
        let (path, (major, minor)) = (String::from_utf8_lossy(path), number);
        let what = format!("{path} has an invalid device number, {major}:{minor}");
        return Err(Wrong::Format(what));
    }
    Ok(Some(number))
}

/// Returns the attributes that the header and the extended headers contain for the member.
fn stat_of(header: &Header, kind: FileType, own: &Overrides) -> Result<Stat, Wrong> {
    let old = header.as_old();
    let owner = |given: Option<u32>, field, raw: &[u8]| match given {
        Some(id) => Ok(id),
        None => u32::try_from(number(field, raw)?)
            .map_err(|_| Wrong::from("an owner or group is not a 32-bit number")),
    };
    let modified = match own.modified {
        Some(time) => time,
        None => Timestamp { seconds: number(header.mtime(), &old.mtime)? as i64, nanoseconds: 0 },
    };
    // In Linux, symbolic links have all permissions, so this code ignores the mode in the archive.
    let mode = match kind {
        FileType::Symlink => 0o777,
        _ => number(header.mode().map(u64::from), &old.mode)? as u32 & 0o7777,
    };
    Ok(Stat::new(InodeNo(0), kind)
        .mode(mode)
        .links(1)
        .uid(owner(own.uid, header.uid(), &old.uid)?)
        .gid(owner(own.gid, header.gid(), &old.gid)?)
        .block_size(BLOCK as u32)
        .accessed(own.accessed.unwrap_or(modified))
        .modified(modified)
        .changed(modified))
}

/// Whether the checksum of a header is correct. Some old programs summed the bytes as signed numbers.
fn has_checksum(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let others = || bytes[..148].iter().chain(&bytes[156..]);
    let spaces = 8 * i64::from(b' ');
    let unsigned = others().map(|byte| i64::from(*byte)).sum::<i64>() + spaces;
    let signed = others().map(|byte| i64::from(*byte as i8)).sum::<i64>() + spaces;
    let written = header.cksum().map(i64::from);
    written.is_ok_and(|sum| sum == unsigned || sum == signed)
}

/// Returns the number in a field. An empty field is 0.
fn number(field: io::Result<u64>, raw: &[u8]) -> Result<u64, Wrong> {
    if raw.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(0);
    }
    field.map_err(|error| Wrong::Format(error.to_string()))
}

/// Whether Linux supports a device number: Linux has 12 bits for the major number, and 20 bits for the minor number.
pub(crate) fn is_device_number((major, minor): (u32, u32)) -> bool {
    major < 1 << 12 && minor < 1 << 20
}

/// Rounds a length up to whole blocks.
fn padded(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(BLOCK)
}

/// Normalises a path: removes `.` components, slashes at the beginning and at the end, and repeated slashes. `..` refers to the parent, but
/// never leads above the root.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn paths_stay_below_the_root() {
        for (path, expected) in [
            ("./", ""),
            ("/", ""),
            ("a/./b//c/", "a/b/c"),
            ("/etc/passwd", "etc/passwd"),
            ("../../etc", "etc"),
            ("a/../../b", "b"),
            ("...", "..."),
        ] {
            assert_eq!(normal(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
