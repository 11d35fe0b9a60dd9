//! Files of mounted file systems that are read from the device, and files that the kernel serves.

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
