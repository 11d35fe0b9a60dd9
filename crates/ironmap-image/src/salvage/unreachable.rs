//! Copies the files in use that the tree does not contain.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use ironmap::fs::FileType;
use ironmap::units::InodeNo;

use super::{Found, make};
use crate::copy::out::{Copier, Directory};
use crate::failure::Failure;
use crate::source::Source;

/// Copies orphans, and then each tree that no directory contains.
pub(super) fn copy(
    copier: &mut Copier<'_>,
    source: &Rc<Source>,
    dir: &Path,
) -> Result<(), Failure> {
    let unreached = find(copier, source, dir)?;
    if unreached.is_empty() {
        return Ok(());
    }
    set_part(copier, Found::Unreachable);
    let into = make(dir, Found::Unreachable)?;
    // A cycle of directories has no root, because each of its directories has a parent. Therefore, all directories that are not below a
    // root are copied after the roots.
    let (roots, unreached) = (roots(&unreached, source), unreached.into_iter());
    let directories = unreached.filter(|(_, is_directory)| *is_directory).map(|(number, _)| number);
    for number in roots.into_iter().chain(directories) {
        copier.report.stop().check()?;
        if has_seen(copier, number) {
            continue;
        }
        let path = name_of(number);
        match source.inode(number, path.as_bytes()) {
            Ok(inode) => {
                let name = format!("inode-{number}");
                copier.copy(&into.place(name.as_ref()), inode, path.as_bytes());
            }
            Err(failure) => copier.lost(number, path.as_bytes(), &failure),
        }
    }
    Ok(())
}

/// Returns the path of a file without a name.
fn name_of(number: InodeNo) -> String {
    format!("<{number}>")
}

/// Finds the inodes that the tree does not contain, and whether each is a directory. Copies orphans at once.
fn find(
    copier: &mut Copier<'_>,
    source: &Rc<Source>,
    dir: &Path,
) -> Result<BTreeMap<InodeNo, bool>, Failure> {
    let (mut unreached, mut stopped) = (BTreeMap::new(), None);
    let mut orphans = None::<Directory>;
    let found = source.fs().used_inodes(&mut |number, inode| {
        if let Err(failure) = copier.report.stop().check() {
            stopped = Some(failure);
            return Err(ironmap::Error::invalid("stopped"));
        }
        if has_seen(copier, number) {
            return Ok(());
        }
        let path = name_of(number);
        let inode = match inode {
            Ok(inode) if inode.stat().links > 0 => {
                unreached.insert(number, inode.file_type() == FileType::Directory);
                return Ok(());
            }
            inode => inode,
        };
        set_part(copier, Found::Orphan);
        let into = match &orphans {
            Some(made) => Ok(made.clone()),
            None => make(dir, Found::Orphan).inspect(|made| orphans = Some(made.clone())),
        };
        if let Some(ledger) = &mut copier.ledger {
            ledger.orphans.insert(number);
        }
        let inode = inode.map_err(|error| Failure::at(source.name(path.as_bytes()), &error));
        match into.and_then(|into| inode.map(|inode| (into, inode))) {
            Ok((into, inode)) => {
                let name = format!("inode-{number}");
                copier.copy(&into.place(name.as_ref()), inode, path.as_bytes());
            }
            Err(failure) => {
                set_part(copier, Found::Unreachable);
                copier.lost(number, path.as_bytes(), &failure);
            }
        }
        Ok(())
    });
    match (stopped, found) {
        (Some(stopped), _) => Err(stopped),
        (None, Ok(())) => Ok(unreached),
        (None, Err(error)) => {
            copier.report.error(&Failure::at(source.location(), &error));
            Ok(unreached)
        }
    }
}

/// Returns the inodes that no directory of `unreached` contains.
fn roots(unreached: &BTreeMap<InodeNo, bool>, source: &Source) -> Vec<InodeNo> {
    let mut children = HashSet::new();
    for (number, _) in unreached.iter().filter(|(_, is_directory)| **is_directory) {
        let Ok(dir) = source.fs().known_inode(*number) else { continue };
        // A damaged block is reported when the directory is copied.
        let entries = dir.read_dir().into_iter().flatten().flatten();
        let named = entries.filter(|entry| !matches!(&*entry.name, b"." | b".."));
        children.extend(named.map(|entry| entry.inode).filter(|child| child != number));
    }
    unreached.keys().filter(|number| !children.contains(number)).copied().collect()
}

fn has_seen(copier: &Copier<'_>, number: InodeNo) -> bool {
    copier.ledger.as_ref().is_some_and(|ledger| ledger.seen.contains(&number))
}

fn set_part(copier: &mut Copier<'_>, found: Found) {
    if let Some(ledger) = &mut copier.ledger {
        ledger.found = found;
    }
}
