//! A store of files: a volume, or the mounted file systems of the host. A forked child opens the store again at its first use.

use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ironmap::fs::FileSystem;
use ironmap::{
    Errno, Error, File, FileOptions, Files, Host, HostOptions, Location, Queue, Volume,
    VolumeOptions,
};
use pyo3::prelude::*;

use crate::errors::{Failure, closed};
use crate::file::Slot;
use crate::process::{Opening, detached, generation};
use crate::queues::Queues;

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) queues: Queues,
    backing: Backing,
}

enum Backing {
    Volume(Volume),
    Host(Host),
}

/// The parameters with which a store is opened.
#[derive(Clone)]
enum Spec {
    Volume { location: Vec<u8>, options: Box<VolumeOptions> },
    Host(HostOptions),
}

impl Spec {
    fn open(&self) -> ironmap::Result<OpenStore> {
        let backing = match self {
            Self::Volume { location, options } => {
                let location = Location::parse(OsStr::from_bytes(location))?;
                Backing::Volume(options.open(location)?)
            }
            Self::Host(options) => Backing::Host(Host::new(options)?),
        };
        Ok(OpenStore { queues: Queues::default(), backing })
    }

    fn name(&self) -> &[u8] {
        match self {
            Self::Volume { location, .. } => location,
            Self::Host(_) => b"",
        }
    }
}

impl OpenStore {
    pub(crate) fn open(&self, path: &[u8], options: FileOptions) -> ironmap::Result<File> {
        let path = Path::new(OsStr::from_bytes(path));
        match &self.backing {
            Backing::Volume(volume) => Files::open_with(volume, path, options),
            Backing::Host(host) => host.open_with(path, options),
        }
    }

    /// Calls `work` with the queue of this thread.
    #[inline]
    pub(crate) fn with_queue<R>(&self, work: impl FnOnce(&mut Queue) -> R) -> Result<R, Failure> {
        let make = |options: &_| match &self.backing {
            Backing::Volume(volume) => volume.queue(options),
            Backing::Host(host) => host.queue(options),
        };
        self.queues.with(make, work)
    }

    pub(crate) fn volume(&self) -> ironmap::Result<&Volume> {
        match &self.backing {
            Backing::Volume(volume) => Ok(volume),
            Backing::Host(_) => {
                Err(Error::invalid("this operation is only for volumes, not for files of the host"))
            }
        }
    }

    pub(crate) fn fs(&self) -> ironmap::Result<&dyn FileSystem> {
        Ok(&**self.volume()?.fs())
    }

    fn close(&self) -> ironmap::Result<()> {
        match &self.backing {
            Backing::Volume(volume) => volume.close(),
            Backing::Host(_) => Ok(()),
        }
    }
}

/// A value that a forked child must create again. The child leaks the value of the parent.
pub(crate) enum State<T> {
    Open(u32, T),
    Closed,
}

impl<T: Clone> State<T> {
    pub(crate) fn new(value: T) -> Self {
        Self::Open(generation(), value)
    }

    /// Returns the value, or `None` if the value belongs to the parent process.
    ///
    /// # Errors
    /// `ValueError` if the value is closed.
    #[inline]
    pub(crate) fn get(&self) -> PyResult<Option<T>> {
        match self {
            Self::Open(of, value) if *of == generation() => Ok(Some(value.clone())),
            Self::Open(..) => Ok(None),
            Self::Closed => Err(closed()),
        }
    }

    /// Replaces a value that belongs to the parent process. If another thread has already replaced it, returns the value of that thread.
    pub(crate) fn renew(&mut self, value: T) -> PyResult<T> {
        if let Some(value) = self.get()? {
            return Ok(value);
        }
        mem::forget(mem::replace(self, Self::new(value.clone())));
        Ok(value)
    }

    /// Closes the value. Returns it if it belongs to this process.
    pub(crate) fn close(&mut self) -> Option<T> {
        match mem::replace(self, Self::Closed) {
            Self::Open(of, value) if of == generation() => Some(value),
            parents => {
                mem::forget(parents);
                None
            }
        }
    }
}

impl<T> State<T> {
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume, or the mounted file systems of the host.
///
/// The mutexes are locked only while the GIL is held, so no thread waits for a mutex, and no mutex is locked during a fork.
#[pyclass(frozen, module = "ironmap._native")]
pub(crate) struct Store {
    spec: Spec,
    state: Mutex<State<Arc<OpenStore>>>,
    files: Mutex<Vec<Weak<Slot>>>,
}

impl Store {
    fn opened(py: Python<'_>, spec: Spec) -> PyResult<Self> {
        let open = Self::open_spec(py, &spec)?;
        Ok(Self { spec, state: Mutex::new(State::new(open)), files: Mutex::default() })
    }

    fn open_spec(py: Python<'_>, spec: &Spec) -> PyResult<Arc<OpenStore>> {
        let open = detached(py, || {
            let _opening = Opening::begin();
            spec.open()
        })?;
        open.map(Arc::new).map_err(|error| Failure::Library(error).at(py, spec.name()))
    }

    /// Returns the open store. In a forked child, the first call opens the store again.
    ///
    /// # Errors
    /// `ValueError` if the store was closed. In a child, also the errors of opening the store.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<OpenStore>> {
        let known = lock(&self.state).get()?;
        match known {
            Some(open) => Ok(open),
            None => {
                let open = Self::open_spec(py, &self.spec)?;
                lock(&self.state).renew(open)
            }
        }
    }

    /// Runs `work` on the open store without the GIL. Errors name the path.
    pub(crate) fn call<R: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        work: impl FnOnce(&OpenStore) -> ironmap::Result<R> + Send,
    ) -> PyResult<R> {
        let store = self.get(py)?;
        let result = detached(py, || {
            let result = work(&store);
            // If the store was closed during the call, this may be the last reference to it.
            drop(store);
            result
        })?;
        result.map_err(|error| self.judge(error.into()).at(py, path))
    }

    /// If another thread closes the volume during a change, the volume becomes read-only, and the change fails. This failure becomes
    /// `Closed`.
    pub(crate) fn judge(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Library(error) if error.errno() == Errno::EROFS && self.is_closed() => {
                Failure::Closed
            }
            failure => failure,
        }
    }

    /// Registers a file, which is closed together with the store.
    pub(crate) fn register(&self, file: &Arc<Slot>) {
        let mut files = lock(&self.files);
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(file));
    }
}

impl Store {
    pub(crate) fn open_volume(
        py: Python<'_>,
        location: Vec<u8>,
        options: VolumeOptions,
    ) -> PyResult<Self> {
        Self::opened(py, Spec::Volume { location, options: Box::new(options) })
    }

    pub(crate) fn open_host(py: Python<'_>, options: HostOptions) -> PyResult<Self> {
        Self::opened(py, Spec::Host(options))
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed()
    }

    /// Closes all files, and the store. Waits for the calls of other threads.
    pub(crate) fn close_all(&self, py: Python<'_>) -> PyResult<()> {
        let slots = mem::take(&mut *lock(&self.files));
        let files: Vec<_> = slots.iter().filter_map(|slot| slot.upgrade()?.close()).collect();
        let Some(open) = lock(&self.state).close() else { return Ok(()) };
        let result = detached(py, || {
            let _opening = Opening::begin();
            open.queues.close();
            drop(files);
            let result = open.close();
            drop(open);
            result
        })?;
        result.map_err(|error| Failure::Library(error).at(py, self.spec.name()))
    }
}

impl Drop for Store {
    /// The drop begins with the GIL held, and releases it for the rest of the drop. The last reference closes the volume, which may take
    /// long.
    fn drop(&mut self) {
        let Some(open) = lock(&self.state).close() else { return };
        Python::attach(|py| {
            // If the interpreter is about to end, the volume is not closed. Its state is then the same as after a crash.
            let _ = detached(py, move || {
                let _opening = Opening::begin();
                drop(open);
            });
        });
    }
}
