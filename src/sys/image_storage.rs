//! The interface between an open file and imago, the library for formats of disk images. imago's trait declares transfers as unsafe,
//! because some of its implementations require aligned memory. This module requires no alignment.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::drivers::CommonStorageHelper;

/// Bytes that imago reads and writes, at any alignment. Reads past the end return zeros.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// The length in bytes.
    fn len(&self) -> u64;

    /// Fills all buffers from `at`.
    fn read(&self, bufs: &mut [IoSliceMut<'_>], at: u64) -> io::Result<()>;

    /// Writes all buffers at `at`.
    fn write(&self, bufs: &[IoSlice<'_>], at: u64) -> io::Result<()>;

    /// Makes all earlier writes durable.
    fn sync(&self) -> io::Result<()>;
}

/// A [`Store`] in the form that imago needs.
#[derive(Debug)]
pub(crate) struct Stored<T> {
    pub(crate) store: Arc<T>,
    helper: CommonStorageHelper,
}

impl<T: Store> Stored<T> {
    pub(crate) fn new(store: Arc<T>) -> Self {
        Self { store, helper: CommonStorageHelper::default() }
    }
}

impl<T> fmt::Display for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("image")
    }
}

impl<T: Store> imago::Storage for Stored<T> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.store.len())
    }

    // SAFETY: safe to call at any alignment, because `Store` requires none.
    unsafe fn pure_readv(&self, bufv: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        self.store.read(&mut bufv.into_inner(), offset)
    }

    // SAFETY: as for reads.
    unsafe fn pure_writev(&self, bufv: IoVector<'_>, offset: u64) -> io::Result<()> {
        self.store.write(&bufv.into_inner(), offset)
    }

    fn flush(&self) -> io::Result<()> {
        // Nothing must be written here, because this type buffers no data.
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.store.sync()
    }

    // SAFETY: there is no cache to invalidate.
    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }
}
