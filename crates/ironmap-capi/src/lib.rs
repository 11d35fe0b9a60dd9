//! The C library of ironmap: volumes, files of the host, queues, pools, images and disks for C, C++ and Go.
//!
//! The header `include/ironmap.h` and the manual pages in `man/` are made from the functions of this crate and their documentation. The sections
//! below are those of the page ironmap(3).
//!
//! # Description
//!
//! The library reads and writes files of ext4 and XFS with direct I/O from user space. A volume is a file system that is not mounted:
//! `ironmap_volume_open` opens it from a device or an image. The host stands for the mounted file systems: `ironmap_host_open` opens it, and its
//! files are only read.
//!
//! A thread makes a queue (`ironmap_volume_queue`, `ironmap_host_queue`) and opens files on it (`ironmap_open`). It reads and writes by calls
//! that wait, such as `ironmap_pread`, or by requests that it submits and reaps (`ironmap_submit_read`, `ironmap_reap`). Threads that share files
//! use a pool (`ironmap_volume_pool`).
//!
//! All positions and lengths are in bytes. All texts that the caller passes end with a zero byte.
//!
//! # Linking
//!
//! The command `pkg-config --cflags --libs ironmap` prints the options of the compiler and the linker. With `--static` it prints the libraries
//! that `libironmap.a` needs too. The symbols of the shared library have the version IRONMAP_0.1.
//!
//! # Handles
//!
//! A handle is a pointer to an incomplete type, but the library stores nothing at its address. Each call compares the handle with a table. A call
//! with a handle that is closed, or that has another type than the call expects, returns -EBADF. NULL is not a handle.
//!
//! Each handle has a call that closes it. A volume or a host can be closed after its queues, pools and directories; otherwise the call returns
//! -EBUSY, and the handle stays open.
//!
//! # Structures
//!
//! A caller passes a structure with its size, `sizeof`. This lets a program use another version of the library. If the program knows more
//! members than the library, the library sets these members to 0. A call returns -E2BIG if a member of options is not 0 and the library
//! does not know this member.
//!
//! # Errors
//!
//! A function returns 0, a count or a position if it succeeds. Otherwise it returns an errno with a minus sign; it does not set `errno`.
//! `ironmap_failure` returns the reason as text, and the place on disk.
//!
//! A call that finds a bug in the library does not end the process. This call and later calls on the handle return -ENOTRECOVERABLE, and
//! the handle can only be closed. If no memory is left for the library's own lists, the process ends, as programs in Rust do. The error
//! -ENOMEM stands for the memory of buffers and for limits of the kernel.
//!
//! # Threads
//!
//! Only the thread that made a queue may use the queue and its files. A call in another thread returns -EPERM. Any thread may use all other
//! handles, at the same time as other threads. A call on a directory or on the description of an image returns -EBUSY while another thread
//! is in a call on it. When a thread ends, a destructor of `pthread_key_create` can free the queues of the thread, but must not make a
//! queue.
//!
//! # Waits
//!
//! A call that changes the size or the map of a file waits for the requests in flight on this file, in all queues and pools. Such calls are
//! `ironmap_ftruncate`, `ironmap_fallocate`, `ironmap_open` and `ironmap_pool_open` with O_TRUNC, and each write that allocates blocks or
//! extends the file. A request is in flight until its thread calls `ironmap_reap`, `ironmap_wait` or another call on the queue that finds it
//! complete. So a thread with requests in flight must soon call the library again.
//!
//! If the calling thread itself has requests in flight, such a call returns -EBUSY instead of waiting forever. The thread must then reap its
//! requests first. A call on a pool runs in a thread of the pool, which cannot detect this: a thread must reap its requests on a file before
//! it calls a pool that uses the same file. Otherwise the call on the pool may wait forever.
//!
//! # Forks
//!
//! In a child process, calls on the handles of the parent return -EBADF. The child opens its own handles. A fork waits until no other
//! thread opens or closes a handle. The functions of the caller that a call runs, such as `found` of `ironmap_check`, must not fork. A
//! handler of `pthread_atfork` that was registered before the library was loaded must not call the library. A child that calls no `execve`
//! keeps the images of the parent open: until the child ends, the parent cannot open a closed volume for writing again.
//!
//! # Signals
//!
//! A signal handler must not call the library, because a call takes locks that the interrupted call may hold. If a handler calls a function
//! on the queue of the interrupted call, or on a file of this queue, the function returns -EBUSY and changes nothing. The library installs
//! no handlers, and it does not change the mask of signals of the caller. When a host file is opened, the kernel can send the signal SIGURG
//! to the process. By default, processes ignore this signal.
#![allow(unsafe_code, reason = "the crate has a C interface")]

pub mod buffer;
mod calls;
pub mod check;
pub mod directory;
pub mod disk;
pub mod failure;
pub mod file;
mod handle;
pub mod image;
mod local;
mod memory;
pub mod names;
pub mod pool;
mod process;
pub mod queue;
pub mod rwf;
pub mod stat;
pub mod tables;
mod thread;
pub mod volume;
