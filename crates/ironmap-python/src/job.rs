//! Runs a job on an image in a separate thread. The calling thread runs the Python functions that the job needs: reads of file objects,
//! progress reports, and messages.
//!
//! Therefore, the Python functions run one at a time, in the thread of their caller. A Python signal ends the job within [`PAUSE`].

use std::io;
use std::mem;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ironmap_image::progress::{Bar, Total};
use ironmap_image::{Failure, Stop};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::process::{Call, Opening, check_ending, generation};
use crate::store::lock;

/// The time between two checks for signals, and between two progress reports.
const PAUSE: Duration = Duration::from_millis(100);

/// A request of the job to the calling thread. The job waits until `reply` is used or dropped.
enum Request {
    Read { reader: usize, len: usize, reply: SyncSender<Vec<u8>> },
    Progress { state: State, reply: SyncSender<()> },
    Message(String),
}

/// The Python functions and file objects that a job uses.
pub(crate) struct Functions {
    pub(crate) readers: Vec<Py<PyAny>>,
    pub(crate) progress: Option<Py<PyAny>>,
    pub(crate) on_message: Option<Py<PyAny>>,
}

/// Sends the requests of the job to the calling thread.
#[derive(Clone)]
pub(crate) struct Caller(Sender<Request>);

impl Caller {
    /// Sends a request, and waits for the reply. Python may fork during the wait. Returns `None` if the caller has ended the job.
    fn ask<R>(&self, request: impl FnOnce(SyncSender<R>) -> Request) -> Option<R> {
        let (reply, answer) = sync_channel(1);
        Opening::pause(|| {
            self.0.send(request(reply)).ok()?;
            answer.recv().ok()
        })
    }

    pub(crate) fn message(&self, text: &str) {
        // If the calling thread has stopped receiving requests, the message is dropped.
        let _ = self.0.send(Request::Message(text.to_owned()));
    }
}

/// A Python file object. `index` is its index in the list of readers.
pub(crate) struct Reader {
    pub(crate) index: usize,
    pub(crate) caller: Caller,
}

impl io::Read for Reader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (reader, len) = (self.index, bytes.len());
        let read = self.caller.ask(|reply| Request::Read { reader, len, reply });
        let read = read.ok_or_else(|| io::Error::other("the read has failed"))?;
        bytes[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }
}

/// The progress of a job.
#[derive(Clone, Default)]
struct State {
    name: String,
    files: u64,
    bytes: u64,
    total: Option<Total>,
    shown: Option<Instant>,
}

/// Shows the progress by calling a Python function. If the user gave no such function, each call only lets waiting forks run.
pub(crate) struct Shown {
    caller: Caller,
    to_python: bool,
    state: Mutex<State>,
}

impl Shown {
    pub(crate) fn new(caller: Caller, to_python: bool) -> Self {
        Self { caller, to_python, state: Mutex::default() }
    }

    /// Changes the state. Then shows the state, unless it was shown less than [`PAUSE`] ago.
    fn show(&self, change: impl FnOnce(&mut State)) {
        let state = {
            let mut state = lock(&self.state);
            change(&mut state);
            if state.shown.is_some_and(|shown| shown.elapsed() < PAUSE) {
                return;
            }
            state.shown = Some(Instant::now());
            state.clone()
        };
        if self.to_python {
            self.caller.ask(|reply| Request::Progress { state, reply });
        } else {
            Opening::pause(|| ());
        }
    }
}

impl Bar for Shown {
    fn begin(&self, name: &str) {
        self.show(|state| name.clone_into(&mut state.name));
    }

    fn advance(&self, bytes: u64) {
        self.show(|state| state.bytes += bytes);
    }

    fn add_file(&self) {
        lock(&self.state).files += 1;
    }

    /// The counting thread calls this function. `show` would pause the thread's `Opening` mark, which the counting thread does not have.
    /// Therefore, this function only stores the totals.
    fn set_total(&self, total: Total) {
        lock(&self.state).total = Some(total);
    }

    /// If a volume proves too small, it is made and filled again. This code resets the state, because the next file is then the first file
    /// again.
    fn finish(&self) {
        self.show(|state| state.shown = None);
        *lock(&self.state) = State::default();
    }

    fn wants_total(&self) -> bool {
        self.to_python
    }
}

/// Sends the result of `work`, which calls a Python function, to the job.
fn answer<R>(reply: SyncSender<R>, work: impl FnOnce() -> PyResult<R>) -> PyResult<()> {
    let of = generation();
    let result = work();
    if generation() != of {
        // The function has forked, and this is the child. During the fork, the job may have held the lock of the channel. A drop of `reply`
        // needs this lock, so this code leaks `reply`.
        mem::forget(reply);
        return result.map(|_| ());
    }
    // The job waits for the reply, so the channel is open.
    let _ = reply.send(result?);
    Ok(())
}

/// Reads at most `len` bytes from a file object.
fn read(py: Python<'_>, reader: &Py<PyAny>, len: usize) -> PyResult<Vec<u8>> {
    let read = reader.call_method1(py, "read", (len,))?;
    let read = read.bind(py).cast::<PyBytes>().map_err(|_| {
        PyTypeError::new_err("a source's read() must return bytes: open it in binary mode")
    })?;
    if read.as_bytes().len() > len {
        let what = "a source's read() has returned more bytes than requested";
        return Err(PyValueError::new_err(what));
    }
    Ok(read.as_bytes().to_vec())
}

/// Serves the requests of the job in the calling thread.
struct Server<'a> {
    functions: &'a Functions,
    stop: &'a Stop,
    /// The first exception. After this exception, no Python function is called.
    error: Option<PyErr>,
}

impl Server<'_> {
    /// Records an exception, and requests the end of the job. The job returns after it has cleaned up.
    fn fail(&mut self, error: PyErr) {
        self.error.get_or_insert(error);
        self.stop.flag().store(libc::SIGINT as usize, Ordering::Relaxed);
    }

    /// Serves a request. On failure, the drop of `reply` reports the failure to the job.
    fn serve(&self, py: Python<'_>, request: Request) -> PyResult<()> {
        match request {
            Request::Read { reader, len, reply } => {
                answer(reply, || read(py, &self.functions.readers[reader], len))
            }
            Request::Progress { state: State { name, files, bytes, total, .. }, reply } => {
                answer(reply, || {
                    if let Some(progress) = &self.functions.progress {
                        let (all_files, all_bytes) =
                            total.map(|total| (total.files, total.bytes)).unzip();
                        progress.call1(py, (name, files, bytes, all_files, all_bytes))?;
                    }
                    Ok(())
                })
            }
            Request::Message(text) => {
                if let Some(on_message) = &self.functions.on_message {
                    on_message.call1(py, (text,))?;
                }
                Ok(())
            }
        }
    }

    /// Serves requests until the job has ended.
    ///
    /// # Errors
    /// `RuntimeError` in a child process that a Python function has forked, because the job runs in the parent process.
    fn run(&mut self, py: Python<'_>, mut requests: Receiver<Request>) -> PyResult<()> {
        let of = generation();
        loop {
            let request = py.detach(|| {
                let requests = &mut requests;
                requests.recv_timeout(PAUSE)
            });
            let served = match request {
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(request) if self.error.is_none() => self.serve(py, request),
                _ => Ok(()),
            };
            if generation() != of {
                mem::forget(requests);
                served?;
                return Err(PyRuntimeError::new_err(
                    "this process was forked during the build: only the parent process completes the image",
                ));
            }
            let ended = served.and_then(|()| py.check_signals()).and_then(|()| check_ending());
            if let Err(error) = ended {
                self.fail(error);
            }
        }
    }
}

/// Runs a job without the GIL. `stop` ends the job.
///
/// # Errors
/// The exception of a Python function or of a signal. In both cases, the job has already ended. `RuntimeError` if the interpreter is about
/// to end.
pub(crate) fn run<R: Send + 'static>(
    py: Python<'_>,
    functions: &Functions,
    stop: &Stop,
    job: impl FnOnce(Caller) -> Result<R, Failure> + Send + 'static,
) -> PyResult<Result<R, Failure>> {
    let call = Call::begin(py)?;
    let (sender, requests) = channel();
    let work = move || {
        let _opening = Opening::begin();
        job(Caller(sender))
    };
    let thread = thread::Builder::new().name("ironmap".to_owned()).spawn(work)?;
    let mut server = Server { functions, stop, error: None };
    if let Err(error) = server.run(py, requests) {
        // In a forked child, the thread does not exist, and the number of calls was reset. Therefore, this code leaks `call` and `thread`.
        mem::forget((call, thread));
        return Err(error);
    }
    let result = py.detach(|| thread.join()).unwrap_or_else(|panic| resume_unwind(panic));
    server.error.map_or(Ok(result), Err)
}
