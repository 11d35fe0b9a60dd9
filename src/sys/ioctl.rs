//! Operations that use `ioctl`. Some operations query the extents or the attributes of a file, or a file system. Others act on block
//! devices.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use bitflags::bitflags;
use rustix::io::Errno as OsErrno;

use crate::error::Errno;

// The number of each `ioctl` operation encodes the size of the operation's structure. The structures are declared below as in Linux's
// include/uapi.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const FS_IOC_GETVERSION: libc::c_ulong = (2 << 30)
    | ((size_of::<libc::c_long>() as libc::c_ulong) << 16)
    | ((b'v' as libc::c_ulong) << 8)
    | 1;
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801C_581F;
const XFS_IOC_FSGEOMETRY_V4: libc::c_ulong = 0x8070_587C;
const FS_IOC_GETLBMD_CAP: libc::c_ulong = 0xC010_1502;
const BLKROGET: libc::c_ulong = 0x125E;
const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKZEROOUT: libc::c_ulong = 0x127F;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const XFS_GEOMETRY_REFLINK: u32 = 1 << 20;
const XFLAG_REALTIME: u32 = 1;

const FIEMAP_FLAG_SYNC: u32 = 1;
/// The maximum number of extents that one call returns.
const BATCH: usize = 256;

bitflags! {
    /// The flags of an extent in FIEMAP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FiemapFlags: u32 {
        const LAST = 0x1;
        const UNKNOWN = 0x2;
        const DELALLOC = 0x4;
        const ENCODED = 0x8;
        const ENCRYPTED = 0x80;
        const NOT_ALIGNED = 0x100;
        const INLINE = 0x200;
        const TAIL = 0x400;
        const UNWRITTEN = 0x800;
        const SHARED = 0x2000;
        const _ = !0;
    }
}

/// An extent of a file, as the kernel reports it. All values are in bytes. `logical` is the position in the file. `physical` is the
/// position on the file system's device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FiemapExtent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    pub(crate) flags: FiemapFlags,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<Fiemap>() == 32 + BATCH * 56);

/// Runs an `ioctl` that fills a structure. For some operations, the kernel also reads the structure.
///
/// # Safety
/// The request's structure is a `T`, or a prefix of a `T`, and any bytes make a valid `T`.
unsafe fn ioctl<T>(
    file: BorrowedFd<'_>,
    request: libc::c_ulong,
    data: &mut T,
) -> Result<(), Errno> {
    loop {
        // SAFETY: the descriptor is open, and the kernel reads and writes only a `T`, by this function's contract.
        let result =
            unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(data)) };
        if result >= 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(Errno::EIO.0);
        if errno != OsErrno::INTR.raw_os_error() {
            return Err(Errno(errno));
        }
    }
}

/// Writes a file's dirty data to the device (FIEMAP_FLAG_SYNC), and then returns the file's extents in order, up to position `end`.
///
/// Fails with EFBIG if there are more than `most` extents, and with EOPNOTSUPP if the file system does not support FIEMAP.
pub(crate) fn fiemap(
    file: BorrowedFd<'_>,
    end: u64,
    most: usize,
) -> Result<Vec<FiemapExtent>, Errno> {
    let mut found: Vec<FiemapExtent> = Vec::new();
    let mut start = 0;
    let mut flags = FIEMAP_FLAG_SYNC;
    let none = RawExtent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved64: [0; 2],
        flags: 0,
        reserved: [0; 3],
    };
    let mut request = Box::new(Fiemap {
        start: 0,
        length: 0,
        flags: 0,
        mapped_extents: 0,
        extent_count: 0,
        reserved: 0,
        extents: [none; BATCH],
    });
    while start < end {
        request.start = start;
        request.length = end - start;
        request.flags = flags;
        (request.mapped_extents, request.extent_count) = (0, BATCH as u32);
        // SAFETY: FS_IOC_FIEMAP uses this structure with space for `extent_count` extents; all its fields are integers.
        unsafe { ioctl(file, FS_IOC_FIEMAP, &mut *request) }?;
        flags = 0;
        let count = request.mapped_extents as usize;
        let Some(extents) = request.extents.get(..count).filter(|extents| !extents.is_empty())
        else {
            break;
        };
        if found.len() + count > most {
            return Err(Errno::EFBIG);
        }
        found.extend(extents.iter().map(|extent| FiemapExtent {
            logical: extent.logical,
            physical: extent.physical,
            length: extent.length,
            flags: FiemapFlags::from_bits_retain(extent.flags),
        }));
        let last = extents[count - 1];
        let next = last.logical.saturating_add(last.length);
        if last.flags & FiemapFlags::LAST.bits() != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(found)
}

/// Discards a range of bytes of a block device. Fails with EOPNOTSUPP if the device does not support discards.
pub(crate) fn discard(device: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let mut range = [at, len];
    // SAFETY: BLKDISCARD reads two integers of 64 bits.
    unsafe { ioctl(device, BLKDISCARD, &mut range) }?;
    Ok(())
}

/// Zeroes a range of bytes of a block device. If the device has no command for this, the kernel writes zeros.
pub(crate) fn zero_out(device: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let mut range = [at, len];
    // SAFETY: BLKZEROOUT reads two integers of 64 bits.
    unsafe { ioctl(device, BLKZEROOUT, &mut range) }?;
    Ok(())
}

/// Whether a block device refuses writes.
pub(crate) fn is_read_only(device: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: BLKROGET fills an int.
    unsafe { ioctl(device, BLKROGET, &mut read_only) }?;
    Ok(read_only != 0)
}

/// Returns the file that a loop device uses, as three fields of the file's `stat`: `st_dev`, `st_ino` and `st_rdev`. The field `st_rdev`
/// matters only if the file is a device.
///
/// Fails with ENXIO if the loop device uses no file.
pub(crate) fn loop_backing(device: BorrowedFd<'_>) -> Result<(u64, u64, u64), Errno> {
    // struct loop_info64 has 232 bytes. It begins with three integers of 64 bits, which this function returns.
    let mut status = [0_u64; 29];
    // SAFETY: LOOP_GET_STATUS64 fills 232 bytes.
    unsafe { ioctl(device, LOOP_GET_STATUS64, &mut status) }?;
    Ok((status[0], status[1], status[2]))
}

/// Returns the number of metadata bytes that a block device stores with each protection interval. Fails with ENOTTY before Linux 6.17.
pub(crate) fn metadata_size(device: BorrowedFd<'_>) -> Result<u32, Errno> {
    // struct logical_block_metadata_cap contains flags (32 bits), the interval (16 bits), and several single bytes. The first of these
    // bytes is the result.
    let mut capability = [0_u8; 16];
    // SAFETY: FS_IOC_GETLBMD_CAP fills 16 bytes.
    unsafe { ioctl(device, FS_IOC_GETLBMD_CAP, &mut capability) }?;
    Ok(capability[6].into())
}

/// Returns the generation of an inode. If an inode number is reused for another file, the generation differs. Fails with ENOTTY if the file
/// system has no generations.
pub(crate) fn inode_generation(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    // The operation is defined with a long, but file systems write only an int (`ioctl_iflags(2)`).
    let mut generation: [u32; 2] = [0; 2];
    // SAFETY: FS_IOC_GETVERSION fills at most a long, which has no more than 8 bytes.
    unsafe { ioctl(file, FS_IOC_GETVERSION, &mut generation) }?;
    Ok(generation[0])
}

/// Whether the data of an XFS file are on the realtime device.
pub(crate) fn is_realtime(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    // struct fsxattr contains the flags, followed by six more integers.
    let mut attributes = [0_u32; 7];
    // SAFETY: FS_IOC_FSGETXATTR fills 28 bytes.
    unsafe { ioctl(file, FS_IOC_FSGETXATTR, &mut attributes) }?;
    Ok(attributes[0] & XFLAG_REALTIME != 0)
}

/// Whether files of an XFS file system can share extents. `file` is an open file of the file system.
pub(crate) fn has_reflink(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    // struct xfs_fsop_geom_v4 contains 28 integers. The 24th integer is the flags.
    let mut geometry = MaybeUninit::<[u32; 28]>::zeroed();
    // SAFETY: XFS_IOC_FSGEOMETRY_V4 fills 112 bytes.
    unsafe { ioctl(file, XFS_IOC_FSGEOMETRY_V4, &mut geometry) }?;
    // SAFETY: the memory was zeroed, and any bytes that the kernel wrote are valid integers.
    let geometry = unsafe { geometry.assume_init() };
    Ok(geometry[23] & XFS_GEOMETRY_REFLINK != 0)
}
