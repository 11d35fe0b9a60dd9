//! Files at paths from the root of a tree, in any order: the members of an archive.

use std::collections::{BTreeMap, HashSet};

use ironmap::fs::{Credentials, FileType, Follow, NewFile, SetAttributes};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind};

use crate::failure::Failure;
use crate::report::Report;
use crate::volumes::{Found, Name};
use crate::walk::{Visit, walk};

/// How names begin that no file of an image has (OCI image specification, "Image Layer Filesystem Changeset").
pub(super) const WHITEOUT: &[u8] = b".wh.";
/// What e2fsck puts into the root, and no layer hides.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The directories of a tree whose times are set when all is there: what is made in them changes these.
#[derive(Default)]
pub(super) struct Places {
    times: BTreeMap<InodeNo, SetAttributes>,
    /// The names that the layer has made that is being applied, with their directories; `None` where nothing hides anything. Not inodes: a
    /// layer may give a file of a layer before it one more name, and hide the old one.
    layer: Option<HashSet<(InodeNo, Vec<u8>)>>,
    /// What the layer has made under the names of AUFS's own, which no file of an image has: members of the layer may be links to them.
    aside: Vec<Name>,
    /// Whose directories are that are made for what is in them.
    pub(super) owner: (u32, u32),
}

impl Places {
    /// The name of a path. Directories above it that are not there are made; symbolic links among them are followed, and
    /// lead no further than the root of the volume.
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
        // Something in the way is no directory, or a link that leads nowhere.
        at(path).map_err(|failure| if failure.is_missing() { missing } else { failure })
    }

    /// From now on it is remembered what is made: what the layer hides is of those before it.
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

    /// Removes what the layer has made for its own links.
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

    /// Remembers what a directory is to have in the end.
    pub(super) fn directory(&mut self, number: InodeNo, times: SetAttributes) {
        self.times.insert(number, times);
    }

    /// Removes what has a name, with all below it.
    pub(super) fn remove(&mut self, found: Found, report: &mut Report) -> Result<(), Failure> {
        self.remove_unless(found, report, |_, _| false)
    }

    /// Removes what layers before this one have at a path, if there is anything.
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

    /// Removes what a directory has from layers before this one, if it is there.
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

    /// The same for all that this does not keep, and the directories above that.
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
                    // Something in it is kept.
                    Err(error) if error.kind() == ErrorKind::NotEmpty => return Ok(()),
                    removed => removed,
                },
                _ => fs.writable().and_then(|writer| writer.unlink(dir, name)),
            };
            removed.map_err(|error| found.failed(&error))?;
            // Another file gets its number.
            self.times.remove(&found.number());
            if let Some(layer) = &mut self.layer {
                layer.remove(&(found.name.dir, found.name.name.clone()));
            }
            Ok(())
        })?;
        if intact { Ok(()) } else { Err(name.refused("could not be removed whole")) }
    }

    /// Gives a file one more name, in place of what has that.
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
            to.refused(format_args!("is a hard link to what is not there: {failure}"))
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
            // It may have been in what was removed.
            if target.name.look(Follow::NotLast)?.is_none() {
                let gone = Error::new(ErrorKind::NotFound, "went with what has the new name");
                return Err(target.failed(&gone));
            }
        }
        let linked =
            to.fs().writable().and_then(|writer| writer.link(target.number(), to.dir, &to.name));
        linked.map_err(|error| to.failed(&error))?;
        self.made(to);
        Ok(())
    }

    /// Sets the times of directories.
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

/// Whether a directory becomes the other one, in place of being replaced.
pub(super) fn stays(there: FileType, new: FileType) -> bool {
    (there, new) == (FileType::Directory, FileType::Directory)
}
