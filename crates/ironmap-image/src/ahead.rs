//! Reads a range of a file in order. On a device with a high latency, the reads run ahead of the caller. Small files are read together if
//! the engine can have several requests in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use ironmap::bio::{Buffer, Completion, Memory};
use ironmap::dio::DioFlags;
use ironmap::fs::{DirEntry, FileType};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Engine, Error, File, Queue};

use crate::failure::Failure;
use crate::source::Source;
use crate::transfer;

/// The length of a read in bytes. It is large enough to make the cost of a request negligible.
pub const CHUNK: usize = 1 << 20;
/// The number of reads in flight on an NBD server. With a latency of 20 ms, eight reads of 1 MiB reach 400 MiB/s. Other devices get one
/// read at a time, because several buffers would not fit into the processor's cache.
const OF_SERVERS: u64 = 8;

/// The maximum size in bytes of a file that is read together with other files, and the maximum number of these files.
const SMALL: u64 = 128 << 10;
const TOGETHER: usize = 128;
/// A batch of small files ends when its content reaches this number of bytes.
const BATCH: u64 = 4 << 20;
/// The maximum number of files whose content stays in memory while the caller reads files of subdirectories. With the batch in flight, the
/// content uses at most 48 MiB.
const MOST_LOADED: usize = 256;

/// Reads files through a queue, ahead of the caller. The queue must not have requests of other users.
pub struct Ahead {
    depth: u64,
    reads_together: bool,
    /// Unused buffers of the length of a chunk.
    free: Vec<Buffer>,
    /// The token of the next read. Each token is used only once, so that a late completion after an error is not mistaken for the
    /// completion of another read.
    token: u64,
    done: BTreeMap<u64, Completion>,
    /// The files that the caller will read, in reverse order.
    expected: Vec<InodeNo>,
    /// The content of small files; `None` for a file that the caller must read itself.
    loaded: HashMap<InodeNo, Option<Buffer>>,
    /// The small files after the loaded ones. Their reads are in flight while the caller uses the loaded files.
    next: Option<Batch>,
    /// The file that the caller is currently reading.
    last: Option<InodeNo>,
}

/// Small files that are read together.
struct Batch {
    /// All files of the batch.
    numbers: HashSet<InodeNo>,
    /// The token of the first read, and the file and the size of each read.
    first: u64,
    reads: Vec<(InodeNo, usize)>,
}

impl Ahead {
    /// Makes a reader for volumes with this engine.
    pub fn new(engine: Engine) -> Self {
        let depth = if engine == Engine::Nbd { OF_SERVERS } else { 1 };
        Self {
            depth,
            reads_together: !engine.is_immediate(),
            free: Vec::new(),
            token: 0,
            done: BTreeMap::new(),
            expected: Vec::new(),
            loaded: HashMap::new(),
            next: None,
            last: None,
        }
    }

    /// Whether several files are read together.
    pub fn reads_together(&self) -> bool {
        self.reads_together
    }

    /// Announces that the caller will read the regular files of `entries`, in this order. The entries are those of one directory.
    pub fn expect(&mut self, entries: &[DirEntry]) {
        if self.reads_together() {
            let files = entries.iter().rev().filter(|entry| {
                entry.file_type.is_none_or(|file_type| file_type == FileType::Regular)
            });
            self.expected.extend(files.map(|entry| entry.inode));
        }
    }

    /// Reads the small file that the caller will read next, together with the small files after it. Ignores errors, because the caller's
    /// own read reports them.
    pub fn load(&mut self, queue: &mut Queue, source: &Source, number: InodeNo) {
        if let Some(last) = self.last.replace(number) {
            self.loaded.remove(&last);
        }
        if !self.reads_together() {
            return;
        }
        if !self.loaded.contains_key(&number) {
            self.load_batch(queue, source, number);
        }
        // The caller's own reads do not overlap with a batch, so that error reports refer to the caller's file.
        if !matches!(self.loaded.get(&number), Some(Some(_)))
            && let Some(batch) = self.next.take()
        {
            self.finish(queue, source, batch);
        }
    }

    /// Loads the batch that contains a file, and submits the reads of the next batch.
    fn load_batch(&mut self, queue: &mut Queue, source: &Source, number: InodeNo) {
        if self.loaded.len() > MOST_LOADED {
            self.loaded.clear();
        }
        let in_flight = self.next.take();
        let is_next = in_flight.as_ref().is_some_and(|batch| batch.numbers.contains(&number));
        in_flight.into_iter().for_each(|batch| self.finish(queue, source, batch));
        if !is_next {
            // The caller has skipped the files that were expected before this file, for example hard links to files that the caller has
            // already read.
            let Some(at) = self.expected.iter().rposition(|expected| *expected == number) else {
                return;
            };
            self.expected.truncate(at + 1);
            let batch = self.begin(queue, source);
            self.finish(queue, source, batch);
        }
        self.next = Some(self.begin(queue, source));
    }

    /// Submits the reads of the next small files.
    fn begin(&mut self, queue: &mut Queue, source: &Source) -> Batch {
        let mut batch = Batch { numbers: HashSet::new(), first: self.token, reads: Vec::new() };
        let (mut bytes, begin) = (0, self.expected.len().saturating_sub(TOGETHER));
        while bytes < BATCH
            && self.expected.len() > begin
            && let Some(number) = self.expected.pop()
        {
            batch.numbers.insert(number);
            let Ok(inode) = source.inode(number, b"") else { continue };
            let size = inode.size();
            if inode.file_type() == FileType::Regular
                && (1..=SMALL).contains(&size)
                && let Ok(file) = source.file(inode, b"")
                && self.submit(queue, &file, 0, size as usize).is_ok()
            {
                batch.reads.push((file.inode(), size as usize));
                bytes += size;
            }
        }
        // The device works on the reads until `finish`. The wait in `finish` returns any error.
        let _ = queue.poll();
        batch
    }

    /// Waits for the reads of a batch, and keeps the content of its files.
    fn finish(&mut self, queue: &mut Queue, source: &Source, batch: Batch) {
        while queue.outstanding() > 0 && self.collect(queue).is_ok() {}
        // This read has recorded the sectors that do not match their protection information. The records are dropped, because the caller
        // reads the file again and then reports these sectors.
        drop(source.volume.events().take_wrong_tuples());
        self.loaded.extend(batch.numbers.into_iter().map(|number| (number, None)));
        for (token, (number, size)) in (batch.first..).zip(batch.reads) {
            let completion = self.done.remove(&token);
            if let Some(Ok((read, buffer))) = completion.map(Completion::into_buffer)
                && read == size
            {
                self.loaded.insert(number, Some(buffer));
            }
        }
    }

    /// Passes the bytes of a range to `take` in order, up to the end of the file. Returns the position at which the bytes end.
    pub fn read(
        &mut self,
        queue: &mut Queue,
        file: &File,
        range: Range<u64>,
        failed: impl Fn(&Error) -> Failure,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        if let Some(Some(bytes)) = self.loaded.get(&file.inode()) {
            let end = range.end.min(bytes.len() as u64);
            let start = range.start.min(end);
            return take(&bytes[start as usize..end as usize]).map(|()| end);
        }
        if self.depth == 1 {
            return self.read_one_by_one(queue, file, range, failed, take);
        }
        let first = self.token;
        let result = self.read_in_order(queue, file, range, failed, take);
        // The remaining reads are past the end of the file, or follow an error. This code waits for them and reuses their memory.
        while queue.outstanding() > 0 && self.collect(queue).is_ok() {}
        for completion in self.done.split_off(&first).into_values() {
            if let Memory::Flat(buffer) = completion.memory {
                self.keep(buffer);
            }
        }
        result
    }

    /// Reads all chunks into one buffer. The buffer is not zeroed before each read, and stays in the processor's cache.
    fn read_one_by_one(
        &mut self,
        queue: &mut Queue,
        file: &File,
        range: Range<u64>,
        failed: impl Fn(&Error) -> Failure,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let kept = self.free.pop().map_or_else(|| Buffer::aligned(CHUNK), Ok);
        let mut buffer = kept.map_err(|error| failed(&error))?;
        let mut taken = range.start;
        let result = loop {
            let len = range.end.saturating_sub(taken).min(CHUNK as u64) as usize;
            if len == 0 {
                break Ok(taken);
            }
            let read = transfer::read(file, queue, &mut buffer[..len], FilePos(taken));
            let given = read.map_err(|error| failed(&error)).and_then(|count| {
                take(&buffer[..count])?;
                Ok(count)
            });
            match given {
                Ok(count) if count == len => taken += count as u64,
                Ok(count) => break Ok(taken + count as u64),
                Err(failure) => break Err(failure),
            }
        };
        self.keep(buffer);
        result
    }

    fn read_in_order(
        &mut self,
        queue: &mut Queue,
        file: &File,
        range: Range<u64>,
        failed: impl Fn(&Error) -> Failure,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let (mut next, mut taken, mut first) = (range.start, range.start, self.token);
        while taken < range.end {
            while next < range.end && self.token - first < self.depth {
                let len = (range.end - next).min(CHUNK as u64);
                self.submit(queue, file, next, len as usize).map_err(|error| failed(&error))?;
                next += len;
            }
            let completion = loop {
                if let Some(completion) = self.done.remove(&first) {
                    break completion;
                }
                self.collect(queue).map_err(|error| failed(&error))?;
            };
            first += 1;
            let (count, buffer) = completion.into_buffer().map_err(|error| failed(&error))?;
            let result = take(&buffer[..count]);
            let is_end = count < buffer.len();
            self.keep(buffer);
            result?;
            taken += count as u64;
            if is_end {
                break;
            }
        }
        Ok(taken)
    }

    fn submit(&mut self, queue: &mut Queue, file: &File, at: u64, len: usize) -> Result<(), Error> {
        let kept = if len == CHUNK { self.free.pop() } else { None };
        let buffer = kept.map_or_else(|| Buffer::aligned(len), Ok)?;
        let submitted = file.submit_read(queue, buffer, at, DioFlags::empty(), self.token);
        submitted.map_err(|refused| refused.error)?;
        self.token += 1;
        Ok(())
    }

    /// Waits for a completion, and collects all completions that have arrived.
    fn collect(&mut self, queue: &mut Queue) -> Result<(), Error> {
        queue.wait(1)?;
        while let Some(completion) = queue.pop() {
            self.done.insert(completion.token, completion);
        }
        Ok(())
    }

    fn keep(&mut self, buffer: Buffer) {
        if buffer.len() == CHUNK {
            self.free.push(buffer);
        }
    }
}
