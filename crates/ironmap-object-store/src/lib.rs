//! Implements the trait `ObjectStore` of the crate `object_store` for the files of a volume, or of a directory of the host.
//!
//! DataFusion, delta-rs and Lance read and write tables through this trait. With a [`Store`], their reads bypass the file system and go
//! directly to the block device. Each object that they write is atomic and durable.
//!
//! ```
//! # use object_store_0_14 as object_store;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::create_dir("tables")?;
//! use ironmap::{Host, HostOptions};
//! use ironmap_object_store::{Store, StoreOptions};
//! use object_store::{ObjectStore, ObjectStoreExt, path::Path};
//!
//! let host = Host::new(&HostOptions::new())?;
//! let store = Store::directory(host, "tables", &StoreOptions::new())?;
//! let path = Path::from("2026/part-0.parquet");
//! store.put(&path, vec![7; 100_000].into()).await?; // durable now
//! let pages = store.get_ranges(&path, &[0..4096, 65_536..69_632]).await?; // in flight together
//! # assert_eq!(pages[1], vec![7; 4096]);
//! # Ok(())
//! # }
//! ```
//!
//! A volume need not be mounted, and the program needs no root privileges:
//!
//! ```
//! # use object_store_0_14 as object_store;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::File::create("disk.img")?.set_len(16 << 20)?;
//! # let disk = ironmap::tools::device("disk.img")?;
//! # ironmap::tools::make(&*disk, &ironmap::fs::ext4::MkfsOptions::new())?;
//! # drop(disk);
//! # use ironmap_object_store::{Store, StoreOptions};
//! # use object_store::{ObjectStore, ObjectStoreExt, PutMode, UpdateVersion, path::Path};
//! let volume = ironmap::VolumeOptions::new().write(true).open("disk.img")?; // or qcow2:, a device, nbd://
//! let store = Store::volume(volume.clone(), &StoreOptions::new())?;
//! let (head, first) = (Path::from("HEAD"), PutMode::Create);
//! let seen = store.put_opts(&head, "1".into(), first.into()).await?;
//! let next = PutMode::Update(seen.into()); // fails if another writer was faster
//! store.put_opts(&head, "2".into(), next.into()).await?;
//! drop(store);
//! volume.close()?; // otherwise the next open recovers the journal
//! # Ok(())
//! # }
//! ```
//!
//! # Versions of object_store
//!
//! The feature `object_store_0_14` (the default) implements the trait of version 0.14, and `object_store_0_13` that of version 0.13. If a
//! program enables both features, a [`Store`] implements both traits.
//!
//! # Reads
//!
//! - `get_ranges` is one batch ([`Queue::read_many`](ironmap::Queue::read_many)). All ranges are in flight at the same time. Whole blocks
//!   are read into memory that belongs to the result. Adjacent ranges become one request. Gaps between ranges are not read.
//! - A stream returns chunks of 1 MiB, and reads three chunks ahead.
//! - An object keeps its content while it is open. If it is replaced or deleted, a stream still returns the complete old object.
//! - The page cache is not used. A program that reads the same ranges again should cache them itself.
//! - In a store of a directory, reads bypass the file system if possible, under a lease ([`Host`]). The kernel serves all other reads. The
//!   64 files that were read last stay open, because a lease costs more than many reads. If another program deletes an open file, its space
//!   is freed when the store closes it. If another program changes an object in place, a stream can contain old and new content. If an
//!   object becomes shorter during a read, the read is an error.
//!
//! # Writes
//!
//! A new object is at first a hidden file in the directory `.ironmap-object-store` of the root. The store makes the content of this file
//! durable, renames the file, and makes the new name durable. Only then do `put`, `copy` and the completion of an upload return. Therefore,
//! after a crash, each object is complete, in its old or its new version. If `put` returned before the crash, the object exists. `rename`
//! and `delete` are also durable when they return. A crash can leave a hidden file. The next store of the same root removes this file.
//!
//! - If a future is dropped, its object may have been written or not. A part of an object never remains.
//! - An upload becomes an object only if all its parts were written.
//! - After an error, the new object may exist, but its name may not be durable.
//! - A store of a directory needs a file system with `RENAME_NOREPLACE` (ext4, XFS, Btrfs, tmpfs). All its directories must be on one file
//!   system.
//! - XFS volumes can only be read. Writes return `NotSupported`, because an overwrite in place would not be atomic.
//!
//! # Conditions
//!
//! The entity tag of an object consists of the inode number, the inode's generation, the time of its last change, and its size. Each `put`,
//! `copy` and upload makes a new inode, whose number or generation is new. Therefore the tag changes with every content that a store
//! writes, even if the clock does not advance. A change in place by another program changes the tag if the clock of the file system has
//! advanced; Linux 6.13 and newer guarantee this on ext4, XFS and Btrfs. On a file system without generations (tmpfs), only the inode
//! number and the time distinguish the contents. A rename changes the tag.
//!
//! If several writers have the same tag (`PutMode::Update`), or create the same object (`PutMode::Create`), exactly one succeeds. For a
//! volume, this applies to all clones of one store, because a volume has only one owner. For a directory, this applies to all stores in all
//! processes, because all stores lock the file `.ironmap-object-store/lock#0`. Other programs do not use this lock.
//!
//! # Paths
//!
//! The path of an object is the path of a file, as for `LocalFileSystem`. Each part of the path is the name of a file, including the
//! percent signs with which object_store encodes special characters. A store refuses these paths:
//!
//! - the root, and all paths in `.ironmap-object-store`;
//! - paths whose last name ends with `#` and digits, because `LocalFileSystem` uses these names for uploads;
//! - a path that is a directory, and a path below an object. `put` returns an error, and all other operations return `NotFound`.
//!
//! If the name of a file is not UTF-8, or cannot be a part of a path of object_store, a listing returns an error for this file. A symbolic
//! link to a file is an object. A listing does not follow links to directories. A directory without objects is not listed as a prefix, and
//! a store does not remove it.
//!
//! # Not supported
//!
//! A store does not support attributes (`NotImplemented`) and versions (`NotSupported`). It ignores tags, as the trait requires. A
//! [`Store`] does not implement `PaginatedListStore` and `MultipartStore`.

#[cfg(not(any(feature = "object_store_0_13", feature = "object_store_0_14")))]
compile_error!(
    "choose a version of object_store: the feature object_store_0_13 or object_store_0_14"
);

mod directory;
mod failure;
mod list;
mod open_files;
mod read;
mod store;
mod tree;
mod upload;
#[cfg(feature = "object_store_0_13")]
mod v0_13;
#[cfg(feature = "object_store_0_14")]
mod v0_14;
mod volume;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ironmap::{FileOptions, Host, Result, Volume};
use ironmap_async::PoolOptions;

use crate::directory::Directory;
use crate::store::{STAGE, Shared};
use crate::volume::VolumeTree;

/// Options of a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    pub(crate) readers: PoolOptions,
    pub(crate) writers: usize,
    pub(crate) file: FileOptions,
}

impl Default for StoreOptions {
    fn default() -> Self {
        // Each batch of ranges keeps one thread busy, so the number of threads is also the maximum number of batches in flight.
        let readers = PoolOptions::new().threads(8);
        Self { readers, writers: 4, file: FileOptions::new() }
    }
}

impl StoreOptions {
    /// Eight threads that read, each with up to 64 requests in flight, and four threads that write and list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the threads that open and read objects.
    #[must_use]
    pub fn readers(mut self, readers: PoolOptions) -> Self {
        self.readers = readers;
        self
    }

    /// Sets the number of threads that write and list objects, at least one. Each thread writes one object at a time. Writes that wait for
    /// the device at the same time share the commits of the journal.
    #[must_use]
    pub fn writers(mut self, writers: usize) -> Self {
        self.writers = writers.max(1);
        self
    }

    /// Promises, for a directory on XFS with reflink, that no program dedupes the objects (see [`FileOptions::assume_no_dedupe`]).
    #[must_use]
    pub fn assume_no_dedupe(mut self, assume: bool) -> Self {
        self.file = self.file.assume_no_dedupe(assume);
        self
    }
}

/// A store shows files as objects: the files of a volume, or of a directory of the host. Clones are handles of the same store. The drop of
/// the last handle waits until the store has carried out all requests that were begun.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Shared>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.0.objects.tree.name()).finish()
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ironmap({})", self.0.objects.tree.name())
    }
}

impl Store {
    /// Creates a store for the files of a volume. All users of the volume must share this store, because the lock that protects conditions
    /// belongs to the store.
    ///
    /// # Errors
    /// `Io` if the threads or their queues cannot be created.
    pub fn volume(volume: Volume, options: &StoreOptions) -> Result<Self> {
        let tree = VolumeTree::new(volume.clone(), options.file);
        Ok(Self(Shared::new(tree, volume, options)?))
    }

    /// Creates a store for the files below a directory of the host.
    ///
    /// # Errors
    /// `Io` if the directory cannot be opened, or if the threads or their queues cannot be created; `NotADirectory`.
    pub fn directory(host: Host, root: impl AsRef<Path>, options: &StoreOptions) -> Result<Self> {
        let tree = Directory::new(host.clone(), root.as_ref(), options.file, STAGE)?;
        Ok(Self(Shared::new(tree, host, options)?))
    }
}

/// Compiles the example programs of docs/INTEGRATIONS.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/INTEGRATIONS.md")]
struct Integrations;
