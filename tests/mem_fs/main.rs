//! Tests of the library with a file system that another crate implements. It is a small file system in memory (`format`), and uses only the
//! public interface.

#[path = "../common/rng.rs"]
mod rng;

mod copy_on_write;
mod dio;
mod format;
mod names;
mod world;
