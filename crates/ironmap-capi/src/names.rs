//! The names and attributes of the files of a volume.
//!
//! A path begins at the root of the volume, with or without a slash. A symbolic link in a path is followed, except at the end of the path if the
//! call says so. Any thread may call these functions.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::{Credentials, FileType, Follow, NewFile, RenameFlags, SetAttributes, SetXattr};
use ironmap::{Errno, Error, ErrorKind, Volume};

use crate::failure::{Count, call};
use crate::handle::Handle;
use crate::memory::{Out, bytes, copy_value, path, text};
use crate::stat::{ironmap_stat, ironmap_time, shown};
use crate::tables::{VOLUMES, ironmap_volume};

/// Returns how to treat a symbolic link in the last component of a path: `flags` are 0 or AT_SYMLINK_NOFOLLOW.
fn follow(flags: c_int) -> Result<Follow, Error> {
    match flags {
        0 => Ok(Follow::All),
        libc::AT_SYMLINK_NOFOLLOW => Ok(Follow::NotLast),
        _ => Err(Error::invalid("the flags must be 0 or AT_SYMLINK_NOFOLLOW")),
    }
}

/// Runs a call on a path of a volume. Errors name the path.
///
/// # Safety
/// A path that is not NULL ends with a zero byte.
unsafe fn at<T: Count>(
    volume: *mut ironmap_volume,
    name: *const c_char,
    work: impl FnOnce(&Volume, &Path) -> Result<T, Error>,
) -> isize {
    let handle = Handle::of(volume);
    call(Some(handle), || {
        let open = VOLUMES.get(handle)?;
        // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
        let path = unsafe { path(name) }?;
        work(&open.volume, path).map_err(|error| error.at(path.display()))
    })
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn change(
    volume: &Volume,
    path: &Path,
    follow: Follow,
    change: &SetAttributes,
) -> Result<(), Error> {
    let fs = volume.fs();
    let (held, _) = fs.hold_path(path_bytes(path), follow)?;
    fs.writable()?.set_attributes(held.number(), change)
}

/// Stores the attributes of the file at a path. With AT_SYMLINK_NOFOLLOW in `flags`, a symbolic link is not followed. `size` is
/// `sizeof(struct ironmap_stat)`.
///
/// Returns 0; -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG as for `stat(2)`; -EUCLEAN, -EIO; -EBADF; -EINVAL for NULL or other flags.
///
/// # Safety
/// `path` ends with a zero byte, and `stat` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_stat(
    volume: *mut ironmap_volume,
    path: *const c_char,
    flags: c_int,
    stat: *mut ironmap_stat,
    size: usize,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that `stat` is NULL or can be written to for `size` bytes.
        let out = unsafe { Out::new(stat, size) }?;
        out.set(shown(volume.fs().resolve(path_bytes(path), follow(flags)?)?.stat()));
        Ok(())
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Copies the target of a symbolic link, without a zero byte at its end. With `len` 0 only the length is returned.
///
/// Returns the length; -ERANGE if the memory is too short; -EINVAL if the file is not a symbolic link; and the errors of `ironmap_stat`.
///
/// # Safety
/// `path` ends with a zero byte, and `target` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_readlink(
    volume: *mut ironmap_volume,
    path: *const c_char,
    target: *mut c_char,
    len: usize,
) -> isize {
    let work = |volume: &Volume, path: &Path| {
        let found = volume.read_link(path)?;
        // SAFETY: the caller guarantees that `target` can be written to for `len` bytes.
        unsafe { copy_value(path_bytes(&found), target.cast(), len) }
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) }
}

/// Creates a directory. No umask is applied to `mode`.
///
/// Returns 0; -EEXIST; -EROFS for a volume that is open for reading; -ENOSPC, -EDQUOT; -EMLINK; and the errors of `ironmap_stat`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_mkdir(
    volume: *mut ironmap_volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        if path.as_os_str().is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the path is empty"));
        }
        let fs = volume.fs();
        let Ok((parent, name)) = parent_and_name(path) else {
            fs.hold_path(path_bytes(path), Follow::All)?;
            return Err(Error::new(ErrorKind::Exists, "the directory exists"));
        };
        let (held, _) = fs.hold_path(parent, Follow::All)?;
        let made = (NewFile::Directory, mode & 0o7777, Credentials::default());
        fs.writable()?.create(held.number(), name, made.0, made.1, &made.2).map(drop)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Removes a name of a file that is not a directory.
///
/// Returns 0; -EISDIR; -EROFS; and the errors of `ironmap_stat`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_unlink(volume: *mut ironmap_volume, path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, |volume, path| volume.remove_file(path)) as c_int }
}

/// Removes an empty directory.
///
/// Returns 0; -ENOTEMPTY, -ENOTDIR; -EROFS; and the errors of `ironmap_stat`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_rmdir(volume: *mut ironmap_volume, path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, |volume, path| volume.remove_dir(path)) as c_int }
}

/// Returns the directory of a path, and the last name in it.
fn parent_and_name(path: &Path) -> Result<(&[u8], &[u8]), Error> {
    let no_name = || Error::invalid("the path does not end with a file name");
    // `Path::file_name` skips a dot at the end of a path, but such a dot denotes the directory before it, and is not a name.
    let last = path_bytes(path).rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let name = path.file_name().filter(|name| last == Some(name.as_bytes())).ok_or_else(no_name)?;
    let parent = path.parent().map_or(&b"/"[..], path_bytes);
    Ok((if parent.is_empty() { b"/" } else { parent }, name.as_bytes()))
}

/// Renames a file. `flags` are those of `renameat2(2)`: 0, RENAME_NOREPLACE, RENAME_EXCHANGE or RENAME_WHITEOUT.
///
/// Returns 0; -EEXIST with RENAME_NOREPLACE; -ENOTEMPTY, -EISDIR, -ENOTDIR; -EXDEV; -EINVAL for a directory that would move into itself;
/// -EROFS; and the errors of `ironmap_stat`.
///
/// # Safety
/// The paths end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_rename(
    volume: *mut ironmap_volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    let work = |volume: &Volume, from: &Path| {
        // SAFETY: the caller guarantees that `to` is NULL or ends with a zero byte.
        let to = unsafe { path(to) }?;
        let unknown = || Error::invalid("the flags contain a bit that renameat2 does not have");
        let flags = RenameFlags::from_bits(flags).ok_or_else(unknown)?;
        if flags.is_empty() {
            return volume.rename(from, to);
        }
        let fs = volume.fs();
        let slashes = [from, to].map(|path| path_bytes(path).ends_with(b"/"));
        let (from_dir, from) = parent_and_name(from)?;
        let (to_dir, to) = parent_and_name(to)?;
        let (from_dir, _) = fs.hold_path(from_dir, Follow::All)?;
        let (to_dir, _) = fs.hold_path(to_dir, Follow::All)?;
        let names = ((from_dir.number(), from), (to_dir.number(), to));
        // A path that ends with a slash must name a directory.
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let directories =
            [(names.0, slashes[0] || slashes[1] && !exchanges), (names.1, slashes[1] && exchanges)];
        for ((dir, name), _) in directories.into_iter().filter(|(_, asked)| *asked) {
            if fs.lookup(dir, name)?.file_type() != FileType::Directory {
                return Err(Error::new(ErrorKind::NotADirectory, "is not a directory"));
            }
        }
        fs.writable()?.rename(names.0, names.1, flags, &Credentials::default())
    };
    // SAFETY: the caller guarantees that `from` is NULL or ends with a zero byte.
    unsafe { at(volume, from, work) as c_int }
}

/// Creates a symbolic link at `path` with this target. Returns 0; -EEXIST; -EROFS; -ENOSPC, -EDQUOT; and the errors of
/// `ironmap_stat`.
///
/// # Safety
/// The texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_symlink(
    volume: *mut ironmap_volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that `target` is NULL or ends with a zero byte.
        let target = unsafe { text(target, "the target") }?;
        volume.symlink(Path::new(OsStr::from_bytes(target)), path)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Gives a file an additional name (a hard link). A symbolic link is not followed. Returns 0; -EEXIST; -EMLINK; -EPERM for a directory;
/// -EROFS; -ENOSPC; and the errors of `ironmap_stat`.
///
/// # Safety
/// The paths end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_link(
    volume: *mut ironmap_volume,
    original: *const c_char,
    path: *const c_char,
) -> c_int {
    let work = |volume: &Volume, link: &Path| {
        // SAFETY: the caller guarantees that `original` is NULL or ends with a zero byte.
        let original = unsafe { self::path(original) }?;
        volume.hard_link(original, link)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Sets the permissions of a file: the lower twelve bits of its mode. Returns 0; -EROFS; and the errors of `ironmap_stat`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_chmod(
    volume: *mut ironmap_volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        change(volume, path, Follow::All, &SetAttributes::new().permissions(mode & 0o7777))
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Sets the user and the group that own a file. UINT32_MAX leaves the user or the group unchanged. `flags` are 0 or AT_SYMLINK_NOFOLLOW.
/// Returns the same as `ironmap_chmod`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_chown(
    volume: *mut ironmap_volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        let mut owners = SetAttributes::new();
        owners.uid = (uid != u32::MAX).then_some(uid);
        owners.gid = (gid != u32::MAX).then_some(gid);
        change(volume, path, follow(flags)?, &owners)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Sets the times of a file. NULL leaves a time unchanged. `flags` are 0 or AT_SYMLINK_NOFOLLOW. Returns the same as `ironmap_chmod`;
/// -EINVAL for nanoseconds outside their range.
///
/// # Safety
/// `path` ends with a zero byte, and the times are NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_set_times(
    volume: *mut ironmap_volume,
    path: *const c_char,
    accessed: *const ironmap_time,
    modified: *const ironmap_time,
    flags: c_int,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that the times are NULL or can be read.
        let (accessed, modified) = (unsafe { accessed.as_ref() }, unsafe { modified.as_ref() });
        if [accessed, modified].iter().flatten().any(|time| time.nanoseconds >= 1_000_000_000) {
            return Err(Error::invalid("the nanoseconds of a time exceed 999,999,999"));
        }
        let mut times = SetAttributes::new();
        times.accessed = accessed.map(|time| time.timestamp());
        times.modified = modified.map(|time| time.timestamp());
        change(volume, path, follow(flags)?, &times)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Returns the name of an attribute.
///
/// # Safety
/// A name that is not NULL ends with a zero byte.
///
/// # Errors
/// `Io` with ERANGE for a name that no attribute can have, as `setxattr(2)`.
unsafe fn attribute<'a>(name: *const c_char) -> Result<&'a [u8], Error> {
    // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
    let name = unsafe { text(name, "the name") }?;
    if name.is_empty() || name.len() > 255 {
        let what = "the name of an attribute must have 1 to 255 bytes";
        return Err(Error::io(Errno::ERANGE, what));
    }
    Ok(name)
}

/// Returns the error for an attribute that does not exist. A name whose prefix is not in `prefixes` is not supported.
fn no_attribute(name: &[u8]) -> Error {
    let prefixes: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
        Error::new(ErrorKind::NoData, "the attribute does not exist")
    } else {
        Error::unsupported(
            "the attribute's name must begin with user., trusted., security. or system.",
        )
    }
}

/// Copies the value of an extended attribute, such as "user.comment". With `len` 0 only its length is returned. `flags` are 0 or
/// AT_SYMLINK_NOFOLLOW.
///
/// Returns the length; -ENODATA if the attribute does not exist; -ERANGE if the memory is too short, or the name is empty or longer than 255
/// bytes; and the errors of `ironmap_stat`.
///
/// # Safety
/// The texts end with a zero byte, and `value` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_getxattr(
    volume: *mut ironmap_volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
        let name = unsafe { attribute(name) }?;
        let (_held, inode) = volume.fs().hold_path(path_bytes(path), follow(flags)?)?;
        let found = inode.xattr(name)?.ok_or_else(|| no_attribute(name))?;
        // SAFETY: the caller guarantees that `value` can be written to for `len` bytes.
        unsafe { copy_value(&found, value, len) }
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) }
}

/// Copies the names of all extended attributes, each with a zero byte at its end. With `len` 0 only the length is returned.
///
/// Returns the length; and the errors of `ironmap_getxattr`.
///
/// # Safety
/// `path` ends with a zero byte, and `names` can be written to for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_listxattr(
    volume: *mut ironmap_volume,
    path: *const c_char,
    names: *mut c_char,
    len: usize,
    flags: c_int,
) -> isize {
    let work = |volume: &Volume, path: &Path| {
        let (_held, inode) = volume.fs().hold_path(path_bytes(path), follow(flags)?)?;
        let mut list = Vec::new();
        for xattr in inode.xattrs()? {
            list.extend_from_slice(&xattr.name);
            list.push(0);
        }
        // SAFETY: the caller guarantees that `names` can be written to for `len` bytes.
        unsafe { copy_value(&list, names.cast(), len) }
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) }
}

/// Sets an extended attribute. `how` is 0, XATTR_CREATE or XATTR_REPLACE; `flags` are 0 or AT_SYMLINK_NOFOLLOW.
///
/// Returns 0; -EEXIST with XATTR_CREATE; -ENODATA with XATTR_REPLACE; -E2BIG, -ERANGE as for `setxattr(2)`; -EOPNOTSUPP if the name has no known
/// prefix; -ENOSPC; -EROFS; and the errors of `ironmap_stat`.
///
/// # Safety
/// The texts end with a zero byte, and `value` can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_setxattr(
    volume: *mut ironmap_volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    how: c_int,
    flags: c_int,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
        let name = unsafe { attribute(name) }?;
        // SAFETY: the caller guarantees that `value` can be read for `len` bytes.
        let value = unsafe { bytes(value, len) }?;
        let how = match how {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Error::invalid("how must be 0, XATTR_CREATE or XATTR_REPLACE")),
        };
        let fs = volume.fs();
        let (held, _) = fs.hold_path(path_bytes(path), follow(flags)?)?;
        fs.writable()?.setxattr(held.number(), name, value, how)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}

/// Removes an extended attribute. Returns 0; -ENODATA; -ERANGE as for `removexattr(2)`; -EOPNOTSUPP if the name has no known prefix; -EROFS; and
/// the errors of `ironmap_stat`.
///
/// # Safety
/// The texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_removexattr(
    volume: *mut ironmap_volume,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> c_int {
    let work = |volume: &Volume, path: &Path| {
        // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
        let name = unsafe { attribute(name) }?;
        let fs = volume.fs();
        let (held, _) = fs.hold_path(path_bytes(path), follow(flags)?)?;
        fs.writable()?.removexattr(held.number(), name)
    };
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    unsafe { at(volume, path, work) as c_int }
}
