//! Reads of ranges of an object.
//!
//! Each range is read in whole blocks into a separate buffer. Therefore no byte is copied after the device has written it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, iter};
use ironmap::{Buffer, File, Queue, ReadAt};
use ironmap_async::AsyncFile;

use crate::failure::Failure;

/// Positions and lengths of requests are multiples of this number of bytes. It suffices for every device with blocks of up to 4 KiB.
const BLOCK: u64 = 4096;
/// The length of the pieces into which a long range is split. All pieces are in flight at the same time.
const PIECE: usize = 256 << 10;
/// The number of bytes in one item of a stream, and the number of items that are read ahead.
const CHUNK: u64 = 1 << 20;
const AHEAD: usize = 3;

/// The blocks that contain a range.
struct Span {
    start: u64,
    len: usize,
    /// The byte offset of the range in these blocks.
    skip: usize,
    range: Range<u64>,
}

impl Span {
    /// An overflow is not possible: the range is within an object, so its end is far below the largest number.
    fn of(range: Range<u64>) -> Self {
        let start = range.start / BLOCK * BLOCK;
        let end = if range.is_empty() { start } else { range.end.next_multiple_of(BLOCK) };
        Self { start, len: (end - start) as usize, skip: (range.start - start) as usize, range }
    }

    /// Returns the bytes of the range. `count` bytes were read into `buffer`, from the start of the blocks that contain the range.
    fn bytes(&self, path: &str, buffer: Buffer, count: usize) -> Result<Bytes, Failure> {
        let wanted = (self.range.end - self.start) as usize;
        if self.range.is_empty() {
            return Ok(Bytes::new());
        }
        if count < wanted {
            return Err(Failure::ends_early(path, self.start + count as u64, self.range.end));
        }
        Ok(into_bytes(buffer).slice(self.skip..wanted))
    }
}

/// A buffer that is the memory of a [`Bytes`].
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Converts a buffer to [`Bytes`] without a copy.
pub(crate) fn into_bytes(buffer: Buffer) -> Bytes {
    Bytes::from_owner(Owned(buffer))
}

/// Reads all ranges of an object at the same time.
pub(crate) fn ranges(
    queue: &mut Queue,
    file: &File,
    path: &str,
    ranges: Vec<Range<u64>>,
) -> Result<Vec<Bytes>, Failure> {
    let spans: Vec<_> = ranges.into_iter().map(Span::of).collect();
    let buffers = spans.iter().map(|span| Buffer::aligned(span.len));
    let mut buffers = buffers.collect::<ironmap::Result<Vec<_>>>()?;
    let pieces = spans.iter().zip(&mut buffers).flat_map(|(span, buffer)| {
        let pieces = buffer.chunks_mut(PIECE).enumerate();
        pieces.map(|(at, piece)| ReadAt::new(file, piece, span.start + (at * PIECE) as u64))
    });
    let mut reads: Vec<_> = pieces.collect();
    queue.read_merged(&mut reads);
    let mut results = reads.into_iter().map(|read| read.result).collect::<Vec<_>>().into_iter();
    let spans = spans.into_iter().zip(buffers).map(|(span, buffer)| {
        let mut count = 0;
        for result in results.by_ref().take(buffer.len().div_ceil(PIECE)) {
            // One piece contains the end of the object, and the pieces after this piece are empty.
            count += result.map_err(|error| error.at(path))?;
        }
        span.bytes(path, buffer, count)
    });
    spans.collect()
}

/// Reads a range in chunks. Some chunks are read ahead.
pub(crate) fn stream(
    file: AsyncFile,
    path: Arc<str>,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes, Failure>> {
    let ends = (range.start / CHUNK + 1..=range.end.div_ceil(CHUNK)).map(move |end| end * CHUNK);
    let Range { mut start, end: last } = range;
    let chunks = ends.map(move |end| {
        let chunk = start..end.min(last);
        start = chunk.end;
        chunk
    });
    let read = move |chunk| {
        let (file, path) = (file.clone(), Arc::clone(&path));
        let span = Span::of(chunk);
        async move {
            let buffer = Buffer::aligned(span.len)?;
            let read = file.read_at(buffer, span.start).await;
            let (count, buffer) = read.map_err(|failed| failed.error.at(&path))?;
            span.bytes(&path, buffer, count)
        }
    };
    iter(chunks).map(read).buffered(AHEAD).boxed()
}
