//! Walks a tree of the host by paths, to count its files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ironmap::fs::Follow;

use crate::spared::Spared;

/// Visits a file of the host and, if it is a directory, everything below it, except the files to skip. With `follow`, `root` may be a
/// symbolic link, which is followed. Symbolic links below `root` are not followed.
///
/// # Errors
/// Fails if a directory cannot be read, or if `visit` fails. The walk ends with the first error.
pub(crate) fn walk_host(
    root: &Path,
    follow: Follow,
    spared: &Spared,
    visit: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let stat = match follow {
        Follow::All => root.metadata(),
        _ => root.symlink_metadata(),
    }?;
    visit(root, &stat)?;
    let mut pending = Vec::new();
    if stat.is_dir() {
        pending.push(root.to_owned());
    }
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let stat = path.symlink_metadata()?;
            if stat.is_file() && spared.contains(stat.dev(), stat.ino()) {
                continue;
            }
            visit(&path, &stat)?;
            if stat.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(())
}
