//! Copies everything that can be read out of a volume: the tree, files without a name, orphans, and deleted files.

mod ledger;
mod unreachable;

use std::fs;
use std::path::Path;
use std::rc::Rc;

use ironmap::Deleted;
use ironmap::fs::Follow;

pub(crate) use self::ledger::Ledger;
pub use self::ledger::{Counts, Found, Outcome, State, Summary};
use crate::copy::out::{Copier, Directory, Done};
use crate::copy::{CopyOptions, Keep};
use crate::failure::Failure;
use crate::report::Report;
use crate::source::Source;
use crate::spared::Spared;
use crate::undelete::{self, Recovery};

/// Copies everything that can be read out of a volume into the directories of [`Found::directory`] below `dir`. [`Source::open_damaged`]
/// opens the volume. The failure of a file is reported, and the copy continues. `each` receives the result of each file.
///
/// # Errors
/// Fails if a directory cannot be made.
pub fn salvage(
    source: Source,
    dir: &Path,
    each: &mut dyn FnMut(&Outcome<'_>),
    report: &mut Report,
) -> Result<Summary, Failure> {
    report.context().caller.catch_signals();
    source.fs().tolerate_inodes();
    let source = Rc::new(source);
    report.show_progress();
    let spared = Spared::of(source.location(), report.context());
    let (options, mut done) = (options(), Done::default());
    let mut copier = Copier::new(&options, &source, spared, &mut done, report)?;
    copier.ledger = Some(Ledger::new(dir, &source, each));
    copy_tree(&mut copier, &source, &make(dir, Found::Tree)?);
    copier.report.stop().check()?;
    unreachable::copy(&mut copier, &source, dir)?;
    copy_deleted(&mut copier, &source, dir)?;
    copier.report.progress.finish();
    let done = copier.finish().map(|ledger| (ledger.summary, ledger.notes));
    let (summary, notes) = done.unwrap_or_default();
    if notes > 0 {
        let what = format!("copies of inodes with a wrong checksum: {notes}");
        report.error(&Failure::corrupt(source.location(), &what));
    }
    Ok(summary)
}

fn options() -> CopyOptions {
    CopyOptions {
        sources: Vec::new(),
        recurses: true,
        follow: Follow::NotLast,
        keep: Keep::ALL,
        no_clobber: false,
        no_target_directory: false,
        verbose: false,
    }
}

/// Makes the directory for the files of a part of the volume.
fn make(dir: &Path, found: Found) -> Result<Directory, Failure> {
    let path = dir.join(found.directory());
    match fs::create_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::host(path.display(), error))
        }
        _ => Directory::open(&path),
    }
}

fn copy_tree(copier: &mut Copier<'_>, source: &Rc<Source>, into: &Directory) {
    match source.inode(source.fs().root(), b"/") {
        Ok(root) => copier.fill(into.clone(), root, b"/".to_vec()),
        Err(failure) => copier.lost(source.fs().root(), b"/", &failure),
    }
}

/// Copies the deleted files, including incomplete ones.
fn copy_deleted(copier: &mut Copier<'_>, source: &Source, dir: &Path) -> Result<(), Failure> {
    let Copier { report, ledger: Some(ledger), .. } = copier else { return Ok(()) };
    ledger.found = Found::Deleted;
    let deleted = match source.fs().deleted() {
        Ok(deleted) => deleted,
        Err(error) => {
            let why = Failure::at(source.location(), &error);
            report.warning(format_args!("the deleted files cannot be found: {why}"));
            return Ok(());
        }
    };
    let is_orphan = |file: &&Deleted| ledger.orphans.contains(&file.number());
    let files: Vec<_> = deleted.iter().filter(|file| !is_orphan(file)).collect();
    if files.is_empty() {
        return Ok(());
    }
    let dir = dir.join(Found::Deleted.directory());
    let recovery = Recovery { volume: source.location(), dir: &dir, partial: true };
    undelete::recover_each(&files, &recovery, report, &mut |file, copied, report| {
        let path = undelete::shown(file).into_bytes();
        let path = file.path.as_ref().unwrap_or(&path);
        let (copy, state) = match copied {
            Ok(copy) => (Some(copy), state_of(file)),
            Err(failure) => {
                report.error(failure);
                (None, State::Lost { why: failure.to_string() })
            }
        };
        ledger.record(file.number(), path, copy, Some(file.stat.size), state);
        Ok(())
    })
}

fn state_of(file: &Deleted) -> State {
    if file.is_whole() {
        return State::Whole;
    }
    State::Part { missing: Vec::new(), why: undelete::state(file) }
}
