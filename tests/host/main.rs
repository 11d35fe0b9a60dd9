//! Files of mounted file systems. Some are read from the device, others through the kernel.

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
