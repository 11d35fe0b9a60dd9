//! Makes, fills, reads and resizes images. The module `_image` in Python contains the public functions.

use std::ffi::{OsStr, OsString};
use std::io::BufReader;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::device::image::Compression;
use ironmap::fs::ext4::{MkfsOptions, Superblock};
use ironmap::{Location, NewSize};
use ironmap_image::oci::Platform;
use ironmap_image::{Content, Failure, Image, Stop};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::of_image;
use crate::job::{Caller, Functions, Reader, Shown, run};

/// The number of bytes that a read of a file object requests.
const PIECE: usize = 1 << 20;

/// A source: its kind, its path or file object, and two optional texts.
type Source = (String, Py<PyAny>, Option<Vec<u8>>, Option<Vec<u8>>);

/// The items of the dictionary that describes a new image.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Description {
    sources: Vec<Source>,
    /// For each file to inject: path, content, mode, user and group.
    inject: Vec<(PyBackedBytes, PyBackedBytes, u32, u32, u32)>,
    size: Option<u64>,
    shrink: bool,
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    source_date_epoch: Option<i64>,
    owner: Option<(u32, u32)>,
    owners: Option<Vec<u8>>,
    device_table: Option<Vec<u8>>,
    block_size: Option<u32>,
    inodes: Option<u64>,
    compress: Option<String>,
    force: bool,
    skip_failed: bool,
}

/// The size, block size, number of inodes, UUID and label of a new volume.
type Fields = (u64, u32, u32, [u8; 16], Vec<u8>);

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// A source that the calling thread has checked.
enum Parsed {
    Ready(Content),
    Stream { index: usize, name: String, is_layer: bool },
}

impl Parsed {
    /// Checks a source. A file object is added to `readers`.
    fn new(py: Python<'_>, source: Source, readers: &mut Vec<Py<PyAny>>) -> PyResult<Self> {
        let (kind, value, first, second) = source;
        let text = |bytes: Option<Vec<u8>>| {
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let path = || value.extract::<Vec<u8>>(py);
        Ok(Self::Ready(match &*kind {
            "path" => Content::path(path_of(path()?)),
            "oci" => {
                let platform = text(second).map(|text| text.parse::<Platform>()).transpose();
                let content = Content::oci(path_of(path()?)).image(text(first));
                content.platform(platform.map_err(PyValueError::new_err)?)
            }
            "volume" => {
                let location = Location::parse(OsStr::from_bytes(&path()?))
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
                Content::volume(location, first.unwrap_or_else(|| b"/".to_vec()))
            }
            kind => {
                readers.push(value);
                let name = text(first).unwrap_or_else(|| "archive".to_owned());
                return Ok(Self::Stream {
                    index: readers.len() - 1,
                    name,
                    is_layer: kind == "layer",
                });
            }
        }))
    }

    fn content(self, caller: &Caller) -> Content {
        match self {
            Self::Ready(content) => content,
            Self::Stream { index, name, is_layer } => {
                let reader = Reader { index, caller: caller.clone() };
                let bytes = BufReader::with_capacity(PIECE, reader);
                if is_layer { Content::layer(name, bytes) } else { Content::tar(name, bytes) }
            }
        }
    }
}

impl Description {
    /// Returns the image without its sources.
    fn image(self, stop: &Stop) -> PyResult<Image> {
        let mut options = MkfsOptions::new();
        options.block_size = self.block_size;
        options.inodes = self.inodes;
        let mut image = Image::ext4()
            .options(options)
            .force(self.force)
            .skip_failed(self.skip_failed)
            .stop(stop);
        for (path, content, mode, uid, gid) in self.inject {
            image = image.inject(&*path, &*content, mode, (uid, gid));
        }
        image = match self.size {
            Some(bytes) => image.size(bytes),
            None if self.shrink => image.shrink(),
            None => image.fit(),
        };
        match self.compress.as_deref() {
            None => {}
            Some("deflate") => image = image.compress(Compression::Deflate),
            Some("zstd") => image = image.compress(Compression::Zstd),
            Some(_) => return Err(PyValueError::new_err("compress must be 'deflate' or 'zstd'")),
        }
        if let Some(label) = self.label {
            image = image.label(label);
        }
        if let Some(uuid) = self.uuid {
            image = image.uuid(uuid);
        }
        if let Some(seconds) = self.source_date_epoch {
            image = image.source_date_epoch(seconds);
        }
        if let Some((uid, gid)) = self.owner {
            image = image.owner(uid, gid);
        }
        if let Some(map) = self.owners {
            image = image.owners(path_of(map));
        }
        if let Some(table) = self.device_table {
            image = image.device_table(path_of(table));
        }
        Ok(image)
    }
}

fn fields(made: &Superblock) -> Fields {
    let block = made.block_size.bytes() as u32;
    let label = made.label.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    (made.blocks_count * u64::from(block), block, made.inodes_count, made.uuid, label)
}

/// Makes a volume, and fills it.
#[pyfunction]
pub(crate) fn build_image(
    py: Python<'_>,
    image: &[u8],
    mut description: Description,
    progress: Option<Py<PyAny>>,
    on_message: Option<Py<PyAny>>,
) -> PyResult<Fields> {
    let mut functions = Functions { readers: Vec::new(), progress, on_message };
    let sources = std::mem::take(&mut description.sources).into_iter();
    let sources = sources.map(|source| Parsed::new(py, source, &mut functions.readers));
    let sources: Vec<_> = sources.collect::<PyResult<_>>()?;
    let (stop, to_python) = (Stop::default(), functions.progress.is_some());
    let to_fill = description.image(&stop)?;
    let volume = OsString::from_vec(image.to_vec());
    let made = run(py, &functions, &stop, move |caller| {
        let sources = sources.into_iter().map(|source| source.content(&caller));
        let filled = sources.fold(to_fill, Image::add);
        let messages = caller.clone();
        filled
            .on_message(move |text| messages.message(text))
            .progress(Arc::new(Shown::new(caller, to_python)))
            .build(volume)
    })?;
    made.map(|made| fields(&made)).map_err(|failure| of_image(py, &failure, image))
}

/// Copies a file or a directory of an image to a path of the host.
#[pyfunction]
pub(crate) fn extract_image(
    py: Python<'_>,
    image: &[u8],
    path: Vec<u8>,
    dest: Vec<u8>,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let functions = Functions { readers: Vec::new(), progress, on_message: None };
    let (stop, to_python) = (Stop::default(), functions.progress.is_some());
    let (volume, stop_of_job) = (OsString::from_vec(image.to_vec()), stop.clone());
    let done = run(py, &functions, &stop, move |caller| {
        let image = Image::open(volume)?.stop(&stop_of_job);
        let image = image.progress(Arc::new(Shown::new(caller, to_python)));
        image.extract(path, path_of(dest))
    })?;
    done.map_err(|failure| of_image(py, &failure, image))
}

/// Makes a volume larger or smaller, and returns its new size. If `size` is `None`, the new size is the smallest size that holds the
/// volume's data.
#[pyfunction]
pub(crate) fn resize_image(py: Python<'_>, image: &[u8], size: Option<u64>) -> PyResult<u64> {
    let functions = Functions { readers: Vec::new(), progress: None, on_message: None };
    let volume = OsString::from_vec(image.to_vec());
    let size = size.map_or(NewSize::Minimum, NewSize::Bytes);
    let done = run(py, &functions, &Stop::default(), move |_| -> Result<_, Failure> {
        let resized = Image::open(volume)?.resize(size)?;
        Ok(resized.blocks * u64::from(resized.block_size))
    })?;
    done.map_err(|failure| of_image(py, &failure, image))
}
