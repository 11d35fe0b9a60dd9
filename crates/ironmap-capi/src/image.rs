//! Images: a description that several calls complete step by step, and the calls that build, extract and resize images.
//!
//! The library makes images of ext4 without root and without external programs. A location names an image file, a device or another volume, as
//! for `ironmap_volume_open`.

use std::ffi::{c_char, c_int, c_void};
use std::io::{self, Read};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::ironmap_image::progress::{Bar, Total};
use ::ironmap_image::{Content, Failure, Image, Reason, Stop};
use ironmap::device::image::Compression;
use ironmap::{Errno, Error, ErrorKind, Location, NewSize};
use parking_lot::Mutex;

use crate::failure::{call, forget};
use crate::handle::Handle;
use crate::memory::{bytes, path, place_of_handle, text};
use crate::process::in_quiet_thread;
use crate::tables::{IMAGES, ironmap_image, locked};

/// The description of an image. `None` after the image was built.
pub(crate) struct Builder(Mutex<Option<Image>>);

/// Converts a failure of the image crate to an error of the library.
pub(crate) fn error(failure: &Failure) -> Error {
    let unknown = match failure.reason() {
        Reason::Corrupt => ErrorKind::Corrupt,
        Reason::Stopped(_) => ErrorKind::Io(Errno::EINTR),
        // No call of the host or of the library has failed, so the arguments or the sources are wrong.
        _ => ErrorKind::InvalidInput,
    };
    let of_host = failure.host_errno().map(ErrorKind::Io);
    let kind = of_host.or(failure.kind()).unwrap_or(unknown);
    let line = failure.to_string();
    let name = format!(" ({:?})", kind.errno());
    let line = line.strip_suffix(&name).unwrap_or(&line);
    let ErrorKind::Io(errno) = kind else { return Error::new(kind, line.to_owned()) };
    // The error itself ends with the words of its errno.
    let words = errno.to_string();
    let words = words.strip_suffix(&name).unwrap_or(&words);
    let rest = line.strip_suffix(words).and_then(|rest| rest.strip_suffix(": "));
    Error::io(errno, rest.unwrap_or(line).to_owned())
}

/// Changes the description. `prepare` reads the arguments of the call. If `prepare` fails, the description is not changed.
fn describe<T>(
    image: *mut ironmap_image,
    prepare: impl FnOnce() -> Result<T, Error>,
    change: impl FnOnce(Image, T) -> Image,
) -> c_int {
    let handle = Handle::of(image);
    call(Some(handle), || {
        let builder = IMAGES.get(handle)?;
        let mut description = locked(&builder.0)?;
        if description.is_none() {
            return Err(Error::invalid("the image was built already: free the handle"));
        }
        let prepared = prepare()?;
        *description = description.take().map(|image| change(image, prepared));
        Ok(())
    }) as c_int
}

/// Begins the description of an ext4 image. Without a size, the image is as large as its content needs, with some free space. The caller
/// frees the description with `ironmap_image_free`.
///
/// Returns 0; -EMFILE if too many descriptions exist.
///
/// # Safety
/// `image` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_new(image: *mut *mut ironmap_image) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `image` is NULL or can be written to.
        let place = unsafe { place_of_handle(image) }?;
        *place = IMAGES.add(Builder(Mutex::new(Some(Image::ext4().fit()))))?.pointer();
        Ok(())
    }) as c_int
}

/// Frees a description. An image that was built stays. Returns 0; -EBADF; -EBUSY while the image is being built.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_image_free(image: *mut ironmap_image) -> c_int {
    let handle = Handle::of(image);
    call(Some(handle), || {
        drop(IMAGES.remove_unused(handle, "the image is being built: end the build first")?);
        forget(handle);
        Ok(())
    }) as c_int
}

/// Sets the size of the image in bytes. Size 0 stands for the smallest size that holds its content.
///
/// Returns 0; -EBADF; -EINVAL if the image was built already, or for NULL; -EBUSY while another thread is in a call on the description.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_image_size(image: *mut ironmap_image, bytes: u64) -> c_int {
    let change = |image: Image, ()| if bytes == 0 { image.shrink() } else { image.size(bytes) };
    describe(image, || Ok(()), change)
}

/// Adds a directory, or a tar archive, which may be compressed by gzip or zstd. The path "-" is standard input.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_add_path(
    image: *mut ironmap_image,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    let prepare = || Ok(Content::path(unsafe { self::path(path) }?));
    describe(image, prepare, Image::add)
}

/// Adds an image of a container: an OCI layout, or the output of `docker save`. The whiteouts of its layers are applied.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_add_oci(
    image: *mut ironmap_image,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
    let prepare = || Ok(Content::oci(unsafe { self::path(path) }?));
    describe(image, prepare, Image::add)
}

/// Adds the entries of a directory of another volume. The directory begins with a slash.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// The texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_add_volume(
    image: *mut ironmap_image,
    location: *const c_char,
    directory: *const c_char,
) -> c_int {
    let prepare = || {
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = Location::parse(unsafe { path(location) }?.as_os_str())?;
        // SAFETY: the caller guarantees that `directory` is NULL or ends with a zero byte.
        Ok(Content::volume(location, unsafe { text(directory, "the directory") }?))
    };
    describe(image, prepare, Image::add)
}

/// A function of the caller that provides the bytes of an archive.
struct Source {
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> isize,
    arg: *mut c_void,
}

// SAFETY: the contract of `ironmap_image_add_tar` states that any thread may call the function.
unsafe impl Send for Source {}

impl Read for Source {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the caller of `ironmap_image_add_tar` guarantees that the function can be called with `arg` and this memory. The memory
        // can be written to.
        let count = unsafe { (self.read)(self.arg, to.as_mut_ptr().cast(), to.len()) };
        match usize::try_from(count) {
            Ok(count) if count <= to.len() => Ok(count),
            Ok(_) => Err(io::Error::other("the read function returned more bytes than requested")),
            // The code replaces EINTR with another error, because a reader tries again after EINTR, and the build would not end.
            Err(_) => match i32::try_from(count.unsigned_abs()) {
                Ok(errno @ 1..=4095) if errno != libc::EINTR => {
                    Err(io::Error::from_raw_os_error(errno))
                }
                _ => Err(io::Error::other(
                    "the read function must return -errno on failure, with an errno from 1 to 4095 that is not EINTR",
                )),
            },
        }
    }
}

/// Adds a tar archive whose bytes a function provides. The archive may be compressed by gzip or zstd.
///
/// `ironmap_image_build` calls `read` with `arg`, in any thread, but in one thread at a time. `read` stores up to the requested number of
/// bytes. It returns their number, 0 at the end of the archive, or an errno with a minus sign. `name` stands for the archive in messages.
/// If `layer` is not 0, the archive is a layer of a container image, whose whiteouts hide files of earlier sources.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `name` ends with a zero byte. `read` can be called with `arg` until the description was built or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_add_tar(
    image: *mut ironmap_image,
    name: *const c_char,
    read: Option<unsafe extern "C" fn(arg: *mut c_void, memory: *mut c_void, len: usize) -> isize>,
    arg: *mut c_void,
    layer: c_int,
) -> c_int {
    let prepare = || {
        // SAFETY: the caller guarantees that `name` is NULL or ends with a zero byte.
        let name = String::from_utf8_lossy(unsafe { text(name, "the name") }?).into_owned();
        let read = read.ok_or_else(|| Error::invalid("the function is NULL"))?;
        let source = Source { read, arg };
        Ok(if layer == 0 { Content::tar(name, source) } else { Content::layer(name, source) })
    };
    describe(image, prepare, Image::add)
}

/// Adds a file with this content, mode and owner. It replaces a file of the sources.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `path` ends with a zero byte, and `content` can be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_inject(
    image: *mut ironmap_image,
    path: *const c_char,
    content: *const c_void,
    len: usize,
    mode: u32,
    uid: u32,
    gid: u32,
) -> c_int {
    let prepare = || {
        // SAFETY: the caller guarantees that `path` is NULL or ends with a zero byte.
        let path = unsafe { text(path, "the path") }?;
        // SAFETY: the caller guarantees that `content` can be read for `len` bytes.
        Ok((path, unsafe { bytes(content, len) }?))
    };
    describe(image, prepare, |image, (path, content)| image.inject(path, content, mode, (uid, gid)))
}

/// Sets the label of the volume: at most 16 bytes.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `label` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_label(
    image: *mut ironmap_image,
    label: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `label` is NULL or ends with a zero byte.
    let prepare = || unsafe { text(label, "the label") };
    describe(image, prepare, Image::label)
}

/// Sets the UUID of the volume: 16 bytes. Without this call it is random.
///
/// Returns the same as `ironmap_image_size`.
///
/// # Safety
/// `uuid` can be read for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_uuid(image: *mut ironmap_image, uuid: *const u8) -> c_int {
    let prepare = || {
        let mut copy = [0; 16];
        // SAFETY: the caller guarantees that `uuid` can be read for 16 bytes.
        copy.copy_from_slice(unsafe { bytes(uuid.cast(), 16) }?);
        Ok(copy)
    };
    describe(image, prepare, Image::uuid)
}

/// Sets the latest time that the image may contain, in seconds since 1970. It replaces all later times. So two builds of the same content
/// have the same bytes. The UUID then depends on the content.
///
/// Returns the same as `ironmap_image_size`.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_image_source_date_epoch(
    image: *mut ironmap_image,
    seconds: i64,
) -> c_int {
    describe(image, || Ok(seconds), Image::source_date_epoch)
}

/// Sets the owner of all files.
///
/// Returns the same as `ironmap_image_size`.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_image_owner(image: *mut ironmap_image, uid: u32, gid: u32) -> c_int {
    describe(image, || Ok(()), |image, ()| image.owner(uid, gid))
}

/// Makes a new image in the format qcow2 with compressed clusters. `method` is "deflate" or "zstd". The location of the build is then
/// "qcow2:FILE", and FILE does not exist.
///
/// Returns the same as `ironmap_image_size`, and -EINVAL for another method.
///
/// # Safety
/// `method` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_compress(
    image: *mut ironmap_image,
    method: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `method` is NULL or ends with a zero byte.
    let prepare = || match unsafe { text(method, "the method") }? {
        b"deflate" => Ok(Compression::Deflate),
        b"zstd" => Ok(Compression::Zstd),
        _ => Err(Error::invalid("the method must be deflate or zstd")),
    };
    describe(image, prepare, Image::compress)
}

/// Replaces an existing file system, if `force` is not 0. A member of an MD array or of an LVM volume group is never replaced: the build
/// returns -EBUSY.
///
/// Returns the same as `ironmap_image_size`.
#[unsafe(no_mangle)]
pub extern "C" fn ironmap_image_force(image: *mut ironmap_image, force: c_int) -> c_int {
    describe(image, || Ok(force != 0), Image::force)
}

/// The progress of a build or an extraction, and the caller's function that reports the progress.
struct Progress {
    function: unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int,
    arg: *mut c_void,
    files: AtomicU64,
    bytes: AtomicU64,
    stop: Stop,
    calling: Mutex<()>,
}

// SAFETY: the contract of the calls states that any thread may call the function, and `calling` lets one thread do so at a time.
unsafe impl Send for Progress {}
// SAFETY: the contract of the calls states that any thread may call the function, and `calling` lets one thread do so at a time.
unsafe impl Sync for Progress {}

impl Progress {
    fn show(&self) {
        let _one = self.calling.lock();
        let (files, bytes) =
            (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        // SAFETY: the caller of the build guarantees that the function can be called with `arg` and two numbers.
        if unsafe { (self.function)(self.arg, files, bytes) } != 0 {
            self.stop.flag().store(libc::SIGINT as usize, Ordering::Relaxed);
        }
    }
}

impl Bar for Progress {
    fn begin(&self, _name: &str) {}

    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.show();
    }

    fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.show();
    }

    fn set_total(&self, _total: Total) {}

    fn finish(&self) {}

    fn wants_total(&self) -> bool {
        false
    }
}

/// A function that is called with `arg` and with the numbers of files and bytes that were copied. The job ends if it returns a value other
/// than 0.
pub(crate) type ProgressFunction =
    Option<unsafe extern "C" fn(arg: *mut c_void, files: u64, bytes: u64) -> c_int>;

pub(crate) fn progress(
    function: ProgressFunction,
    arg: *mut c_void,
    stop: &Stop,
) -> Option<Arc<dyn Bar>> {
    let (files, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let (stop, calling) = (stop.clone(), Mutex::new(()));
    Some(Arc::new(Progress { function: function?, arg, files, bytes, stop, calling }))
}

/// Builds the image at a location: the path of an image file, which appears when it is complete, or a device.
///
/// `progress` may be NULL. Otherwise it is called with `arg` and the numbers of copied files and bytes, in any thread, but in one thread at
/// a time. If `progress` returns a value other than 0, the build ends with -EINTR, and the image does not appear. After the call, the
/// description can only be freed.
///
/// Returns 0; -EEXIST if the location contains a file system and `ironmap_image_force` was not called; -ENOSPC if the content does not fit;
/// -ENOENT, -EACCES, -EIO; -EAGAIN if no thread can be started; -EINVAL for a wrong description; the errors of `ironmap_image_size`.
///
/// # Safety
/// `location` ends with a zero byte, and `progress` can be called with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_build(
    image: *mut ironmap_image,
    location: *const c_char,
    progress: Option<unsafe extern "C" fn(arg: *mut c_void, files: u64, bytes: u64) -> c_int>,
    arg: *mut c_void,
) -> c_int {
    let handle = Handle::of(image);
    call(Some(handle), || {
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = unsafe { path(location) }?;
        let builder = IMAGES.get(handle)?;
        let mut description = locked(&builder.0)?;
        let built = || Error::invalid("the image was built already: free the handle");
        let stop = Stop::default();
        let mut image = mem::take(&mut *description).ok_or_else(built)?.stop(&stop);
        if let Some(bar) = self::progress(progress, arg, &stop) {
            image = image.progress(bar);
        }
        in_quiet_thread(|| image.build(location))?.map_err(|failure| error(&failure)).map(drop)
    }) as c_int
}

/// Copies a file of the volume at a location to a path of the host. A directory is copied with everything below it. `progress` is used as
/// in `ironmap_image_build`. Only root can set the owners of the copies, and can copy device nodes.
///
/// Returns 0; the error of the first file that cannot be copied, after all others were copied; -EINTR if `progress` has ended the call;
/// -EAGAIN if no thread can be started.
///
/// # Safety
/// The texts end with a zero byte, and `progress` can be called with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_extract(
    location: *const c_char,
    from: *const c_char,
    to: *const c_char,
    progress: Option<unsafe extern "C" fn(arg: *mut c_void, files: u64, bytes: u64) -> c_int>,
    arg: *mut c_void,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = unsafe { path(location) }?;
        // SAFETY: the caller guarantees that `from` is NULL or ends with a zero byte.
        let from = unsafe { text(from, "the path in the volume") }?;
        // SAFETY: the caller guarantees that `to` is NULL or ends with a zero byte.
        let to = unsafe { path(to) }?;
        let stop = Stop::default();
        let open = Image::open(location).map_err(|failure| error(&failure))?.stop(&stop);
        let open = match self::progress(progress, arg, &stop) {
            Some(bar) => open.progress(bar),
            None => open,
        };
        in_quiet_thread(|| open.extract(from, to))?.map_err(|failure| error(&failure))
    }) as c_int
}

/// Makes the ext4 volume at a location larger or smaller. An image file is extended or truncated to the new size. With `bytes` 0, the volume
/// gets the smallest size that holds its content. `size` may be NULL; otherwise the call stores the new size in bytes there.
///
/// Returns 0; -EINVAL for a size that the volume cannot have; -ENOSPC for a size that its content does not fit into; -EUCLEAN for a damaged
/// volume; -EBUSY if it is in use; -EIO.
///
/// # Safety
/// `location` ends with a zero byte, and `size` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironmap_image_resize(
    location: *const c_char,
    bytes: u64,
    size: *mut u64,
) -> c_int {
    call(None, || {
        // SAFETY: the caller guarantees that `location` is NULL or ends with a zero byte.
        let location = unsafe { path(location) }?;
        let wanted = if bytes == 0 { NewSize::Minimum } else { NewSize::Bytes(bytes) };
        let resized = Image::open(location).and_then(|image| image.resize(wanted));
        let resized = resized.map_err(|failure| error(&failure))?;
        // SAFETY: the caller guarantees that `size` is NULL or can be written to.
        if let Some(size) = unsafe { size.as_mut() } {
            *size = resized.blocks * u64::from(resized.block_size);
        }
        Ok(())
    }) as c_int
}
