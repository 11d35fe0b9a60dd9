//! Tests of the library with a file system that another crate implements: a small one in memory (`format`), which uses only the public
//! interface.

#[path = "../common/rng.rs"]
mod rng;

mod dio;
mod format;
mod names;
