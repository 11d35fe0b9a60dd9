//! Resolves the paths of an archive's members. The members may be in any order.

use std::collections::{BTreeMap, HashSet};

use ironmap::fs::{Credentials, FileType, Follow, NewFile, SetAttributes};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind};

use crate::failure::Failure;
use crate::report::Report;
use crate::volumes::{Found, Name};
use crate::walk::{Visit, walk};

/// The prefix of whiteouts. No file of an image has a name with this prefix (OCI image specification, "Image Layer Filesystem Changeset").
pub(super) const WHITEOUT: &[u8] = b".wh.";
/// The directory that e2fsck uses in the root. A layer does not hide this directory.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The directories whose times are set after the copy, because each new file in a directory changes the directory's times.
#[derive(Default)]
pub(super) struct Places {
    times: BTreeMap<InodeNo, SetAttributes>,
    /// The names that the current layer has made, with their directories. `None` if the source is not a layer. Names are stored instead of
    /// inodes, because a layer may add a name to a file of an earlier layer and hide the old name.
    layer: Option<HashSet<(InodeNo, Vec<u8>)>>,
    /// The files that the current layer has made under names that AUFS uses internally.
    aside: Vec<Name>,
    /// The owner of directories that the archive does not contain, but that the copy makes for files of the archive.
    pub(super) owner: (u32, u32),
}

impl Places {
    /// Resolves a path, and makes the missing directories of this path. Symbolic links to directories are followed, but cannot lead out of
    /// the volume's root.
    pub(super) fn name(&mut self, root: &Name, path: &[u8]) -> Result<Name, Failure> {
        let at = |path: &[u8]| root.beside(&[b"/", path].concat());
        let missing = match at(path) {
            Err(failure) if failure.is_missing() => failure,
            found => return found,
        };
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let owner = Credentials::new(self.owner.0, self.owner.1, 0);
        for (slash, _) in slashes {
            let dir = at(&path[..slash])?;
            let made = dir.fs().writable().and_then(|writer| {
                writer.create(dir.dir, &dir.name, NewFile::Directory, 0o755, &owner)
            });
            match made {
                Err(error) if error.kind() == ErrorKind::Exists => {}
                made => {
                    made.map_err(|error| dir.failed(&error))?;
                    self.made(&dir);
                }
            }
        }
        // The look-up still fails if a component of the path is not a directory, or is a link to a missing file.
        at(path).map_err(|failure| if failure.is_missing() { missing } else { failure })
    }

    /// Starts to record the files that the layer makes, because the layer must hide only files of earlier layers.
    pub(super) fn start_layer(&mut self) {
        self.layer = Some(HashSet::new());
    }

    pub(super) fn made(&mut self, name: &Name) {
        if let Some(layer) = &mut self.layer {
            layer.insert((name.dir, name.name.clone()));
            if name.name.starts_with(WHITEOUT) {
                self.aside.push(name.clone());
            }
        }
    }

    /// Removes the files that the layer has made under the names that AUFS uses internally.
    pub(super) fn end_layer(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.layer = None;
        for name in std::mem::take(&mut self.aside) {
            if let Some(inode) = name.look(Follow::NotLast)? {
                self.remove(Found { name, inode }, report)?;
            }
        }
        Ok(())
    }

    fn is_of_layer(&self, name: &Name) -> bool {
        let made = |layer: &HashSet<_>| layer.contains(&(name.dir, name.name.clone()));
        self.layer.as_ref().is_some_and(made)
    }

    /// Records the times that a directory must have after the copy.
    pub(super) fn directory(&mut self, number: InodeNo, times: SetAttributes) {
        self.times.insert(number, times);
    }

    /// Removes a file, or a directory with everything below it.
    pub(super) fn remove(&mut self, found: Found, report: &mut Report) -> Result<(), Failure> {
        self.remove_unless(found, report, |_, _| false)
    }

    /// Removes the files of earlier layers at a path and below this path, if there are any.
    pub(super) fn hide(
        &mut self,
        root: &Name,
        path: &[u8],
        report: &mut Report,
    ) -> Result<(), Failure> {
        let found = root.beside(&[b"/", path].concat()).and_then(|name| {
            let inode = name.look(Follow::NotLast)?;
            Ok(inode.map(|inode| Found { name, inode }))
        });
        match found {
            Ok(Some(found)) => self.remove_unless(found, report, Self::is_of_layer),
            Ok(None) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Removes the files of earlier layers in a directory, if the directory exists.
    pub(super) fn empty(
        &mut self,
        root: &Name,
        path: &[u8],
        report: &mut Report,
    ) -> Result<(), Failure> {
        let name = match root.beside(&[b"/", path].concat()) {
            Err(failure) if failure.is_missing() => return Ok(()),
            name => name?,
        };
        let inode = name.look(Follow::All)?.filter(|dir| dir.file_type() == FileType::Directory);
        let Some(dir) = inode else { return Ok(()) };
        for entry in name.source.entries(&dir, name.path())? {
            let kept = path.is_empty() && *entry.name == *LOST_AND_FOUND;
            if kept || matches!(&*entry.name, b"." | b"..") {
                continue;
            }
            let name = name.below(dir.number(), &entry.name);
            let inode = name.find(Follow::NotLast)?;
            self.remove_unless(Found { name, inode }, report, Self::is_of_layer)?;
        }
        Ok(())
    }

    /// Removes a file, or a directory with everything below it. Keeps the files for which `keeps` returns true, and the directories that
    /// contain them.
    fn remove_unless(
        &mut self,
        found: Found,
        report: &mut Report,
        keeps: impl Fn(&Self, &Name) -> bool,
    ) -> Result<(), Failure> {
        let name = found.name.clone();
        let intact = walk(found, report, |found, visit, _| {
            let (fs, dir, name) = (found.fs(), found.name.dir, &found.name.name);
            let removed = match (found.is_directory(), visit) {
                (true, Visit::First) | (_, Visit::Last { intact: false }) => return Ok(()),
                _ if keeps(self, &found.name) => return Ok(()),
                (true, _) => match fs.writable().and_then(|writer| writer.rmdir(dir, name)) {
                    // The directory contains a file that is kept, so it is kept too.
                    Err(error) if error.kind() == ErrorKind::NotEmpty => return Ok(()),
                    removed => removed,
                },
                _ => fs.writable().and_then(|writer| writer.unlink(dir, name)),
            };
            removed.map_err(|error| found.failed(&error))?;
            // A later file may reuse the inode number, so this code drops the recorded times.
            self.times.remove(&found.number());
            if let Some(layer) = &mut self.layer {
                layer.remove(&(found.name.dir, found.name.name.clone()));
            }
            Ok(())
        })?;
        if intact {
            Ok(())
        } else {
            Err(name.refused("the directory could not be removed completely"))
        }
    }

    /// Gives the file `target` the additional name `to`. Another file with the name `to` is removed first.
    pub(super) fn link(
        &mut self,
        root: &Name,
        to: &Name,
        target: &[u8],
        report: &mut Report,
    ) -> Result<(), Failure> {
        let target = root.beside(&[b"/", target].concat()).and_then(|target| {
            let inode = target.find(Follow::NotLast)?;
            Ok(Found { name: target, inode })
        });
        let target = target.map_err(|failure| {
            to.refused(format_args!("is a hard link to a missing file: {failure}"))
        })?;
        if target.is_directory() {
            return Err(to.refused(format_args!("is a hard link to a directory, {}", target.name)));
        }
        if let Some(inode) = to.look(Follow::NotLast)? {
            if inode.number() == target.number() {
                self.made(to);
                return Ok(());
            }
            self.remove(Found { name: to.clone(), inode }, report)?;
            // Removing `to` may have removed a directory that contained the target, so this code looks up the target again.
            if target.name.look(Follow::NotLast)?.is_none() {
                let gone = Error::new(
                    ErrorKind::NotFound,
                    "the target of the hard link was in the replaced directory",
                );
                return Err(target.failed(&gone));
            }
        }
        let linked =
            to.fs().writable().and_then(|writer| writer.link(target.number(), to.dir, &to.name));
        linked.map_err(|error| to.failed(&error))?;
        self.made(to);
        Ok(())
    }

    /// Sets the recorded times of directories.
    pub(super) fn finish(&mut self, root: &Name) -> Result<(), Failure> {
        for (number, times) in std::mem::take(&mut self.times) {
            root.fs()
                .writable()
                .and_then(|writer| writer.set_attributes(number, &times))
                .map_err(|error| root.failed(&error))?;
        }
        Ok(())
    }
}

/// Whether an existing file is kept when a copy is given its name. Only a directory is kept, and only if the copy is a directory too.
pub(super) fn stays(there: FileType, new: FileType) -> bool {
    (there, new) == (FileType::Directory, FileType::Directory)
}
