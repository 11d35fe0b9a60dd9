//! An image of a virtual machine as a device. The crate imago reads and writes qcow2; this module reads VMDK and VHDX.
//!
//! imago maps and allocates clusters. With its feature `sync` it needs no async runtime. `header` and `chain` read and check the headers of
//! images. imago receives a header without the names of backing files. It accesses the file of an image through `layer`. `layer` orders the
//! writes, marks the image as dirty, and refuses to overwrite tables with data. This module has its own readers, because imago itself reads
//! only flat VMDK extents, and no VHDX.
//!
//! The calling thread carries out each request within its submission. Image files are read and written through the page cache, because most
//! of their requests are small.

mod address;
#[cfg(feature = "images")]
mod bytes;
#[cfg(feature = "images")]
mod chain;
#[cfg(feature = "images")]
mod describe;
mod description;
#[cfg(feature = "images")]
mod driver;
#[cfg(feature = "images")]
mod file;
#[cfg(feature = "images")]
mod header;
#[cfg(feature = "images")]
mod layer;
#[cfg(feature = "images")]
mod metadata;
#[cfg(not(feature = "images"))]
mod missing;
#[cfg(feature = "images")]
mod opened;
#[cfg(feature = "images")]
mod qcow2;
#[cfg(feature = "images")]
mod vhdx;
#[cfg(feature = "images")]
mod vmdk;
#[cfg(feature = "images")]
mod vmdk_sparse;

pub use self::address::{Address, ImageFormat};
#[cfg(feature = "images")]
pub use self::describe::describe;
pub use self::description::Description;
#[cfg(not(feature = "images"))]
pub use self::missing::describe;
#[cfg(not(feature = "images"))]
pub(crate) use self::missing::{look, open};
#[cfg(feature = "images")]
pub use self::opened::Image;
#[cfg(feature = "images")]
pub(crate) use self::opened::{look, open};
