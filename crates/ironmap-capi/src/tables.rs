//! The tables of the handles that any thread may use, and the types that C code knows.

use ironmap::{Error, Host};

use crate::buffer::Memory;
use crate::directory::Directory;
use crate::handle::{AnyTable, Handle, Kind, Shared, Table};
use crate::image::Builder;
use crate::local::{FILES, QUEUES};
use crate::pool::{OpenPool, PoolFile};
use crate::volume::OpenVolume;

/// A volume: an unmounted file system. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_volume {
    _private: (),
}

impl Kind for ironmap_volume {
    const KIND: u64 = 5;
}

/// The host: access to the files of the mounted file systems. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_host {
    _private: (),
}

impl Kind for ironmap_host {
    const KIND: u64 = 6;
}

/// A queue of requests. Only the thread that made it may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_queue {
    _private: (),
}

impl Kind for ironmap_queue {
    const KIND: u64 = 3;
}

/// A file that was opened on a queue. Only the thread of the queue may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_file {
    _private: (),
}

impl Kind for ironmap_file {
    const KIND: u64 = 4;
}

/// Memory for requests. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_buffer {
    _private: (),
}

impl Kind for ironmap_buffer {
    const KIND: u64 = 7;
}

/// An open directory, whose entries can be read. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_directory {
    _private: (),
}

impl Kind for ironmap_directory {
    const KIND: u64 = 8;
}

/// A pool of threads that have a queue each. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_pool {
    _private: (),
}

impl Kind for ironmap_pool {
    const KIND: u64 = 9;
}

/// A file that was opened on a pool. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_pool_file {
    _private: (),
}

impl Kind for ironmap_pool_file {
    const KIND: u64 = 10;
}

/// The description of an image to build. Any thread may use it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_image {
    _private: (),
}

impl Kind for ironmap_image {
    const KIND: u64 = 11;
}

pub(crate) static VOLUMES: Table<Shared<OpenVolume>, 4096, { ironmap_volume::KIND }> = Table::new();
pub(crate) static HOSTS: Table<Shared<Host>, 1024, { ironmap_host::KIND }> = Table::new();
pub(crate) static BUFFERS: Table<Shared<Memory>, { 1 << 16 }, { ironmap_buffer::KIND }> =
    Table::new();
pub(crate) static DIRECTORIES: Table<Shared<Directory>, { 1 << 16 }, { ironmap_directory::KIND }> =
    Table::new();
pub(crate) static POOLS: Table<Shared<OpenPool>, 1024, { ironmap_pool::KIND }> = Table::new();
pub(crate) static POOL_FILES: Table<Shared<PoolFile>, { 1 << 18 }, { ironmap_pool_file::KIND }> =
    Table::new();
pub(crate) static IMAGES: Table<Shared<Builder>, 1024, { ironmap_image::KIND }> = Table::new();

/// The tables of all kinds of handles.
pub(crate) fn tables() -> [&'static dyn AnyTable; 9] {
    [&VOLUMES, &HOSTS, &QUEUES, &FILES, &BUFFERS, &DIRECTORIES, &POOLS, &POOL_FILES, &IMAGES]
}

/// Whether a handle of any kind is open.
pub(crate) fn is_open(handle: Handle) -> bool {
    tables().iter().any(|table| table.is_open(handle))
}

/// The error for closing a handle that is in use.
pub(crate) const IN_USE: &str = "the handle is in use: end the calls of other threads, and close its queues, pools, files and directories first";

/// An object that can be locked while a call uses it.
pub(crate) fn locked<T>(
    mutex: &parking_lot::Mutex<T>,
) -> Result<parking_lot::MutexGuard<'_, T>, Error> {
    mutex
        .try_lock()
        .ok_or_else(|| Error::new(ironmap::ErrorKind::Busy, "another call uses the handle"))
}
