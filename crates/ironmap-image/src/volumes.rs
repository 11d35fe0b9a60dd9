//! The volumes that a command uses, and names in them.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use ironmap::fs::{FileSystem, FileType, Follow, Inode};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind, Location};

use crate::context::Context;
use crate::failure::Failure;
use crate::quote::quoted;
use crate::report::Report;
use crate::source::{Source, join};
use crate::target::{Target, inode_of};

/// Returns the location with canonical paths, in which all symbolic links are resolved.
pub(crate) fn canonical(location: &Location) -> Location {
    location.with_paths(&|path| path.canonicalize().ok())
}

/// The volumes of one command. Each volume is opened once, even if several arguments name files of the volume.
pub struct Volumes {
    write: bool,
    opened: Vec<(Location, Rc<Source>)>,
    context: Arc<Context>,
}

impl Volumes {
    /// Creates an empty set for a command that only reads its volumes.
    pub fn to_read(context: &Arc<Context>) -> Self {
        Self { write: false, opened: Vec::new(), context: Arc::clone(context) }
    }

    /// Runs a command and closes the volumes that it has opened. If a volume cannot be closed, the command fails.
    pub fn change(
        report: &mut Report,
        work: impl FnOnce(&mut Self, &mut Report) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let context = Arc::clone(report.context());
        context.caller.catch_signals();
        let mut volumes = Self { write: true, opened: Vec::new(), context };
        let result = work(&mut volumes, report);
        for (_, source) in volumes.opened {
            if let Err(failure) = source.close() {
                report.error(&failure);
            }
        }
        result
    }

    /// Runs a command for each target, and closes the volumes. A failure is reported, and the other targets are still processed.
    pub fn change_each(
        targets: &[Target],
        report: &mut Report,
        mut work: impl FnMut(&mut Self, &Target, &mut Report) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        Self::change(report, |volumes, report| {
            for target in targets {
                report.stop().check()?;
                if let Err(failure) = work(volumes, target, report) {
                    report.error(&failure);
                }
            }
            Ok(())
        })
    }

    /// Returns the volume at a location.
    pub fn open(&mut self, location: &Location) -> Result<Rc<Source>, Failure> {
        let canonical = canonical(location);
        if let Some((_, source)) = self.opened.iter().find(|(known, _)| *known == canonical) {
            return Ok(Rc::clone(source));
        }
        let open = if self.write { Source::open_for_writing } else { Source::open };
        let source = Rc::new(open(location, &self.context)?);
        self.opened.push((canonical, Rc::clone(&source)));
        Ok(source)
    }

    /// Splits a path into its last component and the directory that contains it.
    pub fn name(&mut self, target: &Target) -> Result<Name, Failure> {
        if inode_of(&target.path).is_some() {
            let what = "the path is an inode number, but the command needs a name";
            return Err(Failure::usage(format_args!("{target}: {what}")));
        }
        Name::of(self.open(&target.volume)?, &target.path)
    }

    /// Returns the file at a path.
    pub fn find(&mut self, target: &Target, follow: Follow) -> Result<Found, Failure> {
        let name = self.name(target)?;
        let inode = name.find(follow)?;
        Ok(Found { name, inode })
    }

    /// Returns the file with this path or this inode number, for a command that only reads the file.
    pub fn file(&mut self, target: &Target, follow: Follow) -> Result<Found, Failure> {
        let source = self.open(&target.volume)?;
        let inode = source.resolve(&target.path, follow)?;
        let (path, name) = (target.path.clone(), split(&target.path).1.to_vec());
        Ok(Found { name: Name { source, dir: inode.number(), name, path }, inode })
    }

    /// Determines the meaning of DEST, as in `cp`, `mv` and `ln`: the directory that receives the file, or the new name of the file.
    pub fn destination(
        &mut self,
        dest: &Target,
        how: DestinationIs,
    ) -> Result<Destination, Failure> {
        let name = self.name(dest)?;
        let follow = if how.follows { Follow::All } else { Follow::NotLast };
        // A symbolic link that points to itself is not a directory. A new file may replace the link.
        let may_loop = how.directory.is_none() && !name.wants_directory();
        let there = match how.directory {
            Some(false) => None,
            _ => match name.try_look(follow) {
                Err(error) if error.kind() == ErrorKind::Loop && may_loop => None,
                there => there.map_err(|error| name.failed(&error))?,
            },
        };
        match there {
            Some(inode) if inode.file_type() == FileType::Directory => {
                Ok(Destination::Into(name, inode.number()))
            }
            _ if how.directory == Some(true) => {
                let kind =
                    if there.is_some() { ErrorKind::NotADirectory } else { ErrorKind::NotFound };
                Err(name.failed(&Error::new(kind, "the destination is not a directory")))
            }
            _ => Ok(Destination::As(name)),
        }
    }
}

/// The options of a command that determine the meaning of its last argument, DEST.
#[derive(Clone, Copy)]
pub struct DestinationIs {
    /// `Some(true)` if DEST must be a directory (`-t`, or several sources); `Some(false)` if DEST is always the new name (`-T`).
    pub directory: Option<bool>,
    /// Whether DEST counts as a directory if it is a symbolic link to a directory.
    pub follows: bool,
}

/// The destination of a file.
#[derive(Clone)]
pub enum Destination {
    /// The file is put into this directory. Its name is the last component of its old path.
    Into(Name, InodeNo),
    /// The new name of the file.
    As(Name),
}

impl Destination {
    /// Returns the name that a source with the last component `last` gets.
    pub fn name_for(&self, last: &[u8]) -> Name {
        match self {
            // If the source path ends with `..`, the content is copied into the destination directory itself, not into its parent.
            Self::Into(dir, number) if last == b".." => dir.below(*number, b"."),
            Self::Into(dir, number) => dir.below(*number, last),
            Self::As(name) => name.clone(),
        }
    }
}

/// A name in a directory of a volume. A file with this name may or may not exist. The root has no parent, so its name is `.` in the root
/// itself.
#[derive(Clone)]
pub struct Name {
    /// The volume.
    pub source: Rc<Source>,
    /// The directory.
    pub dir: InodeNo,
    /// The name in the directory.
    pub name: Vec<u8>,
    /// The path that the user wrote, or a path that begins with it.
    path: Vec<u8>,
}

impl Name {
    fn of(source: Rc<Source>, path: &[u8]) -> Result<Self, Failure> {
        let (above, name) = split(path);
        let dir = source.fs().resolve(above, Follow::All);
        let dir = dir.and_then(|dir| match dir.file_type() {
            FileType::Directory => Ok(dir.number()),
            _ => {
                Err(Error::new(ErrorKind::NotADirectory, "a parent of the path is not a directory"))
            }
        });
        let dir = dir.map_err(|error| Failure::at(source.name(path), &error))?;
        Ok(Self { source, dir, name: name.to_vec(), path: path.to_vec() })
    }

    /// Returns the name of the root directory.
    pub fn root(source: &Rc<Source>) -> Self {
        Self {
            source: Rc::clone(source),
            dir: source.fs().root(),
            name: b".".to_vec(),
            path: b"/".to_vec(),
        }
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        self.source.fs()
    }

    /// Returns the path from the root of the volume.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Whether the path ends with a slash, so that its file must be a directory.
    pub fn wants_directory(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// Whether both names are on the same volume.
    pub fn is_beside(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.source, &other.source)
    }

    /// Returns the failure of an operation on this name.
    pub fn failed(&self, error: &Error) -> Failure {
        Failure::at(self, error)
    }

    /// Returns a name in the directory that `self` names. `dir` is the inode number of this directory.
    pub fn below(&self, dir: InodeNo, name: &[u8]) -> Self {
        let (source, path) = (Rc::clone(&self.source), join(&self.path, name));
        Self { source, dir, name: name.to_vec(), path }
    }

    /// Returns the name at a path. A relative path begins in the directory that contains this name, like the target of a symbolic link.
    pub fn beside(&self, path: &[u8]) -> Result<Self, Failure> {
        let path = match path.first() {
            Some(b'/') => path.to_vec(),
            _ => [split(&self.path).0, path].concat(),
        };
        Self::of(Rc::clone(&self.source), &path)
    }

    /// Returns the failure of a refused operation.
    pub fn refused(&self, why: impl fmt::Display) -> Failure {
        Failure::new(format!("{self}: {why}"))
    }

    /// Returns the file with this name.
    pub fn find(&self, follow: Follow) -> Result<Inode, Failure> {
        self.try_find(follow).map_err(|error| self.failed(&error))
    }

    /// Returns the file with this name, or `None` if the file does not exist.
    pub fn look(&self, follow: Follow) -> Result<Option<Inode>, Failure> {
        self.try_look(follow).map_err(|error| self.failed(&error))
    }

    fn try_look(&self, follow: Follow) -> ironmap::Result<Option<Inode>> {
        match self.try_find(follow) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refuses to create a file other than a directory under a name that ends with a slash. The error is that of the kernel.
    pub fn check_new_file(&self) -> Result<(), Failure> {
        if !self.wants_directory() {
            return Ok(());
        }
        let there = self.fs().lookup(self.dir, &self.name);
        let error =
            there.err().unwrap_or(Error::new(ErrorKind::Exists, "a file with this name exists"));
        Err(self.failed(&error))
    }

    /// Refuses to remove or rename a file other than a directory if the path ends with a slash. A symbolic link to a directory is not a
    /// directory.
    pub fn check_directory(&self) -> Result<(), Failure> {
        let inode = self.fs().lookup(self.dir, &self.name).map_err(|error| self.failed(&error))?;
        match inode.file_type() {
            FileType::Directory => Ok(()),
            _ => Err(self.failed(&Error::new(ErrorKind::NotADirectory, "not a directory"))),
        }
    }

    /// Returns the location and the path, quoted as `cp -v` and other programs of coreutils quote a name in their messages.
    pub fn quoted(&self) -> String {
        let volume = self.source.location().to_string();
        quoted(&[volume.as_bytes(), b":", &self.path].concat())
    }

    fn try_find(&self, follow: Follow) -> ironmap::Result<Inode> {
        let inode = self.fs().lookup(self.dir, &self.name)?;
        let link = inode.file_type() == FileType::Symlink;
        if link && (follow == Follow::All || self.wants_directory()) {
            return self.fs().resolve(&self.path, Follow::All);
        }
        if self.wants_directory() && inode.file_type() != FileType::Directory {
            return Err(Error::new(ErrorKind::NotADirectory, "not a directory"));
        }
        Ok(inode)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source.name(&self.path))
    }
}

/// A file and the name by which it was found. If [`Volumes::file`] returned this value, the field `dir` of `name` must not be used.
pub struct Found {
    /// The name.
    pub name: Name,
    /// The file.
    pub inode: Inode,
}

impl Found {
    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        self.name.fs()
    }

    /// The inode number.
    pub fn number(&self) -> InodeNo {
        self.inode.number()
    }

    /// Whether the file is a directory.
    pub fn is_directory(&self) -> bool {
        self.inode.file_type() == FileType::Directory
    }

    /// Returns the file to which a symbolic link points, or `None` if `self` is not a symbolic link or the target does not exist.
    pub fn link_leads_to(&self) -> Option<InodeNo> {
        let link = self.inode.file_type() == FileType::Symlink;
        let target = || self.fs().resolve(self.name.path(), Follow::All).ok();
        link.then(target)?.map(|inode| inode.number())
    }

    /// Returns a name in this directory.
    pub fn child(&self, name: &[u8]) -> Name {
        self.name.below(self.number(), name)
    }

    /// Returns the failure of an operation on the file `self`.
    pub fn failed(&self, error: &Error) -> Failure {
        self.name.failed(error)
    }
}

/// Splits a path into the path of the directory and the last component. Slashes at the end of the path are ignored.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &path[start..end] {
        b"" => (b"/", b"."),
        name => (&path[..start], name),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn the_last_name_is_split_off() {
        assert_eq!(split(b"/a/b"), (&b"/a/"[..], &b"b"[..]));
        assert_eq!(split(b"/a/b//"), (&b"/a/"[..], &b"b"[..]));
        assert_eq!(split(b"/a/."), (&b"/a/"[..], &b"."[..]));
        assert_eq!(split(b"//"), (&b"/"[..], &b"."[..]));
        assert_eq!(split(b"/"), (&b"/"[..], &b"."[..]));
    }
}
