//! `ironmap check` against e2fsck: both find a fault, or neither does.
//!
//! The volumes are sound ones of many feature sets, made by mke2fs and filled by it or by the kernel, and volumes damaged in one place, by
//! debugfs or by changed bytes. [`exceptions`] names the intended differences.

#![allow(unreachable_pub, reason = "fuzz/ gives two of the shared types out")]

// Code that finds structures in a volume, damages them and repairs checksums, shared with the tests of hostile volumes.
#[allow(dead_code, reason = "these tests damage one place at a time")]
#[path = "../../hostile/mutate.rs"]
mod mutate;
#[path = "../../hostile/repair.rs"]
pub(crate) mod repair;
#[allow(dead_code, reason = "these tests damage one place at a time")]
#[path = "../../hostile/scratch.rs"]
mod scratch;
#[allow(dead_code, reason = "these tests damage one place at a time")]
#[path = "../../hostile/spots.rs"]
mod spots;
#[allow(dead_code, reason = "these tests have volumes of their own")]
#[path = "../../hostile/volume.rs"]
mod volume;

mod bytes;
mod clean;
mod damage;
mod exceptions;
mod named;
pub(crate) mod verdict;
