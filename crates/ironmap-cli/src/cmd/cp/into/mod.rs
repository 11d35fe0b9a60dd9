//! Into a volume: what reads a tree says what is there, step by step, and the writer makes the same in the volume.

mod host;
mod stream;
mod volume;
mod writer;

use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use ironmap::bio::Buffer;
use ironmap::fs::ext4::Follow;
use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::units::FilePos;
use ironmap::{Error, ErrorKind};

pub(crate) use self::host::data_of;
use self::volume::copy_volume;
use self::writer::Writer;
use super::keep::Times;
use super::{Args, Keep, progress};
use crate::epoch::source_time;
use crate::failure::{Failure, Report};
use crate::interrupt;
use crate::source::Source;
use crate::target::{Subject, Target};
use crate::volumes::{DestinationIs, Name, Volumes};

/// How much of a file is read and written at once: little enough to stay in a processor's cache in between. What is no longer is written in
/// one transaction, which costs less for a small file than a direct write and what that leaves to be converted.
const PIECE: u64 = 1 << 20;

/// A tree as a sequence: each `Begin` has its `End`, and what lies between them is in it.
enum Step {
    /// A file or a directory begins.
    Begin(Box<Entry>),
    /// A further name of a file that had its `Begin` before.
    Again(Vec<u8>, Identity),
    /// Content of this length follows, piece by piece, with no hole in it; it may turn out to be shorter.
    Range(FilePos, u64),
    /// A piece of a file's content; what no step has is a hole.
    Data(FilePos, Buffer),
    /// It ends, with this size where it is a file; `None` where not all of it could be read.
    End(Option<u64>),
    /// Something could not be read.
    Failed(Failure),
}

/// A file that is copied.
struct Entry {
    /// Its last name.
    name: Vec<u8>,
    /// Its path, for messages; empty where none are wanted.
    path: String,
    identity: Identity,
    stat: Stat,
    /// Of a symbolic link.
    target: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// For who reads its content.
    wanted: Option<Wanted>,
}

/// The writer's side of a question: is the content of a file wanted? Once it is dropped, it is not.
struct Wanted(Sender<()>);

/// The reader's side.
struct IsWanted(Receiver<()>);

/// Who reads a file asks, and who writes the copy answers.
fn wanted() -> (Wanted, IsWanted) {
    let (answer, answers) = channel();
    (Wanted(answer), IsWanted(answers))
}

impl Wanted {
    /// The copy has begun.
    fn yes(&self) {
        // The reader may be gone.
        let _ = self.0.send(());
    }
}

impl IsWanted {
    /// Waits for the answer.
    fn wait(&self) -> bool {
        self.0.recv().is_ok()
    }

    /// Whether the answer was not no, so far.
    fn is_not_refused(&self) -> bool {
        self.0.try_recv() != Err(TryRecvError::Disconnected)
    }
}

/// Which file it is: device, inode.
type Identity = (u64, u64);

/// The copy was interrupted.
struct Stopped;

/// How to copy.
#[derive(Clone, Copy, Debug)]
struct How {
    keep: Keep,
    no_clobber: bool,
    verbose: bool,
    /// Pipes and devices of the host are read as files are.
    as_files: bool,
    /// Where there is no room for one file, no other one is copied.
    all_or_end: bool,
    /// No copy is younger; and that a source was read does not show.
    latest: Option<Timestamp>,
}

pub(super) fn run(args: &Args, dest: &Target, report: &mut Report) -> Result<(), Failure> {
    let directory = args.directory()?;
    let mut keep = Keep::of(args);
    let latest = source_time()?;
    if latest.is_some() && keep.times == Times::Kept {
        keep.times = Times::Changed;
    }
    let Args { no_clobber, verbose, .. } = *args;
    let how =
        How { keep, no_clobber, verbose, as_files: !args.recurses(), all_or_end: false, latest };
    Volumes::change(report, |volumes, report| {
        let to = volumes.destination(dest, DestinationIs { directory, follows: true })?;
        let mut writer = Writer::new(how);
        for source in &args.sources {
            interrupt::check()?;
            let copied = match source {
                Subject::Host(path) => host::copy(args, path, &to, &mut writer, report),
                Subject::Volume(target) => {
                    copy_volume(args, volumes, target, &to, &mut writer, report)
                }
            };
            report.progress.finish_and_clear();
            if let Err(failure) = copied {
                report.error(&failure);
            }
        }
        writer.finish(report);
        Ok(())
    })
}

/// Fills a new volume with what a directory holds, as it is; the root gets the directory's attributes.
///
/// # Errors
/// There is no room for a file: it and what comes behind it are not there. What else fails is reported, and the rest goes on.
pub(crate) fn fill(source: &Rc<Source>, dir: &Path, report: &mut Report) -> Result<(), Failure> {
    interrupt::catch();
    let keep = Keep { times: Times::Changed, ..Keep::ALL };
    let latest = source_time()?;
    let how =
        How { keep, no_clobber: false, verbose: false, as_files: false, all_or_end: true, latest };
    let mut writer = Writer::new(how);
    report.progress = progress(FileType::Directory, 0);
    let filled = host::copy_host(dir, Follow::All, Name::root(source), &mut writer, report);
    report.progress.finish_and_clear();
    writer.finish(report);
    filled
}

/// What a file's copy is not to be called: a name with a slash at the end, which asks for a directory, and one that this command has just
/// given to another copy.
fn check_name(to: &Name, kind: FileType, writer: &mut Writer) -> Result<(), Failure> {
    if kind == FileType::Directory {
        return Ok(());
    }
    if to.wants_directory() && to.look(Follow::All)?.is_none() {
        return Err(to.failed(&Error::new(ErrorKind::NotADirectory, "not a directory")));
    }
    if !writer.made.insert((to.dir, to.name.clone())) {
        return Err(to.refused("was just made, and is not replaced"));
    }
    Ok(())
}
