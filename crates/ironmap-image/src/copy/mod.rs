//! Copies of trees: into volumes, out of them, and within them.

pub(crate) mod count;
pub(crate) mod into;
mod keep;
mod out;

use std::fmt::Display;

use ironmap::fs::{FileType, Follow};

pub use self::keep::{Keep, Times};
use crate::failure::Failure;
use crate::report::Report;
use crate::target::Subject;

/// What is copied, and how.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// What is copied; the path `-` of the host is standard input.
    pub sources: Vec<Subject>,
    /// Directories are copied with everything below them; special files are copied themselves.
    pub recurses: bool,
    /// Whether a symbolic link that the user named is copied itself.
    pub follow: Follow,
    /// What a copy into a volume has of its source. A copy out of one has everything that the host keeps.
    pub keep: Keep,
    /// An existing file stays as it is.
    pub no_clobber: bool,
    /// The destination is the copy's name, even if it is a directory.
    pub no_target_directory: bool,
    /// Each copy is a message.
    pub verbose: bool,
}

impl CopyOptions {
    /// Refuses a directory without `-r`.
    fn check_kind(&self, source: impl Display, kind: FileType) -> Result<(), Failure> {
        if kind == FileType::Directory && !self.recurses {
            let what = "is a directory, and -r is not given (EISDIR)";
            return Err(Failure::new(format!("{source}: {what}")));
        }
        Ok(())
    }

    /// Refuses, without `-r`, a special file of a volume: the content that the copy would have is not there, and on no other host.
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
        Err(Failure::new(format!("{source}: is {kind}, without content: -r copies it as it is")))
    }

    /// Whether DEST has to be a directory (`Some(true)`), or counts as none.
    fn directory(&self) -> Result<Option<bool>, Failure> {
        let several = self.sources.len() > 1;
        if self.no_target_directory && several {
            return Err(Failure::usage("with -T there is one source and one destination"));
        }
        Ok(if self.no_target_directory { Some(false) } else { several.then_some(true) })
    }
}

/// Copies to a destination: a directory to copy into, or the name of the copy. Failures go to the report, one by one, and the rest goes on.
///
/// # Errors
/// The options contradict each other, or the destination cannot be reached.
pub fn copy(options: &CopyOptions, dest: &Subject, report: &mut Report) -> Result<(), Failure> {
    match dest {
        Subject::Volume(dest) => into::run(options, dest, report),
        Subject::Host(dest) => out::run(options, dest, report),
    }
}
