//! Resolves paths to paths without symbolic links.

use ironmap::fs::FileType;
use ironmap::{Error, ErrorKind};
use ironmap_image::source::Source;

/// The maximum number of links that Linux follows on one path.
const MAX_LINKS: usize = 40;

/// Returns the canonical path of a file: it has no symbolic links, `.` or `..`. The last component of the path need not exist.
pub(crate) fn path_without_links(source: &Source, path: &[u8]) -> ironmap::Result<Vec<u8>> {
    let fs = source.fs();
    // `stack` contains the visited directories with their names and inodes. `rest` contains the remaining components in reverse order.
    let mut stack = Vec::new();
    let mut rest = components(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        match &*name {
            b"" | b"." => continue,
            b".." => {
                stack.pop();
                continue;
            }
            _ => {}
        }
        let dir = stack.last().map_or(fs.root(), |(_, number)| *number);
        let inode = match fs.lookup(dir, &name) {
            Err(error) if error.kind() == ErrorKind::NotFound && rest.iter().all(Vec::is_empty) => {
                stack.push((name, dir));
                break;
            }
            inode => inode?,
        };
        match inode.file_type() {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::new(ErrorKind::Loop, "too many symbolic links"));
                }
                let link = inode.read_link()?;
                if link.starts_with(b"/") {
                    stack.clear();
                }
                rest.extend(components(&link));
            }
            kind if kind != FileType::Directory && !rest.is_empty() => {
                return Err(Error::new(
                    ErrorKind::NotADirectory,
                    "a parent of the path is not a directory",
                ));
            }
            _ => stack.push((name, inode.number())),
        }
    }
    let path: Vec<u8> = stack.iter().flat_map(|(name, _)| [b"/", &**name].concat()).collect();
    Ok(if path.is_empty() { b"/".to_vec() } else { path })
}

/// The names of a path in reverse order. A slash at the end of the path becomes an empty name. The empty name requires a directory.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let end: &[&[u8]] = if path.ends_with(b"/") { &[b""] } else { &[] };
    end.iter().copied().chain(names.rev()).map(<[u8]>::to_vec).collect()
}
