//! Finds the objects below a directory.

use std::io;
use std::sync::Arc;

use ironmap::fs::{FileType, Stat};

use crate::store::{STAGE, is_object_name};
use crate::tree::{Entries, Tree, join};

/// The number of objects that one job of the pool finds.
const BATCH: usize = 512;
/// The maximum length of a path in bytes, as in system calls. Because of this limit, a walk ends even if a directory of a damaged volume
/// contains itself.
const LONGEST: usize = 4096;

/// An object that was found.
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) stat: Stat,
}

/// A walk through a tree, which continues where the last batch ended.
pub(crate) struct Walk {
    tree: Arc<dyn Tree>,
    /// The directories that are still to be read.
    dirs: Vec<String>,
    /// The directory that is being read.
    current: Option<(String, Entries)>,
    /// Only objects after this path are found.
    after: Option<String>,
}

impl Walk {
    pub(crate) fn new(tree: Arc<dyn Tree>, dir: &str, after: Option<&str>) -> Self {
        Self { tree, dirs: vec![dir.to_owned()], current: None, after: after.map(str::to_owned) }
    }

    /// Returns the next objects. At the end of the walk, returns no objects.
    pub(crate) fn batch(&mut self) -> io::Result<Vec<Found>> {
        std::iter::from_fn(|| self.next().transpose()).take(BATCH).collect()
    }

    fn next(&mut self) -> io::Result<Option<Found>> {
        loop {
            let Some((dir, entries)) = &mut self.current else {
                let Some(dir) = self.dirs.pop() else { return Ok(None) };
                self.current = open(&*self.tree, &dir)?.map(|entries| (dir, entries));
                continue;
            };
            let Some(entry) = entries.next() else {
                self.current = None;
                continue;
            };
            let entry = entry?;
            let Some(path) = child(dir, entry.name)? else { continue };
            let wanted = self.after.as_ref().is_none_or(|after| path > *after);
            match look(&*self.tree, &path, entry.file_type, wanted)? {
                Look::Dir => self.dirs.push(path),
                Look::Object(stat) => return Ok(Some(Found { path, stat })),
                Look::Other => {}
            }
        }
    }
}

/// Returns the subdirectories and the objects of one directory. Subdirectories without objects are omitted.
pub(crate) fn one_level(tree: &Arc<dyn Tree>, dir: &str) -> io::Result<(Vec<String>, Vec<Found>)> {
    let (mut dirs, mut objects) = (Vec::new(), Vec::new());
    for entry in open(&**tree, dir)?.into_iter().flatten() {
        let entry = entry?;
        let Some(path) = child(dir, entry.name)? else { continue };
        match look(&**tree, &path, entry.file_type, true)? {
            Look::Dir => {
                if Walk::new(Arc::clone(tree), &path, None).next()?.is_some() {
                    dirs.push(path);
                }
            }
            Look::Object(stat) => objects.push(Found { path, stat }),
            Look::Other => {}
        }
    }
    dirs.sort_unstable();
    Ok((dirs, objects))
}

/// Returns the entries of a directory, or `None` if no directory has this path.
fn open(tree: &dyn Tree, dir: &str) -> io::Result<Option<Entries>> {
    match tree.list(dir) {
        Ok(entries) => Ok(Some(entries)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the path of an entry, or `None` if the store hides the entry's name.
fn child(dir: &str, name: Vec<u8>) -> io::Result<Option<String>> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let name = String::from_utf8(name)
        .map_err(|error| invalid(format!("{dir:?}: a name is not UTF-8: {error}")))?;
    if dir.is_empty() && name == STAGE {
        return Ok(None);
    }
    let path = join(dir, &name);
    if path.len() > LONGEST {
        return Err(invalid(format!("{dir:?}: a path is longer than {LONGEST} bytes")));
    }
    Ok(Some(path))
}

enum Look {
    Dir,
    Object(Stat),
    /// The entry is a file of another type, or the file was removed in the meantime.
    Other,
}

/// Reads attributes only for objects, and only if the caller needs them.
fn look(
    tree: &dyn Tree,
    path: &str,
    file_type: Option<FileType>,
    wanted: bool,
) -> io::Result<Look> {
    match file_type {
        Some(FileType::Directory) => return Ok(Look::Dir),
        Some(FileType::Regular | FileType::Symlink) if wanted && is_object_name(path) => {}
        None => {}
        Some(_) => return Ok(Look::Other),
    }
    match tree.stat(path) {
        // Links to directories are not followed, because a walk that follows them might not end.
        Ok(stat) if stat.file_type == FileType::Directory && file_type.is_none() => Ok(Look::Dir),
        Ok(stat) if stat.file_type == FileType::Regular && wanted && is_object_name(path) => {
            Ok(Look::Object(stat))
        }
        Ok(_) => Ok(Look::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Look::Other),
        Err(error) => Err(error),
    }
}
