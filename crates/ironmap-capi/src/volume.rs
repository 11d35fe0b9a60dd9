//! Volumes and the host: the calls that open and close them, and their properties.
//!
//! A volume is an ext4 or XFS file system that is not mounted, on a device or in an image. The host stands for the mounted file systems:
//! the library reads their files directly from the devices, and not through the file systems of the kernel.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ironmap::fs::Capabilities;
use ironmap::{Engine, Error, Host, HostOptions, Location, Volume, VolumeOptions};

use crate::failure::{call, forget};
use crate::handle::Handle;
use crate::memory::{Out, copy_text, copy_value, options, path, place_of_handle, text};
use crate::process::{starting_threads, without_forks};
use crate::tables::{HOSTS, IN_USE, VOLUMES, ironmap_host, ironmap_volume};

/// An open volume.
pub(crate) struct OpenVolume {
    pub(crate) volume: Volume,
}

/// The options of `ironmap_volume_open`. The caller zeroes the structure first; 0 stands for the default.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_volume_options {
    /// 1 opens the volume for writing. On XFS, only data that a file already has can then be overwritten: calls that change names, attributes
    /// or sizes fail with -EROFS or -EOPNOTSUPP.
    pub write: u32,
    /// 1 does not recover the journal. Only for reading: files may be damaged.
    pub no_load: u32,
    /// 1 opens a volume whose device is shorter than the volume. Only for reading.
    pub truncated: u32,
    /// The longest time in milliseconds between a change and its commit; 0 stands for 5000.
    pub commit_ms: u32,
    /// The block of a copy of the superblock of ext4; 0 stands for the first superblock.
    pub superblock: u64,
}

impl ironmap_volume_options {
    fn parsed(&self) -> Result<VolumeOptions, Error> {
        if [self.write, self.no_load, self.truncated].iter().any(|flag| *flag > 1) {
            return Err(Error::invalid("each option of the volume must be 0 or 1"));
        }
        let mut options = VolumeOptions::new()
            .write(self.write == 1)
            .no_load(self.no_load == 1)
            .truncated(self.truncated == 1);
        if self.commit_ms > 0 {
            options = options.commit(Duration::from_millis(self.commit_ms.into()));
        }
        if self.superblock > 0 {
            options = options.superblock(self.superblock);
        }
        Ok(options)
    }
}

/// Returns the engine with this name. NULL and "auto" let the library choose.
///
/// # Safety
/// A name that is not NULL ends with a zero byte.
unsafe fn parse_engine(engine: *const c_char) -> Result<Engine, Error> {
    if engine.is_null() {
        return Ok(Engine::Auto);
    }
    // SAFETY: the caller guarantees that `engine` is NULL or ends with a zero byte.
    let name = unsafe { text(engine, "the engine") }?;
    String::from_utf8_lossy(name).parse()
}

/// Opens a volume: an ext4 or XFS file system that is not mounted.
///
/// `location` is a path of an image or a device, or a location such as "disk.img@p1" (a partition), "disk.img@vg/root" (a logical volume of
/// LVM), "qcow2:disk.qcow2@p1" or "nbd://server/export". `engine` is the name of
/// the I/O engine, such as "io_uring" or "psync"; NULL lets the library choose. `options` may be NULL, which opens the volume for reading;
/// `size` is `sizeof(struct ironmap_volume_options)`. The caller closes the volume with `ironmap_volume_close`. Any thread may call it.
///
/// Returns 0; -ENOENT, -EACCES; -EBUSY if another program uses the volume; -EINVAL for a location without a file system or with wrong
/// syntax; -EOPNOTSUPP for a feature that the library does not support; -EUCLEAN for a damaged volume; -E2BIG for an option that this
/// version does not know; -EIO.
///
/// # Safety
/// The texts end with a zero byte, `options` can be read for `size` bytes, and `volume` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_volume_open(
    location: *const c_char,
    engine: *const c_char,
    options: *const ironmap_volume_options,
    size: usize,
    volume: *mut *mut ironmap_volume,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `volume` is NULL or can be written to.
        let place = unsafe { place_of_handle(volume) }?;
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = unsafe { path(location) }?;
        // SAFETY: the caller guarantees that `options` is NULL or can be read for `size` bytes. The structure contains only numbers.
        let options = unsafe { self::options(options, size) }?.parsed()?;
        // SAFETY: the caller guarantees that `engine` is NULL or ends with a zero byte.
        let options = options.engine(unsafe { parse_engine(engine) }?);
        starting_threads(|| {
            let volume = options.open(Location::parse(location.as_os_str())?)?;
            *place = VOLUMES.add(OpenVolume { volume })?.pointer();
            Ok(())
        })
    }) as c_int
}

/// Closes a volume. Its changes are committed and written to their final places.
///
/// Returns 0; -EBUSY while a queue, a pool or a directory of the volume is open, or another thread is in a call on it: the volume stays
/// open then; -EBADF; -EIO, -EROFS and other errnos if the changes cannot be written: the volume is then closed, and is
/// recovered when it is next opened.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_volume_close(volume: *mut ironmap_volume) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        without_forks(|| {
            let open = VOLUMES.remove_unused(handle, IN_USE)?;
            forget(handle);
            open.volume.close()
        })
    }) as c_int
}

/// Makes all changes of a volume durable. A volume that was opened for reading has none. Returns 0; -EBADF; -EIO and other errnos of the device; -EROFS if an earlier error has made the volume
/// read-only.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_volume_sync(volume: *mut ironmap_volume) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        let open = VOLUMES.get(handle)?;
        // A volume that was opened for reading has no changes.
        if open.volume.device().is_writable() { open.volume.sync() } else { Ok(()) }
    }) as c_int
}

/// The properties of a volume.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_volume_info {
    /// The name of the format: "ext4" or "xfs".
    pub format: [c_char; 16],
    /// The name of the I/O engine.
    pub engine: [c_char; 16],
    /// 1 if the volume is open for writing.
    pub writable: u32,
    /// The size of a block in bytes.
    pub block_size: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub free_blocks: u64,
    /// The number of free blocks that users other than root can allocate.
    pub available_blocks: u64,
    /// The number of inodes.
    pub inodes: u64,
    /// The number of free inodes.
    pub free_inodes: u64,
}

/// Stores the properties of a volume. `size` is `sizeof(struct ironmap_volume_info)`. Returns 0, -EBADF, or -EINVAL for NULL.
///
/// # Safety
/// `info` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_volume_info(
    volume: *mut ironmap_volume,
    info: *mut ironmap_volume_info,
    size: usize,
) -> c_int {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `info` is NULL or can be written to for `size` bytes.
        let out = unsafe { Out::new(info, size) }?;
        let open = VOLUMES.get(handle)?;
        let (fs, usage) = (open.volume.fs(), open.volume.fs().usage());
        let mut shown = ironmap_volume_info {
            format: [0; _],
            engine: [0; _],
            writable: fs.capabilities().contains(Capabilities::WRITE).into(),
            block_size: usage.block_size,
            blocks: usage.blocks,
            free_blocks: usage.free.blocks,
            available_blocks: usage.free.available,
            inodes: usage.inodes,
            free_inodes: usage.free.inodes,
        };
        copy_text(fs.format().as_bytes(), &mut shown.format);
        copy_text(open.volume.engine().to_string().as_bytes(), &mut shown.engine);
        out.set(shown);
        Ok(())
    }) as c_int
}

/// Copies a notice of a volume: a setting that could not be applied as requested, or a fault of the device that was ignored. `index` counts
/// from 0. The text has no zero byte at its end; with `len` 0 only its length is returned.
///
/// Returns the length of the text; -ENODATA if no notice has this index; -ERANGE if the memory is too short; -EBADF.
///
/// # Safety
/// `text` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_volume_notice(
    volume: *mut ironmap_volume,
    index: usize,
    text: *mut c_char,
    len: usize,
) -> isize {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        let open = VOLUMES.get(handle)?;
        let notice = open.volume.notices().iter().chain(open.volume.faults()).nth(index);
        let none = || Error::new(ironmap::ErrorKind::NoData, "no notice has this index");
        // SAFETY: the caller guarantees that `text` can be written to for `len` bytes.
        unsafe { copy_value(notice.ok_or_else(none)?.as_bytes(), text.cast::<c_void>(), len) }
    })
}

/// Opens the host: the files of the mounted file systems. The library reads these files directly from their devices.
///
/// `engine` is the name of the I/O engine, or NULL. The caller closes the host with `ironmap_host_close`. Any thread may call it.
///
/// Returns 0; -EINVAL for an unknown engine; -EOPNOTSUPP for an engine that cannot be used here.
///
/// # Safety
/// `engine` ends with a zero byte, and `host` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_host_open(
    engine: *const c_char,
    host: *mut *mut ironmap_host,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `host` is NULL or can be written to.
        let place = unsafe { place_of_handle(host) }?;
        // SAFETY: the caller guarantees that `engine` is NULL or ends with a zero byte.
        let engine = unsafe { parse_engine(engine) }?;
        starting_threads(|| {
            *place = HOSTS.add(Host::new(&HostOptions::new().engine(engine))?)?.pointer();
            Ok(())
        })
    }) as c_int
}

/// Closes a host. Returns 0; -EBUSY while a queue or a pool of the host is open; -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_host_close(host: *mut ironmap_host) -> c_int {
    let handle = Handle::of(host);
    call(Some(handle), || {
        without_forks(|| {
            drop(HOSTS.remove_unused(handle, IN_USE)?);
            forget(handle);
            Ok(())
        })
    }) as c_int
}
