//! Writes a tree of a volume as a tar archive in the pax format.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use ironmap::fs::{FileType, Stat, Timestamp};
use ironmap::iomap::IomapType;
use ironmap::sorting::Sorting;
use ironmap::units::InodeNo;
use ironmap::{File as VolumeFile, Queue};
use tar::{EntryType, Header};

use crate::ahead::{Ahead, CHUNK};
use crate::archive::{Written, push_record};
use crate::failure::Failure;
use crate::report::Report;
use crate::stop::Stop;
use crate::volumes::Found;
use crate::walk::{Visit, walk};

/// The destination of an archive.
#[derive(Debug)]
pub struct Output {
    /// The open file.
    pub file: File,
    /// The name of the file in messages. `None` for standard output.
    pub place: Option<String>,
}

/// Writes a file, or a directory and everything below it, to an archive. With `sparse`, holes are not written.
///
/// # Errors
/// Fails if a file cannot be read, or if the archive cannot be written. If a directory cannot be read, the error is reported, and the other
/// files are written.
pub fn write(tree: Found, to: Output, sparse: bool, report: &mut Report) -> Result<(), Failure> {
    let (name, file_type) = (&tree.name, tree.inode.file_type());
    let top = if file_type == FileType::Directory { b".".to_vec() } else { name.name.clone() };
    let mut writer = Writer {
        out: BufWriter::with_capacity(CHUNK, to.file),
        place: to.place,
        length: 0,
        queue: name.source.queue()?,
        ahead: Ahead::new(name.source.volume.engine()),
        stop: report.stop().clone(),
        top,
        above: name.path().len(),
        links: HashMap::new(),
        sparse,
    };
    let mut first = None;
    let intact = walk(tree, report, |found, visit, report| {
        if visit == Visit::First && first.is_none() {
            first = writer.member(found, report).err();
        }
        Ok(())
    })?;
    if let Some(failure) = first {
        return Err(failure);
    }
    // The archive of a damaged volume contains all files that could be read. The missing end mark shows that the archive is incomplete.
    if intact { writer.finish() } else { writer.flush() }
}

fn unwritten(place: Option<&String>, error: io::Error) -> Failure {
    match place {
        Some(place) => Failure::host(place, error),
        None => Failure::stdout(error),
    }
}

struct Writer {
    out: BufWriter<File>,
    /// The name of the output, for messages. `None` for standard output.
    place: Option<String>,
    /// The number of bytes written.
    length: u64,
    queue: Queue,
    ahead: Ahead,
    stop: Stop,
    /// The prefix of all paths in the archive. It replaces the first `above` bytes of a path, which are the path that the user named.
    top: Vec<u8>,
    above: usize,
    /// The first name of each file with several names.
    links: HashMap<InodeNo, Vec<u8>>,
    /// Whether holes are omitted from the archive.
    sparse: bool,
}

/// The largest numbers that fit into the fields of a header (POSIX.1-2008, ustar): seven and eleven octal digits.
const MOST_7: u64 = 0o777_7777;
const MOST_11: u64 = 0o777_7777_7777;
const BLOCK: u64 = 512;

impl Writer {
    fn member(&mut self, found: &Found, report: &Report) -> Result<(), Failure> {
        let mut path = self.path(found);
        let Some(mut kind) = self.kind(found, report)? else { return Ok(()) };
        let stat = found.inode.stat();
        if kind == EntryType::Directory {
            path.push(b'/');
        }
        let target = found.name.source.link_target(&found.inode, found.name.path())?;
        let mut link = target.unwrap_or_default();
        if stat.links > 1 && stat.file_type != FileType::Directory {
            match self.links.get(&found.number()) {
                Some(first) => (link, kind) = (first.clone(), EntryType::Link),
                None => drop(self.links.insert(found.number(), path.clone())),
            }
        }
        let content = if kind == EntryType::Regular { Some(self.open(found)?) } else { None };
        let mut records = Vec::new();
        let mut name = path;
        if let Some(Content { map: Some(_), .. }) = &content {
            let size = stat.size.to_string();
            for (key, value) in [("major", b"1"), ("minor", b"0")] {
                push_record(&mut records, format!("GNU.sparse.{key}").as_bytes(), value);
            }
            push_record(&mut records, b"GNU.sparse.name", &name);
            push_record(&mut records, b"GNU.sparse.realsize", size.as_bytes());
            name = placeholder(&name);
        }
        let size = content.as_ref().map_or(0, Content::len);
        let mut header = header_of(stat, &name, &link, size, &mut records);
        if kind != EntryType::Link {
            let mut xattrs = found.inode.xattrs().map_err(|error| found.failed(&error))?;
            xattrs.order_by(|a, b| a.name.cmp(&b.name));
            for xattr in xattrs {
                let keyword = [b"SCHILY.xattr.", &*encoded(&xattr.name)].concat();
                push_record(&mut records, &keyword, &xattr.value);
            }
        }
        header.set_entry_type(kind);
        self.header(header, &records)?;
        content.map_or(Ok(()), |content| self.content(found, &content))
    }

    /// Returns the type of the member for a file, or `None` for a file that is skipped. For a directory, also starts to read the
    /// directory's files ahead.
    fn kind(&mut self, found: &Found, report: &Report) -> Result<Option<EntryType>, Failure> {
        Ok(Some(match found.inode.file_type() {
            FileType::Socket => {
                let what = "the file is a socket, which a tar archive cannot contain";
                report.warning(format_args!("{}: {what}", found.name));
                return Ok(None);
            }
            FileType::Directory if is_empty_lost_and_found(found)? => return Ok(None),
            FileType::Directory => {
                // The code ignores an error here, because the walk reports it when it enters the directory.
                if self.ahead.reads_together()
                    && let Ok(entries) = found.name.source.entries(&found.inode, found.name.path())
                {
                    self.ahead.expect(&entries);
                }
                EntryType::Directory
            }
            FileType::Regular => EntryType::Regular,
            FileType::Symlink => EntryType::Symlink,
            FileType::CharDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            FileType::Fifo => EntryType::Fifo,
        }))
    }

    /// Opens a file to read its content. Omits holes if this makes the archive smaller.
    fn open(&mut self, found: &Found) -> Result<Content, Failure> {
        let (source, path) = (&found.name.source, found.name.path());
        self.ahead.load(&mut self.queue, source, found.number());
        let file = source.file(source.inode(found.number(), path)?, path)?;
        let size = file.size();
        if self.sparse && found.inode.stat().blocks.saturating_mul(512) < size {
            let mut written = Written::default();
            for mapping in file.mappings() {
                self.stop.check()?;
                let mapping = mapping.map_err(|error| found.failed(&error))?;
                if !matches!(mapping.kind, IomapType::Hole | IomapType::Unwritten) {
                    let end = mapping.end().0.min(size);
                    written.push(mapping.pos.0, end.saturating_sub(mapping.pos.0));
                }
            }
            if let Some(map) = written.map(size) {
                return Ok(Content { file, map: Some(map), ranges: written.ranges().to_vec() });
            }
        }
        Ok(Content { file, map: None, ranges: vec![(0, size)] })
    }

    /// Returns the path of a file in the archive.
    fn path(&self, found: &Found) -> Vec<u8> {
        let below = found.name.path().get(self.above..).unwrap_or_default();
        let slash: &[u8] = if below.is_empty() || below.starts_with(b"/") { b"" } else { b"/" };
        [&*self.top, slash, below].concat()
    }

    /// Writes a header. Fields that do not fit into this header are written first, in an extended header.
    fn header(&mut self, mut header: Header, records: &[u8]) -> Result<(), Failure> {
        if !records.is_empty() {
            let mut before = Header::new_ustar();
            before.as_old_mut().name[..9].copy_from_slice(b"PaxHeader");
            before.set_entry_type(EntryType::XHeader);
            before.set_size(records.len() as u64);
            before.set_mode(0o644);
            before.set_uid(0);
            before.set_gid(0);
            before.set_mtime(0);
            before.set_cksum();
            self.write(before.as_bytes())?;
            self.write(records)?;
            self.pad(BLOCK)?;
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    fn content(&mut self, found: &Found, content: &Content) -> Result<(), Failure> {
        if let Some(map) = &content.map {
            self.write(map)?;
        }
        let (source, path) = (&found.name.source, found.name.path());
        let Self { queue, ahead, stop, out, length, place, .. } = self;
        let unread = |error: &ironmap::Error| source.read_failed(path, error);
        for (start, len) in &content.ranges {
            let range = *start..start + len;
            let end = ahead.read(queue, &content.file, range.clone(), unread, |bytes| {
                // On a damaged volume, a file can have an arbitrary size, so the user must be able to interrupt the loop.
                stop.check()?;
                *length += bytes.len() as u64;
                out.write_all(bytes).map_err(|error| unwritten(place.as_ref(), error))
            })?;
            if end < range.end {
                return Err(Failure::corrupt(
                    &found.name,
                    "the content is shorter than the size of the file",
                ));
            }
        }
        self.pad(BLOCK)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.write_all(bytes);
        self.wrote(written, bytes.len())
    }

    fn wrote(&mut self, written: io::Result<()>, count: usize) -> Result<(), Failure> {
        self.length += count as u64;
        written.map_err(|error| unwritten(self.place.as_ref(), error))
    }

    /// Pads the last block with zeros.
    fn pad(&mut self, block: u64) -> Result<(), Failure> {
        let rest = self.length.next_multiple_of(block) - self.length;
        self.write(&vec![0; rest as usize])
    }

    /// Writes the end mark, and pads the last record to 20 blocks, as POSIX requires.
    fn finish(mut self) -> Result<(), Failure> {
        self.write(&[0; 2 * BLOCK as usize])?;
        self.pad(20 * BLOCK)?;
        self.flush()
    }

    fn flush(mut self) -> Result<(), Failure> {
        let flushed = self.out.flush();
        self.wrote(flushed, 0)
    }
}

/// Returns the header of a file, without its type. Fields that do not fit into this header are added to `records`.
fn header_of(stat: &Stat, name: &[u8], link: &[u8], size: u64, records: &mut Vec<u8>) -> Header {
    let mut header = Header::new_ustar();
    let mut field = |field: &mut [u8], key: &[u8], value: &[u8]| {
        if value.len() > field.len() {
            push_record(records, key, value);
        }
        let fits = value.len().min(field.len());
        field[..fits].copy_from_slice(&value[..fits]);
    };
    field(&mut header.as_old_mut().name, b"path", name);
    field(&mut header.as_old_mut().linkname, b"linkpath", link);
    let mut number = |key: &[u8], value: u64, most: u64| {
        if value > most {
            push_record(records, key, value.to_string().as_bytes());
        }
        value.min(most)
    };
    header.set_uid(number(b"uid", stat.uid.into(), MOST_7));
    header.set_gid(number(b"gid", stat.gid.into(), MOST_7));
    header.set_size(number(b"size", size, MOST_11));
    header.set_mode(stat.mode & 0o7777);
    let seconds = u64::try_from(stat.modified.seconds).unwrap_or(0).min(MOST_11);
    header.set_mtime(seconds);
    if stat.modified != (Timestamp { seconds: seconds as i64, nanoseconds: 0 }) {
        push_record(records, b"mtime", decimal(stat.modified).as_bytes());
    }
    if let (Some((major, minor)), Some(header)) = (stat.device, header.as_ustar_mut()) {
        header.set_device_major(major);
        header.set_device_minor(minor);
    }
    header
}

/// A file's content in the form of the archive. In a sparse file, the content follows the map of its ranges (the GNU tar manual, "PAX
/// Format, Version 1.0").
struct Content {
    file: VolumeFile,
    map: Option<Vec<u8>>,
    ranges: Vec<(u64, u64)>,
}

impl Content {
    fn len(&self) -> u64 {
        let map = self.map.as_ref().map_or(0, Vec::len) as u64;
        map + self.ranges.iter().map(|(_, len)| len).sum::<u64>()
    }
}

/// Returns the name of a sparse file for programs that do not support this format. Such a program extracts the map of the ranges together
/// with the content. The name is shortened to fit into a header.
fn placeholder(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = path.split_at(slash.map_or(0, |slash| slash + 1));
    let mut placeholder = [dir, b"GNUSparseFile.0/", name].concat();
    placeholder.truncate(100);
    placeholder
}

/// Encodes the name of an extended attribute for a pax keyword, as GNU tar does. A keyword ends at its first `=`, so each `=` in the name
/// is encoded.
fn encoded(name: &[u8]) -> Vec<u8> {
    let encode = |byte: &u8| match byte {
        b'%' => b"%25".to_vec(),
        b'=' => b"%3D".to_vec(),
        other => vec![*other],
    };
    name.iter().flat_map(encode).collect()
}

/// Whether a file is an empty `lost+found` in the root, the directory that mkfs makes for e2fsck.
fn is_empty_lost_and_found(found: &Found) -> Result<bool, Failure> {
    let name = &found.name;
    if name.dir != name.fs().root() || name.name != b"lost+found" {
        return Ok(false);
    }
    Ok(name.source.entries(&found.inode, name.path())?.len() <= 2)
}

/// Formats seconds since 1970 with decimals. The decimals of a negative time count away from zero.
fn decimal(time: Timestamp) -> String {
    let Timestamp { seconds, nanoseconds } = time;
    let text = if seconds < 0 && nanoseconds > 0 {
        format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds)
    } else {
        format!("{seconds}.{nanoseconds:09}")
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_count_away_from_zero() {
        let text = |seconds, nanoseconds| decimal(Timestamp { seconds, nanoseconds });
        assert_eq!(text(10, 0), "10");
        assert_eq!(text(0, 500_000_000), "0.5");
        assert_eq!(text(-2, 750_000_000), "-1.25");
        assert_eq!(text(-1, 999_999_999), "-0.000000001");
        assert_eq!(text(-100, 0), "-100");
    }
}
