//! Implements the trait of object_store. The module of each version of object_store compiles this file.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use futures_util::{FutureExt, TryFutureExt};
use ironmap::fs::Stat;

use super::object_store::path::Path;
use super::object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, RenameTargetMode, Result, UploadPart,
};
use super::{get_result, list_result, put_result};
use crate::Store;
use crate::failure::Failure;
use crate::list::Found;
use crate::store::{Mode, tag};
use crate::upload::Upload;

const NAME: &str = "ironmap";
/// The number of objects that one job deletes. A single sync makes these deletions durable.
const TOGETHER: usize = 256;

fn failed(failure: Failure, location: &Path) -> Error {
    let path = location.to_string();
    let error = match failure {
        Failure::Changed(what) => return Error::Precondition { path, source: what.into() },
        Failure::Io(error) => error,
    };
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound { path, source: error.into() },
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: error.into() },
        io::ErrorKind::PermissionDenied => Error::PermissionDenied { path, source: error.into() },
        io::ErrorKind::Unsupported | io::ErrorKind::ReadOnlyFilesystem => {
            Error::NotSupported { source: error.into() }
        }
        _ => Error::Generic { store: NAME, source: error.into() },
    }
}

/// Returns a function that converts a failure to an error of the store itself, not of an object.
fn failed_in(prefix: Option<&Path>) -> impl Fn(Failure) -> Error + Clone + use<> {
    let prefix = prefix.cloned().unwrap_or_default();
    move |failure| failed(failure, &prefix)
}

fn meta(location: Path, stat: &Stat) -> ObjectMeta {
    let modified = stat.modified;
    let last_modified: Option<DateTime<Utc>> =
        DateTime::from_timestamp(modified.seconds, modified.nanoseconds);
    ObjectMeta {
        location,
        last_modified: last_modified.unwrap_or_default(),
        size: stat.size,
        e_tag: Some(tag(stat)),
        version: None,
    }
}

fn found(Found { path, stat }: Found) -> Result<ObjectMeta> {
    Ok(meta(Path::parse(path)?, &stat))
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: NAME, source: error.into() }
}

fn refuse_attributes(attributes: &Attributes, operation: &str, store: &Store) -> Result<()> {
    if attributes.is_empty() {
        return Ok(());
    }
    let operation = format!("`{operation}` with attributes");
    Err(Error::NotImplemented { operation, implementer: store.to_string() })
}

/// Limits each range to the size of the object. As with `LocalFileSystem`, a range may end past the end of the object, and a range within
/// the object may be empty.
fn within(ranges: Vec<Range<u64>>, size: u64) -> Result<Vec<Range<u64>>, Failure> {
    let within = ranges.into_iter().map(|range| {
        if range.is_empty() && range.start == range.end && range.start <= size {
            return Ok(range);
        }
        GetRange::Bounded(range).as_range(size).map_err(io::Error::other)
    });
    Ok(within.collect::<io::Result<_>>()?)
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        refuse_attributes(&options.attributes, "put_opts", self)?;
        let mode = match options.mode {
            PutMode::Overwrite => Mode::Overwrite,
            PutMode::Create => Mode::Create,
            PutMode::Update(version) => Mode::Update(version.e_tag.ok_or_else(|| {
                invalid(io::Error::other("an update needs the e_tag of the present object"))
            })?),
        };
        let put = self.0.put(location.as_ref(), payload.into_iter().collect(), mode).await;
        put.map(|stat| put_result(tag(&stat))).map_err(|failure| failed(failure, location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        refuse_attributes(&options.attributes, "put_multipart_opts", self)?;
        let upload = Upload::new(&self.0, location.as_ref()).await;
        let upload = upload.map_err(|failure| failed(failure, location))?;
        Ok(Box::new(Parts { upload, location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            let source = io::Error::other("objects have no earlier versions").into();
            return Err(Error::NotSupported { source });
        }
        let checked = |stat: &Stat| {
            let meta = meta(location.clone(), stat);
            options.check_preconditions(&meta)?;
            let all = 0..meta.size;
            let range = options.range.as_ref().map(|range| range.as_range(meta.size));
            Ok::<_, Error>((meta, range.transpose().map_err(invalid)?.unwrap_or(all)))
        };
        let path = location.as_ref();
        if options.head {
            let stat = self.0.stat(path).await.map_err(|failure| failed(failure, location))?;
            let (meta, range) = checked(&stat)?;
            let none = GetResultPayload::Stream(iter([]).boxed());
            return Ok(get_result(none, meta, range));
        }
        let object = self.0.open(path).await.map_err(|failure| failed(failure, location))?;
        let (meta, range) = checked(&object.stat)?;
        let named = location.clone();
        let bytes = object.stream(path, range.clone());
        let bytes = bytes.map_err(move |failure| failed(failure, &named)).boxed();
        Ok(get_result(GetResultPayload::Stream(bytes), meta, range))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let ranges = ranges.to_vec();
        let read = self.0.ranges(location.as_ref(), move |size| within(ranges, size));
        read.await.map_err(|failure| failed(failure, location))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let shared = Arc::clone(&self.0);
        let batches = locations.ready_chunks(TOGETHER).then(move |locations| {
            let shared = Arc::clone(&shared);
            async move {
                let known = locations.iter().filter_map(|location| location.as_ref().ok());
                let known: Vec<_> = known.map(Path::to_string).collect();
                let removed = shared.remove(known).await;
                iter(after_removal(locations, removed))
            }
        });
        batches.flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        objects(self, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        objects(self, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.0.one_level(prefix.map_or("", Path::as_ref)).await;
        let (dirs, objects) = listed.map_err(failed_in(prefix))?;
        let dirs = dirs.into_iter().map(|dir| Ok(Path::parse(dir)?));
        let objects = objects.into_iter().map(found);
        Ok(list_result(dirs.collect::<Result<_>>()?, objects.collect::<Result<_>>()?))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Overwrite => Mode::Overwrite,
            CopyMode::Create => Mode::Create,
        };
        let copied = self.0.copy(from.as_ref(), to.as_ref(), mode).await;
        copied.map_err(|failure| failed_from(failure, from, to))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let replace = match options.target_mode {
            RenameTargetMode::Overwrite => true,
            RenameTargetMode::Create => false,
        };
        let renamed = self.0.rename(from.as_ref(), to.as_ref(), replace).await;
        renamed.map_err(|failure| failed_from(failure, from, to))
    }
}

/// Returns the error of a copy or a rename. The error names the old path if no object has this path. Any other error names the new path.
fn failed_from(failure: Failure, from: &Path, to: &Path) -> Error {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let location = match &failure {
        Failure::Io(error) if absent(error) => from,
        _ => to,
    };
    failed(failure, location)
}

/// Returns the results of a batch of deletions, in the order of the locations.
fn after_removal(
    locations: Vec<Result<Path>>,
    removed: Result<Vec<Result<(), Failure>>, Failure>,
) -> Vec<Result<Path>> {
    let mut results = match removed {
        Ok(results) => results.into_iter(),
        Err(failure) => {
            // Either no deletion was carried out, or the sync after all deletions has failed. All locations get the same error.
            let first = locations.iter().find_map(|location| location.as_ref().ok());
            let error = failed(failure, &first.cloned().unwrap_or_default());
            let what = error.to_string();
            let again = |location: Result<Path>| {
                location.and_then(|_| Err(invalid(io::Error::other(what.clone()))))
            };
            return locations.into_iter().map(again).collect();
        }
    };
    let each = locations.into_iter().map(|location| {
        let location = location?;
        match results.next() {
            Some(Err(failure)) => Err(failed(failure, &location)),
            _ => Ok(location),
        }
    });
    each.collect()
}

fn objects(
    store: &Store,
    prefix: Option<&Path>,
    after: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let objects = store.0.list(prefix.map_or("", Path::as_ref), after.map(Path::as_ref));
    objects.map_err(failed_in(prefix)).map(|object| object.and_then(found)).boxed()
}

struct Parts {
    upload: Upload,
    location: Path,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&self.location).finish()
    }
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let location = self.location.clone();
        let part = self.upload.part(data.into_iter().collect());
        part.map_err(move |failure| failed(failure, &location)).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.upload.complete().await;
        completed
            .map(|stat| put_result(tag(&stat)))
            .map_err(|failure| failed(failure, &self.location))
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await.map_err(|failure| failed(failure, &self.location))
    }
}
