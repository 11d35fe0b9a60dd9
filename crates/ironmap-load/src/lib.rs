//! The loads that `ironmap bench` measures: requests of one kind to devices, volumes, host files and the kernel's files, all in turn, in one
//! process.
//!
//! A crate of its own, since its loops are built for speed and the program around them for size.

#![allow(
    missing_docs,
    reason = "for the program alone: a name that does not say all has a comment"
)]

pub mod figures;
pub mod files;
mod lane;
mod load;
pub mod plan;
pub mod positions;
mod source;
pub mod target;

pub use load::run;
