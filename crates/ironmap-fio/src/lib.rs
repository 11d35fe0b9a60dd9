//! The fio engine: `ioengine=external:libironmap_fio.so` makes files of an unmounted volume, or of mounted file
//! systems, fio's targets.
//!
//! A request goes from fio to `shim/shim.c`, which is compiled against fio's own header and turns its types to those of `shim/shim.h`;
//! then to `abi`, where C becomes Rust and no panic gets out; then to the `job`, a thread's queue and memory. Its files
//! are in a `store`: a volume, which is opened once in a process and `shared`, or the host. They are made before the jobs begin (`layout`).
//! Messages to the user are printed once (`tell`).
//! An engine that was not built for the fio that loads it is refused (`version`).
//!
//! It is under GPL-2.0, since fio's header is part of it. The library and the program do not depend on it.
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
