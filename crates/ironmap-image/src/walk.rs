//! Walks a tree of a volume, file by file, for commands with `-R`.

use std::collections::HashSet;
use std::vec;

use ironmap::fs::DirEntry;
use ironmap::units::InodeNo;

use crate::failure::Failure;
use crate::report::Report;
use crate::volumes::Found;

/// The order of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The first visit of a directory, before its entries; and the only visit of any other file.
    First,
    /// The second visit of a directory, after everything below it.
    Last {
        /// Whether no visit below the directory has failed.
        intact: bool,
    },
}

struct Level {
    dir: Found,
    rest: vec::IntoIter<DirEntry>,
    failed: bool,
}

/// Visits a file and, if it is a directory, everything below it. Symbolic links are visited, but not followed. A failure is reported, and
/// the walk continues. Returns whether there was no failure.
///
/// The walk does not recurse, because the depth of a volume's tree has no limit.
pub fn walk(
    root: Found,
    report: &mut Report,
    visit: impl FnMut(&Found, Visit, &mut Report) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    walk_to(root, usize::MAX, report, visit)
}

/// Walks at most `most` levels below the root. Deeper levels are not read, and a directory that is not entered gets no second visit.
pub fn walk_to(
    root: Found,
    most: usize,
    report: &mut Report,
    mut visit: impl FnMut(&Found, Visit, &mut Report) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut seen = HashSet::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some(root);
    loop {
        report.stop().check()?;
        let mut failed = false;
        if let Some(found) = next.take() {
            match visit(&found, Visit::First, report) {
                Ok(()) => {
                    if found.is_directory() && levels.len() < most {
                        levels.push(enter(found, &mut seen, report));
                    }
                }
                Err(failure) if failure.is_unread() => return Err(failure),
                Err(failure) => {
                    report.error(&failure);
                    failed = true;
                }
            }
        }
        let Some(level) = levels.last_mut() else { return Ok(!failed) };
        level.failed |= failed;
        if let Some(entry) = level.rest.next() {
            let name = level.dir.child(&entry.name);
            match level.dir.name.source.inode(entry.inode, name.path()) {
                Ok(inode) => next = Some(Found { name, inode }),
                Err(failure) => {
                    report.error(&failure);
                    level.failed = true;
                }
            }
            continue;
        }
        let Some(mut level) = levels.pop() else { return Ok(!failed) };
        if let Err(failure) = visit(&level.dir, Visit::Last { intact: !level.failed }, report) {
            if failure.is_unread() {
                return Err(failure);
            }
            report.error(&failure);
            level.failed = true;
        }
        match levels.last_mut() {
            Some(above) => above.failed |= level.failed,
            None => return Ok(!level.failed),
        }
    }
}

/// A directory with its entries. If it cannot be read, it has no entries.
fn enter(dir: Found, seen: &mut HashSet<InodeNo>, report: &mut Report) -> Level {
    let entries = if seen.insert(dir.number()) {
        dir.name.source.entries(&dir.inode, dir.name.path())
    } else {
        let what = format!("directory inode {} has more than one entry", dir.number());
        Err(Failure::corrupt(&dir.name, &what))
    };
    let failed = entries.as_ref().err().inspect(|failure| report.error(failure)).is_some();
    let mut entries = entries.unwrap_or_default();
    entries.retain(|entry| !matches!(&*entry.name, b"." | b".."));
    Level { dir, rest: entries.into_iter(), failed }
}
