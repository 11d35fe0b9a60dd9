//! An open file. The class `File` in Python adds the protocol of the module io.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ironmap::{DioFlags, File, FileOptions, ReadAt, units::FilePos};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{with_all_writable, with_readable, with_writable};
use crate::errors::Failure;
use crate::process::{Opening, detached};
use crate::store::{OpenStore, State, Store, lock};

/// The bits of the argument `flags` of `open`.
mod flags {
    pub(super) const READ: u32 = 1;
    pub(super) const WRITE: u32 = 2;
    pub(super) const APPEND: u32 = 4;
    pub(super) const CREATE: u32 = 8;
    pub(super) const CREATE_NEW: u32 = 16;
    pub(super) const TRUNCATE: u32 = 32;
    pub(super) const ASSUME_NO_DEDUPE: u32 = 64;
}

/// The number of bytes that a read requests if the size of the file is unknown.
const PIECE: u64 = 1 << 16;

/// A file, the store that must stay open as long as the file, and the lock for calls that move the position.
pub(crate) struct OpenFile {
    file: File,
    store: Arc<OpenStore>,
    moving: Mutex<()>,
}

/// The state of a file. Its mutex is locked only while the GIL is held.
pub(crate) struct Slot(Mutex<State<Arc<OpenFile>>>);

impl Slot {
    pub(crate) fn close(&self) -> Option<Arc<OpenFile>> {
        lock(&self.0).close()
    }
}

/// An open file.
#[pyclass(frozen, module = "ironmap._native")]
pub(crate) struct FileCore {
    store: Py<Store>,
    path: Vec<u8>,
    flags: u32,
    slot: Arc<Slot>,
    pos: AtomicU64,
}

fn options(bits: u32, permissions: u32) -> FileOptions {
    let has = |bit| bits & bit != 0;
    FileOptions::new()
        .read(has(flags::READ))
        .write(has(flags::WRITE))
        .append(has(flags::APPEND))
        .create(has(flags::CREATE))
        .create_new(has(flags::CREATE_NEW))
        .truncate(has(flags::TRUNCATE))
        .assume_no_dedupe(has(flags::ASSUME_NO_DEDUPE))
        .mode(permissions)
}

fn open(
    py: Python<'_>,
    store: &Store,
    path: &[u8],
    options: FileOptions,
) -> PyResult<Arc<OpenFile>> {
    let open = store.get(py)?;
    let file = detached(py, || {
        let _opening = Opening::begin();
        open.open(path, options)
    })?;
    match file {
        Ok(file) => Ok(Arc::new(OpenFile { file, store: open, moving: Mutex::default() })),
        Err(error) => Err(store.judge(error.into()).at(py, path)),
    }
}

/// Converts a position to the type that the library uses.
fn position(pos: i64) -> PyResult<u64> {
    u64::try_from(pos).map_err(|_| PyValueError::new_err("the position is negative"))
}

#[cold]
fn unsupported(py: Python<'_>, what: &'static str) -> PyErr {
    match py.import("io").and_then(|io| io.getattr("UnsupportedOperation")?.call1((what,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

impl OpenFile {
    #[inline]
    fn read_at(&self, bytes: &mut [u8], pos: u64) -> Result<usize, Failure> {
        Ok(self.store.with_queue(|queue| self.file.read_at(queue, bytes, pos))??)
    }

    /// Writes all bytes, and returns their number. If there is not enough space for all bytes, writes only a part of them.
    fn write_at(&self, bytes: &[u8], pos: u64) -> Result<usize, Failure> {
        Ok(self.store.with_queue(|queue| self.file.write_at(queue, bytes, pos))??)
    }

    fn read_many(&self, ranges: Vec<(u64, &mut [u8])>) -> Result<Vec<usize>, Failure> {
        let ranges = ranges.into_iter();
        let mut reads: Vec<_> =
            ranges.map(|(pos, bytes)| ReadAt::new(&self.file, bytes, pos)).collect();
        self.store.with_queue(|queue| queue.read_many(&mut reads))?;
        Ok(reads.into_iter().map(|read| read.result).collect::<ironmap::Result<_>>()?)
    }

    /// Returns the number of bytes that a read requests: at most `size`, and at most the rest of the file after the position. The kernel
    /// reports the size 0 for some of its files; a read of such a file requests at most [`PIECE`] bytes.
    fn rest(&self, pos: u64, size: u64) -> usize {
        let rest = match self.file.size() {
            0 => PIECE,
            end => end.saturating_sub(pos),
        };
        usize::try_from(size.min(rest)).unwrap_or(usize::MAX)
    }

    fn read_all(&self, pos: u64) -> Result<Vec<u8>, Failure> {
        let mut all = Vec::new();
        loop {
            // The read requests one byte more than the rest of the file, so that a short read shows the end of the file.
            let at = all.len();
            let pos = pos + at as u64;
            let rest = self.file.size().saturating_sub(pos).saturating_add(1).max(PIECE);
            let room = usize::try_from(rest).unwrap_or(usize::MAX);
            all.try_reserve(room).map_err(|_| {
                let what = format!("cannot allocate {rest} bytes for the content");
                ironmap::Error::new(ironmap::ErrorKind::LimitExceeded, what)
            })?;
            all.resize(at + room, 0);
            let count = self.read_at(&mut all[at..], pos)?;
            all.truncate(at + count);
            if count < room {
                return Ok(all);
            }
        }
    }
}

impl FileCore {
    /// Returns the open file. In a forked child, the first call opens the file again by its path.
    #[inline]
    fn get(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let known = lock(&self.slot.0).get()?;
        match known {
            Some(open) => Ok(open),
            None => self.open_again(py),
        }
    }

    #[cold]
    fn open_again(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let kept = flags::READ | flags::WRITE | flags::APPEND | flags::ASSUME_NO_DEDUPE;
        let open = open(py, self.store.get(), &self.path, options(self.flags & kept, 0))?;
        lock(&self.slot.0).renew(open)
    }

    fn is(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }

    #[inline]
    fn to_read(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let open = self.get(py)?;
        if self.is(flags::READ) { Ok(open) } else { Err(unsupported(py, "not readable")) }
    }

    fn to_write(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let open = self.get(py)?;
        let writes = self.is(flags::WRITE | flags::APPEND);
        if writes { Ok(open) } else { Err(unsupported(py, "not writable")) }
    }

    /// Runs `work` without the GIL. Errors name the file.
    #[inline]
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        open: Arc<OpenFile>,
        work: impl FnOnce(&OpenFile) -> Result<R, Failure> + Send,
    ) -> PyResult<R> {
        let result = detached(py, || {
            let result = work(&open);
            // If the file was closed during the call, this is the last reference to it.
            drop(open);
            result
        })?;
        result.map_err(|failure| self.store.get().judge(failure).at(py, &self.path))
    }

    /// Runs `work`, which moves the position of the file. Only one thread at a time runs such work.
    fn advance<R: Send>(
        &self,
        py: Python<'_>,
        open: Arc<OpenFile>,
        work: impl FnOnce(&OpenFile, u64) -> Result<(R, u64), Failure> + Send,
    ) -> PyResult<R> {
        self.call(py, open, |open| {
            let _moving = lock(&open.moving);
            let (result, pos) = work(open, self.pos.load(Ordering::Relaxed))?;
            self.pos.store(pos, Ordering::Relaxed);
            Ok(result)
        })
    }

    /// Reads at most `size` bytes at the position of the file, and moves the position past these bytes.
    fn read_next<'py>(
        &self,
        py: Python<'py>,
        open: Arc<OpenFile>,
        size: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let room = open.rest(self.pos.load(Ordering::Relaxed), size);
        self.bytes_at(py, open, room, |open, bytes| {
            let _moving = lock(&open.moving);
            let pos = self.pos.load(Ordering::Relaxed);
            let count = open.read_at(bytes, pos)?;
            self.pos.store(pos + count as u64, Ordering::Relaxed);
            Ok(count)
        })
    }

    /// Reads at most `size` bytes into a new `bytes`.
    fn bytes_at<'py>(
        &self,
        py: Python<'py>,
        open: Arc<OpenFile>,
        size: usize,
        read: impl FnOnce(&OpenFile, &mut [u8]) -> Result<usize, Failure> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut count = 0;
        let bytes = PyBytes::new_with(py, size, |bytes| {
            count = self.call(py, open, |open| read(open, bytes))?;
            Ok(())
        })?;
        if count == size { Ok(bytes) } else { Ok(PyBytes::new(py, &bytes.as_bytes()[..count])) }
    }
}

#[pymethods]
impl FileCore {
    /// Opens a file of a store.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        store: Py<Store>,
        path: Vec<u8>,
        flags: u32,
        permissions: u32,
    ) -> PyResult<Self> {
        let open = open(py, store.get(), &path, options(flags, permissions))?;
        let pos = if flags & flags::APPEND == 0 { 0 } else { open.file.size() };
        let slot = Arc::new(Slot(Mutex::new(State::new(open))));
        store.get().register(&slot);
        Ok(Self { store, path, flags, slot, pos: AtomicU64::new(pos) })
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.slot.0).is_closed()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(open) = self.slot.close() else { return Ok(()) };
        detached(py, || {
            let _opening = Opening::begin();
            drop(open);
        })
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.file.size())
    }

    /// For a host file, returns whether it is read from the device, and the reason if it is not. For a file of a volume, returns `None`.
    fn report(&self, py: Python<'_>) -> PyResult<Option<(bool, Option<String>)>> {
        let report = self.get(py)?.file.host();
        Ok(report.map(|report| (report.is_raw(), report.refusal.as_ref().map(ToString::to_string))))
    }

    fn readable(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py)?;
        Ok(self.is(flags::READ))
    }

    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.get(py)?;
        Ok(self.is(flags::WRITE | flags::APPEND))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.get(py)?;
        Ok(self.pos.load(Ordering::Relaxed))
    }

    #[pyo3(signature = (offset, whence = 0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let open = self.get(py)?;
        if !(0..=2).contains(&whence) {
            return Err(PyValueError::new_err(format!("invalid whence ({whence}, not 0, 1 or 2)")));
        }
        self.advance(py, open, |open, pos| {
            let base = [0, pos, open.file.size()][whence as usize];
            let to = base.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok());
            let to = to.ok_or_else(|| {
                ironmap::Error::invalid("the new position is negative or larger than 2^63 - 1")
            })?;
            Ok((to, to))
        })
    }

    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let open = self.to_read(py)?;
        with_writable(buffer, |bytes| {
            self.advance(py, open, |open, pos| {
                let count = open.read_at(bytes, pos)?;
                Ok((count, pos + count as u64))
            })
        })?
    }

    #[pyo3(signature = (size = None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.to_read(py)?;
        let Ok(size) = u64::try_from(size.unwrap_or(-1)) else { return self.readall(py) };
        self.read_next(py, open, size)
    }

    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.to_read(py)?;
        let first = self.read_next(py, Arc::clone(&open), u64::MAX)?;
        let (pos, end) = (self.pos.load(Ordering::Relaxed), open.file.size());
        if end > 0 && end <= pos {
            return Ok(first);
        }
        // More bytes may follow, because the file has grown or its size is unknown.
        let more = self.advance(py, open, |open, pos| {
            let more = open.read_all(pos)?;
            let pos = pos + more.len() as u64;
            Ok((more, pos))
        })?;
        Ok(PyBytes::new(py, &[first.as_bytes(), &more].concat()))
    }

    #[pyo3(signature = (buffer, /))]
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let open = self.to_write(py)?;
        let appends = self.is(flags::APPEND);
        with_readable(buffer, |bytes| {
            self.advance(py, open, |open, pos| {
                if appends {
                    let append = |queue: &mut _| open.file.append(queue, bytes, DioFlags::empty());
                    let FilePos(at) = open.store.with_queue(append)??;
                    return Ok((bytes.len(), at + bytes.len() as u64));
                }
                let count = open.write_at(bytes, pos)?;
                Ok((count, pos + count as u64))
            })
        })?
    }

    #[pyo3(signature = (buffer, position, /))]
    fn pwrite(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, position: i64) -> PyResult<usize> {
        let (open, pos) = (self.to_write(py)?, self::position(position)?);
        with_readable(buffer, |bytes| self.call(py, open, |open| open.write_at(bytes, pos)))?
    }

    #[pyo3(signature = (size = None, /))]
    fn truncate(&self, py: Python<'_>, size: Option<i64>) -> PyResult<u64> {
        let open = self.to_write(py)?;
        let size = size.map_or(Ok(self.pos.load(Ordering::Relaxed)), position)?;
        self.call(py, open, |open| {
            open.store.volume()?.fs().writable()?.truncate(open.file.inode(), size)?;
            Ok(size)
        })
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let open = self.get(py)?;
        self.call(py, open, |open| {
            let sync = if data_only { File::sync_data } else { File::sync };
            Ok(open.store.with_queue(|queue| sync(&open.file, queue))??)
        })
    }

    #[pyo3(signature = (size, position, /))]
    fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        position: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (open, pos) = (self.to_read(py)?, self::position(position)?);
        let room = open.rest(pos, size as u64);
        self.bytes_at(py, open, room, |open, bytes| open.read_at(bytes, pos))
    }

    #[pyo3(signature = (buffer, position, /))]
    fn readinto_at(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        position: i64,
    ) -> PyResult<usize> {
        let (open, pos) = (self.to_read(py)?, self::position(position)?);
        with_writable(buffer, |bytes| self.call(py, open, |open| open.read_at(bytes, pos)))?
    }

    #[pyo3(signature = (ranges, /))]
    fn read_ranges_into<'py>(
        &self,
        py: Python<'py>,
        ranges: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = match ranges.cast::<PyList>() {
            Ok(list) => list.clone(),
            Err(_) => PyList::new(py, ranges.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
        };
        // The iteration over `ranges` may fork. The file is opened only afterwards, because the child must not use the handle of its
        // parent.
        let open = self.to_read(py)?;
        let counts = with_all_writable(&list, position, |ranges| {
            self.call(py, open, |open| open.read_many(ranges))
        })??;
        numbers(py, counts)
    }
}

/// Returns a list of numbers. Equal neighbours share one Python object. This saves time: nearly all reads have the same length, and a new
/// object costs as much as the rest of an entry.
fn numbers(py: Python<'_>, numbers: Vec<usize>) -> PyResult<Bound<'_, PyList>> {
    let mut last = (0, 0_usize.into_pyobject(py)?);
    let objects = numbers.into_iter().map(|number| {
        if number != last.0
            && let Ok(object) = number.into_pyobject(py)
        {
            last = (number, object);
        }
        last.1.clone()
    });
    PyList::new(py, objects)
}

impl Drop for FileCore {
    /// The drop begins with the GIL held, and releases it for the rest of the drop. If this is the last reference to a file without names,
    /// the file's blocks are freed, which may take long.
    fn drop(&mut self) {
        let Some(open) = self.slot.close() else { return };
        Python::attach(|py| {
            let _ = detached(py, move || {
                let _opening = Opening::begin();
                drop(open);
            });
        });
    }
}
