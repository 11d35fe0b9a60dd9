//! Opens a device, finds the format, and gives out files and queues: the only module that names both a device and a file
//! system.

use std::sync::Arc;

use crate::device::{BlockFile, OpenMode, Psync};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::{File, FileOptions};
use crate::fs::ext4::{Ext4, Inode};
use crate::location::Location;

/// How requests for file data reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the device and the kernel have what it needs, else psync.
    #[default]
    Auto,
    /// One `pread` a request.
    Psync,
    /// io_uring, batched.
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

/// An ext2, ext3 or ext4 volume that nobody has mounted, opened exclusively and read-only.
#[derive(Clone)]
pub struct Volume {
    fs: Arc<Ext4>,
    file: Arc<BlockFile>,
}

impl Volume {
    /// Opens the volume at a location.
    ///
    /// # Errors
    /// `Busy` where someone else has it; `UnknownFormat`; `Unsupported` by name; `Corrupt` with block and field.
    pub fn open(location: &Location, _options: &OpenOptions) -> Result<Self> {
        let open = || {
            let mode = OpenMode { window: location.window()?, ..OpenMode::default() };
            let file = Arc::new(BlockFile::open(&location.path, &mode)?);
            let fs = Ext4::open(Arc::new(Psync::new(Arc::clone(&file))))?;
            Ok(Self { fs, file })
        };
        open().context(|| location.path.display().to_string())
    }

    /// The file system.
    #[must_use]
    pub fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &BlockFile {
        &self.file
    }

    /// A handle for the data of a regular file.
    ///
    /// # Errors
    /// `IsADirectory`, `WrongFileType`, or `Encrypted`.
    pub fn open_inode(&self, inode: Inode, options: FileOptions) -> Result<File> {
        use crate::fs::FileType;
        use crate::fs::ext4::InodeFlags;
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => {
                return Err(Error::new(ErrorKind::IsADirectory, "is a directory"));
            }
            _ => return Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        }
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(ErrorKind::Encrypted, "the content is encrypted"));
        }
        Ok(File::new(Arc::new(inode), options))
    }
}
