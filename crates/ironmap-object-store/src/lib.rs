//! The trait `ObjectStore` of the crate `object_store` for the files of a volume, or of a directory of the host.
//!
//! DataFusion, delta-rs and Lance read and write tables through this trait. With a [`Store`] their reads go around the file system to the
//! block device, and each object that they write is atomic and durable.
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
//! A volume needs no mount and no root:
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
//! The feature `object_store_0_14` (the default) and the feature `object_store_0_13` implement the trait of that version. A program can
//! enable both: then a [`Store`] has both traits.
//!
//! # Reads
//!
//! - `get_ranges` is one batch ([`Queue::read_many`](ironmap::Queue::read_many)): all ranges are in flight together, by whole blocks, into
//!   memory that the answer owns. Adjacent ranges become one request; gaps are not read.
//! - A stream has chunks of 1 MiB, and reads three chunks ahead.
//! - An object that is open keeps its content. If it is replaced or deleted, a stream goes on with the old object, whole.
//! - The page cache is not used. A program that reads the same ranges again should cache them itself.
//! - A store of a directory reads each file that it can around the file system, under a lease, and the others through the kernel
//!   ([`Host`]). The 64 files that were read last stay open, because the lease costs more than many reads. A file that another
//!   program deletes keeps its space until it is closed. If another program changes an object in place, a stream can contain both contents. An object that becomes shorter
//!   meanwhile is an error.
//!
//! # Writes
//!
//! A new object is a hidden file in the directory `.ironmap-object-store` of the root. Three steps follow each other: the store makes its
//! content durable, renames it, and makes the new name durable. Then `put`, `copy` or the completion of an upload returns. So after a crash
//! each object is complete, in its old or its new version. If `put` returned before the crash, the object exists. `rename` and `delete` are durable too. A crash
//! can leave a hidden file; the next store of the same root removes it.
//!
//! - A dropped future may have written its object or not. It never leaves a part of an object.
//! - An upload becomes an object only if all its parts were written.
//! - After an error, the new object may exist, but its name may not be durable.
//! - A store of a directory needs a file system with `RENAME_NOREPLACE` (ext4, XFS, Btrfs, tmpfs). All its directories must be on one file
//!   system.
//! - XFS volumes can be read only: an overwrite in place would not be atomic. Writes are `NotSupported` there.
//!
//! # Conditions
//!
//! The entity tag of an object consists of the inode number, the inode's generation, the time of its last change, and its size. Each `put`,
//! `copy` and upload makes a new inode, whose number or generation is new. So the tag changes with every content that a store writes, also
//! if the clock stands still. A change in place by another program changes the tag if the clock of the file system has advanced; Linux 6.13
//! and newer guarantee this on ext4, XFS and Btrfs. Where a file system has no generations (tmpfs), only the number and the time differ. A
//! rename changes the tag.
//!
//! If several writers have the same tag (`PutMode::Update`), or create the same object (`PutMode::Create`), one succeeds. For a volume this holds
//! for clones of one store, because the volume has one owner. For a directory it holds for all stores, in any process: they lock the file
//! `.ironmap-object-store/lock#0`. Other programs do not use this lock.
//!
//! # Paths
//!
//! A path is a path of files, as for `LocalFileSystem`: each part of it is a name, unchanged, with the percent signs by which
//! object_store encodes special characters. A store refuses these paths:
//!
//! - the root, and all paths in `.ironmap-object-store`;
//! - last names that end with `#` and digits, which `LocalFileSystem` uses for uploads;
//! - a path that is a directory, and a path below an object. `put` returns an error, and all other operations return `NotFound`.
//!
//! A file whose name is not UTF-8, or not a part of a path of object_store, is an error of the listing. A symbolic link to a file is an
//! object. A listing does not follow links to directories. A directory without objects is no prefix, and a store does not remove it.
//!
//! # Not supported
//!
//! Attributes (`NotImplemented`) and versions (`NotSupported`). Tags are ignored, as the trait demands. A [`Store`] has neither
//! `PaginatedListStore` nor `MultipartStore`.

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
        // A batch of ranges holds its thread, so this is the number of batches that the device has at once.
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

    /// The threads that open and read objects.
    #[must_use]
    pub fn readers(mut self, readers: PoolOptions) -> Self {
        self.readers = readers;
        self
    }

    /// The number of threads that write objects and list them, at least one. So many writes wait for the device together, and share the
    /// commits of the journal.
    #[must_use]
    pub fn writers(mut self, writers: usize) -> Self {
        self.writers = writers.max(1);
        self
    }

    /// For a directory on XFS with reflink: the promise that no program dedupes the objects (see [`FileOptions::assume_no_dedupe`]).
    #[must_use]
    pub fn assume_no_dedupe(mut self, assume: bool) -> Self {
        self.file = self.file.assume_no_dedupe(assume);
        self
    }
}

/// The files of a volume, or of a directory of the host, as objects. Clones are handles of the same store. When the last handle is dropped,
/// the store carries out the requests that were begun, and the drop waits for them.
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
    /// The files of a volume. A volume needs one store for all its users, because the store checks conditions under a lock of its own.
    ///
    /// # Errors
    /// `Io` if the threads or their queues cannot be created.
    pub fn volume(volume: Volume, options: &StoreOptions) -> Result<Self> {
        let tree = VolumeTree::new(volume.clone(), options.file);
        Ok(Self(Shared::new(tree, volume, options)?))
    }

    /// The files below a directory of the host.
    ///
    /// # Errors
    /// `Io` if the directory cannot be opened, or if the threads or their queues cannot be created; `NotADirectory`.
    pub fn directory(host: Host, root: impl AsRef<Path>, options: &StoreOptions) -> Result<Self> {
        let tree = Directory::new(host.clone(), root.as_ref(), options.file, STAGE)?;
        Ok(Self(Shared::new(tree, host, options)?))
    }
}

/// Compiles the programs of docs/INTEGRATIONS.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/INTEGRATIONS.md")]
struct Integrations;
