//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.
//!
//! ironmap maps a file's extents itself, and hands the block device one request for a read. There are two ways in: a [`Volume`] is
//! an ext2, ext3 or ext4 file system that nobody has mounted; a [`Host`] reads files of a mounted ext4 or XFS around the kernel,
//! each while a lease stands that keeps writers out. The direct-I/O core is modelled on Linux's `fs/iomap`; the formats are Linux's own.
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
//! # Volume::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! let volume = Volume::open("disk.img")?; // or disk.img@p2, /dev/sdb1, integrity:disk.img,tags.img
//! for entry in volume.read_dir("/")? {
//!     println!("{}", String::from_utf8_lossy(&entry?.name));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`VolumeOptions`] open it for writing, without its journal, or damaged. [`Volume::fs`] gives the file system below the paths, by inode numbers.
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
//! # Volume::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! # let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! # volume.create_dir("/etc")?;
//! # volume.write("/etc/hosts", &[b'x'; 5000])?;
//! # volume.close()?;
//! # drop(volume);
//! # let volume = Volume::open("disk.img")?;
//! let all = volume.read("/etc/hosts")?;
//! let file = volume.open("/etc/hosts", FileOptions::new())?;
//! let mut queue = volume.queue(&QueueOptions::new())?; // one for each thread
//! let mut bytes = [0; 100];
//! let count = file.read_at(&mut queue, &mut bytes, 42)?; // any position, length and address
//! # assert_eq!((all.len(), count, bytes), (5000, 100, [b'x'; 100]));
//! # Ok(())
//! # }
//! ```
//!
//! A [direct](FileOptions::direct) handle refuses what `O_DIRECT` refuses; others copy it. A [`Cursor`] is a file for [`std::io`].
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
//! # Volume::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! volume.write("/version", b"3")?;
//! let log = volume.open("/log", FileOptions::new().append(true).create(true))?;
//! log.append(&mut volume.queue(&QueueOptions::new())?, b"a record", DioFlags::DSYNC)?; // durable when it returns
//! volume.close()?; // all changes are in their places: nothing is to be recovered
//! # assert_eq!(log.size(), 8);
//! # Ok(())
//! # }
//! ```
//!
//! Opened for writing, a volume is a file system with Linux's journal: a change that was made before [`sync`](Volume::sync) returned survives a
//! crash at any moment.
//!
//! # Read a file of a mounted file system
//!
//! ```
//! # use ironmap::prelude::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new(&HostOptions::new())?; // one for all files
//! let file = host.open("/proc/self/exe", FileOptions::new())?;
//! let mut start = [0; 4];
//! file.read_exact_at(&mut host.queue(&QueueOptions::new())?, &mut start, 0)?;
//! println!("{:?}", file.host().and_then(|report| report.refusal)); // why the kernel serves it, if it does
//! # assert_eq!(&start, b"\x7FELF");
//! # Ok(())
//! # }
//! ```
//!
//! That the kernel serves a file is never an error, and never gives other bytes. A program that opens the file for writing is let through within a
//! millisecond or so; from then on the kernel serves the handle, and the lease is taken again when the writer is gone. [`fs::host`] says why this is safe.
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
//! # Volume::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! # let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! # volume.create_dir("/etc")?;
//! # volume.write("/etc/hosts", &[b'x'; 5000])?;
//! # volume.close()?;
//! # drop(volume);
//! # let volume = Volume::open("disk.img")?;
//! # let file = volume.open("/etc/hosts", FileOptions::new())?;
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
//! A queued request takes its memory along and brings it back: while it is in flight the memory belongs to the queue, so no dropped handle can leave
//! the kernel writing to freed memory. [Registered buffers](Queue::register_buffers) spare the kernel the pinning of their pages. A queue belongs to its
//! thread; [`Queue`] shows how event loops use it.
//!
//! # Programs
//!
//! The links lead to the sources where `cargo doc` wrote this page to the `target` directory of the repository.
//!
//! | Program | Task |
//! |---|---|
//! | [volume_reader](../../../examples/volume_reader.rs) | lists a directory of a volume, or prints a file |
//! | [copy_tree](../../../examples/copy_tree.rs) | copies a directory of the host into a volume |
//! | [log_writer](../../../examples/log_writer.rs) | appends records that survive SIGKILL and a power cut |
//! | [deep_queue](../../../examples/deep_queue.rs) | reads a file by several threads, each with 64 requests in flight |
//! | [tokio_reader](../../../examples/tokio_reader.rs) | the same in tokio, on one thread |
//! | [host_reader](../../../examples/host_reader.rs) | reads a file of a mounted file system around the kernel |
//! | [extents](../../../examples/extents.rs) | shows where a file lies on its device |
//! | [verified_sectors](../../../examples/verified_sectors.rs) | reads a volume whose sectors are verified, and lists wrong ones |
//!
//! # The layers
//!
//! A request goes down once and comes back once; a reader can follow one from [`File::read_at`] to the system call.
//!
//! | Layer | Task |
//! |---|---|
//! | [`Volume`], [`Host`] | opens a device, finds the format; the only places that know both |
//! | [`File`], [`Queue`] | a handle shared by threads; a thread's own way down |
//! | [`dio`] | simple path or generic path, bouncing, completion |
//! | [`open_file`] | the users of the content of a file that can change, and the data that its metadata do not tell yet |
//! | [`iomap`] | where a range of a file lies: mapped, unwritten, hole, inline; the requests of a write to its file system |
//! | [`bio`] | one request and the memory that it owns |
//! | [`integrity`] | a device over two others that verifies every sector |
//! | [`device`] | psync, io_uring, NVMe passthrough, dax, ram, null; over another: sim, record; limits and alignment; the device paths to a mounted device |
//! | [`fs`] | ext4: the map and the name space, metadata checked before it is believed; host: leases and the kernel's maps |
//! | `sys` | rings, mappings, buffers: the only unsafe code, each use with its proof |
//!
//! # Errors
//!
//! An [`Error`] has a kind, the place on disk and the cause, and prints as one line. A corrupt image is an error that names block
//! and field; nothing on disk changes. I/O errors are [events](events::Events) too, for programs that watch the volume.
//!
//! # Units
//!
//! Positions in files, offsets on the device and block numbers are types of their own ([`units`]): the compiler refuses to mix
//! them. Sizes are bytes unless a name says blocks.

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
mod sync;
mod sys;
pub mod units;
mod volume;

// Public for the program, the fio engine, the tests and the benches: they look inside, inject faults and measure each layer. They follow the
// library's layers, and change with them; the items that users need have their names below.
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
#[doc(hidden)]
pub mod open_file;
#[doc(hidden)]
pub mod partition;
#[doc(hidden)]
pub mod protection;

pub use bio::{Buffer, Memory};
pub use cursor::Cursor;
pub use device::path::DevicePathKind;
pub use device::{Device, Engine, QueueOptions, WrongTuple};
pub use dio::{Completion, DioFlags, Rejected, StablePages};
pub use error::{Errno, Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use files::Files;
#[doc(hidden)] // The files of `ironmap undelete`.
pub use fs::ext4::undelete::Deleted;
#[doc(hidden)] // For `Volume::resize`.
pub use fs::ext4::{NewSize, ResizeOptions, Resized};
pub use fs::host::{HostFs, Refusal};
pub use host::{DeviceReport, HostReport};
pub use integrity::{Half, ScrubFinding, Scrubbed};
pub use iomap::{Iomap, IomapDevice, IomapFlags, IomapType};
pub use location::{Location, Part, Site};
pub use mounted::{Host, HostOptions};
#[doc(hidden)]
pub use probe::probe;
pub use protection::{Field, Mismatch};
pub use queue::{Queue, Readiness};
pub use volume::{DirEntries, Volume, VolumeOptions};

/// The example of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
