//! The operations of a store, independent of the version of object_store.

use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, iter, try_unfold};
use ironmap::fs::{FileType, Stat};
use ironmap::{Buffer, Files, Queue};
use ironmap_async::{AsyncFile, Pool, PoolOptions};

use crate::StoreOptions;
use crate::failure::Failure;
use crate::list::{Found, Walk, one_level};
use crate::read;
use crate::tree::{Tree, no_object, parent};
use crate::upload::Staged;

/// The directory of the drafts, which are new objects without their final names. This directory is not listed as a prefix.
pub(crate) const STAGE: &str = ".ironmap-object-store";
/// The number of bytes that a copy reads and writes at a time.
const COPY: usize = 1 << 20;

/// The condition that an existing object must satisfy, so that a new object replaces it.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Overwrite,
    Create,
    /// The object must have this entity tag.
    Update(String),
}

/// The state that the clones of a store share. Only handles and futures of the user own this value. A job must not own it: the job could
/// drop the last reference on a thread of the pool, and this thread would then wait for itself.
pub(crate) struct Shared {
    pub(crate) objects: Arc<Objects>,
    /// The threads for reads of objects.
    readers: Pool,
    /// The threads for calls that wait for a journal or that read directories.
    writers: Pool,
}

/// The files of a store, in the form that jobs on the store's threads use.
pub(crate) struct Objects {
    pub(crate) tree: Arc<dyn Tree>,
    /// The number of the next draft, which is the file of a new object before it gets its final name.
    pub(crate) next: AtomicU64,
}

/// An object that is open for reading.
pub(crate) struct Object {
    file: AsyncFile,
    pub(crate) stat: Stat,
}

/// Whether the last name of a path can be the name of an object. `LocalFileSystem` uses names that end with `#` and digits for uploads.
pub(crate) fn is_object_name(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let suffix = name.split_once('#').map_or("", |(_, suffix)| suffix);
    suffix.is_empty() || !suffix.bytes().all(|byte| byte.is_ascii_digit())
}

/// Checks that an object can have this path.
pub(crate) fn check_path(path: &str) -> Result<(), Failure> {
    if path.is_empty() {
        return Err(Failure::path(path, "is the root of the store, not an object"));
    }
    if path == STAGE || path.strip_prefix(STAGE).is_some_and(|rest| rest.starts_with('/')) {
        return Err(Failure::path(path, "is reserved for objects that are being written"));
    }
    if !is_object_name(path) {
        return Err(Failure::path(
            path,
            "ends with # and digits: such names are reserved for uploads",
        ));
    }
    Ok(())
}

/// Returns the entity tag of an object. Different contents of the same path always have different tags.
pub(crate) fn tag(stat: &Stat) -> String {
    let changed =
        i128::from(stat.changed.seconds) * 1_000_000_000 + i128::from(stat.changed.nanoseconds);
    let mut tag = String::with_capacity(64);
    // A write into a string does not fail.
    let _ = write!(tag, "\"{:x}-{:x}-{changed:x}-{:x}\"", stat.inode.0, stat.generation, stat.size);
    tag
}

/// Returns the directories whose names a rename changes: the directories of the old and of the new path.
fn directories<'a>(from: &'a str, to: &'a str) -> Vec<&'a str> {
    let (from, to) = (parent(from), parent(to));
    if from == to { vec![to] } else { vec![to, from] }
}

impl Shared {
    pub(crate) fn new(
        tree: impl Tree + 'static,
        files: impl Files + Clone + Send + Sync + 'static,
        options: &StoreOptions,
    ) -> ironmap::Result<Arc<Self>> {
        tree.remove_drafts(STAGE);
        let writers = PoolOptions::new().threads(options.writers).depth(1);
        Ok(Arc::new(Self {
            objects: Arc::new(Objects { tree: Arc::new(tree), next: AtomicU64::new(0) }),
            readers: Pool::new(files.clone(), options.readers)?,
            writers: Pool::new(files, writers)?,
        }))
    }

    /// Runs a function on a thread that may wait.
    pub(crate) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        function: impl FnOnce(&Arc<Objects>, &mut Queue) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let objects = Arc::clone(&self.objects);
        self.writers.run(move |queue| function(&objects, queue)).await
    }

    /// Drops a value on a thread that may wait.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        let dropped = self.writers.run(move |_| {
            drop(value);
            Ok::<_, Failure>(())
        });
        drop(dropped);
    }

    /// Returns the attributes of an object.
    pub(crate) async fn stat(self: &Arc<Self>, path: &str) -> Result<Stat, Failure> {
        check_path(path)?;
        let (tree, path) = (Arc::clone(&self.objects.tree), path.to_owned());
        self.readers.run(move |_| stat(&*tree, &path)).await
    }

    /// Opens an object. The handle keeps the object's content, even if the object's name is removed or given to another object.
    pub(crate) async fn open(self: &Arc<Self>, path: &str) -> Result<Object, Failure> {
        check_path(path)?;
        let (tree, path) = (Arc::clone(&self.objects.tree), path.to_owned());
        let opened = self.readers.run(move |_| Ok::<_, Failure>(tree.open(&path)?)).await?;
        Ok(Object { file: self.readers.file(opened.0), stat: opened.1 })
    }

    /// Reads ranges of one object at the same time. If a range ends past the end of the object, its result is shorter.
    pub(crate) async fn ranges(
        self: &Arc<Self>,
        path: &str,
        within: impl FnOnce(u64) -> Result<Vec<Range<u64>>, Failure> + Send + 'static,
    ) -> Result<Vec<Bytes>, Failure> {
        check_path(path)?;
        let (tree, path) = (Arc::clone(&self.objects.tree), path.to_owned());
        let read = self.readers.run(move |queue| {
            let (file, stat) = tree.open(&path)?;
            read::ranges(queue, &file, &path, within(stat.size)?)
        });
        read.await
    }

    /// Writes a new object.
    pub(crate) async fn put(
        self: &Arc<Self>,
        path: &str,
        content: Vec<Bytes>,
        mode: Mode,
    ) -> Result<Stat, Failure> {
        check_path(path)?;
        let path = path.to_owned();
        let put = move |objects: &Arc<Objects>, queue: &mut Queue| {
            let staged = Staged::new(objects)?;
            staged.draft.write_at(queue, 0, &content)?;
            staged.publish(queue, &path, &mode)
        };
        self.write(put).await
    }

    /// Copies an object.
    pub(crate) async fn copy(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        mode: Mode,
    ) -> Result<(), Failure> {
        check_path(from)?;
        check_path(to)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        let copy = move |objects: &Arc<Objects>, queue: &mut Queue| {
            let (file, stat) = objects.tree.open(&from)?;
            let staged = Staged::new(objects)?;
            let mut at = 0;
            while at < stat.size {
                let len = COPY.min((stat.size - at) as usize);
                let mut buffer = Buffer::aligned(len)?;
                let read = file.read_at(queue, &mut buffer, at);
                let count = read.map_err(|error| error.at(&from))?;
                if count < len {
                    return Err(Failure::ends_early(&from, at + count as u64, stat.size));
                }
                staged.draft.write_at(queue, at, &[read::into_bytes(buffer)])?;
                at += len as u64;
            }
            staged.publish(queue, &to, &mode).map(drop)
        };
        self.write(copy).await
    }

    /// Moves an object to another path.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        replace: bool,
    ) -> Result<(), Failure> {
        check_path(from)?;
        check_path(to)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = move |objects: &Arc<Objects>, _: &mut Queue| {
            let lock = objects.tree.lock()?;
            stat(&*objects.tree, &from)?;
            objects.rename_into(&from, &to, replace)?;
            drop(lock);
            Ok(objects.tree.sync_dirs(&directories(&from, &to))?)
        };
        self.write(rename).await
    }

    /// Removes objects. A single sync makes all removals durable. Each path has its own result.
    pub(crate) async fn remove(
        self: &Arc<Self>,
        paths: Vec<String>,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        let remove = move |objects: &Arc<Objects>, _: &mut Queue| {
            let lock = objects.tree.lock()?;
            let one = |path: &String| {
                check_path(path)?;
                // `stat` fails for a directory, which is not an object. It succeeds for a symbolic link to a file, which is an object.
                stat(&*objects.tree, path)?;
                Ok(objects.tree.remove(path)?)
            };
            let results: Vec<_> = paths.iter().map(one).collect();
            drop(lock);
            let removed = paths.iter().zip(&results).filter(|(_, result)| result.is_ok());
            let mut dirs: Vec<_> = removed.map(|(path, _)| parent(path)).collect();
            dirs.sort_unstable();
            dirs.dedup();
            if !dirs.is_empty() {
                objects.tree.sync_dirs(&dirs)?;
            }
            Ok(results)
        };
        self.write(remove).await
    }

    /// Lists the objects below a prefix. If a path is given, lists only the objects after this path.
    pub(crate) fn list(
        self: &Arc<Self>,
        prefix: &str,
        after: Option<&str>,
    ) -> BoxStream<'static, Result<Found, Failure>> {
        let hidden = prefix.split('/').next() == Some(STAGE);
        let walk = Walk::new(Arc::clone(&self.objects.tree), prefix, after);
        let start = (!hidden).then_some(walk);
        let shared = Arc::clone(self);
        let batches = try_unfold(start, move |walk| {
            let shared = Arc::clone(&shared);
            async move {
                let Some(mut walk) = walk else { return Ok(None) };
                let batch = shared.write(move |_, _| Ok((walk.batch()?, walk)));
                let (found, walk) = batch.await?;
                Ok::<_, Failure>((!found.is_empty()).then_some((found, Some(walk))))
            }
        });
        batches.map_ok(|found| iter(found.into_iter().map(Ok))).try_flatten().boxed()
    }

    /// Returns the prefixes and the objects directly below a prefix.
    pub(crate) async fn one_level(
        self: &Arc<Self>,
        prefix: &str,
    ) -> Result<(Vec<String>, Vec<Found>), Failure> {
        if prefix.split('/').next() == Some(STAGE) {
            return Ok((Vec::new(), Vec::new()));
        }
        let prefix = prefix.to_owned();
        self.write(move |objects, _| Ok(one_level(&objects.tree, &prefix)?)).await
    }
}

impl Objects {
    /// Renames a file. Missing parents of the new name are created.
    pub(crate) fn rename_into(&self, from: &str, to: &str, replace: bool) -> io::Result<()> {
        match self.tree.rename(from, to, replace) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.tree.create_dirs(parent(to))?;
                self.tree.rename(from, to, replace)
            }
            renamed => renamed,
        }
    }
}

/// Returns the attributes of an object. The error is `NotFound` for a directory and for a special file.
pub(crate) fn stat(tree: &dyn Tree, path: &str) -> Result<Stat, Failure> {
    let stat = tree.stat(path)?;
    if stat.file_type == FileType::Regular { Ok(stat) } else { Err(no_object(path).into()) }
}

impl Object {
    /// Returns the bytes of a range of the object as a stream.
    pub(crate) fn stream(
        self,
        path: &str,
        range: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes, Failure>> {
        read::stream(self.file, path.into(), range)
    }
}
