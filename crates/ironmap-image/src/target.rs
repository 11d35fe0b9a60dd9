//! The files that a job works on, as the user names them.

use std::fmt;
use std::path::PathBuf;

use ironmap::Location;
use ironmap::units::InodeNo;

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The volume that contains the file.
    pub volume: Location,
    /// The path from the root of the volume, with a slash at the beginning; or from an inode, as in `<12>/name`.
    pub path: Vec<u8>,
}

impl Target {
    /// Returns the target as a user writes it on the command line.
    pub fn bytes(&self) -> Vec<u8> {
        [self.volume.to_string().as_bytes(), b":", &self.path].concat()
    }
}

/// Returns the inode at the beginning of a path such as `<12>/name`, and the rest of the path. Returns `None` for a path from the root.
pub fn inode_of(path: &[u8]) -> Option<(InodeNo, &[u8])> {
    let text = path.strip_prefix(b"<")?;
    let end = text.iter().position(|byte| *byte == b'>')?;
    let digits = text[..end].iter().all(u8::is_ascii_digit).then_some(&text[..end])?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let rest = &text[end + 1..];
    matches!(rest, [] | [b'/', ..]).then_some((InodeNo(number), rest))
}

/// A file of a volume, or of a file system that the kernel has mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A file of a volume.
    Volume(Target),
    /// A file of the host.
    Host(PathBuf),
}

impl Subject {
    /// Returns the target if the file is in a volume.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Volume(target) => Some(target),
            Self::Host(_) => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(target) => target.fmt(f),
            Self::Host(path) => write!(f, "host:{}", path.display()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume, String::from_utf8_lossy(&self.path))
    }
}
