//! Opens a device, finds the format, and gives out files and queues: the only module that names both a device and a file
//! system.

use std::sync::Arc;

use crate::device::{BlockFile, Device, Engine, OpenMode, Opened, QueueOptions, open_engine};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::events::Events;
use crate::file::{File, FileOptions, VolumeFile};
use crate::fs::FileType;
use crate::fs::ext4::{Ext4, Inode, InodeFlags};
use crate::location::Location;
use crate::probe::{SMALLEST, unknown_format};
use crate::queue::{Owner, Queue};

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// How requests for file data reach the device.
    pub engine: Engine,
}

/// An ext2, ext3 or ext4 volume that nobody has mounted, opened exclusively and read-only. Cheap to clone; shared by threads.
#[derive(Clone)]
pub struct Volume {
    fs: Arc<Ext4>,
    device: Arc<dyn Device>,
    events: Arc<Events>,
    engine: Engine,
    notices: Vec<String>,
    owner: Owner,
}

impl Volume {
    /// Opens the volume at a location.
    ///
    /// # Errors
    /// `Busy` where someone else has it; `UnknownFormat`; `Unsupported` by name; `Corrupt` with block and field.
    pub fn open(location: &Location, options: &OpenOptions) -> Result<Self> {
        let mode = OpenMode { window: location.window()?, ..OpenMode::default() };
        let file = BlockFile::open(&location.path, &mode)?;
        let Opened { device, engine, notices } = open_engine(file, options.engine)?;
        let volume = Self::on(device).context(|| location)?;
        Ok(Self { engine, notices, ..volume })
    }

    /// Opens the volume on a device that the caller has made: one that injects faults, for instance.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        if device.size() < SMALLEST {
            return Err(unknown_format(&*device));
        }
        let (events, owner) = (Arc::default(), Owner::unique());
        let fs = Ext4::open(Arc::clone(&device), &events).map_err(|error| match error.kind() {
            ErrorKind::UnknownFormat => unknown_format(&*device),
            _ => error,
        })?;
        let block = fs.superblock().block_size.bytes();
        if device.limits().logical_block as usize > block {
            let unit = device.limits().logical_block;
            return Err(Error::unsupported(format!(
                "blocks of {block} bytes on a device with sectors of {unit}"
            )));
        }
        Ok(Self { fs, device, events, engine: Engine::Auto, notices: Vec::new(), owner })
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
    /// `IsADirectory`, `WrongFileType`, or `Encrypted`.
    pub fn open_inode(&self, inode: Inode, options: FileOptions) -> Result<File> {
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
        Ok(VolumeFile::new(inode, options, self.owner, self.device.limits()).into())
    }
}
