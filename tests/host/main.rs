//! Host files that are read around a mounted file system, and host files that are not.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/sys.rs"]
mod sys;

mod host_faults;
mod host_files;
mod host_permissions;
mod host_reads;
mod host_refusals;
mod host_syscalls;
mod host_unaligned;
mod host_watches;
