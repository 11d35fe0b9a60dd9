//! Makes, fills, reads, checks and resizes disk images of ext4 in user space, without root and without external programs.
//!
//! [`Image`] describes a new volume and its content; [`Image::open`] opens an existing image. [`Content`] lists the sources: directories,
//! tar archives, container images, other volumes.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let disk = dir.path().join("disk.img");
//! ironmap_image::Image::ext4()
//!     .inject("/etc/hostname", "box\n", 0o644, (0, 0))
//!     .size(16 << 20)
//!     .build(&disk)?;
//! let volume = ironmap::Volume::open(&*disk)?;
//! assert_eq!(volume.read("/etc/hostname")?, b"box\n");
//! # Ok(())
//! # }
//! ```
//!
//! The program `ironmap` uses this crate for `mkfs`, `cp`, `tar`, `resize` and `undelete`. The crate has no global state. A program with
//! its own messages and progress makes one [`Context`]. A [`Report`] collects the failures of one job.

mod acl;
mod archive;
mod content;
mod device_table;
#[cfg(feature = "disk")]
pub mod disk;
pub mod failure;
mod host_tree;
mod image;
pub mod needs;
pub mod oci;
pub mod progress;
mod sources;
#[cfg(feature = "disk")]
pub mod verity;

// These modules are public only for the program `ironmap`, and they change together with this program.
#[doc(hidden)]
pub mod ahead;
#[doc(hidden)]
pub mod context;
#[doc(hidden)]
pub mod copy;
#[doc(hidden)]
pub mod device_name;
#[doc(hidden)]
pub mod host_stat;
#[doc(hidden)]
pub mod new;
#[doc(hidden)]
pub mod new_image;
#[doc(hidden)]
pub mod opening;
#[doc(hidden)]
pub mod owners;
#[doc(hidden)]
pub mod part;
#[doc(hidden)]
pub mod place;
#[doc(hidden)]
pub mod quote;
#[doc(hidden)]
pub mod replaced;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod resize;
#[doc(hidden)]
pub mod room;
#[doc(hidden)]
pub mod salvage;
#[doc(hidden)]
pub mod size;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod spared;
#[doc(hidden)]
pub mod stop;
#[doc(hidden)]
pub mod tar;
#[doc(hidden)]
pub mod target;
#[doc(hidden)]
pub mod transfer;
#[doc(hidden)]
pub mod undelete;
#[doc(hidden)]
pub mod uuid;
#[doc(hidden)]
pub mod volumes;
#[doc(hidden)]
pub mod walk;

pub use self::content::Content;
pub use self::context::Context;
pub use self::failure::{Failure, Reason};
pub use self::image::{Image, OpenImage};
pub use self::report::Report;
pub use self::room::Overwrite;
pub use self::stop::Stop;
