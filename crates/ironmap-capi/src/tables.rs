//! The tables of the handles that any thread may use, and the types that C code knows.

use ironmap::{Error, Host};

use crate::buffer::Memory;
use crate::directory::Directory;
use crate::handle::{AnyTable, Handle, Shared, Table};
use crate::image::Builder;
use crate::local::{FILES, QUEUES};
use crate::pool::{OpenPool, PoolFile};
use crate::volume::OpenVolume;

/// A volume: an unmounted file system. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_volume {
    _private: (),
}

/// The files of the mounted file systems. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_host {
    _private: (),
}

/// A queue of requests. Only the thread that made it may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_queue {
    _private: (),
}

/// A file that was opened on a queue. Only the thread of the queue may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_file {
    _private: (),
}

/// Memory for requests. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_buffer {
    _private: (),
}

/// The entries of a directory. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_directory {
    _private: (),
}

/// A pool of threads that have a queue each. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_pool {
    _private: (),
}

/// A file that was opened on a pool. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_pool_file {
    _private: (),
}

/// The description of an image to build. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_image {
    _private: (),
}

pub(crate) static VOLUMES: Table<Shared<OpenVolume>, 4096, 5> = Table::new();
pub(crate) static HOSTS: Table<Shared<Host>, 1024, 6> = Table::new();
pub(crate) static BUFFERS: Table<Shared<Memory>, { 1 << 16 }, 7> = Table::new();
pub(crate) static DIRECTORIES: Table<Shared<Directory>, { 1 << 16 }, 8> = Table::new();
pub(crate) static POOLS: Table<Shared<OpenPool>, 1024, 9> = Table::new();
pub(crate) static POOL_FILES: Table<Shared<PoolFile>, { 1 << 18 }, 10> = Table::new();
pub(crate) static IMAGES: Table<Shared<Builder>, 1024, 11> = Table::new();

/// The tables of all kinds of handles.
pub(crate) fn tables() -> [&'static dyn AnyTable; 9] {
    [&VOLUMES, &HOSTS, &QUEUES, &FILES, &BUFFERS, &DIRECTORIES, &POOLS, &POOL_FILES, &IMAGES]
}

/// Whether a handle of any kind is open.
pub(crate) fn is_open(handle: Handle) -> bool {
    tables().iter().any(|table| table.is_open(handle))
}

/// The error for a close of a handle that is in use.
pub(crate) const IN_USE: &str = "the handle is in use: end the calls of other threads, and close its queues, pools, files and directories first";

/// An object that can be locked while a call uses it.
pub(crate) fn locked<T>(
    mutex: &parking_lot::Mutex<T>,
) -> Result<parking_lot::MutexGuard<'_, T>, Error> {
    mutex
        .try_lock()
        .ok_or_else(|| Error::new(ironmap::ErrorKind::Busy, "another call uses the handle"))
}
