//! Device tables in the format of genext2fs and mtd-utils: lists of files that a new image gets without a source.
//!
//! A line is `name type mode uid gid major minor start inc count`. A `-` marks a field that the type does not use, and `#` begins a
//! comment. Types are `d`, `f` (an existing file), `c`, `b`, `p` and `s`. A line with a `count` makes that many files. Their names end with
//! consecutive numbers beginning with `start`. The minor number of each file is the previous one plus `inc`.

use std::path::Path;
use std::sync::Arc;

use ironmap::fs::{FileType, Stat, Timestamp};
use ironmap::units::InodeNo;

use crate::archive::is_device_number;
use crate::failure::Failure;

/// The maximum number of files that one line may make.
const MOST: u32 = 1 << 16;

/// A file that a new volume gets without a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The path from the root, without slashes at its ends.
    pub(crate) path: Vec<u8>,
    pub(crate) file_type: FileType,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) device: Option<(u32, u32)>,
    /// The content of a new regular file. A regular file without content must exist.
    pub(crate) content: Option<Arc<[u8]>>,
}

impl Node {
    /// Returns the attributes of the file. The times are 0 and are not used: the file gets the time at which it is made.
    pub(crate) fn stat(&self) -> Stat {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Stat::new(InodeNo(0), self.file_type)
            .mode(self.mode)
            .links(1)
            .size(self.content.as_ref().map_or(0, |content| content.len() as u64))
            .uid(self.owner.0)
            .gid(self.owner.1)
            .accessed(time)
            .modified(time)
            .changed(time)
            .device(self.device)
    }
}

/// Returns the files of a table, in the order of its lines.
///
/// # Errors
/// Fails if the table cannot be read, or if a line is invalid.
pub(crate) fn read(path: &Path) -> Result<Vec<Node>, Failure> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::host(path.display(), error))?;
    let mut nodes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if !line.trim().is_empty() && parse(line, &mut nodes).is_none() {
            let (path, number) = (path.display(), number + 1);
            let what = "does not have the form NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT, or a number is too large";
            return Err(Failure::usage(format!("{path}: line {number} {what}")));
        }
    }
    Ok(nodes)
}

fn parse(line: &str, nodes: &mut Vec<Node>) -> Option<()> {
    let mut words = line.split_whitespace();
    let (name, kind, mode) = (words.next()?, words.next()?, words.next()?);
    let numbers = words.map(|word| if word == "-" { Some(0) } else { word.parse().ok() });
    let mut numbers = numbers.collect::<Option<Vec<u32>>>()?;
    if !name.starts_with('/') || numbers.len() > 7 || name.split('/').any(|name| name == "..") {
        return None;
    }
    numbers.resize(7, 0);
    let [uid, gid, major, minor, start, step, count] = numbers.try_into().ok()?;
    let (file_type, mode) = (file_type(kind)?, u32::from_str_radix(mode, 8).ok()?);
    if mode > 0o7777 || count > MOST {
        return None;
    }
    let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    for index in 0..count.max(1) {
        let number = if count > 0 { start.checked_add(index)?.to_string() } else { String::new() };
        let names = name.split('/').filter(|name| !matches!(*name, "" | "."));
        let path = names.collect::<Vec<_>>().join("/") + &number;
        let minor = minor.checked_add(index.checked_mul(step)?)?;
        let device = device.then_some((major, minor));
        if !device.is_none_or(is_device_number) {
            return None;
        }
        let (path, owner) = (path.into_bytes(), (uid, gid));
        nodes.push(Node { path, file_type, mode, owner, device, content: None });
    }
    Some(())
}

fn file_type(kind: &str) -> Option<FileType> {
    Some(match kind {
        "d" => FileType::Directory,
        "f" => FileType::Regular,
        "c" => FileType::CharDevice,
        "b" => FileType::BlockDevice,
        "p" => FileType::Fifo,
        "s" => FileType::Socket,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_count_makes_numbered_files() {
        let mut nodes = Vec::new();
        parse("/dev/tty c 666 0 5 4 64 3 2 2", &mut nodes).unwrap();
        let found: Vec<_> = nodes.iter().map(|node| (&*node.path, node.device)).collect();
        let expected = [(&b"dev/tty3"[..], Some((4, 64))), (b"dev/tty4", Some((4, 66)))];
        assert_eq!(found, expected);
        parse("/dev d 755 0 0 - - - - -", &mut nodes).unwrap();
        assert_eq!((nodes[2].file_type, nodes[2].device), (FileType::Directory, None));
        for wrong in [
            "dev d 755 0 0 - - - - -",
            "/dev x 755 0 0 - - - - -",
            "/dev d 855 0 0 - - - - -",
            "/dev d 755 0 0 - - - - - -",
            "/../dev d 755 0 0",
            "/dev c 666 0 0 1 4294967295 0 1 2",
            "/dev c 666 0 0 1 1 0 1 99999999",
            "/dev/sda b 660 0 6 4096 0",
            "/dev/sda b 660 0 6 8 1048575 0 1 2",
            "/dev",
        ] {
            assert!(parse(wrong, &mut nodes).is_none(), "{wrong}");
        }
    }
}
