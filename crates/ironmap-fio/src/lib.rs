//! The fio engine: with `ioengine=external:libironmap_fio.so` fio reads and writes the files of an unmounted volume, or reads the files of
//! mounted file systems.
//!
//! fio passes a request to `shim/shim.c`, which is compiled against fio's own header and converts fio's types to the types of
//! `shim/shim.h`. The module `abi` converts these C types to Rust types, and catches panics. A `job` contains the queue and the memory of
//! one thread. The files of a job are in a `store`: the host or a volume. The process opens a volume once, and all jobs use it (`shared`).
//! `layout` creates files before the jobs begin. `tell` prints each message to the user once. The engine is built for one version of fio.
//! `version` refuses to run in a fio of another version.
//!
//! The licence of this crate is GPL-2.0, because the crate includes fio's header. The library and the program do not depend on it.
#![allow(unsafe_code, reason = "the crate has a C interface")]

#[cfg_attr(not(fio), allow(dead_code, reason = "without fio's source this module has no callers"))]
mod abi;
mod job;
mod layout;
mod options;
#[cfg(test)]
mod other_format;
mod shared;
mod store;
mod tell;
mod version;
