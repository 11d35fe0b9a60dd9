//! Opens a device, finds the format, and gives out files and queues: the only module that names both a device and a file
//! system.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::{
    BlockFile, Dax, Device, Null, OpenMode, Psync, QueueOptions, Uring, UringOptions,
};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::events::Events;
use crate::file::{File, FileOptions};
use crate::fs::FileType;
use crate::fs::ext4::{Ext4, Inode, InodeFlags};
use crate::location::Location;
use crate::queue::Queue;

/// How requests for file data reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the device and the kernel have what it needs, else psync.
    #[default]
    Auto,
    /// One `pread` a request.
    Psync,
    /// io_uring, batched. Falls back to psync, with a [notice](Volume::notices), where the device does not know NOWAIT.
    IoUring,
    /// io_uring with polled completions, where the device has poll queues.
    IoUringPoll,
    /// Loads from a mapping of an image.
    Dax,
    /// File data completes at once without being read: measures the engine itself.
    Null,
}

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
    id: u32,
}

static NEXT_VOLUME: AtomicU32 = AtomicU32::new(1);

impl Volume {
    /// Opens the volume at a location.
    ///
    /// # Errors
    /// `Busy` where someone else has it; `UnknownFormat`; `Unsupported` by name; `Corrupt` with block and field.
    pub fn open(location: &Location, options: &OpenOptions) -> Result<Self> {
        let open = || {
            let mode = OpenMode { window: location.window()?, ..OpenMode::default() };
            let file = BlockFile::open(&location.path, &mode)?;
            let mut notices: Vec<String> = file.notice().map(str::to_owned).into_iter().collect();
            let (device, engine) = open_engine(Arc::new(file), options.engine, &mut notices)?;
            Ok(Self { engine, notices, ..Self::on(device)? })
        };
        open().context(|| location.path.display().to_string())
    }

    /// Opens the volume on a device that the caller has made: one that injects faults, for instance.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        let fs = Ext4::open(Arc::clone(&device))?;
        let (events, id) = (Arc::default(), NEXT_VOLUME.fetch_add(1, Ordering::Relaxed));
        let block = fs.superblock().block_size.bytes();
        if device.limits().logical_block as usize > block {
            let unit = device.limits().logical_block;
            return Err(Error::unsupported(format!(
                "blocks of {block} bytes on a device with sectors of {unit}"
            )));
        }
        Ok(Self { fs, device, events, engine: Engine::Auto, notices: Vec::new(), id })
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
        Queue::new(&*self.device, options, self.id, Arc::clone(&self.events))
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
        Ok(File::new(inode, options, self.id))
    }
}

/// The device of an engine, and the engine that it is.
fn open_engine(
    file: Arc<BlockFile>,
    engine: Engine,
    notices: &mut Vec<String>,
) -> Result<(Arc<dyn Device>, Engine)> {
    let psync = || Arc::new(Psync::new(Arc::clone(&file))) as Arc<dyn Device>;
    let uring = |poll| {
        let options = UringOptions { poll, ..UringOptions::default() };
        let device = Arc::new(Uring::new(Arc::clone(&file), options)) as Arc<dyn Device>;
        // A kernel may lack io_uring or forbid it: better known now than at the first queue.
        device.queue(&QueueOptions { depth: 1 }).map(|_| device)
    };
    let nowait = file.limits().nowait;
    Ok(match engine {
        Engine::Null => (Arc::new(Null::over(psync())), Engine::Null),
        Engine::Dax => (Arc::new(Dax::new(&file)?), Engine::Dax),
        Engine::Auto if nowait => match uring(false) {
            Ok(device) => (device, Engine::IoUring),
            Err(_) => (psync(), Engine::Psync),
        },
        Engine::Auto | Engine::Psync => (psync(), Engine::Psync),
        Engine::IoUring | Engine::IoUringPoll if !nowait => {
            notices.push(
                "the device does not know NOWAIT, io_uring would punt every request: psync is used"
                    .into(),
            );
            (psync(), Engine::Psync)
        }
        Engine::IoUringPoll if !file.limits().poll => {
            notices.push("the device has no poll queues: completions are not polled".into());
            (uring(false)?, Engine::IoUring)
        }
        Engine::IoUring => (uring(false)?, Engine::IoUring),
        Engine::IoUringPoll => (uring(true)?, Engine::IoUringPoll),
    })
}
