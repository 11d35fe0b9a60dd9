//! The fio engine: with `ioengine=external:libironmap_fio.so` fio's files are those of an unmounted volume, or of mounted file
//! systems.
//!
//! fio passes a request to `shim/shim.c`, which is compiled against fio's own header and converts its types to those of `shim/shim.h`.
//! Then `abi` turns C into Rust, and stops panics. A `job` is a thread's queue and memory. Its files are in a `store`: a volume, which
//! the process opens once and which is `shared`, or the host. `layout` creates files before the jobs begin. `tell` prints each message to
//! the user once. `version` refuses to run in another version of fio than the one the engine was built for.
//!
//! The crate is under GPL-2.0, since it includes fio's header. The library and the program do not depend on it.
#![allow(unsafe_code, reason = "it speaks C")]

#[cfg_attr(not(fio), allow(dead_code, reason = "without fio's source nothing calls it"))]
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
