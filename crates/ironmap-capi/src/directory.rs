//! The entries of the directories of a volume.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use ironmap::Error;
use ironmap::fs::{DirEntry, FileType};
use parking_lot::Mutex;

use crate::failure::{call, forget};
use crate::handle::Handle;
use crate::memory::{Out, copy_text, path, place_of_handle};
use crate::tables::{DIRECTORIES, VOLUMES, ironmap_directory, ironmap_volume, locked};
use crate::volume::OpenVolume;

/// A directory that is being read.
pub(crate) struct Directory {
    entries: Mutex<Entries>,
    /// Keeps the volume open: it cannot be closed before this directory is closed.
    _volume: Arc<OpenVolume>,
}

type Entries = std::iter::Fuse<ironmap::DirEntries>;

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_dirent {
    /// The inode number.
    pub inode: u64,
    /// The type, as in `st_mode`: S_IFREG, S_IFDIR and so on; 0 if the directory does not store it.
    pub kind: u32,
    /// The length of the name in bytes, without the zero byte at its end.
    pub len: u32,
    /// The name, with a zero byte at its end. It may contain any bytes except 0 and a slash.
    pub name: [c_char; 256],
}

fn shown(entry: &DirEntry) -> ironmap_dirent {
    let mut shown = ironmap_dirent {
        inode: entry.inode.0,
        kind: entry.file_type.map_or(0, FileType::to_mode),
        len: entry.name.len().min(255) as u32,
        name: [0; _],
    };
    copy_text(&entry.name, &mut shown.name);
    shown
}

/// Opens a directory of a volume to read its entries. The caller closes it with `ironmap_closedir`.
///
/// Returns 0; -ENOTDIR, and the other errors of `ironmap_stat`; -ENOKEY for an encrypted directory; -EMFILE if too many
/// directories are open.
///
/// # Safety
/// `path` ends with a zero byte, and `directory` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_opendir(
    volume: *mut ironmap_volume,
    path: *const c_char,
    directory: *mut *mut ironmap_directory,
) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `directory` is NULL or can be written to.
        let place = unsafe { place_of_handle(directory) }?;
        // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
        let path = unsafe { self::path(path) }?;
        let volume = VOLUMES.get(handle)?;
        let entries = volume.volume.read_dir(path).map_err(|error| error.at(path.display()))?;
        let entries = Mutex::new(entries.fuse());
        *place = DIRECTORIES.add(Directory { entries, _volume: volume })?.pointer();
        Ok(())
    }) as c_int
}

/// Stores the next entry of a directory. The entries "." and ".." are omitted. `size` is `sizeof(struct ironmap_dirent)`.
///
/// Returns 1 if there is an entry, and 0 at the end; -EUCLEAN, -EIO; -EBADF; -EBUSY while another thread is in a call on the directory;
/// -EINVAL for NULL.
///
/// # Safety
/// `entry` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_readdir(
    directory: *mut ironmap_directory,
    entry: *mut ironmap_dirent,
    size: usize,
) -> c_int {
    let handle = Handle::of(directory);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `entry` is NULL or can be written to for `size` bytes.
        let out = unsafe { Out::new(entry, size) }?;
        let directory = DIRECTORIES.get(handle)?;
        match locked(&directory.entries)?.next().transpose()? {
            Some(entry) => {
                out.set(shown(&entry));
                Ok(1)
            }
            None => Ok(0_usize),
        }
    }) as c_int
}

/// Closes a directory. Returns 0 or -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_closedir(directory: *mut ironmap_directory) -> c_int {
    let handle = Handle::of(directory);
    call(Some(handle), || {
        drop(DIRECTORIES.remove(handle)?);
        forget(handle);
        Ok::<(), Error>(())
    }) as c_int
}
