//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.
//!
//! ironmap maps a file's extents itself, and hands the block device one request for a read. There are two ways in: a [`Volume`] is
//! an ext2, ext3 or ext4 file system that nobody has mounted; a [`Host`] reads files of a mounted ext4 or XFS around the kernel,
//! each while a lease stands that keeps writers out. The direct-I/O core is modelled on Linux's `fs/iomap`; the formats are Linux's own.
//!
//! Programs begin with `use ironmap::prelude::*;`. The directory `examples/` has short ones: they read a volume, a mounted file and a device of
//! verified sectors, keep a deep queue, wait in tokio, write a log that survives a crash, copy a tree in, and show a file's extents.
//!
//! # Files of a volume
//!
//! ```no_run
//! use ironmap::prelude::*;
//!
//! # fn main() -> ironmap::Result<()> {
//! let volume = Volume::open("disk.img")?;
//! let file = volume.open("/var/log/syslog", FileOptions::new())?;
//!
//! let mut queue = volume.queue(&QueueOptions::new())?; // one for each thread
//! let mut bytes = vec![0; 1000];
//! let count = file.read_at(&mut queue, &mut bytes, 42)?; // any position, length and address
//! println!("{}", String::from_utf8_lossy(&bytes[..count]));
//!
//! let hosts = volume.read("/etc/hosts")?; // a whole file
//! for entry in volume.read_dir("/srv")? {
//!     println!("{}", String::from_utf8_lossy(&entry?.name));
//! }
//! # let _ = hosts;
//! # Ok(())
//! # }
//! ```
//!
//! [`Files::open`] opens by path. [`Volume::fs`] gives the file system below the paths, by inode numbers.
//!
//! # Changing a volume
//!
//! Opened for writing, a volume is a file system with Linux's journal: a change that was made before [`sync`](Volume::sync) returned survives a
//! crash at any moment.
//!
//! ```no_run
//! use ironmap::prelude::*;
//!
//! # fn main() -> ironmap::Result<()> {
//! let volume = VolumeOptions::new().write(true).open("disk.img")?;
//! volume.create_dir_all("/srv/index")?;
//! volume.write("/srv/index/version", b"3")?;
//!
//! let log = volume.open("/srv/index/log", FileOptions::new().append(true).create(true))?;
//! let mut queue = volume.queue(&QueueOptions::new())?;
//! log.append(&mut queue, b"a record", DioFlags::DSYNC)?; // durable when it returns
//! drop(log);
//! volume.close()?; // everything is at its place, and nothing is to be recovered
//! # Ok(())
//! # }
//! ```
//!
//! # Files of a mounted file system
//!
//! ```no_run
//! use ironmap::prelude::*;
//!
//! # fn main() -> ironmap::Result<()> {
//! let host = Host::new(&HostOptions::new())?; // one for all files
//! let file = host.open("/var/lib/db/000123.sst", FileOptions::new())?;
//! if let Some(refusal) = file.host().and_then(|report| report.refusal) {
//!     println!("read through the kernel: {refusal}"); // never an error, never other bytes
//! }
//!
//! let mut queue = host.queue(&QueueOptions::new())?; // one for each thread
//! let mut block = vec![0; 4096];
//! file.read_exact_at(&mut queue, &mut block, 8192)?;
//! # Ok(())
//! # }
//! ```
//!
//! A program that opens the file for writing is let through within a millisecond or so; from then on the kernel serves the handle, and the
//! lease is taken again when the writer has gone. [`fs::host`] says why this is safe.
//!
//! # Many reads in flight
//!
//! A queued read takes its memory along and brings it back: while the request is in flight the memory belongs to the queue, so
//! no dropped handle can leave the kernel writing to freed memory. Registered buffers spare the kernel the pinning of their
//! pages; a [direct](FileOptions::direct) handle refuses what `O_DIRECT` refuses, where others copy.
//!
//! ```no_run
//! use ironmap::prelude::*;
//!
//! # fn scan(file: &File, queue: &mut Queue) -> ironmap::Result<()> {
//! let mut free = queue.register_buffers(64, 4096)?;
//! let (mut next, blocks) = (0, file.size() / 4096);
//! while next < blocks || queue.outstanding() > 0 {
//!     while next < blocks && let Some(buffer) = free.pop() {
//!         file.submit_read(queue, buffer, next * 4096, DioFlags::empty(), next)?;
//!         next += 1;
//!     }
//!     queue.wait(1)?;
//!     while let Some(completion) = queue.pop() {
//!         // completion.token says which block it is
//!         let (count, buffer) = completion.into_buffer()?;
//!         // ... `count` bytes of `buffer`
//!         # let _ = count;
//!         free.push(buffer);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A queue belongs to its thread. In an event loop [`Queue::readiness`] is the descriptor to wait for (`examples/tokio_reader.rs`); a runtime of
//! several threads keeps each queue in a thread of its own and talks to that by channels.
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
