//! Copies trees into volumes, out of volumes, and within volumes.

pub(crate) mod count;
pub(crate) mod into;
mod keep;
pub(crate) mod out;

use std::fmt::Display;

use ironmap::fs::{FileType, Follow};

pub use self::keep::{Keep, Times};
use crate::failure::Failure;
use crate::report::Report;
use crate::target::Subject;

/// The sources of a copy, and its options.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The files to copy. The host path `-` is standard input.
    pub sources: Vec<Subject>,
    /// Whether directories are copied with everything below them, and special files are copied as special files.
    pub recurses: bool,
    /// Whether a symbolic link that the user named is followed or copied as a link.
    pub follow: Follow,
    /// The attributes that a copy into a volume keeps. A copy out of a volume keeps everything that the host can store.
    pub keep: Keep,
    /// Whether existing files are kept unchanged.
    pub no_clobber: bool,
    /// Whether the destination is the name of the copy, even if the destination is a directory.
    pub no_target_directory: bool,
    /// Whether each copied file is reported in a message.
    pub verbose: bool,
}

impl CopyOptions {
    /// Refuses to copy a directory without `-r`.
    fn check_kind(&self, source: impl Display, kind: FileType) -> Result<(), Failure> {
        if kind == FileType::Directory && !self.recurses {
            let what = "is a directory, and the option -r is missing (EISDIR)";
            return Err(Failure::new(format!("{source}: {what}")));
        }
        Ok(())
    }

    /// Without `-r`, refuses to copy a special file of a volume. A volume stores no content for a special file.
    fn check_content(&self, source: impl Display, kind: FileType) -> Result<(), Failure> {
        let kind = match kind {
            FileType::Regular | FileType::Directory | FileType::Symlink => return Ok(()),
            FileType::CharDevice | FileType::BlockDevice => "a device node",
            FileType::Fifo => "a fifo",
            FileType::Socket => "a socket",
        };
        if self.recurses {
            return Ok(());
        }
        Err(Failure::new(format!("{source}: is {kind} and has no content: copy it with -r")))
    }

    /// Whether DEST must be a directory. `Some(false)` means that DEST is always the name of the copy, even if a directory has this name.
    fn directory(&self) -> Result<Option<bool>, Failure> {
        let several = self.sources.len() > 1;
        if self.no_target_directory && several {
            return Err(Failure::usage("-T takes exactly one source and one destination"));
        }
        Ok(if self.no_target_directory { Some(false) } else { several.then_some(true) })
    }
}

/// Copies to a destination: a directory to copy into, or the name of the copy. The failure of a file is reported, and the copy continues.
///
/// # Errors
/// Fails if the options contradict each other, or if the destination cannot be reached.
pub fn copy(options: &CopyOptions, dest: &Subject, report: &mut Report) -> Result<(), Failure> {
    match dest {
        Subject::Volume(dest) => into::run(options, dest, report),
        Subject::Host(dest) => out::run(options, dest, report),
    }
}
