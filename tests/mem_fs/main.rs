//! The library on a file system of another crate: a small one in memory (`format`), written from the public contract only.

#[path = "../common/rng.rs"]
mod rng;

mod dio;
mod format;
mod names;
