//! A disk with a volatile cache. A test chooses flushes that fail. After a failed flush, the cached data are durable or lost. The flush
//! reports the failure immediately, or later than a following flush.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use ironmap::Errno;
use ironmap::device::{Device, Layer, Layered, Limits, Ram, Request, ThroughFlushes, Verdict};
use ironmap::units::DevOffset;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A flush that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The number of the flush, counted from 0.
    pub(crate) number: u64,
    /// Whether the failed flush loses all writes since the previous flush. If `false`, these writes are durable, although the flush reports
    /// a failure.
    pub(crate) lost: bool,
    /// A failing flush waits twice: first for a later write, and then for the end of a successful flush. This is the longest duration of
    /// each wait.
    pub(crate) late: Duration,
}

/// A disk with one or more parts, which share the volatile cache of the disk.
#[derive(Debug)]
pub(crate) struct Disk {
    parts: Vec<Arc<Ram>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// For each write since the last flush: the part of the disk, the position, and the content that the write replaced.
    undo: Vec<(usize, u64, Vec<u8>)>,
    written: u64,
    faults: Vec<Fault>,
    begun: u64,
    ended: u64,
    failed: usize,
}

impl Disk {
    pub(crate) fn new(parts: Vec<Ram>) -> Arc<Self> {
        let parts = parts.into_iter().map(Arc::new).collect();
        Arc::new(Self { parts, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Counts flushes, beginning with this call, and lets the given flushes fail.
    pub(crate) fn arm(&self, faults: &[Fault]) {
        *self.state.lock() = State { faults: faults.to_vec(), ..State::default() };
    }

    /// The number of flushes that have failed.
    pub(crate) fn failed(&self) -> usize {
        self.state.lock().failed
    }

    pub(crate) fn size(&self, part: usize) -> u64 {
        self.parts[part].size()
    }

    pub(crate) fn read(&self, part: usize, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.parts[part].read_exact_at(&mut bytes, DevOffset(at)).unwrap();
        bytes
    }

    pub(crate) fn write(&self, part: usize, at: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.undo.push((part, at, self.read(part, at, bytes.len())));
        put(&self.parts[part], at, bytes);
        state.written += 1;
        self.changed.notify_all();
    }

    pub(crate) fn flush(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        let Some(fault) = state.faults.iter().find(|fault| fault.number == number).copied() else {
            state.undo.clear();
            state.ended += 1;
            self.changed.notify_all();
            return Ok(());
        };
        state.failed += 1;
        let wait = |state: &mut MutexGuard<'_, State>, count: fn(&State) -> u64| {
            let before = count(state);
            let same = |state: &mut State| count(state) == before;
            self.changed.wait_while_for(state, same, fault.late);
        };
        wait(&mut state, |state| state.written);
        let undo = std::mem::take(&mut state.undo);
        if fault.lost {
            undo.iter().rev().for_each(|(part, at, old)| put(&self.parts[*part], *at, old));
        }
        wait(&mut state, |state| state.ended);
        Err(Errno::EIO)
    }

    /// A disk with the content that remains after a power cut.
    pub(crate) fn cut(&self) -> Arc<Self> {
        let state = self.state.lock();
        let parts: Vec<_> = self.parts.iter().map(|part| part.snapshot()).collect();
        state.undo.iter().rev().for_each(|(part, at, old)| put(&parts[*part], *at, old));
        Self::new(parts)
    }

    /// A part of the disk, as a device. The device implements a write-through request by a flush.
    pub(crate) fn device(self: &Arc<Self>, part: usize) -> Arc<dyn Device> {
        let below = Arc::clone(&self.parts[part]) as Arc<dyn Device>;
        Arc::new(Layered::with_layer(below, Part(Arc::clone(self), part)))
    }
}

fn put(ram: &Ram, at: u64, bytes: &[u8]) {
    ram.write_all_at(&[IoSlice::new(bytes)], DevOffset(at), false).unwrap();
}

/// A layer that records each write in the disk. Then it sends the same write to the device below.
struct Part(Arc<Disk>, usize);

impl Layer for Part {
    fn limits(&self, below: &Limits) -> Limits {
        Limits { volatile_cache: true, through_flushes: ThroughFlushes::Always, ..*below }
    }

    fn begin(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::pass(request);
        match request {
            Request::Write { at, bufs, .. } => {
                let bytes = bufs.iter().map(|buf| &**buf).collect::<Vec<_>>().concat();
                self.0.write(self.1, at.0, &bytes);
            }
            Request::Flush => verdict.error = self.0.flush().err(),
            Request::Read { .. } | Request::Discard { .. } => {}
        }
        verdict
    }
}
