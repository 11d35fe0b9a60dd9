//! An open volume, with the operations that a job needs. The failures of these operations name the volume and the path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ironmap::fs::ext4::Ext4;
use ironmap::fs::{Clock, DirEntry, FileSystem, FileType, Follow, Inode, Timestamp};
use ironmap::sorting::Sorting;
use ironmap::units::InodeNo;
use ironmap::{
    Errno, Error, ErrorKind, File, FileOptions, Location, Queue, QueueOptions, Volume,
    VolumeOptions,
};

use crate::context::Context;
use crate::failure::Failure;
use crate::report::Report;
use crate::target::inode_of;

/// The number of sources that were opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// An open volume and the name that the user gave it.
pub struct Source {
    /// The volume.
    pub volume: Volume,
    number: u64,
    location: Location,
    name: String,
    context: Arc<Context>,
}

impl Source {
    /// Opens a volume for reading.
    pub fn open(location: &Location, context: &Arc<Context>) -> Result<Self, Failure> {
        let options = VolumeOptions::new().no_load(context.no_load());
        Self::open_with(location, options, context)
    }

    /// Opens a volume for reading, even if it is truncated or its journal cannot be read. A warning names the fault.
    pub fn open_damaged(location: &Location, context: &Arc<Context>) -> Result<Self, Failure> {
        let first = match Self::open(location, context) {
            Ok(source) => return Ok(source),
            Err(first) if first.is_of(ErrorKind::Busy) => return Err(first),
            Err(first) => first,
        };
        let ways = [
            (true, false, "as a truncated volume"),
            (false, true, "without its journal"),
            (true, true, "as a truncated volume without its journal"),
        ];
        for (truncated, no_load, how) in ways {
            let no_load = no_load || context.no_load();
            let options = VolumeOptions::new().truncated(truncated).no_load(no_load);
            if let Ok(source) = Self::open_with(location, options, context) {
                context.warning(format_args!("{location}: opened {how}: {first}"));
                return Ok(source);
            }
        }
        Err(first)
    }

    /// Opens a volume for writing. If the time of a reproducible build is set, all changes have that time.
    pub fn open_for_writing(location: &Location, context: &Arc<Context>) -> Result<Self, Failure> {
        Self::open_at(location, context.source_date()?, context)
    }

    /// Opens a volume for writing. If `time` is given, all changes get this time, so that the result does not depend on the duration of the
    /// job.
    pub fn open_at(
        location: &Location,
        time: Option<i64>,
        context: &Arc<Context>,
    ) -> Result<Self, Failure> {
        let mut options = VolumeOptions::new().write(true).cached(true).no_load(context.no_load());
        if let Some(seconds) = time {
            let at = Timestamp { seconds, nanoseconds: 0 };
            options = options.clock(Clock::Fixed(at)).commit(Duration::ZERO);
        }
        Self::open_with(location, options, context)
    }

    fn open_with(
        location: &Location,
        options: VolumeOptions,
        context: &Arc<Context>,
    ) -> Result<Self, Failure> {
        let volume = context.open_volume(location, options)?;
        let (name, context) = (location.to_string(), Arc::clone(context));
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let source = Self { volume, number, location: location.clone(), name, context };
        source.tell_left();
        Ok(source)
    }

    /// Returns the data that the job got from its caller.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns a number that identifies this source. No other source of this process ever gets it, even after this source is closed.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Closes the volume. After success, all changes are on the device.
    pub fn close(&self) -> Result<(), Failure> {
        self.volume.close().map_err(|error| Failure::at(&self.name, &error))
    }

    /// Prints the file system's notices: tolerated faults and unfinished work.
    fn tell_left(&self) {
        for line in self.fs().take_notices() {
            self.context.warning(format_args!("{}: {line}", self.name));
        }
    }

    /// Commits all changes so far.
    pub fn sync(&self) -> Result<(), Failure> {
        self.fs().sync().map_err(|error| Failure::at(&self.name, &error))
    }

    /// Returns the file system as ext4. Fails for other formats.
    pub fn ext4(&self) -> Result<&Arc<Ext4>, Failure> {
        let other = || {
            let what = format!(
                "the file system is {}, but this command supports only ext2, ext3 and ext4",
                self.fs().format()
            );
            Failure::new(format!("{}: {what}", self.name))
        };
        self.volume.ext4().ok_or_else(other)
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    /// Returns the file at a path. A path may begin with an inode number, as in `<12>/name`.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode, Failure> {
        let (from, rest) = inode_of(path).unwrap_or((self.fs().root(), path));
        let inode = self.fs().resolve_at(from, rest, follow);
        inode.map_err(|error| Failure::at(self.name(path), &error))
    }

    /// The location that the user named.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the name that messages use for a path of the volume.
    pub fn name(&self, path: &[u8]) -> String {
        format!("{}:{}", self.name, String::from_utf8_lossy(path))
    }

    /// Returns the failure to read a file's data. If a sector did not match its tag, the message names the first such sector.
    pub fn read_failed(&self, path: &[u8], error: &Error) -> Failure {
        let failure = Failure::at(self.name(path), error);
        if error.kind() != ErrorKind::Io(Errno::EILSEQ) {
            return failure;
        }
        match self.volume.events().take_wrong_tuples().0.first() {
            Some(wrong) => failure.because(wrong),
            None => failure,
        }
    }

    /// Creates a queue for reads and writes.
    pub fn queue(&self) -> Result<Queue, Failure> {
        let queue = self.volume.queue(&QueueOptions::default());
        queue.map_err(|error| Failure::at(&self.name, &error))
    }

    /// Returns the inode of a directory entry. `path` is the path in the error message.
    pub fn inode(&self, number: InodeNo, path: &[u8]) -> Result<Inode, Failure> {
        self.volume.fs().known_inode(number).map_err(|error| Failure::at(self.name(path), &error))
    }

    /// Returns all entries of a directory, including `.` and `..`, sorted by the bytes of their names.
    pub fn entries(&self, dir: &Inode, path: &[u8]) -> Result<Vec<DirEntry>, Failure> {
        let entries = dir.read_dir().and_then(Iterator::collect::<ironmap::Result<Vec<_>>>);
        let mut entries = entries.map_err(|error| Failure::at(self.name(path), &error))?;
        entries.order_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Returns the entries of a directory that may have damaged blocks, and whether all blocks were read. Reports each damaged block, and
    /// returns the entries of all other blocks.
    pub fn entries_found(
        &self,
        dir: &Inode,
        path: &[u8],
        report: &mut Report,
    ) -> (Vec<DirEntry>, bool) {
        let (mut entries, mut all) = (Vec::new(), true);
        let mut failed = |error: Error| {
            report.error(&Failure::at(self.name(path), &error));
            all = false;
        };
        match dir.read_dir() {
            Ok(found) => entries.extend(found.filter_map(|entry| entry.map_err(&mut failed).ok())),
            Err(error) => failed(error),
        }
        entries.order_by(|a, b| a.name.cmp(&b.name));
        (entries, all)
    }

    /// Opens a handle for a regular file's data.
    pub fn file(&self, inode: Inode, path: &[u8]) -> Result<File, Failure> {
        let file =
            self.volume.open_inode(inode, FileOptions::new().write(self.volume.fs().is_writable()));
        file.map_err(|error| Failure::at(self.name(path), &error))
    }

    /// Returns the target of a symbolic link, or `None` for any other file.
    pub fn link_target(&self, inode: &Inode, path: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        if inode.file_type() != FileType::Symlink {
            return Ok(None);
        }
        inode.read_link().map(Some).map_err(|error| Failure::at(self.name(path), &error))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.tell_left();
    }
}

/// Returns a path below a directory.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}
