//! Reads a disk index of DiskANN through ironmap. [`ReaderFactory`] implements the trait `AlignedReaderFactory`, which
//! `DiskVertexProviderFactory` needs.

pub mod dataset;
pub mod paged;
pub mod reads;
pub mod search;
pub mod sources;

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};

use diskann::{ANNError, ANNResult};
use diskann_disk::search::provider::aligned_file_reader::traits::{
    AlignedFileReader, AlignedReaderFactory,
};
use diskann_disk::search::provider::aligned_file_reader::{A512, AlignedRead};
use ironmap::{File, Files, Queue, QueueOptions, ReadAt};

/// The maximum number of reads that a queue has in flight. A batch of DiskANN has one read for each node of its beam, usually 4.
const DEPTH: u32 = 64;

/// Makes readers of one index file. The file belongs to a [`Volume`](ironmap::Volume), or to a mounted file system that a
/// [`Host`](ironmap::Host) opened.
#[derive(Clone, Debug)]
pub struct ReaderFactory(Arc<Index>);

/// An index file, and a function that creates queues for it.
struct Index {
    file: File,
    queue: Box<dyn Fn() -> ironmap::Result<Queue> + Send + Sync>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ReaderFactory {
    /// Creates a factory of readers for a file. `files` is the volume or host that opened the file.
    pub fn new(files: impl Files + Send + Sync + 'static, file: File) -> Self {
        let queue = move || files.queue(&QueueOptions::new().depth(DEPTH));
        Self(Arc::new(Index { file, queue: Box::new(queue) }))
    }
}

impl AlignedReaderFactory for ReaderFactory {
    type AlignedReaderType = Reader;

    fn build(&self) -> ANNResult<Reader> {
        Ok(Reader(Arc::clone(&self.0)))
    }
}

/// Reads batches of blocks of an index. DiskANN passes a reader from thread to thread, but a queue belongs to one thread. So a reader
/// contains no queue: each thread has one queue for each index that it reads.
#[derive(Debug)]
pub struct Reader(Arc<Index>);

impl AlignedFileReader for Reader {
    type Alignment = A512;

    /// Reads all ranges. The reads are in flight at the same time.
    ///
    /// # Errors
    /// Returns the errors of [`File::read_at`] and of the creation of a queue. If the file ends within a range, returns an error.
    fn read(&mut self, requests: &mut [AlignedRead<'_, u8, A512>]) -> ANNResult<()> {
        self.0.with_queue(|queue| {
            let mut reads: Vec<_> = requests
                .iter_mut()
                .map(|request| {
                    let pos = request.offset();
                    ReadAt::new(&self.0.file, request.aligned_buf_mut(), pos)
                })
                .collect();
            queue.read_many(&mut reads);
            reads.into_iter().try_for_each(complete)
        })?
    }
}

/// Checks that a read has filled its whole memory.
fn complete(read: ReadAt<'_>) -> ANNResult<()> {
    let (pos, len) = (read.pos.0, read.buf.len());
    match read.result.map_err(ANNError::new)? {
        count if count == len => Ok(()),
        count => {
            let text = format!("the index ends after {count} of {len} bytes at {pos}");
            Err(ANNError::message(text))
        }
    }
}

thread_local! {
    /// The queues of this thread, each with the index that it reads. A queue is found by the address of its index. The weak reference keeps
    /// this address reserved, so no other index gets it.
    static QUEUES: RefCell<Vec<(Weak<Index>, Queue)>> = const { RefCell::new(Vec::new()) };
}

impl Index {
    /// Calls `read` with this thread's queue for the index. At the first call, the thread creates the queue. The queue is dropped when its
    /// thread ends. After the index was closed, the queue is also dropped when the thread creates another queue.
    fn with_queue<T>(self: &Arc<Self>, read: impl FnOnce(&mut Queue) -> T) -> ANNResult<T> {
        QUEUES.with_borrow_mut(|queues| {
            let is_own = |(index, _): &(Weak<Self>, _)| std::ptr::eq(index.as_ptr(), &**self);
            let at = match queues.iter().position(is_own) {
                Some(at) => at,
                None => {
                    queues.retain(|(index, _)| index.strong_count() > 0);
                    let queue = (self.queue)().map_err(ANNError::new)?;
                    queues.push((Arc::downgrade(self), queue));
                    queues.len() - 1
                }
            };
            Ok(read(&mut queues[at].1))
        })
    }
}
