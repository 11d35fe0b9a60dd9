//! Files of a directory that stay open between requests. To open a file for reading around its file system costs more than many reads: a
//! lease, a write-back and the map of its blocks.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ironmap::File;
use ironmap::fs::Stat;

/// The number of files that stay open.
const MOST: usize = 64;

struct OpenFile {
    path: String,
    seen: Seen,
    file: File,
    stat: Stat,
}

/// The attributes by which a name still leads to the open file, with the same content. The inode of an open file is not reused.
#[derive(PartialEq)]
struct Seen {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Seen {
    fn of(found: &Metadata) -> Self {
        let changed = (found.ctime(), found.ctime_nsec());
        Self { device: found.dev(), inode: found.ino(), size: found.size(), changed }
    }
}

/// The open files; the one that was used last is at the end.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<Vec<OpenFile>>);

impl OpenFiles {
    fn files(&self) -> MutexGuard<'_, Vec<OpenFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that was opened under this name, if the name still leads to it and it has not changed.
    pub(crate) fn get(&self, path: &str, found: &Metadata) -> Option<(File, Stat)> {
        let mut files = self.files();
        let index = files.iter().rposition(|open| open.path == path)?;
        let open = files.remove(index);
        if open.seen != Seen::of(found) {
            drop(files); // the close of a file can wait
            return None;
        }
        let answer = (open.file.clone(), open.stat.clone());
        files.push(open);
        Some(answer)
    }

    pub(crate) fn add(&self, path: &str, found: &Metadata, file: File, stat: Stat) {
        let open = OpenFile { path: path.to_owned(), seen: Seen::of(found), file, stat };
        let mut files = self.files();
        files.push(open);
        let oldest = (files.len() > MOST).then(|| files.remove(0));
        drop(files);
        drop(oldest);
    }

    /// Closes the file of a name that is about to lead to another file, so that it keeps no space.
    pub(crate) fn close(&self, path: &str) {
        let mut files = self.files();
        let closed: Vec<_> = files.extract_if(.., |open| open.path == path).collect();
        drop(files);
        drop(closed);
    }
}
