//! The library on a file system of another crate: a small one in memory (`format`), written only from the public contract.

#[path = "../common/rng.rs"]
mod rng;

mod dio;
mod format;
mod names;
