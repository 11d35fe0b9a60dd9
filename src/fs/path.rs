//! Resolves paths component by component. The target of a symbolic link is inserted into the remaining path.

use std::borrow::Cow;

use super::{FileSystem, FileType, Follow, Inode};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::units::InodeNo;

/// The maximum number of symbolic links in one path walk, as in Linux.
pub(crate) const MAX_LINKS: usize = 40;

/// The inode that a path names: see [`FileSystem::resolve`].
pub(super) fn resolve<F: FileSystem + ?Sized>(
    fs: &F,
    path: &[u8],
    follow: Follow,
) -> Result<Inode> {
    walk(fs, fs.root(), path, follow).at(|| String::from_utf8_lossy(path).into_owned())
}

/// The inode that a path names relative to another inode: see [`FileSystem::resolve_at`].
pub(super) fn walk<F: FileSystem + ?Sized>(
    fs: &F,
    from: InodeNo,
    path: &[u8],
    follow: Follow,
) -> Result<Inode> {
    let root = fs.root();
    let mut dir = if from == root { fs.known_inode(root)? } else { fs.inode(from)? };
    if !path.is_empty() && dir.file_type() != FileType::Directory {
        return Err(Error::new(ErrorKind::NotADirectory, "not a directory"));
    }
    let mut links = 0;
    // The remaining path. The targets of at most MAX_LINKS symbolic links are inserted into it. The walk advances a position in this text,
    // and removes nothing from the front. Repeated removals of long targets could cause quadratic time.
    let (mut text, mut at) = (Cow::Borrowed(path), 0);
    while let Some((name, behind)) = next_component(&text[at..]) {
        let next = text.len() - behind.len();
        if name != b"." && (name != b".." || dir.number() != root) {
            let last = behind.is_empty();
            let found = fs.lookup(dir.number(), name)?;
            if found.file_type() == FileType::Symlink && !(last && follow == Follow::NotLast) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(too_many_links());
                }
                let mut target = found.read_link()?;
                if target.first() == Some(&b'/') {
                    dir = fs.known_inode(root)?;
                }
                target.extend_from_slice(behind);
                (text, at) = (Cow::Owned(target), 0);
                continue;
            }
            if !last && found.file_type() != FileType::Directory {
                return Err(not_a_directory(name));
            }
            dir = found;
        }
        at = next;
    }
    Ok(dir)
}

/// Runs `open` with the inode that `find` finds. If another thread replaces the file between these two steps, both steps are repeated. A
/// repetition means that another thread has completed a change. So the program as a whole makes progress.
///
/// # Errors
/// The errors of `find` and of `open`.
pub(crate) fn open_found<T>(
    find: impl Fn() -> Result<Inode>,
    open: impl Fn(Inode) -> Result<T>,
) -> Result<T> {
    let identity = |inode: &Inode| (inode.number(), inode.stat().generation);
    let mut found = find()?;
    loop {
        let opened = identity(&found);
        match open(found) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                found = find()?;
                if identity(&found) == opened {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
}

pub(crate) fn too_many_links() -> Error {
    Error::new(
        ErrorKind::Loop,
        format!("the path leads through more than {MAX_LINKS} symbolic links"),
    )
}

pub(super) fn not_a_directory(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::new(ErrorKind::NotADirectory, format!("{name} is not a directory"))
}

/// Splits a path into the directory and the last name. The last name is empty for the root. Slashes at the end are ignored.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    (&path[..start], &path[start..end])
}

/// Splits a path into the first component and the remaining path. The remaining path includes its leading slashes.
pub(super) fn next_component(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().position(|byte| *byte != b'/')?;
    let path = &path[start..];
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    Some(path.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::{next_component, split};

    #[test]
    fn a_name_is_what_is_left_without_its_directory() {
        assert_eq!(split(b"/usr/bin"), (&b"/usr/"[..], &b"bin"[..]));
        assert_eq!(split(b"/usr/bin//"), (&b"/usr/"[..], &b"bin"[..]));
        assert_eq!(split(b"bin"), (&b""[..], &b"bin"[..]));
        assert_eq!(split(b"//"), (&b""[..], &b""[..]));
        assert_eq!(split(b""), (&b""[..], &b""[..]));
    }

    #[test]
    fn a_path_is_taken_apart_at_any_number_of_slashes() {
        assert_eq!(next_component(b"//usr//bin"), Some((&b"usr"[..], &b"//bin"[..])));
        assert_eq!(next_component(b"bin"), Some((&b"bin"[..], &b""[..])));
        assert_eq!(next_component(b"bin/"), Some((&b"bin"[..], &b"/"[..])));
        assert_eq!(next_component(b"//"), None);
        assert_eq!(next_component(b""), None);
    }
}
