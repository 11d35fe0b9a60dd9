//! The volume, or the mounted file system, that a command works on: the library's names for what the commands need.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ironmap::fs::ext4::Ext4;
use ironmap::fs::{Clock, FileSystem, Follow, Inode};
use ironmap::fs::{DirEntry, FileType};
use ironmap::location::{LocationOptions, Medium, OpenLocation};
use ironmap::units::InodeNo;
use ironmap::{
    Errno, Error, ErrorKind, File, FileOptions, Host, HostOptions, HostReport, Location, Queue,
    QueueOptions, Volume, VolumeOptions,
};

use crate::epoch;
use crate::failure::{Failure, Report, note};
use crate::target::inode_of;

/// `--noload`, which concerns every volume of the command.
static NO_LOAD: AtomicBool = AtomicBool::new(false);

/// Journals are left alone from now on.
pub(crate) fn set_no_load() {
    NO_LOAD.store(true, Ordering::Relaxed);
}

pub(crate) fn no_load() -> bool {
    NO_LOAD.load(Ordering::Relaxed)
}

/// Options that concern every volume of the command, and with which volumes are only read.
#[derive(Default)]
pub(crate) struct Rescue {
    /// `--superblock`
    pub(crate) superblock: Option<u64>,
    /// `--truncated`
    pub(crate) truncated: bool,
    /// `--journal`
    pub(crate) journal: Option<Location>,
    /// `--realtime`
    pub(crate) realtime: Option<Location>,
}

static RESCUE: OnceLock<Rescue> = OnceLock::new();

/// Volumes are read so from now on.
pub(crate) fn set_rescue(rescue: Rescue) {
    let _ = RESCUE.set(rescue);
}

/// Refuses options for reading, of a command that changes the volume without opening its files.
pub(crate) fn check_changes(location: &Location) -> Result<(), Failure> {
    if no_load() || matches!(location, Location::NoLoad(_)) {
        return Err(Failure::usage("noload: without its journal a volume is only read"));
    }
    let Some(rescue) = RESCUE.get() else { return Ok(()) };
    if rescue.superblock.is_some() || rescue.truncated {
        return Err(Failure::usage("--superblock, --truncated: a damaged volume is only read"));
    }
    if rescue.journal.is_some() {
        let what = "--journal: a volume with its journal on another device is only read";
        return Err(Failure::usage(what));
    }
    if rescue.realtime.is_some() {
        return Err(Failure::usage("--realtime: a volume with its realtime device is only read"));
    }
    Ok(())
}

/// The devices that `--journal` and `--realtime` name.
pub(crate) fn further_devices() -> impl Iterator<Item = &'static Location> {
    let named = RESCUE.get().map(|rescue| [rescue.journal.as_ref(), rescue.realtime.as_ref()]);
    named.into_iter().flatten().flatten()
}

/// Refuses a realtime device for a volume that is not the first one, or is the device itself: without groups it has no mark of its volume.
fn check_realtime(location: &Location) -> Result<(), Failure> {
    static VOLUME: OnceLock<Location> = OnceLock::new();
    let named = RESCUE.get().and_then(|rescue| rescue.realtime.as_ref());
    match named {
        Some(device) if device == location => {
            Err(Failure::usage(format_args!("--realtime: {location} is the volume itself")))
        }
        Some(_) if VOLUME.get_or_init(|| location.clone()) != location => {
            Err(Failure::usage("--realtime: it belongs to one volume, and the command has several"))
        }
        _ => Ok(()),
    }
}

/// The options with those that concern every volume of the command.
pub(crate) fn with_rescue(options: VolumeOptions) -> VolumeOptions {
    let Some(rescue) = RESCUE.get() else { return options };
    let options = options.superblock(rescue.superblock).truncated(rescue.truncated);
    options.journal(rescue.journal.clone()).realtime(rescue.realtime.clone())
}

/// Opens a volume; in tests also one of a format that only they have.
fn open_volume(location: &Location, options: &VolumeOptions) -> ironmap::Result<Volume> {
    #[cfg(test)]
    if let Some(volume) = crate::other_format::open(location) {
        return Ok(volume);
    }
    options.open(location)
}

/// Opens the device at a location, and notes faults of it that are passed over.
pub(crate) fn open_device(
    location: &Location,
    options: &LocationOptions,
) -> ironmap::Result<OpenLocation> {
    let opened = location.open(options)?;
    tell_faults(location, &opened.faults);
    Ok(opened)
}

/// Notes faults of a device that were passed over: each once, however often the command opens it.
pub(crate) fn tell_faults(location: &Location, faults: &[String]) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for line in faults.iter().map(|fault| format!("{location}: {fault}")) {
        if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            note(line);
        }
    }
}

/// Opens a volume on a server, and says why if that takes long.
fn announce_if_slow<T>(location: &Location, open: impl FnOnce() -> T) -> T {
    const LONG: Duration = Duration::from_secs(2);
    let (opened, waits) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(LONG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let why = "opening takes long: multiple mount protection (MMP) waits until no other node can have \
                           the volume, or the server does not answer";
                note(format!("{location}: {why}"));
            }
        });
        let volume = open();
        drop(opened);
        volume
    })
}

/// An open volume and the name that the user gave it.
pub(crate) struct Source {
    pub(crate) volume: Volume,
    location: Location,
    name: String,
}

impl Source {
    pub(crate) fn open(location: &Location) -> Result<Self, Failure> {
        Self::open_with(location, VolumeOptions::new().no_load(no_load()))
    }

    /// At the time of a reproducible build, where that is set.
    pub(crate) fn open_for_writing(location: &Location) -> Result<Self, Failure> {
        Self::open_at(location, epoch::source_date()?)
    }

    /// Opens for writing: where a time is given everything happens then, and nothing depends on how long it takes.
    pub(crate) fn open_at(location: &Location, time: Option<i64>) -> Result<Self, Failure> {
        let mut options = VolumeOptions::new().write(true).no_load(no_load());
        if let Some(seconds) = time {
            options = options.clock(Clock::Fixed(epoch::at(seconds))).commit(Duration::ZERO);
        }
        Self::open_with(location, options)
    }

    fn open_with(location: &Location, options: VolumeOptions) -> Result<Self, Failure> {
        check_realtime(location)?;
        let opened = || open_volume(location, &with_rescue(options));
        let volume = if matches!(location.data().medium, Medium::Nbd(_)) {
            announce_if_slow(location, opened)
        } else {
            opened()
        };
        let volume = volume.map_err(|error| Failure::open(&error))?;
        if let Some(integrity) = volume.integrity() {
            let lines = integrity.recovered.notices(volume.fs().is_writable());
            lines.iter().for_each(|line| note(format!("{location}: {line}")));
        }
        if matches!(location.data().medium, Medium::Image(_)) {
            // An image that was not closed, for instance.
            volume.notices().iter().for_each(note);
        }
        tell_faults(location, volume.faults());
        let source = Self { volume, location: location.clone(), name: location.to_string() };
        source.tell_left();
        Ok(source)
    }

    /// All changes are on the device then, or the failure says that they are not.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.volume.close().map_err(|error| Failure::at(&self.name, &error))
    }

    /// Reports faults that were passed over and work that was left undone.
    fn tell_left(&self) {
        for line in self.fs().take_notices() {
            Report::default().warning(format!("{}: {line}", self.name));
        }
    }

    /// Commits all changes so far.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.fs().sync().map_err(|error| Failure::at(&self.name, &error))
    }

    /// The file system as the ext4 that it is.
    pub(crate) fn ext4(&self) -> Result<&Arc<Ext4>, Failure> {
        let other = || {
            let what =
                format!("this is {}, and that is of ext2, ext3 and ext4 only", self.fs().format());
            Failure::new(format!("{}: {what}", self.name))
        };
        self.volume.ext4().ok_or_else(other)
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    /// The file of a path; `<12>` and paths after it begin at inode 12.
    pub(crate) fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode, Failure> {
        let (from, rest) = inode_of(path).unwrap_or((self.fs().root(), path));
        let inode = self.fs().resolve_at(from, rest, follow);
        inode.map_err(|error| Failure::at(self.name(path), &error))
    }

    /// As the user named it.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// How a path of the volume is named in messages.
    pub(crate) fn name(&self, path: &[u8]) -> String {
        format!("{}:{}", self.name, String::from_utf8_lossy(path))
    }

    /// The failure of reading a file's data, with the first sector that did not fit its tag where that is why.
    pub(crate) fn read_failed(&self, path: &[u8], error: &Error) -> Failure {
        let failure = Failure::at(self.name(path), error);
        if error.kind() != ErrorKind::Io(Errno::EILSEQ) {
            return failure;
        }
        match self.volume.events().take_wrong_tuples().0.first() {
            Some(wrong) => failure.because(wrong),
            None => failure,
        }
    }

    pub(crate) fn queue(&self) -> Result<Queue, Failure> {
        let queue = self.volume.queue(&QueueOptions::default());
        queue.map_err(|error| Failure::at(&self.name, &error))
    }

    /// The inode of a directory's entry; `path` is for the error.
    pub(crate) fn inode(&self, number: InodeNo, path: &[u8]) -> Result<Inode, Failure> {
        self.volume.fs().known_inode(number).map_err(|error| Failure::at(self.name(path), &error))
    }

    /// All entries of a directory, `.` and `..` among them, in the order of their bytes.
    pub(crate) fn entries(&self, dir: &Inode, path: &[u8]) -> Result<Vec<DirEntry>, Failure> {
        let entries = dir.read_dir().and_then(Iterator::collect::<ironmap::Result<Vec<_>>>);
        let mut entries = entries.map_err(|error| Failure::at(self.name(path), &error))?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The same where blocks of the directory may be damaged: each of them is reported, and the names of all others are given. Says too
    /// whether all was read.
    pub(crate) fn entries_found(
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
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        (entries, all)
    }

    /// A handle for a regular file's data.
    pub(crate) fn file(&self, inode: Inode, path: &[u8]) -> Result<File, Failure> {
        let file =
            self.volume.open_inode(inode, FileOptions::new().write(self.volume.fs().is_writable()));
        file.map_err(|error| Failure::at(self.name(path), &error))
    }

    /// The target of a symbolic link, `None` for any other file.
    pub(crate) fn link_target(
        &self,
        inode: &Inode,
        path: &[u8],
    ) -> Result<Option<Vec<u8>>, Failure> {
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

/// Mounted file systems, whose files are read around the kernel where that can be.
pub(crate) struct HostSource(Host);

impl HostSource {
    pub(crate) fn open() -> Result<Self, Failure> {
        let host = Host::new(&HostOptions::default());
        host.map(Self).map_err(|error| Failure::at("host", &error))
    }

    /// A file's handle, and how it is served.
    pub(crate) fn file(
        &self,
        path: &Path,
        options: FileOptions,
    ) -> Result<(File, HostReport), Failure> {
        let failed = |error: Error| match error.kind() {
            // It names the path.
            ErrorKind::Io(_) => Failure::new(error.to_string()),
            _ => Failure::at(path.display(), &error),
        };
        let file = self.0.open(path, options).map_err(failed)?;
        let report = file.host().ok_or_else(|| Failure::new("a volume's file"))?;
        Ok((file, report))
    }

    pub(crate) fn queue(&self) -> Result<Queue, Failure> {
        let queue = self.0.queue(&QueueOptions::default());
        queue.map_err(|error| Failure::at("host", &error))
    }
}

/// A path below a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}
