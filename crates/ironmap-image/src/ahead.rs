//! Reads of a range of a file, one after the other for the caller, and ahead of the caller on a device that answers late.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use ironmap::bio::{Buffer, Completion, Memory};
use ironmap::dio::DioFlags;
use ironmap::fs::{DirEntry, FileType};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Engine, Error, File, Queue};

use crate::failure::Failure;
use crate::source::Source;
use crate::transfer;

/// Bytes of one read: large enough that the cost of a request does not show.
pub const CHUNK: usize = 1 << 20;
/// Reads in flight on a server: with 20 ms each they are 400 MiB/s. Elsewhere more memory than the processor's cache has only costs time.
const OF_SERVERS: u64 = 8;

/// The largest file that is read together with others of its directory, and how many they are: 4 MiB of memory.
const SMALL: u64 = 128 << 10;
const TOGETHER: usize = 32;
/// Files that are kept while the caller reads those of directories within: 32 MiB.
const MOST_LOADED: usize = 256;

/// The reads of one queue, which has no other requests.
pub struct Ahead {
    depth: u64,
    /// Whole chunks.
    free: Vec<Buffer>,
    /// The token of the next read. No token is used twice, so that a completion that an error has left is not taken for another.
    token: u64,
    done: BTreeMap<u64, Completion>,
    /// Files that the caller is going to read, the next one last.
    expected: Vec<InodeNo>,
    /// The content of small files, and `None` for files that are read alone.
    loaded: HashMap<InodeNo, Option<Buffer>>,
    /// The file that is read now.
    last: Option<InodeNo>,
}

impl Ahead {
    /// Of volumes with this engine.
    pub fn new(engine: Engine) -> Self {
        let depth = if engine == Engine::Nbd { OF_SERVERS } else { 1 };
        Self {
            depth,
            free: Vec::new(),
            token: 0,
            done: BTreeMap::new(),
            expected: Vec::new(),
            loaded: HashMap::new(),
            last: None,
        }
    }

    /// Whether files are read together.
    pub fn reads_together(&self) -> bool {
        self.depth > 1
    }

    /// The caller enters a directory and reads the files of these entries in this order.
    pub fn expect(&mut self, entries: &[DirEntry]) {
        if self.reads_together() {
            let files = entries.iter().rev().filter(|entry| {
                entry.file_type.is_none_or(|file_type| file_type == FileType::Regular)
            });
            self.expected.extend(files.map(|entry| entry.inode));
        }
    }

    /// Reads a small file, which the caller reads next, together with small files that follow it. No error is reported: the caller's read has
    /// it again.
    pub fn load(&mut self, queue: &mut Queue, source: &Source, number: InodeNo) {
        if let Some(last) = self.last.replace(number) {
            self.loaded.remove(&last);
        }
        if !self.reads_together() || self.loaded.contains_key(&number) {
            return;
        }
        // Files above it were not read: second names of a file, for example.
        let Some(at) = self.expected.iter().rposition(|expected| *expected == number) else {
            return;
        };
        self.expected.truncate(at + 1);
        let batch = self.expected.split_off((at + 1).saturating_sub(TOGETHER));
        if self.loaded.len() > MOST_LOADED {
            self.loaded.clear();
        }
        let first = self.token;
        let mut files = Vec::new();
        for number in batch.into_iter().rev() {
            self.loaded.insert(number, None);
            let Ok(inode) = source.inode(number, b"") else { continue };
            let size = inode.size();
            if inode.file_type() == FileType::Regular
                && (1..=SMALL).contains(&size)
                && let Ok(file) = source.file(inode, b"")
                && self.submit(queue, &file, 0, size as usize).is_ok()
            {
                files.push((file.inode(), size as usize));
            }
        }
        while queue.outstanding() > 0 && self.collect(queue).is_ok() {}
        // The caller's read finds the sectors of its own file.
        drop(source.volume.events().take_wrong_tuples());
        for (token, (number, size)) in (first..).zip(files) {
            let completion = self.done.remove(&token);
            if let Some(Ok((read, buffer))) = completion.map(Completion::into_buffer)
                && read == size
            {
                self.loaded.insert(number, Some(buffer));
            }
        }
    }

    /// Gives the bytes of a range to `take`, in their order; fewer if the file ends before. Gives back where they end.
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
        if !self.reads_together() {
            return self.read_one_by_one(queue, file, range, failed, take);
        }
        let result = self.read_in_order(queue, file, range, failed, take);
        // Reads past the end, or after an error.
        while queue.outstanding() > 0 && self.collect(queue).is_ok() {}
        for completion in std::mem::take(&mut self.done).into_values() {
            if let Memory::Flat(buffer) = completion.memory {
                self.keep(buffer);
            }
        }
        result
    }

    /// Into the same memory: nothing is zeroed before it is read, and it stays in the processor's cache.
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

    /// Waits for a completion, and takes all that have come.
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
