//! Copies into a volume: a reader sends a tree as a sequence of steps, and the writer applies the steps to the volume.

mod archive;
mod data;
mod feed;
mod host;
mod open;
mod places;
mod step;
mod stream;
mod volume;
mod writer;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ironmap::Buffer;
use ironmap::fs::{FileType, Follow, Inode, SetAttributes, Stat};
use ironmap::units::FilePos;
use rustix_libc::io::Errno;

pub(crate) use self::archive::{Role, needs_of as needs_of_archive};
pub(crate) use self::host::needs_of_tree;
use self::step::{Ends, Entry, How, PIECE, Step};
use self::volume::copy_volume;
pub(crate) use self::volume::needs_of as needs_of_volume;
use self::writer::Writer;
use super::count::{Counted, Tree};
use super::keep::Times;
use super::{CopyOptions, Keep, count};
use crate::archive::Archive;
use crate::context::Context;
use crate::device_table::Node;
use crate::failure::Failure;
use crate::host_stat;
use crate::needs::Needs;
use crate::owners::Owners;
use crate::progress::Total;
use crate::report::Report;
use crate::source::Source;
use crate::spared::Spared;
use crate::target::{Subject, Target};
use crate::volumes::{Destination, DestinationIs, Found, Name, Volumes};

pub(super) fn run(
    options: &CopyOptions,
    dest: &Target,
    report: &mut Report,
) -> Result<(), Failure> {
    let directory = options.directory()?;
    let mut keep = options.keep;
    let latest = report.context().source_time()?;
    if latest.is_some() && keep.times == Times::Kept {
        keep.times = Times::Changed;
    }
    let CopyOptions { no_clobber, verbose, .. } = *options;
    let how = How {
        keep,
        no_clobber,
        verbose,
        as_files: !options.recurses,
        ends: Ends::Never,
        replace: false,
        latest,
    };
    Volumes::change(report, |volumes, report| {
        let to = volumes.destination(dest, DestinationIs { directory, follows: true })?;
        let mut writer = Writer::new(how);
        report.progress = count::start(options, volumes, keep.links, report.context());
        let is_tree =
            |source: &Subject| matches!(source, Subject::Host(path) if path != Path::new("-"));
        for sources in options.sources.chunk_by(|one, next| is_tree(one) && is_tree(next)) {
            report.stop().check()?;
            let copied = match &sources[0] {
                Subject::Host(path) if path == Path::new("-") => {
                    standard_input(options, &to, &mut writer, report)
                }
                Subject::Host(_) => host::copy(options, sources, &to, &mut writer, report),
                Subject::Volume(target) => {
                    copy_volume(options, volumes, target, &to, &mut writer, report)
                }
            };
            if let Err(failure) = copied {
                report.error(&failure);
            }
        }
        report.progress.finish();
        writer.finish(report);
        Ok(())
    })
}

/// Fills a new volume with the content of directories and archives. A later source replaces files of earlier sources.
pub(crate) struct Filler<'a> {
    root: Name,
    writer: Writer,
    report: &'a mut Report,
    /// The failures that end the copy of a directory.
    ends: Ends,
}

impl<'a> Filler<'a> {
    /// Creates a filler. `total` is the number and the total size of the files in the sources, if the caller has counted them. If the copy
    /// is strict, every failure ends the copy.
    pub(crate) fn new(
        source: &Rc<Source>,
        owners: Owners,
        total: Option<Total>,
        is_strict: bool,
        report: &'a mut Report,
    ) -> Result<Self, Failure> {
        let ends = if is_strict { Ends::Always } else { Ends::WithoutRoom };
        let how = How {
            keep: Keep::ALL,
            no_clobber: false,
            verbose: false,
            as_files: false,
            ends,
            replace: true,
            latest: report.context().source_time()?,
        };
        report.show_progress();
        if let Some(total) = total {
            report.progress.set_total(total);
        }
        let mut writer = Writer::new(how);
        writer.set_owners(owners);
        writer.spared = Spared::of(source.location(), report.context());
        Ok(Self { root: Name::root(source), writer, report, ends })
    }

    /// Counts the files in `dirs` during the copy. `dirs` must contain all sources of the copy.
    pub(crate) fn count(&mut self, dirs: Vec<PathBuf>) {
        let spared = self.writer.spared.clone();
        let counted = Counted { recurses: true, links: true, spared };
        let trees: Vec<_> = dirs.into_iter().map(|dir| Tree::Host(dir, Follow::All)).collect();
        self.report.progress.count(move |stopped| counted.count(&trees, stopped));
    }

    /// Copies the entries of a directory with all their attributes. The root gets the directory's attributes.
    ///
    /// # Errors
    /// Fails if there is no space for a file: this file and all later files are then missing. Any other failure is reported, and the copy
    /// continues, unless the copy is strict.
    pub(crate) fn directory(&mut self, dir: &Path) -> Result<(), Failure> {
        let how = self.writer.how();
        // Earlier reads of the tree have changed access times. The copy uses modification times as access times, so that these reads do not
        // change the result.
        let keep = Keep { times: Times::Changed, ..how.keep };
        self.writer.set_how(How { keep, ends: self.ends, ..how });
        self.writer.forget_links();
        host::copy_host(dir, Follow::All, self.root.clone(), &mut self.writer, self.report)
    }

    /// Copies the entries of a directory of another volume with all their attributes. The root gets the directory's attributes.
    ///
    /// # Errors
    /// The errors of [`directory`](Self::directory). Also fails if the volume cannot be opened, or if there is no directory at the path.
    pub(crate) fn volume(&mut self, target: &Target) -> Result<(), Failure> {
        let found = directory_of(target, self.report.context())?;
        let how = self.writer.how();
        self.writer.set_how(How {
            keep: Keep { times: Times::Kept, ..how.keep },
            ends: self.ends,
            ..how
        });
        self.writer.forget_links();
        volume::copy_tree(found, self.root.clone(), &mut self.writer, self.report)
    }

    /// Copies the members of an archive with all their attributes.
    ///
    /// # Errors
    /// The first failure, which ends the copy: all later members are missing. If the volume has no space, the archive is still read to its
    /// end, so that `needs` counts all members.
    pub(crate) fn archive(
        &mut self,
        archive: Archive,
        role: Role,
        needs: &mut Needs,
    ) -> Result<(), Failure> {
        let how = self.writer.how();
        let keep = Keep { times: Times::Kept, ..how.keep };
        self.writer.set_how(How { keep, ends: Ends::Always, ..how });
        self.writer.start(self.root.clone(), None);
        if role != Role::Tree {
            self.writer.start_layer();
        }
        let (copied, read) =
            archive::copy(archive, role, needs.clone(), &mut self.writer, self.report);
        *needs = read;
        copied.and(self.writer.end_layer(self.report))
    }

    /// Makes a directory, a special file or a regular file with content. If the file exists, sets its owner and mode. A regular file with
    /// content replaces an existing file. A regular file without content must exist.
    ///
    /// # Errors
    /// Fails if the file cannot be made, or if the name belongs to a file of another type or to another device.
    pub(crate) fn node(&mut self, node: &Node) -> Result<(), Failure> {
        let stat = node.stat();
        if node.content.is_none() && self.change(&node.path, &stat)? {
            return Ok(());
        }
        let how = self.writer.how();
        self.writer.set_how(How { keep: Keep { times: Times::Now, ..how.keep }, ..how });
        self.writer.set_owners(Owners::default());
        self.writer.start(self.root.clone(), None);
        let (name, text) = (Vec::new(), String::from_utf8_lossy(&node.path).into_owned());
        let (identity, xattrs) = ((0, 0), Vec::new());
        let (target, leads_to, wanted) = (None, None, None);
        let size = stat.size;
        let entry = Entry { name, path: text, identity, stat, target, leads_to, xattrs, wanted };
        self.take(Step::At(node.path.clone()))?;
        self.take(Step::Begin(Box::new(entry)))?;
        let content = self.content(node.content.as_deref().unwrap_or_default());
        let ended = self.take(Step::End(content.is_ok().then_some(size)));
        content.and(ended)
    }

    /// Writes the content of a regular file.
    fn content(&mut self, content: &[u8]) -> Result<(), Failure> {
        let mut pos = 0;
        if !content.is_empty() {
            self.take(Step::Range(FilePos(0), content.len() as u64))?;
        }
        for piece in content.chunks(PIECE as usize) {
            self.take(Step::Data(FilePos(pos), Buffer::from(piece.to_vec())))?;
            pos += piece.len() as u64;
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), Failure> {
        self.writer.take(step, self.report)
    }

    /// Sets the owner and the mode of an existing file. Returns whether the file exists.
    fn change(&self, path: &[u8], stat: &Stat) -> Result<bool, Failure> {
        let regular = stat.file_type == FileType::Regular;
        match self.root.beside(&[b"/", path].concat()) {
            Ok(name) => {
                let there =
                    if regular { Some(name.find(Follow::All)?) } else { name.look(Follow::All)? };
                if let Some(there) = there {
                    return set_node(&name, &there, stat).map(|()| true);
                }
                if name.look(Follow::NotLast)?.is_some() {
                    return Err(name.refused("is a symbolic link to a missing file"));
                }
            }
            Err(failure) if failure.is_missing() && !regular => {}
            Err(failure) => return Err(failure),
        }
        Ok(false)
    }

    /// Sets the times of directories, and reports the attributes that could not be kept.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let finished = self.writer.set_times(&self.root);
        self.report.progress.finish();
        self.writer.finish(self.report);
        finished
    }
}

/// Returns the directory at a path of a volume.
///
/// # Errors
/// Fails if the volume cannot be opened, or if there is no directory at the path.
pub(crate) fn directory_of(target: &Target, context: &Arc<Context>) -> Result<Found, Failure> {
    let found = Volumes::to_read(context).file(target, Follow::All)?;
    if found.inode.file_type() != FileType::Directory {
        return Err(Failure::new(format!("{target}: is not a directory (ENOTDIR)")));
    }
    Ok(found)
}

/// Sets the owner and the mode of a file to the values in a line of a device table. The file must have the type and the device number of
/// this line.
fn set_node(name: &Name, there: &Inode, stat: &Stat) -> Result<(), Failure> {
    let is = there.stat();
    if (is.file_type, is.device) != (stat.file_type, stat.device) {
        return Err(name.refused(
            "the file exists, but its type or device number differs from the device table",
        ));
    }
    let (uid, gid) = (Some(stat.uid), Some(stat.gid));
    let owner = SetAttributes::new().uid(uid).gid(gid);
    // The mode is set after the owner, because a change of owner clears set-id bits.
    let permissions = Some(stat.mode & 0o7777);
    let mode = SetAttributes::new().permissions(permissions);
    let set =
        |set| name.fs().writable().and_then(|writer| writer.set_attributes(there.number(), set));
    set(&owner).and_then(|()| set(&mode)).map_err(|error| name.failed(&error))
}

/// Copies standard input, which the user named as `-`.
fn standard_input(
    options: &CopyOptions,
    to: &Destination,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    let Destination::As(name) = to else {
        return Err(Failure::usage(
            "standard input ('-') has no name: the destination must name the copy",
        ));
    };
    if options.recurses {
        return Err(Failure::usage(
            "standard input ('-') cannot be copied with -r or -a, because it has no attributes",
        ));
    }
    let input = Path::new("/dev/stdin");
    let failed = |errno| Failure::host("standard input", errno);
    if host_stat::stat(input, true).map_err(failed)?.file_type == FileType::Directory {
        return Err(failed(Errno::ISDIR));
    }
    host::copy_host(input, Follow::All, name.clone(), writer, report)
}
