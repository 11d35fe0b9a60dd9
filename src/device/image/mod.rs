//! An image of a virtual machine as a device: qcow2 through the crate imago, VMDK and VHDX by readers of our own.
//!
//! imago maps clusters and allocates them; its crate has no runtime with the feature `sync`. `header` and `chain` read and check all that an image
//! says of itself, and imago sees a header without names. `layer` is the file as imago sees it: it orders writes, marks the image as dirty, and
//! refuses writes over tables. imago has a reader of flat VMDK extents only, and none of VHDX.
//!
//! The calling thread does each request when it is submitted. Files go through the page cache: most requests to them are small.

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
