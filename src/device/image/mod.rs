//! An image of a virtual machine as a device: qcow2, VMDK and VHDX.
//!
//! The calling thread carries out each request during its submission. Image files are read and written through the page cache, because most
//! of their requests are small.

mod address;
#[cfg(feature = "images")]
mod bytes;
#[cfg(feature = "images")]
mod describe;
mod description;
#[cfg(feature = "images")]
mod driver;
#[cfg(feature = "images")]
mod file;
#[cfg(not(feature = "images"))]
mod missing;
#[cfg(feature = "images")]
mod opened;
mod options;
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
pub use self::missing::{create, describe};
#[cfg(not(feature = "images"))]
pub(crate) use self::missing::{look, open};
#[cfg(feature = "images")]
pub use self::opened::Image;
#[cfg(feature = "images")]
pub(crate) use self::opened::{look, open};
pub use self::options::{Compression, CreateOptions, ImageOptions};
#[cfg(feature = "images")]
pub use self::qcow2::create;
