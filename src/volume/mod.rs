//! Opens a device, detects its format, and creates files and queues. This module connects devices and file systems, so it may use every
//! layer.

mod options;
mod paths;

pub use self::options::VolumeOptions;
pub use self::paths::DirEntries;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::device::{Device, Engine, Finer, InRange, NoIoUring, QueueOptions};
use crate::dio::Geometry;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::events::Events;
use crate::file::{File, FileOptions, LiveFile, VolumeFile};
use crate::fs::ext4::Ext4;
use crate::fs::xfs::Xfs;
use crate::fs::{
    Backup, Clock, FORMATS, FileSystem, FileType, Format, How, InodeFlags, InodeRef, Rescue,
    block_size_on, find_format,
};
use crate::integrity::{self, ScrubFinding, Scrubbed};
use crate::location::{self, Location, OpenLocation};
use crate::open_file::{CommitTimer, ContentLock, FileIndexes, Owner};
use crate::probe::{SMALLEST, occupant, unknown_format};
use crate::queue::Queue;

/// An unmounted file system that is opened exclusively. A clone is cheap. Threads can share a volume.
#[derive(Clone)]
pub struct Volume {
    /// This field must be declared before `fs`, so that it is dropped first. Otherwise, the timer's thread could drop the last reference to
    /// the file system. Open files share the timer.
    timer: Option<CommitTimer>,
    fs: Arc<dyn FileSystem>,
    device: Arc<dyn Device>,
    events: Arc<Events>,
    engine: Engine,
    no_io_uring: Option<NoIoUring>,
    notices: Vec<String>,
    faults: Vec<String>,
    integrity: Option<integrity::Opened>,
    owner: Owner,
    /// The indexes of files that are open for writing.
    indexes: Arc<FileIndexes>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, owner, .. } = self;
        let mut shown = f.debug_struct("Volume");
        shown.field("format", &self.fs.format()).field("engine", engine).field("owner", owner);
        shown.finish_non_exhaustive()
    }
}

impl Volume {
    /// Opens the volume at a location for reading. The location is a path, a text in the syntax of [`Location::parse`], or a [`Location`].
    /// [`VolumeOptions`] can open the volume for writing.
    ///
    /// # Errors
    /// The errors of [`VolumeOptions::open`].
    pub fn open<L>(location: L) -> Result<Self>
    where
        L: TryInto<Location>,
        Error: From<L::Error>,
    {
        VolumeOptions::new().open(location)
    }

    fn open_at(location: &Location, options: &VolumeOptions) -> Result<Self> {
        let mut options = options.clone();
        options.no_load |= matches!(location, Location::NoLoad(_));
        if options.no_load {
            location::refuse_to_write(options.write)?;
        }
        let opened = location.open(&options.location_options())?;
        let OpenLocation { device, engine, no_io_uring, notices, faults, integrity } = opened;
        let mut volume = options.open_on(device).at(|| location)?;
        volume.notices.splice(..0, notices);
        volume.faults.splice(..0, faults);
        Ok(Self { engine, no_io_uring, integrity, ..volume })
    }

    /// Opens the volume on a device that the caller has created, for example a device that injects faults.
    ///
    /// # Errors
    /// The errors of [`VolumeOptions::open`].
    #[doc(hidden)]
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_on(device, How::Read)
    }

    /// Opens the volume on a device for reading and writing. Changes are committed only by explicit syncs.
    ///
    /// # Errors
    /// The errors of [`VolumeOptions::open`].
    #[doc(hidden)]
    pub fn writable_on(device: Arc<dyn Device>, clock: Clock) -> Result<Self> {
        Self::open_on(device, How::Write(clock))
    }

    fn open_on(device: Arc<dyn Device>, how: How) -> Result<Self> {
        let format = format_for(&*device, how)?;
        let member = member(&*device, how)?;
        let mut failed = None;
        let (device, notice) = Finer::for_blocks(device, |device| {
            block_size_for(device, how).unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let events = Arc::new(Events::of(&device));
        let fs = (format.open)(Arc::clone(&device), &events, how)?;
        let mut volume = Self::with(fs, device, events);
        volume.notices.extend(notice);
        volume.faults.extend(member);
        Ok(volume)
    }

    /// Creates a volume from a file system and its device, which the caller has created.
    #[doc(hidden)]
    #[must_use]
    pub fn of(fs: Arc<dyn FileSystem>, device: Arc<dyn Device>) -> Self {
        let events = Arc::new(Events::of(&device));
        Self::with(fs, device, events)
    }

    fn with(fs: Arc<dyn FileSystem>, device: Arc<dyn Device>, events: Arc<Events>) -> Self {
        if fs.is_writable() {
            ContentLock::prepare();
        }
        Self {
            timer: None,
            fs,
            device,
            events,
            engine: Engine::Auto,
            no_io_uring: None,
            notices: Vec::new(),
            faults: Vec::new(),
            integrity: None,
            owner: Owner::unique(),
            indexes: Arc::default(),
        }
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The file system as ext4, for operations that only ext4 has. `None` if the format is not ext4.
    #[doc(hidden)]
    #[must_use]
    pub fn ext4(&self) -> Option<&Arc<Ext4>> {
        (&*self.fs as &dyn Any).downcast_ref()
    }

    /// The file system as XFS, for operations that only XFS has. `None` if the format is not XFS.
    #[doc(hidden)]
    #[must_use]
    pub fn xfs(&self) -> Option<&Arc<Xfs>> {
        (&*self.fs as &dyn Any).downcast_ref()
    }

    /// The device beneath the file system.
    #[doc(hidden)]
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The engine in use; never [`Engine::Auto`] after [`open`](Self::open).
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Commits all changes, writes them to their final blocks (a checkpoint), and makes the volume read-only. If there are no changes, the
    /// call does nothing. Dropping the volume also writes all changes, but does not report errors.
    ///
    /// # Errors
    /// `Io`. After an error, the volume is in the same state as after a crash, and the next open recovers it.
    pub fn close(&self) -> Result<()> {
        self.fs.close()?;
        match &self.integrity {
            Some(opened) => opened.device.close().context(|| "close the integrity device"),
            None => Ok(()),
        }
    }

    /// Reads all sectors of the integrity device beneath the volume, and compares each sector with its tag (checksum). The volume may be in
    /// use. `found` is called with each fault, in the order of the sectors.
    ///
    /// # Errors
    /// `InvalidInput` if the [location](Location) contains no integrity device; `Io` if a device fails as a whole. A sector that does not
    /// match its tag or cannot be read is a fault, not an error.
    pub fn scrub(&self, mut found: impl FnMut(ScrubFinding)) -> Result<Scrubbed> {
        let Some(opened) = &self.integrity else {
            return Err(Error::invalid("the volume is not on an integrity device"));
        };
        opened.device.scrub(&mut found, &mut |_, _| {})
    }

    /// The integrity device beneath the volume, and the result of its recovery. `None` if the [location](Location) contains no integrity
    /// device.
    #[doc(hidden)]
    #[must_use]
    pub fn integrity(&self) -> Option<&integrity::Opened> {
        self.integrity.as_ref()
    }

    /// One line for each requested setting that could not be applied.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// One line for each fault of the device that was ignored, for example the loss of the first copy of a partition table.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// The I/O errors that were recorded for requests to this volume.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Creates a queue for the calling thread.
    ///
    /// # Errors
    /// `Io` if the kernel refuses to create the queue.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let device = self.device.queue_within(options, InRange::BY_THE_MAP)?;
        let events = Arc::clone(&self.events);
        let mut queue = Queue::new(device, options, self.owner, None, events);
        queue.state.admit(self.device.limits());
        Ok(queue)
    }

    /// Opens a handle for the data of a regular file. `file` is an inode number, or an inode that was read earlier. To open a file by its
    /// path, use [`Files::open`](crate::Files::open).
    ///
    /// # Errors
    /// `IsADirectory`, `WrongFileType`, or `Encrypted`; `NotFound` if the file was removed since its inode was read; `ReadOnly` if the
    /// options open the file for writing, and the volume is open only for reading; `InvalidInput` if the options truncate the file without
    /// opening it for writing.
    pub fn open_inode(&self, inode: impl Into<InodeRef>, options: FileOptions) -> Result<File> {
        check_options(&options)?;
        let InodeRef { number, read } = inode.into();
        let inode = read.map_or_else(|| self.fs.inode(number), Ok)?;
        let (held, inode) = self.fs.hold_read(inode)?;
        if options.writes() && !self.fs.is_writable() {
            return Err(Error::read_only("the volume was opened for reading only"));
        }
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => {
                return Err(Error::new(ErrorKind::IsADirectory, "is a directory"));
            }
            _ => return Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        }
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(
                ErrorKind::Encrypted,
                "the content is encrypted, and the key is not available",
            ));
        }
        // The file is truncated even if the size that was read here is 0, because this size may be too small if the inode is also open
        // elsewhere.
        let inode = if options.truncate {
            self.fs.writable()?.truncate(inode.number(), 0)?;
            held.inode()?
        } else {
            inode
        };
        let limits = self.device.limits();
        let timer = self.timer.clone();
        let block_size = inode.stat().block_size;
        let geometry = Geometry::new(limits, block_size.into()).with(options.stable_pages);
        Ok(match LiveFile::new(&held, timer, options, self.owner, geometry, &self.indexes) {
            Some(file) => file.into(),
            None => VolumeFile::new(inode, options, self.owner, geometry).into(),
        })
    }
}

/// Refuses options that contradict each other.
fn check_options(options: &FileOptions) -> Result<()> {
    if !options.writes() && !options.read {
        return Err(Error::invalid("the options request neither reading nor writing"));
    }
    // The check does not apply to `create_new`: a newly created file is already empty, so `truncate` does nothing.
    if options.truncate && !options.create_new && (!options.write || options.append) {
        return Err(Error::invalid(
            "the option truncate needs write, and cannot be combined with append",
        ));
    }
    Ok(())
}

/// Returns a fault if the device is a member of an MD array. A member whose superblock is at its end can begin like a volume, but only the
/// array contains all bytes of the volume.
///
/// # Errors
/// `Unsupported` if the volume is opened for writing, because a write to one member would make the members of the array differ.
#[cfg(feature = "md")]
fn member(device: &dyn Device, how: How) -> Result<Option<String>> {
    let is_write = matches!(how, How::Write(_));
    let member = match crate::md::look(device) {
        Ok(Some(member)) => member,
        // If the volume is opened only for reading, this code ignores an unreadable sector in the search for MD superblocks, because files
        // can still be read.
        Err(error) if is_write && matches!(error.kind(), ErrorKind::Io(_)) => return Err(error),
        Ok(None) | Err(_) => return Ok(None),
    };
    let what = member.only_read();
    if is_write { Err(Error::unsupported(what)) } else { Ok(Some(what)) }
}

#[cfg(not(feature = "md"))]
fn member(_: &dyn Device, _: How) -> Result<Option<String>> {
    Ok(None)
}

/// Detects the format of a device. If the superblock is lost, a backup of the superblock determines the format. If the options name a
/// backup, that backup is used. If the volume is opened only for reading, a backup is also used without an option, provided that other
/// structures of the file system confirm it. If the only backup is not confirmed, the error names its position.
fn format_for(device: &dyn Device, how: How) -> Result<&'static Format> {
    let found = if device.size() < SMALLEST { None } else { find_format(device)? };
    if let Some(format) = found {
        return Ok(format);
    }
    if let How::Rescue(Rescue { superblock: Some(number), .. }) = how {
        return Ok(find_backup(device, Some(number)).map_or(&FORMATS[0], |(format, _)| format));
    }
    let error = unknown_format(device);
    if occupant(device).is_some() {
        return Err(error);
    }
    Err(match find_backup(device, None) {
        Some((format, Backup { is_proven: true, .. })) if !matches!(how, How::Write(_)) => {
            return Ok(format);
        }
        Some((_, Backup { number, counts, .. })) => Error::new(
            ErrorKind::UnknownFormat,
            format!(
                "{}, but {counts} {number} contains a backup of a superblock: if the device was not overwritten on purpose, --superblock {number} reads the volume",
                error.what()
            ),
        ),
        None => error,
    })
}

/// Returns the backup with this number, or the first backup, and its format. If several formats have a backup, prefers one that other
/// structures of the file system confirm, because mkfs with a new format leaves the backups of an older format on the device.
fn find_backup(device: &dyn Device, number: Option<u64>) -> Option<(&'static Format, Backup)> {
    let of = |format: &'static Format| {
        let backup = (format.find_backup)(device, number).ok().flatten()?;
        Some((format, backup))
    };
    FORMATS.iter().filter_map(of).min_by_key(|(_, backup)| !backup.is_proven)
}

/// Returns the block size in the superblock that is used to open the volume: the backup that the options name, or else the primary
/// superblock, or else, if the primary superblock is damaged, a backup that a search finds.
///
/// # Errors
/// If the volume is opened for writing: the errors of the device. If it is opened only for reading, there are no errors, because a backup
/// may still be readable after an error of the primary superblock.
fn block_size_for(device: &dyn Device, how: How) -> Result<Option<usize>> {
    if let How::Write(_) = how {
        return crate::tools::block_size(device);
    }
    let named = if let How::Rescue(rescue) = how { rescue.superblock } else { None };
    let own = || block_size_on(device);
    let backup = || find_backup(device, named).map(|(_, backup)| backup.block_size);
    Ok(named.map_or_else(own, |_| None).or_else(backup))
}
