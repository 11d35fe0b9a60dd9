//! A job: one of fio's threads, with its queue, its files and the memory of its requests.

use ironmap::bio::{Buffer, Memory};
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Errno, Error, ErrorKind, File, Queue, QueueOptions, Result};

use crate::options::{Options, Source};
use crate::store::Store;
use crate::tell::tell;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    /// Punches a hole.
    Trim,
    Sync,
    DataSync,
}

/// A request that fio makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// A number below the depth, which identifies the request in its job.
    pub(crate) index: usize,
    /// The number that [`Job::open_file`] returned.
    pub(crate) file: usize,
    pub(crate) pos: FilePos,
    /// The address of the request's memory.
    pub(crate) address: usize,
    pub(crate) len: usize,
}

/// The result of a request.
pub(crate) enum Queued {
    /// The request completed within the call, with this number of bytes.
    Completed(Result<usize>),
    /// The request is in flight, and its [`End`] follows.
    InFlight,
    /// fio must reap completions before the request can run.
    Busy,
}

/// The result of a request that was in flight.
pub(crate) struct End {
    pub(crate) index: usize,
    pub(crate) result: Result<usize, Errno>,
}

/// The memory of one request. fio accesses the memory by its address while no request uses the memory.
#[derive(Default)]
struct IoUnit {
    /// The buffer, or `None` while a request uses it.
    buffer: Option<Buffer>,
    /// The remainder of the buffer, if the request in flight is shorter than the buffer.
    rest: Option<Buffer>,
}

/// One of fio's threads.
pub(crate) struct Job {
    // The queue is dropped first, so that requests in flight end while their files are still open.
    queue: Queue,
    units: Vec<IoUnit>,
    files: Vec<Option<File>>,
    ends: Vec<End>,
    options: Options,
    /// Whether the first error has been printed. fio itself prints only the errno.
    told: bool,
    // The store is dropped last, because the last user of a volume closes the volume.
    store: Store,
}

impl Job {
    pub(crate) fn open(options: Options) -> Result<Self> {
        let store = Store::open(&options)?;
        let mut queue = store.queue(&QueueOptions::new().depth(options.depth))?;
        queue.set_simple(options.simple);
        let waits = options.depth == 1 && store.engine(&options).is_immediate();
        let units = if waits { Vec::new() } else { units(&mut queue, &options)? };
        let (files, ends) = (Vec::new(), Vec::with_capacity(options.depth as usize));
        Ok(Self { queue, units, files, ends, options, told: false, store })
    }

    /// Ends the job: requests in flight first, then the files, then the volume, if no other job uses it.
    pub(crate) fn close(self) -> Result<()> {
        let Self { queue, units, files, store, .. } = self;
        drop((queue, units, files));
        store.close()
    }

    /// A request's memory, while no request uses it.
    #[cfg(test)]
    pub(crate) fn memory(&mut self, index: usize) -> &mut Buffer {
        self.units[index].buffer.as_mut().expect("no request uses the memory")
    }

    /// The address of the job's buffer for a request. `None` if the job has no buffers: at depth 1, with an engine that completes each
    /// request within the call, requests use fio's own memory.
    pub(crate) fn buffer(&mut self, index: usize) -> Option<*mut u8> {
        self.units.get_mut(index)?.buffer.as_mut().map(Buffer::as_mut_ptr)
    }

    pub(crate) fn open_file(&mut self, path: &[u8]) -> Result<usize> {
        let file = self.store.open_file(path, self.options.file)?;
        let free = self.files.iter().position(Option::is_none).unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        self.files[free] = Some(file);
        Ok(free)
    }

    pub(crate) fn close_file(&mut self, file: usize) {
        if let Some(file) = self.files.get_mut(file) {
            *file = None;
        }
    }

    /// Whether the memory of the request is at the beginning of the job's buffer for this request. Only such a request can be in flight.
    /// The memory of any other request is fio's own (at depth 1), or the rest of a buffer after a short transfer.
    #[inline(always)]
    pub(crate) fn owns(&self, request: &Request) -> bool {
        let transfers = matches!(request.op, Op::Read | Op::Write);
        transfers && self.units.get(request.index).is_some_and(|unit| unit.is_of(request))
    }

    /// Starts a read or write in a buffer of the job.
    #[inline(always)]
    pub(crate) fn submit(&mut self, request: &Request) -> Queued {
        let file = self.files.get(request.file).and_then(Option::as_ref);
        let unit = self.units.get_mut(request.index);
        let (Some(file), Some(unit)) = (file, unit) else { return closed() };
        let Some(buffer) = unit.take(request.len) else { return closed() };
        let (queue, token) = (&mut self.queue, request.index as u64);
        let submitted = if request.op == Op::Read {
            file.submit_read(queue, buffer, request.pos, DioFlags::empty(), token)
        } else {
            file.submit_write(queue, buffer, request.pos, self.options.durable, token)
        };
        match submitted {
            Ok(()) => Queued::InFlight,
            Err(rejected) => {
                unit.put(rejected.memory);
                self.tell_first(&rejected.error);
                Queued::Completed(Err(rejected.error))
            }
        }
    }

    /// Runs a request in fio's memory, and waits for its completion. The function is inlined, because the first return of a function after
    /// a system call is slow (docs/BENCHMARKS.md).
    #[inline(always)]
    pub(crate) fn run(&mut self, request: &Request, memory: &mut [u8]) -> Queued {
        let file = self.files.get(request.file).and_then(Option::as_ref);
        let Some(file) = file else { return closed() };
        let (queue, pos, durable) = (&mut self.queue, request.pos, self.options.durable);
        let result = match request.op {
            Op::Read => file.read_at(queue, memory, pos),
            Op::Write => file.write_at_with(queue, memory, pos, durable),
            // A punch waits for all requests on its range. A request of this thread ends only when this thread reaps it, so the punch could
            // wait forever.
            Op::Trim if queue.outstanding() > 0 => return Queued::Busy,
            Op::Trim => self.store.punch(file, pos, request.len),
            Op::Sync => file.sync(queue).map(|()| 0),
            Op::DataSync => file.sync_data(queue).map(|()| 0),
        };
        if let Err(error) = &result {
            self.tell_first(error);
        }
        Queued::Completed(result)
    }

    /// Submits the queued requests.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.queue.poll()
    }

    /// Waits for at least `min` completions, and reaps at most `max`. Returns the number of reaped completions.
    pub(crate) fn reap(&mut self, min: usize, max: usize) -> Result<usize> {
        self.ends.clear();
        if min == 0 {
            self.queue.poll()?;
        } else {
            self.queue.wait(min)?;
        }
        while self.ends.len() < max
            && let Some(completion) = self.queue.pop()
        {
            let index = completion.token as usize;
            if let Some(unit) = self.units.get_mut(index) {
                unit.put(completion.memory);
            }
            let result = completion.result.map_err(|error| {
                self.tell_first(&error);
                error.errno()
            });
            self.ends.push(End { index, result });
        }
        Ok(self.ends.len())
    }

    /// A completed request of the last reap.
    pub(crate) fn end(&self, number: usize) -> Option<&End> {
        self.ends.get(number)
    }

    fn tell_first(&mut self, error: &Error) {
        if !self.told && error.kind() != ErrorKind::WouldBlock {
            self.told = true;
            match &self.options.source {
                Source::Volume(name) => tell(&format!("{name}: {error}")),
                Source::Host => tell(&error.to_string()),
            }
        }
    }
}

/// A buffer for each request.
fn units(queue: &mut Queue, options: &Options) -> Result<Vec<IoUnit>> {
    let (count, size) = (options.depth as usize, options.max_block + options.pad);
    let buffers = if options.fixed_buffers {
        queue.register_buffers(count, size)?
    } else {
        (0..count).map(|_| Buffer::aligned(size)).collect::<Result<_>>()?
    };
    let unit = |mut buffer: Buffer| {
        drop(buffer.split_to(options.pad.min(buffer.len())));
        IoUnit { buffer: Some(buffer), rest: None }
    };
    Ok(buffers.into_iter().map(unit).collect())
}

impl IoUnit {
    #[inline]
    fn is_of(&self, request: &Request) -> bool {
        let fits =
            |buffer: &Buffer| buffer.address() == request.address && request.len <= buffer.len();
        self.buffer.as_ref().is_some_and(fits)
    }

    /// Takes `len` bytes of the memory for a request.
    #[inline]
    fn take(&mut self, len: usize) -> Option<Buffer> {
        let mut buffer = self.buffer.take()?;
        if len < buffer.len() {
            let head = buffer.split_to(len);
            self.rest = Some(buffer);
            return Some(head);
        }
        Some(buffer)
    }

    /// Takes back the memory of a completed request.
    #[inline]
    fn put(&mut self, memory: Memory) {
        let Memory::Flat(mut buffer) = memory else { return };
        if let Some(rest) = self.rest.take() {
            // The two parts were split from one buffer, so `unsplit` cannot fail.
            let _ = buffer.unsplit(rest);
        }
        self.buffer = Some(buffer);
    }
}

#[cold]
fn closed() -> Queued {
    Queued::Completed(Err(Error::invalid("the file is not open")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: usize, len: usize) -> Request {
        Request { op: Op::Read, index: 0, file: 0, pos: FilePos(0), address, len }
    }

    #[test]
    fn a_shorter_request_leaves_the_rest_of_its_buffer() {
        let buffer = Buffer::aligned(8192).expect("memory");
        let address = buffer.address();
        let mut unit = IoUnit { buffer: Some(buffer), rest: None };
        assert!(!unit.is_of(&request(address + 512, 512)), "the rest of a request that was split");
        assert!(!unit.is_of(&request(address, 16384)), "longer than the buffer");
        assert!(unit.is_of(&request(address, 512)));
        let head = unit.take(512).expect("it is there");
        assert_eq!(head.len(), 512);
        assert!(!unit.is_of(&request(address, 512)), "a request uses the memory");
        unit.put(Memory::Flat(head));
        assert_eq!(unit.take(8192).expect("whole again").len(), 8192);
    }
}
