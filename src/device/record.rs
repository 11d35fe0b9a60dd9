//! A device that logs the requests to the device below. The log contains every write, flush and discard, the position of each
//! acknowledgement, and marks that the application sets between requests. From the log, [`Crashes`](super::Crashes) computes the possible
//! states of the device after a power cut.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Device;
use super::layered::{Layer, Layered, Request, Verdict};
use crate::units::DevOffset;

/// The log of a [`Record`]: its entries in chronological order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: Vec<Entry>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A write was issued.
    Write {
        /// The position of the first byte.
        at: DevOffset,
        /// The data.
        data: Arc<[u8]>,
        /// Whether the data are durable once the write is acknowledged.
        fua: bool,
    },
    /// A flush was issued. When this flush is acknowledged, all writes that were acknowledged before this entry are durable.
    Flush,
    /// A discard was issued.
    Discard {
        /// The position of the first byte.
        at: DevOffset,
        /// The number of bytes.
        len: u64,
    },
    /// An earlier request has ended: its issuer has received the completion.
    End {
        /// The index of the request's entry.
        of: usize,
        /// Whether the request was acknowledged: it had no error and was not short.
        ok: bool,
    },
    /// A mark: the application has reached the point of its work that the number identifies.
    Mark(u64),
}

impl Log {
    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the log is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the marks among the first `cut` entries, in order. They show how far the application had progressed at the cut.
    pub fn marks(&self, cut: usize) -> impl Iterator<Item = u64> {
        self.entries.iter().take(cut).filter_map(|entry| match entry {
            Entry::Mark(mark) => Some(*mark),
            _ => None,
        })
    }
}

impl FromIterator<Entry> for Log {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

/// A device over another device. It records all requests that are made by calls of the device or through its queues.
///
/// A request is recorded before the device below receives it. The end of the request is recorded when the issuer receives the completion.
/// So in the log, a flush covers only writes that were popped before the flush was issued. Reads are not recorded.
pub type Record = Layered<Recorder>;

impl Record {
    /// Creates a device that records all further requests.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self::with_layer(below, Recorder::default())
    }

    /// Returns a copy of the log so far. The copy shares the data of the writes with the log.
    #[must_use]
    pub fn log(&self) -> Log {
        self.layer.lock().clone()
    }

    /// Adds a mark to the log: the application has reached a point of its work, for example that the seventh fsync has returned.
    pub fn mark(&self, mark: u64) {
        self.layer.push(Entry::Mark(mark));
    }
}

/// The layer of a [`Record`] device. It logs each request before the device below receives the request.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Log>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an entry, and returns its index.
    fn push(&self, entry: Entry) -> usize {
        let mut log = self.lock();
        log.entries.push(entry);
        log.entries.len() - 1
    }
}

/// The value of `Verdict::ticket` for a read, which has no entry in the log. For any other request, the ticket is the index of the
/// request's entry.
const UNRECORDED: u64 = u64::MAX;

impl Layer for Recorder {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        let entry = match *request {
            Request::Read { .. } => {
                return Verdict { ticket: UNRECORDED, ..Verdict::pass(request) };
            }
            Request::Write { at, bufs, fua } => {
                let mut data = Vec::with_capacity(request.len() as usize);
                bufs.iter().for_each(|buf| data.extend_from_slice(buf));
                Entry::Write { at, data: data.into(), fua }
            }
            Request::Flush => Entry::Flush,
            Request::Discard { at, len } => Entry::Discard { at, len },
        };
        Verdict { ticket: self.push(entry) as u64, ..Verdict::pass(request) }
    }

    fn end(&self, ticket: u64, whole: bool) {
        if ticket != UNRECORDED {
            self.push(Entry::End { of: ticket as usize, ok: whole });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
    use crate::device::{BoundedQueue, DeviceQueue, Faults, QueueOptions, Ram, Sim};
    use crate::units::{FilePos, InodeNo};

    fn write(at: u64, fill: u8, fua: bool) -> Entry {
        Entry::Write { at: DevOffset(at), data: vec![fill; 512].into(), fua }
    }

    fn end(of: usize, ok: bool) -> Entry {
        Entry::End { of, ok }
    }

    fn record() -> Record {
        Record::new(Arc::new(Ram::new(1 << 20)))
    }

    fn queue(record: &Record) -> BoundedQueue {
        record.queue(&QueueOptions::new().depth(4)).unwrap()
    }

    fn bio(op: BioOp, at: u64, fill: u8, flags: BioFlags) -> Bio {
        let mut buffer = Buffer::aligned(if op == BioOp::Flush { 0 } else { 512 }).unwrap();
        buffer.fill(fill);
        let end = BioEnd::Whole { token: at + 7, inode: InodeNo(1), pos: FilePos(at) };
        Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory: Memory::Flat(buffer), end }
    }

    /// Calls of the device are recorded in the order in which they were made.
    #[test]
    fn requests_of_the_device_are_written_down_with_their_ends() {
        let record = record();
        let (one, two) = ([1; 512], [2; 512]);
        record.write_all_at(&[IoSlice::new(&one)], DevOffset(512), false).unwrap();
        record.flush().unwrap();
        record.mark(77);
        let both = [IoSlice::new(&one), IoSlice::new(&two)];
        record.write_all_at(&both, DevOffset(4096), true).unwrap();
        record.discard(DevOffset(0), 8192).unwrap();
        record.read_exact_at(&mut [0; 3], DevOffset(1)).unwrap();
        let data: Arc<[u8]> = [one, two].concat().into();
        let expected = [
            write(512, 1, false),
            end(0, true),
            Entry::Flush,
            end(2, true),
            Entry::Mark(77),
            Entry::Write { at: DevOffset(4096), data, fua: true },
            end(5, true),
            Entry::Discard { at: DevOffset(0), len: 8192 },
            end(7, true),
        ];
        assert_eq!(record.log().entries(), expected);
        assert_eq!((record.log().marks(4).count(), record.log().marks(5).next()), (0, Some(77)));
    }

    /// A failed write is not acknowledged, even if a part of the data was written.
    #[test]
    fn failures_are_written_down_as_such() {
        let faults = Faults { fail_after: Some(1), ..Faults::default() };
        let record = Record::new(Arc::new(Sim::new(Arc::new(Ram::new(1 << 20)), faults)));
        let data = [3; 512];
        record.write_all_at(&[IoSlice::new(&data)], DevOffset(0), false).unwrap();
        record.write_all_at(&[IoSlice::new(&data)], DevOffset(512), false).unwrap_err();
        record.flush().unwrap_err();
        queue(&record)
            .write_now(Dev::OWN, &[IoSlice::new(&data)], DevOffset(1024), BioFlags::empty())
            .unwrap_err();
        let entries = record.log().entries().to_vec();
        let expected = [
            write(0, 3, false),
            end(0, true),
            write(512, 3, false),
            end(2, false),
            Entry::Flush,
            end(4, false),
            write(1024, 3, false),
            end(6, false),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_short_write_is_no_promise() {
        let faults = Faults { short_one_in: Some(1), ..Faults::default() };
        let record = Record::new(Arc::new(Sim::new(Arc::new(Ram::new(1 << 20)), faults)));
        let data = [3; 1024];
        let count = queue(&record)
            .write_now(Dev::OWN, &[IoSlice::new(&data)], DevOffset(0), BioFlags::empty())
            .unwrap();
        assert_eq!((count, &record.log().entries()[1]), (512, &end(0, false)));
    }

    /// A bio is acknowledged when its completion is popped. Until then the bio is in flight, and a flush need not cover it.
    #[test]
    fn a_bio_is_acknowledged_when_it_is_popped() {
        let record = record();
        let mut queue = queue(&record);
        for (at, flags) in [(0, BioFlags::empty()), (512, BioFlags::DSYNC)] {
            queue.submit(bio(BioOp::Write, at, 5, flags)).unwrap();
        }
        queue.submit(bio(BioOp::Read, 0, 0, BioFlags::empty())).unwrap();
        queue.wait(3).unwrap();
        queue.flush_now(Dev::OWN).unwrap();
        let mut log = vec![write(0, 5, false), write(512, 5, true), Entry::Flush, end(2, true)];
        assert_eq!(record.log().entries(), log);
        for at in [0, 512, 0] {
            let done = queue.pop().unwrap();
            assert_eq!(done.result, Ok(512));
            // The popped bio contains its issuer's token again, not the index of the log entry.
            assert!(matches!(done.bio.end, BioEnd::Whole { token, .. } if token == at + 7));
        }
        queue.submit(bio(BioOp::Flush, 0, 0, BioFlags::empty())).unwrap();
        queue.wait(1).unwrap();
        assert_eq!(queue.pop().unwrap().result, Ok(0));
        log.extend([end(0, true), end(1, true), Entry::Flush, end(6, true)]);
        assert_eq!(record.log().entries(), log);
        assert_eq!((queue.in_flight(), queue.room()), (0, 4));
    }
}
