//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.
//!
//! ironmap maps a range of a file to extents itself, and sends one request to the block device. Most programs begin with one of two types:
//!
//! - A [`Volume`] is an unmounted file system. The library reads and writes ext2, ext3 and ext4. It reads XFS, and overwrites existing data
//!   of XFS files. If a write would change XFS metadata, it fails.
//! - A [`Host`] reads files of mounted ext2, ext3, ext4 and XFS file systems from the block device, while a lease on each file excludes
//!   writers.
//!
//! The direct-I/O core is modelled on Linux's `fs/iomap`. The on-disk formats are those of Linux.
//!
//! Programs begin with `use ironmap::prelude::*;`.
//!
//! # Open a volume by its name
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::File::create("disk.img")?.set_len(16 << 20)?;
//! # let how = ironmap::location::LocationOptions::new().write(true);
//! # let disk = "disk.img".parse::<ironmap::Location>()?.open(&how)?.device;
//! # ironmap::tools::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! let volume = Volume::open("disk.img")?; // or disk.img@p2, /dev/sdb1, integrity:disk.img,tags.img
//! for entry in volume.read_dir("/")? {
//!     println!("{}", String::from_utf8_lossy(&entry?.name));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`VolumeOptions`] can open a volume for writing, without its journal, or in spite of damage. [`Volume::fs`] returns the file system. Its
//! calls use inode numbers instead of paths.
//!
//! # Read a file
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::File::create("disk.img")?.set_len(16 << 20)?;
//! # let how = ironmap::location::LocationOptions::new().write(true);
//! # let disk = "disk.img".parse::<ironmap::Location>()?.open(&how)?.device;
//! # ironmap::tools::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! # let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! # volume.create_dir("/etc")?;
//! # volume.write("/etc/hosts", &[b'x'; 5000])?;
//! # volume.close()?;
//! # drop(volume);
//! # let volume = Volume::open("disk.img")?;
//! let all = volume.read("/etc/hosts")?;
//! let file = volume.open("/etc/hosts")?;
//! let mut queue = volume.queue(&QueueOptions::new())?; // one for each thread
//! let mut bytes = [0; 100];
//! let count = file.read_at(&mut queue, &mut bytes, 42)?; // any position, length and address
//! # assert_eq!((all.len(), count, bytes), (5000, 100, [b'x'; 100]));
//! # Ok(())
//! # }
//! ```
//!
//! A [direct](FileOptions::direct) handle refuses the requests that `O_DIRECT` refuses. Other handles copy the data of these requests.
//! [`Files::cursor`] opens a file with a separate queue, for the traits of [`std::io`].
//!
//! # Write a file
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::File::create("disk.img")?.set_len(16 << 20)?;
//! # let how = ironmap::location::LocationOptions::new().write(true);
//! # let disk = "disk.img".parse::<ironmap::Location>()?.open(&how)?.device;
//! # ironmap::tools::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! volume.write("/version", b"3")?;
//! let log = volume.open_with("/log", FileOptions::new().append(true).create(true))?;
//! log.append(&mut volume.queue(&QueueOptions::new())?, b"a record", DioFlags::DSYNC)?; // durable when it returns
//! volume.close()?; // all changes are written home, so no recovery is needed
//! # assert_eq!(log.size(), 8);
//! # Ok(())
//! # }
//! ```
//!
//! On an ext4 volume that is open for writing, the library is a complete file system that uses Linux's journal format. All changes that
//! completed before a call of [`sync`](Volume::sync) survive a crash after the call has returned.
//!
//! # Read a file of a mounted file system
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new(&HostOptions::new())?; // one for all files
//! let file = host.open("/proc/self/exe")?;
//! let mut start = [0; 4];
//! file.read_exact_at(&mut host.queue(&QueueOptions::new())?, &mut start, 0)?;
//! println!("{:?}", file.host().and_then(|report| report.refusal)); // the reason, if the kernel serves the file
//! # assert_eq!(&start, b"\x7FELF");
//! # Ok(())
//! # }
//! ```
//!
//! For some files, the kernel serves the reads instead of the device. This is not an error, and the bytes are the same. A program that
//! opens the file for writing usually waits less than a millisecond. After that, the kernel serves all reads until the program has closed
//! the file. Then the library acquires the lease again. [`fs::host`] explains why this is safe.
//!
//! # Many requests in flight
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::File::create("disk.img")?.set_len(16 << 20)?;
//! # let how = ironmap::location::LocationOptions::new().write(true);
//! # let disk = "disk.img".parse::<ironmap::Location>()?.open(&how)?.device;
//! # ironmap::tools::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! # let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! # volume.create_dir("/etc")?;
//! # volume.write("/etc/hosts", &[b'x'; 5000])?;
//! # volume.close()?;
//! # drop(volume);
//! # let volume = Volume::open("disk.img")?;
//! # let file = volume.open("/etc/hosts")?;
//! # let mut queue = volume.queue(&QueueOptions::new())?;
//! # let mut done = 0;
//! file.submit_read(&mut queue, Buffer::aligned(4096)?, 0, DioFlags::empty(), 7)?; // 7 names the request
//! queue.wait(1)?;
//! while let Some(completion) = queue.pop() {
//!     let (count, buffer) = completion.into_buffer()?; // and completion.token is 7
//! #   (_, done) = (buffer, count);
//! }
//! # assert_eq!(done, 4096);
//! # Ok(())
//! # }
//! ```
//!
//! While a request is in flight, the queue owns the memory of the request. The completion returns the memory. The kernel never writes to
//! freed memory, even if a handle is dropped. For [registered buffers](Queue::register_buffers), the kernel pins the pages only once
//! instead of for each request. A queue belongs to one thread. The documentation of [`Queue`] shows how an event loop uses a queue.
//!
//! # Programs
//!
//! The links are valid if `cargo doc` wrote this page to the `target` directory of the repository.
//!
//! | Program | Task |
//! |---|---|
//! | [volume_reader](../../../examples/volume_reader.rs) | lists a directory of a volume, or prints a file |
//! | [copy_tree](../../../examples/copy_tree.rs) | copies a directory of the host into a volume |
//! | [log_writer](../../../examples/log_writer.rs) | appends records that survive a SIGKILL and a power cut |
//! | [deep_queue](../../../examples/deep_queue.rs) | reads a file by several threads, each with 64 requests in flight |
//! | [host_reader](../../../examples/host_reader.rs) | reads a file of a mounted file system around the kernel |
//! | [extents](../../../examples/extents.rs) | shows the positions of a file on its device |
//! | [verified_sectors](../../../examples/verified_sectors.rs) | reads a volume whose sectors have checksums, and lists wrong sectors |
//!
//! # The layers
//!
//! A request passes through each layer on the way to the device, and again on the way back. A read begins in [`File::read_at`].
//!
//! | Layer | Task |
//! |---|---|
//! | [`Volume`], [`Host`] | open a device and detect its format; only this layer uses both devices and formats |
//! | [`File`], [`Queue`] | a handle that threads share; a thread's own queue of requests |
//! | [`dio`] | direct I/O: the simple path and the generic path, bounce buffers, completion |
//! | [`open_file`] | the lock of the content of a file that can change, and the writes that its metadata do not include yet |
//! | [`iomap`] | the mapping of a range of a file: mapped, unwritten, hole, inline; the calls of a write to its file system |
//! | [`bio`] | one request and the memory that it owns |
//! | [`integrity`] | a device over two others (data, tags) that verifies every sector |
//! | [`device`] | psync, io_uring, NVMe passthrough, dax, NBD, images of virtual machines, ram, null; devices over another device: sim, record; limits and alignment; the device paths to a mounted device |
//! | [`fs`] | ext4 and XFS: maps and names, with all metadata checked before use; host: leases and the kernel's maps |
//! | `sys` | rings, mappings, buffers: the only unsafe code; a comment proves each use sound |
//!
//! # Errors
//!
//! An [`Error`] has a kind, the place on disk and the cause. It is printed as one line. For a corrupt image the error names the block and
//! the field. I/O errors are also [events](events::Events), for programs that monitor the volume.
//!
//! # Make, tune, resize and check a volume
//!
//! [`tools`] makes, tunes and resizes ext4 volumes that are not open. `Volume::fs` returns the file system, whose
//! [`check`](fs::FileSystem::check) lists the faults of ext4 and XFS volumes.
//!
//! # Cargo features
//!
//! No feature is on by default.
//!
//! | Feature | Effect |
//! |---|---|
//! | `images` | virtual disk images as devices: `qcow2:FILE`, `vmdk:FILE`, `vhdx:FILE` |
//! | `tls` | NBD exports over TLS: `nbds://HOST/EXPORT`. The crate ring compiles C |
//! | `lvm` | logical volumes of LVM: `DISK@VG/LV` |
//! | `md` | arrays of Linux MD (software RAID): `md:DISK,DISK` |
//! | `psk` | `tls` with pre-shared keys. It links OpenSSL |
//!
//! # Units
//!
//! Positions in files, offsets on the device and block numbers are separate types ([`units`]). The compiler refuses to mix them. Sizes are
//! in bytes, unless the name contains `blocks`.

mod cursor;
pub mod error;
pub mod events;
mod file;
mod files;
pub mod fs;
mod mounted;
pub mod prelude;
mod probe;
mod queue;
mod setters;
#[doc(hidden)]
pub mod sorting;
mod sync;
mod sys;
pub mod tools;
pub mod units;
mod volume;

// These modules are public only for the `ironmap` program, the fio engine, the tests and the benches. They inspect the library, inject
// faults, and measure each layer. They may change whenever the library's layers change. The items that users need are exported below.
#[doc(hidden)]
pub mod bio;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod dio;
#[doc(hidden)]
pub mod host;
#[doc(hidden)]
pub mod integrity;
#[doc(hidden)]
pub mod iomap;
#[doc(hidden)]
pub mod location;
#[cfg(feature = "lvm")]
#[doc(hidden)]
pub mod lvm;
#[cfg(feature = "md")]
#[doc(hidden)]
pub mod md;
#[doc(hidden)]
pub mod open_file;
#[doc(hidden)]
pub mod partition;
#[doc(hidden)]
pub mod protection;

pub use bio::{Buffer, Memory, MemoryOwner};
pub use cursor::Cursor;
pub use device::path::DevicePathKind;
pub use device::{Device, Engine, NoIoUring, QueueOptions, WrongTuple};
pub use dio::{Completion, DioFlags, Rejected, StablePages};
pub use error::{Errno, Error, ErrorKind, Result};
pub use file::{File, FileOptions, ReadAt};
pub use files::Files;
#[doc(hidden)] // The command `ironmap undelete` uses this type.
pub use fs::deleted::Deleted;
pub use fs::ext4::{NewSize, ResizeOptions, Resized};
pub use fs::host::{HostFs, Refusal};
pub use host::{DeviceReport, HostReport};
pub use integrity::{Half, ScrubFinding, Scrubbed};
pub use iomap::{Iomap, IomapFlags, IomapType};
pub use location::{Location, Part, Site};
pub use mounted::{Host, HostOptions};
#[doc(hidden)]
pub use probe::probe;
pub use protection::{Field, Mismatch};
#[doc(hidden)] // For bindings of other languages.
pub use queue::ForKind;
pub use queue::{Queue, Readiness};
pub use volume::{DirEntries, Volume, VolumeOptions};

/// The example of README.md is compiled and run as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
