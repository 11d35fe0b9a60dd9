//! The C library of ironmap: volumes, files of the host, queues, pools and images for C, C++ and Go.
//!
//! The header `include/ironmap.h` is made from the functions of this crate and their documentation. Each C type is a [handle](handle):
//! a number that calls compare with a table, so that a closed handle is an error and no memory is accessed through it. Each function returns
//! 0 or a count, or an errno with a minus sign; [`failure`] keeps the reason. A panic does not leave the library: it becomes an error, and
//! its handle can then only be closed.
//!
//! A [queue](queue) and its [files](file) belong to the thread that made them ([`local`]). A [pool](pool) and all other handles belong to all
//! threads ([`tables`]). In a child process the handles of the parent are refused ([`process`]).
#![allow(unsafe_code, reason = "the crate has a C interface")]

pub mod buffer;
pub mod check;
pub mod directory;
pub mod failure;
pub mod file;
mod handle;
pub mod image;
mod local;
mod memory;
pub mod names;
pub mod pool;
mod process;
pub mod queue;
pub mod rwf;
pub mod stat;
pub mod tables;
pub mod volume;
