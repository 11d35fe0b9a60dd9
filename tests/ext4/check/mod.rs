//! Compares the verdicts of `ironmap check` and e2fsck. The verdicts must be equal for each volume.
//!
//! Some volumes are undamaged: mke2fs makes them with many sets of features, and then mke2fs or the kernel fills them. The other volumes
//! have one fault, made by debugfs or by a changed byte. [`exceptions`] names the intended differences.

#![allow(unreachable_pub, reason = "fuzz/ gives two of the shared types out")]

// Finds structures in a volume, damages them and repairs checksums. The tests of hostile volumes use the same code.
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
