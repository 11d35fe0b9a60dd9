//! Walks a tree of a volume, file by file, for commands with `-R`.

use std::collections::HashSet;
use std::vec;

use ironmap::fs::DirEntry;
use ironmap::units::InodeNo;

use crate::failure::Failure;
use crate::report::Report;
use crate::volumes::Found;

/// Whether a visit is before or after the entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The first visit of a directory, before the visits of its entries. Any other file has only this visit.
    First,
    /// The second visit of a directory, after the visits of everything below it.
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

/// Visits a file and, if it is a directory, everything below it. Symbolic links are visited but not followed. A failure is reported, and
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

/// Walks at most `most` levels below the root. Deeper levels are not read. A directory at the last level gets no second visit.
pub fn walk_to(
    root: Found,
    most: usize,
    report: &mut Report,
    visit: impl FnMut(&Found, Visit, &mut Report) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    walk_until(root, most, &Failure::is_unread, report, visit)
}

/// Walks like [`walk_to`], but a failure of `visit` for which `ends` returns true ends the walk.
pub(crate) fn walk_until(
    root: Found,
    most: usize,
    ends: &dyn Fn(&Failure) -> bool,
    report: &mut Report,
    mut visit: impl FnMut(&Found, Visit, &mut Report) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    // Reports a failure, or returns it if it ends the walk.
    let failed = |failure: Failure, report: &mut Report| {
        if ends(&failure) {
            return Err(failure);
        }
        report.error(&failure);
        Ok(())
    };
    let mut seen = HashSet::new();
    let mut levels: Vec<Level> = Vec::new();
    let mut next = Some(root);
    loop {
        report.stop().check()?;
        let mut has_failed = false;
        if let Some(found) = next.take() {
            match visit(&found, Visit::First, report) {
                Ok(()) if found.is_directory() && levels.len() < most => {
                    // A directory that cannot be read has no entries.
                    let mut level =
                        Level { dir: found, rest: Vec::new().into_iter(), failed: false };
                    match entries(&level.dir, &mut seen, report) {
                        Ok((entries, all)) => {
                            level.rest = entries.into_iter();
                            level.failed = !all;
                        }
                        Err(failure) => {
                            failed(failure, report)?;
                            level.failed = true;
                        }
                    }
                    levels.push(level);
                }
                Ok(()) => {}
                Err(failure) => {
                    failed(failure, report)?;
                    has_failed = true;
                }
            }
        }
        let Some(level) = levels.last_mut() else { return Ok(!has_failed) };
        level.failed |= has_failed;
        if let Some(entry) = level.rest.next() {
            let name = level.dir.child(&entry.name);
            match level.dir.name.source.inode(entry.inode, name.path()) {
                Ok(inode) => next = Some(Found { name, inode }),
                Err(failure) => {
                    failed(failure, report)?;
                    level.failed = true;
                }
            }
            continue;
        }
        let Some(mut level) = levels.pop() else { return Ok(!has_failed) };
        if let Err(failure) = visit(&level.dir, Visit::Last { intact: !level.failed }, report) {
            failed(failure, report)?;
            level.failed = true;
        }
        match levels.last_mut() {
            Some(above) => above.failed |= level.failed,
            None => return Ok(!level.failed),
        }
    }
}

/// Returns the entries of a directory, and whether all entries were read. If the volume is open only for reading, damaged blocks of the
/// directory are reported, and the entries of all other blocks are returned.
fn entries(
    dir: &Found,
    seen: &mut HashSet<InodeNo>,
    report: &mut Report,
) -> Result<(Vec<DirEntry>, bool), Failure> {
    if !seen.insert(dir.number()) {
        let what = format!("directory inode {} has more than one name", dir.number());
        return Err(Failure::corrupt(&dir.name, &what));
    }
    let (source, path) = (&dir.name.source, dir.name.path());
    let (mut entries, all) = match source.fs().is_writable() {
        true => (source.entries(&dir.inode, path)?, true),
        false => source.entries_found(&dir.inode, path, report),
    };
    entries.retain(|entry| !matches!(&*entry.name, b"." | b".."));
    Ok((entries, all))
}
