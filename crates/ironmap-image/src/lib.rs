//! The engine that copies trees: between the host, tar archives, OCI images and volumes.
//!
//! A caller makes one [`Context`], which contains the caller's functions ([`context::Caller`]), the options for opening volumes and the
//! request to stop. A [`Report`] collects the failures of one job. The crate has no global state.

mod acl;
pub mod ahead;
mod archive;
pub mod content;
pub mod context;
pub mod copy;
mod device_table;
pub mod failure;
pub mod host_stat;
mod host_tree;
pub mod image;
pub mod needs;
pub mod new;
pub mod oci;
pub mod opening;
pub mod owners;
pub mod part;
pub mod place;
pub mod progress;
pub mod quote;
pub mod report;
pub mod resize;
pub mod room;
pub mod source;
mod sources;
pub mod spared;
pub mod stop;
pub mod tar;
pub mod target;
pub mod transfer;
pub mod undelete;
pub mod volumes;
pub mod walk;

pub use self::content::Content;
pub use self::context::Context;
pub use self::failure::{Failure, Reason};
pub use self::image::{Image, OpenImage};
pub use self::report::Report;
pub use self::stop::Stop;
