//! Direct I/O on the files of a Linux file system, from user space, at the speed of the raw device.
//!
//! ironmap maps a file's extents itself, and hands the block device one request for a read. There are two ways in: a [`Volume`] is
//! an ext2, ext3 or ext4 file system that nobody has mounted; a [`Host`] reads files of a mounted ext4 or XFS around the kernel,
//! each while a lease stands that keeps writers out. The direct-I/O core is modelled on Linux's `fs/iomap`; the formats are Linux's own.
//!
//! # Files of a mounted file system
//!
//! ```no_run
//! use ironmap::units::FilePos;
//! use ironmap::{FileOptions, Host, HostOptions, QueueOptions};
//!
//! # fn main() -> ironmap::Result<()> {
//! let host = Host::new(&HostOptions::default())?; // one for all files
//! let file = host.open("/var/lib/db/000123.sst", FileOptions::default())?;
//! if let Some(refusal) = file.host().and_then(|report| report.refusal) {
//!     println!("read through the kernel: {refusal}"); // never an error, never other bytes
//! }
//!
//! let mut queue = host.queue(&QueueOptions::default())?; // one per thread
//! let mut block = vec![0; 4096];
//! file.read_at(&mut queue, &mut block, FilePos(8192))?;
//! # Ok(())
//! # }
//! ```
//!
//! Whoever opens the file for writing is let through within a millisecond or so; from then on the kernel serves the handle, and the
//! lease is taken again when the writer has gone. [`fs::host`] says why this is safe.
//!
//! # Files of a volume
//!
//! ```no_run
//! use ironmap::fs::ext4::Follow;
//! use ironmap::units::FilePos;
//! use ironmap::{FileOptions, OpenOptions, QueueOptions, Volume};
//!
//! # fn main() -> ironmap::Result<()> {
//! let volume = Volume::open(&"disk.img".parse()?, &OpenOptions::default())?;
//! let inode = volume.fs().resolve(b"/var/log/syslog", Follow::All)?;
//! let file = volume.open_inode(inode, FileOptions::default())?;
//!
//! let mut queue = volume.queue(&QueueOptions::default())?; // one per thread
//! let mut bytes = vec![0; 1000];
//! let count = file.read_at(&mut queue, &mut bytes, FilePos(42))?; // any position, length and address
//! println!("{}", String::from_utf8_lossy(&bytes[..count]));
//! # Ok(())
//! # }
//! ```
//!
//! # Changing a volume
//!
//! Opened for writing, a volume is a file system with Linux's journal: what was done before [`sync`](fs::ext4::Ext4::sync) returned survives a
//! crash at any moment.
//!
//! ```no_run
//! use ironmap::fs::ext4::{Credentials, NewFile, ROOT};
//! use ironmap::units::FilePos;
//! use ironmap::{OpenOptions, Volume};
//!
//! # fn main() -> ironmap::Result<()> {
//! let options = OpenOptions { write: true, ..OpenOptions::default() };
//! let volume = Volume::open(&"disk.img".parse()?, &options)?;
//! let (fs, who) = (volume.fs(), Credentials::default());
//! let dir = fs.create(ROOT, b"srv", NewFile::Directory, 0o755, &who)?;
//! let file = fs.create(dir, b"index", NewFile::Regular, 0o644, &who)?;
//! fs.write(file, FilePos(0), b"content")?;
//! fs.sync()?;
//! volume.close()?; // everything is at its place, and nothing is to be recovered
//! # Ok(())
//! # }
//! ```
//!
//! # Many reads in flight
//!
//! A queued read takes its memory along and brings it back: while the request is in flight the memory belongs to the queue, so
//! no dropped handle can leave the kernel writing to freed memory. Registered buffers spare the kernel the pinning of their
//! pages; a strict handle refuses what `O_DIRECT` refuses instead of bouncing it.
//!
//! ```no_run
//! use ironmap::bio::Memory;
//! use ironmap::dio::DioFlags;
//! use ironmap::units::FilePos;
//! # use ironmap::{File, Queue};
//!
//! # fn scan(file: &File, queue: &mut Queue) -> ironmap::Result<()> {
//! let mut free = queue.register_buffers(64, 4096)?;
//! let (mut next, blocks) = (0, file.size() / 4096);
//! while next < blocks || queue.outstanding() > 0 {
//!     while next < blocks && let Some(buffer) = free.pop() {
//!         let pos = FilePos(next * 4096);
//!         file.submit_read(queue, buffer, pos, DioFlags::empty(), next).map_err(|rejected| rejected.error)?;
//!         next += 1;
//!     }
//!     queue.wait(1)?;
//!     while let Some(completion) = queue.pop() {
//!         let count = completion.result?;
//!         // ... completion.token says which block, completion.memory holds `count` bytes of it.
//!         # let _ = count;
//!         if let Memory::Flat(buffer) = completion.memory {
//!             free.push(buffer);
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The layers
//!
//! A request goes down once and comes back once; a reader can follow one from [`File::read_at`] to the system call.
//!
//! | Layer | What it decides |
//! |---|---|
//! | [`Volume`], [`Location`], [`Host`] | opens a device, finds the format; the only places that know both |
//! | [`File`], [`Queue`] | a handle shared by threads; a thread's own way down |
//! | [`dio`] | simple path or generic path, bouncing, completion |
//! | [`iomap`] | where a range of a file lies: mapped, unwritten, hole, inline |
//! | [`bio`] | one request and the memory that it owns |
//! | [`integrity`] | a device over two others that verifies every sector |
//! | [`device`] | psync, io_uring, NVMe passthrough, dax, ram, null; over another: sim, record; limits and alignment; the doors to a mounted device |
//! | [`fs`] | ext4: the map and the name space, metadata checked before it is believed; host: leases and the kernel's maps |
//! | `sys` | rings, mappings, buffers: the only unsafe code, each use with its proof |
//!
//! # Errors
//!
//! An [`Error`] has a kind, the place on disk and the cause, and prints as one line. A corrupt image is an error that names block
//! and field; nothing on disk changes. I/O errors are [events](events::Events) too, for whoever watches the volume.
//!
//! # Units
//!
//! Positions in files, offsets on the device and block numbers are types of their own ([`units`]): the compiler refuses to mix
//! them. Sizes are bytes unless a name says blocks.

pub mod bio;
pub mod device;
pub mod dio;
pub mod error;
pub mod events;
mod file;
pub mod fs;
pub mod host;
mod inode;
pub mod integrity;
pub mod iomap;
pub mod location;
pub mod partition;
mod probe;
mod queue;
mod sync;
mod sys;
pub mod units;
mod volume;

pub use device::{Engine, QueueOptions};
pub use error::{Errno, Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use host::{Host, HostOptions, HostReport};
pub use location::Location;
pub use probe::probe;
pub use queue::Queue;
pub use volume::{OpenOptions, TailLoss, Volume};
