//! Opens a device, finds the format, and gives out files and queues: it joins devices and file systems, and may name every layer.

use std::sync::Arc;
use std::time::Duration;

use crate::device::{Device, Engine, QueueOptions};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::events::Events;
use crate::file::{File, FileOptions, LiveFile, Slots, VolumeFile};
use crate::fs::FileType;
use crate::fs::ext4::{Clock, CommitTimer, Ext4, Inode, InodeFlags, MkfsOptions, Superblock, mkfs};
use crate::integrity;
use crate::location::{self, Location, OpenLocation};
use crate::probe::{SMALLEST, occupant, unknown_format};
use crate::queue::{Owner, Queue};

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How requests for file data reach the device.
    pub engine: Engine,
    /// Open for writing too. A journal that needs recovery is recovered to the device then.
    pub write: bool,
    /// Whose time stamps changed files get.
    pub clock: Clock,
    /// Only for reading: the journal is not looked at, whatever its state. So is a [`Location::NoLoad`].
    pub no_load: bool,
    /// After this time what was changed is committed without being asked for; zero is never.
    pub commit: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let commit = Duration::from_secs(5);
        Self {
            engine: Engine::default(),
            write: false,
            clock: Clock::default(),
            no_load: false,
            commit,
        }
    }
}

/// What may be lost in the tail of a device when something else takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TailLoss {
    /// Nothing that is known.
    #[default]
    Nothing,
    /// What has no known end: other file systems, partition tables.
    Unknown,
    /// That, and an ext2, ext3 or ext4 file system whose superblock cannot be used. It could be repaired, were its end still there.
    DamagedVolume,
}

/// An ext2, ext3 or ext4 volume that nobody has mounted, opened exclusively. Cheap to clone; shared by threads.
#[derive(Clone)]
pub struct Volume {
    /// Before the file system, since fields are dropped in their order: the thread must not be the last to have it. Open files share it.
    timer: Option<Arc<CommitTimer>>,
    fs: Arc<Ext4>,
    device: Arc<dyn Device>,
    events: Arc<Events>,
    engine: Engine,
    notices: Vec<String>,
    integrity: Option<integrity::Opened>,
    owner: Owner,
    /// Of files that are open for writing.
    slots: Arc<Slots>,
}

impl Volume {
    /// Opens the volume at a location.
    ///
    /// # Errors
    /// `Busy` where someone else has it; `UnknownFormat`; `Unsupported` by name; `Corrupt` with block and field; `InvalidInput` to write
    /// without the journal.
    pub fn open(location: &Location, options: &OpenOptions) -> Result<Self> {
        let write = options.write;
        let no_load = options.no_load || matches!(location, Location::NoLoad(_));
        if no_load {
            location::refuse_to_write(write)?;
        }
        let how = location::OpenOptions { engine: options.engine, write, force: false };
        let OpenLocation { device, engine, notices, integrity } = location.open(&how)?;
        let volume = match (write, no_load) {
            (true, _) => Self::writable_on(device, options.clock),
            (false, true) => Self::open_fs(device, Ext4::open_without_journal),
            (false, false) => Self::on(device),
        };
        let mut volume = volume.context(|| location)?;
        if write && !options.commit.is_zero() {
            volume.timer = Some(Arc::new(CommitTimer::start(&volume.fs, options.commit)?));
        }
        Ok(Self { engine, notices, integrity, ..volume })
    }

    /// Opens the volume on a device that the caller has made: one that injects faults, for instance.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_fs(device, Ext4::open)
    }

    /// The same for writing; nothing is committed unless asked for.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn writable_on(device: Arc<dyn Device>, clock: Clock) -> Result<Self> {
        Self::open_fs(device, |device, events| Ext4::open_for_writing(device, events, clock))
    }

    fn open_fs(
        device: Arc<dyn Device>,
        open: impl FnOnce(Arc<dyn Device>, &Arc<Events>) -> Result<Arc<Ext4>>,
    ) -> Result<Self> {
        if device.size() < SMALLEST {
            return Err(unknown_format(&*device));
        }
        let (events, owner) = (Arc::new(Events::of(&device)), Owner::unique());
        let fs = open(Arc::clone(&device), &events).map_err(|error| match error.kind() {
            ErrorKind::UnknownFormat => unknown_format(&*device),
            _ => error,
        })?;
        Ok(Self {
            timer: None,
            fs,
            device,
            events,
            engine: Engine::Auto,
            notices: Vec::new(),
            integrity: None,
            owner,
            slots: Arc::default(),
        })
    }

    /// Makes an ext4 volume on a device that is open for writing, and gives its superblock.
    ///
    /// # Errors
    /// `Exists` where the device holds something that is known, unless forced; `InvalidInput` for options that cannot be,
    /// `Unsupported` by name; `NoSpace` where the volume is too small for its metadata; the device's. Up to the first write the
    /// device is as it was.
    pub fn make(device: &dyn Device, options: &MkfsOptions) -> Result<Superblock> {
        if !options.force {
            Self::check_empty(device)?;
        }
        mkfs(device, options)
    }

    /// Refuses a device that holds a file system or anything else that is known.
    ///
    /// # Errors
    /// `Exists`; the device's.
    pub fn check_empty(device: &dyn Device) -> Result<()> {
        let found = if Superblock::is_on(device)? {
            Some("holds an ext2, ext3 or ext4 file system".to_owned())
        } else if integrity::holds_tags(device) {
            Some("holds the tags of an integrity device".to_owned())
        } else {
            occupant(device)
        };
        found.map_or(Ok(()), |what| Err(Error::new(ErrorKind::Exists, what)))
    }

    /// The size of a block of the ext2, ext3 or ext4 file system that a device holds, where it can be read.
    ///
    /// # Errors
    /// The device's.
    pub fn block_size(device: &dyn Device) -> Result<Option<usize>> {
        Ok(superblock_on(device)?.and_then(Result::ok).map(|sb| sb.block_size.bytes()))
    }

    /// Refuses a device whose tail, from this byte on, is in use: by a file system that reaches there, always; by something whose end is not known
    /// unless it may be `lost`.
    ///
    /// # Errors
    /// `Exists`; the device's.
    pub fn check_tail(device: &dyn Device, from: u64, lost: TailLoss) -> Result<()> {
        let taken = |what: String| Err(Error::new(ErrorKind::Exists, what));
        if let Some(found) = superblock_on(device)? {
            return match found {
                Ok(sb) => {
                    let end = sb.blocks_count.saturating_mul(sb.block_size.bytes() as u64);
                    if end <= from {
                        return Ok(());
                    }
                    taken(format!(
                        "the file system has {end} bytes, and the tags would begin at {from}: make it smaller first"
                    ))
                }
                Err(_) if lost == TailLoss::DamagedVolume => Ok(()),
                Err(error) => taken(format!(
                    "holds a file system whose end is not known ({error}): tags would overwrite what it has from byte {from} on"
                )),
            };
        }
        match occupant(device) {
            Some(what) if lost == TailLoss::Nothing => taken(format!(
                "{what}, whose end is not known: tags would overwrite what it has from byte {from} on"
            )),
            _ => Ok(()),
        }
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The engine in use; never [`Engine::Auto`] after [`open`](Self::open).
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Commits what was changed, writes it to its place, and ends writing: later changes are refused. Without changes there is nothing
    /// to do. What is dropped without it is closed too, but nobody hears of an error.
    ///
    /// # Errors
    /// `Io`; the volume is then as after a crash, and recovers at the next opening.
    pub fn close(&self) -> Result<()> {
        self.fs.close()?;
        match &self.integrity {
            Some(opened) => opened.device.close().context(|| "close the integrity device"),
            None => Ok(()),
        }
    }

    /// The integrity device below, where the [location](Location) named one, and what was done about a crash when it was opened.
    #[must_use]
    pub fn integrity(&self) -> Option<&integrity::Opened> {
        self.integrity.as_ref()
    }

    /// What did not go as asked, a line each.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The I/O errors that this volume has met.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// A queue for the calling thread.
    ///
    /// # Errors
    /// `Io` where the kernel refuses.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let device = self.device.queue(options)?;
        let events = Arc::clone(&self.events);
        let mut queue = Queue::new(device, options, self.owner, None, events);
        queue.state.admit(self.device.limits());
        Ok(queue)
    }

    /// A handle for the data of a regular file.
    ///
    /// # Errors
    /// `IsADirectory`, `WrongFileType`, or `Encrypted`; `NotFound` where the file was removed since the inode was decoded.
    pub fn open_inode(&self, inode: Inode, options: FileOptions) -> Result<File> {
        let (held, now) = self.fs.hold_decoded(&inode)?;
        let inode = now.unwrap_or(inode);
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
                "the content is encrypted and no key is held",
            ));
        }
        let limits = self.device.limits();
        let timer = self.timer.clone();
        Ok(match LiveFile::new(held, timer, options, self.owner, limits, &self.slots) {
            Some(file) => file.into(),
            None => VolumeFile::new(inode, options, self.owner, limits).into(),
        })
    }
}

/// The superblock of the file system that a device holds; what is wrong with it, where it cannot be used.
fn superblock_on(device: &dyn Device) -> Result<Option<Result<Superblock>>> {
    let (at, len) = Superblock::RANGE;
    if !Superblock::is_on(device)? || device.size() < SMALLEST {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, at)?;
    Ok(Some(Superblock::parse(&bytes, device.size())))
}
