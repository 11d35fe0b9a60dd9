//! Keeps files of a directory open between requests. An open for reads that bypass the file system needs a lease, a write-back and the map
//! of the file's blocks. Such an open costs more than many reads.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ironmap::File;
use ironmap::fs::Stat;

/// The maximum number of files that stay open.
const MOST: usize = 64;

struct OpenFile {
    path: String,
    seen: Seen,
    file: File,
    stat: Stat,
}

/// The attributes that show whether a name still leads to the open file, with the same content. The inode number of an open file is not
/// reused.
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

/// The open files. The last file in the list is the most recently used one.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<Vec<OpenFile>>);

impl OpenFiles {
    fn files(&self) -> MutexGuard<'_, Vec<OpenFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file that was opened under this name. Returns `None` if the name leads to another file, or if the file has changed.
    pub(crate) fn get(&self, path: &str, found: &Metadata) -> Option<(File, Stat)> {
        let mut files = self.files();
        let index = files.iter().rposition(|open| open.path == path)?;
        let open = files.remove(index);
        if open.seen != Seen::of(found) {
            drop(files); // other threads need not wait for the close of the file
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

    /// Closes the open file with this name. The caller is about to remove the name, or to give it to another file. An open file without a
    /// name would continue to occupy space.
    pub(crate) fn close(&self, path: &str) {
        let mut files = self.files();
        let closed: Vec<_> = files.extract_if(.., |open| open.path == path).collect();
        drop(files);
        drop(closed);
    }
}
