//! Converts the flags of Linux's headers to flags of the library.

use std::ffi::c_int;

use ironmap::dio::DioFlags;
use ironmap::{Error, FileOptions};

/// The promise that no program dedupes a host file on XFS while it is open. A flag of `ironmap_open` that no flag of `open(2)` equals.
pub const IRONMAP_O_ASSUME_NO_DEDUPE: c_int = 0x4000_0000;

// The crate libc has no constant for this flag. The number is from include/uapi/linux/fs.h.
const RWF_ATOMIC: c_int = 0x40;

/// The flags of `preadv2` that a request can have.
const REQUEST: [(c_int, DioFlags); 5] = [
    (libc::RWF_HIPRI, DioFlags::HIPRI),
    (libc::RWF_DSYNC, DioFlags::DSYNC),
    (libc::RWF_SYNC, DioFlags::SYNC),
    (libc::RWF_NOWAIT, DioFlags::NOWAIT),
    (RWF_ATOMIC, DioFlags::ATOMIC),
];

/// The flags of a request.
///
/// # Errors
/// `InvalidInput` for a flag that requests do not have.
#[inline(always)]
pub(crate) fn dio_flags(flags: c_int) -> Result<DioFlags, Error> {
    if flags == 0 { Ok(DioFlags::empty()) } else { some_flags(flags) }
}

#[inline(never)]
fn some_flags(flags: c_int) -> Result<DioFlags, Error> {
    let mut unknown = flags;
    let mut found = DioFlags::empty();
    for (flag, same) in REQUEST {
        if flags & flag != 0 {
            unknown &= !flag;
            found |= same;
        }
    }
    match unknown {
        0 => Ok(found),
        _ => Err(Error::invalid(format!("a request cannot have the flags {unknown:#x}"))),
    }
}

/// The flags of a read.
///
/// # Errors
/// `InvalidInput` for a flag that reads do not have.
#[inline(always)]
pub(crate) fn read_flags(flags: c_int) -> Result<DioFlags, Error> {
    match flags & !(libc::RWF_HIPRI | libc::RWF_NOWAIT) {
        0 => dio_flags(flags),
        unknown => Err(Error::invalid(format!("a read cannot have the flags {unknown:#x}"))),
    }
}

/// The flags of an open file.
pub(crate) struct OpenFlags {
    pub(crate) options: FileOptions,
    /// The flags of each write to the file.
    pub(crate) durable: DioFlags,
    pub(crate) writes: bool,
    /// Whether the file must be emptied after it was opened. The options of the open cannot empty a file that is opened for appending.
    pub(crate) empties: bool,
}

/// Converts the flags of `open(2)`, and the permissions of a file that is created. Flags that have no meaning here are accepted.
///
/// # Errors
/// `InvalidInput` for a flag that cannot be honoured.
pub(crate) fn open_flags(flags: c_int, mode: u32) -> Result<OpenFlags, Error> {
    const WITHOUT_MEANING: c_int =
        libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOATIME | libc::O_NOCTTY | libc::O_NONBLOCK;
    const KNOWN: c_int = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_DIRECT
        | libc::O_SYNC
        | libc::O_DSYNC
        | IRONMAP_O_ASSUME_NO_DEDUPE;
    let unknown = flags & !(KNOWN | WITHOUT_MEANING);
    if unknown != 0 {
        return Err(Error::invalid(format!("open does not support the flags {unknown:#o}")));
    }
    let has = |flag| flags & flag == flag;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Error::invalid("the access mode must be O_RDONLY, O_WRONLY or O_RDWR")),
    };
    let appends = has(libc::O_APPEND) && write;
    let creates = has(libc::O_CREAT);
    let options = FileOptions::new()
        .read(read)
        .write(write)
        .append(appends)
        .create(creates)
        .create_new(creates && has(libc::O_EXCL))
        .truncate(has(libc::O_TRUNC) && !appends)
        .direct(has(libc::O_DIRECT))
        .assume_no_dedupe(has(IRONMAP_O_ASSUME_NO_DEDUPE))
        .mode(mode & 0o7777);
    let durable = match () {
        () if has(libc::O_SYNC) => DioFlags::SYNC,
        () if has(libc::O_DSYNC) => DioFlags::DSYNC,
        () => DioFlags::empty(),
    };
    Ok(OpenFlags { options, durable, writes: write, empties: has(libc::O_TRUNC) && appends })
}
