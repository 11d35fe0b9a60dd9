//! Reads a disk index of DiskANN by ironmap: a [`ReaderFactory`] is the `AlignedReaderFactory` that a `DiskVertexProviderFactory` takes.

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

/// The number of reads that a queue can have in flight. DiskANN's batches have as many reads as its beam is wide, usually 4.
const DEPTH: u32 = 64;

/// Makes readers of one index: a file of a [`Volume`](ironmap::Volume), or of a mounted file system by a [`Host`](ironmap::Host).
#[derive(Clone, Debug)]
pub struct ReaderFactory(Arc<Index>);

/// An index, and the maker of queues to it.
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
    /// Creates a factory for a file that was opened by `files`.
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

/// Reads batches of an index. DiskANN passes a reader from thread to thread, and a queue belongs to one thread. So the queues are not in
/// the readers: each thread has one for each index that it reads.
#[derive(Debug)]
pub struct Reader(Arc<Index>);

impl AlignedFileReader for Reader {
    type Alignment = A512;

    /// Carries out all reads, in flight together.
    ///
    /// # Errors
    /// The errors of [`File::read_at`] and of the creation of a queue; an error if the file ends within a read.
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

/// Checks that a read has filled its memory.
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
    /// The queues of this thread. The address of an index stays unique as long as there is a reference to it, even a weak one.
    static QUEUES: RefCell<Vec<(Weak<Index>, Queue)>> = const { RefCell::new(Vec::new()) };
}

impl Index {
    /// Calls `read` with this thread's queue to the index. The thread creates its queue at the first call. A queue is dropped when its
    /// thread ends, or when the thread creates another queue after the index was closed.
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
