//! Reads of ranges of an object.
//!
//! Ranges are read by whole blocks into memory that the answer owns, so no byte is copied after the device has written it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, iter};
use ironmap::Buffer;
use ironmap_async::{AsyncFile, Failed};

use crate::failure::Failure;

/// Positions and lengths of requests are multiples of this number of bytes, which suffices for every device with blocks of up to 4 KiB.
const BLOCK: u64 = 4096;
/// The bytes of a stream in one item, and the number of items that are read ahead. Ranges are joined to spans of at most so many bytes.
const CHUNK: u64 = 1 << 20;
const AHEAD: usize = 3;

/// Blocks that one request reads.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// The blocks that contain a range. The range is within an object, so its end is far below the largest number.
    fn of(range: &Range<u64>) -> Self {
        Self { start: range.start / BLOCK * BLOCK, end: range.end.next_multiple_of(BLOCK) }
    }

    /// One span of both, if the next one begins in this one or at its end, and the result is short.
    fn join(self, next: Self) -> Option<Self> {
        let joined = Self { start: self.start, end: self.end.max(next.end) };
        let touches = (self.start..=self.end).contains(&next.start);
        (touches && joined.end - joined.start <= CHUNK).then_some(joined)
    }

    fn buffer(self) -> ironmap::Result<Buffer> {
        Buffer::aligned((self.end - self.start) as usize)
    }

    /// The bytes of the span that were read.
    fn filled(self, path: &str, read: Result<(usize, Buffer), Failed>) -> Result<Filled, Failure> {
        let (count, buffer) = read.map_err(|failed| failed.error.at(path))?;
        Ok(Filled { start: self.start, bytes: into_bytes(buffer).slice(..count) })
    }
}

/// The bytes of a span.
struct Filled {
    start: u64,
    bytes: Bytes,
}

impl Filled {
    /// The bytes of a range of the span.
    fn range(&self, path: &str, range: &Range<u64>) -> Result<Bytes, Failure> {
        let end = self.start + self.bytes.len() as u64;
        if end < range.end {
            return Err(Failure::ends_early(path, end, range.end));
        }
        let within = |pos| (pos - self.start) as usize;
        Ok(self.bytes.slice(within(range.start)..within(range.end)))
    }
}

/// A buffer as the memory of [`Bytes`].
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of a buffer, without a copy.
pub(crate) fn into_bytes(buffer: Buffer) -> Bytes {
    Bytes::from_owner(Owned(buffer))
}

/// Reads all ranges, in flight together. Ranges that follow each other in the list and touch are read by one request.
pub(crate) async fn ranges(
    file: &AsyncFile,
    path: &str,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>, Failure> {
    let mut spans: Vec<Span> = Vec::new();
    // The number of the span that contains each range. An empty range needs none.
    let mut places = Vec::with_capacity(ranges.len());
    for range in ranges {
        if range.is_empty() {
            places.push(None);
            continue;
        }
        let span = Span::of(range);
        match spans.last_mut().and_then(|last| Some((last.join(span)?, last))) {
            Some((joined, last)) => *last = joined,
            None => spans.push(span),
        }
        places.push(Some(spans.len() - 1));
    }
    let requests = spans.iter().map(|span| Ok((span.start.into(), span.buffer()?)));
    let reads = file.read_ranges(requests.collect::<ironmap::Result<_>>()?).await;
    let filled = spans.iter().zip(reads).map(|(span, read)| span.filled(path, read));
    let filled = filled.collect::<Result<Vec<_>, _>>()?;
    let answers = ranges.iter().zip(places).map(|(range, place)| match place {
        Some(place) => filled[place].range(path, range),
        None => Ok(Bytes::new()),
    });
    answers.collect()
}

/// Reads a range in chunks, some of which are read ahead.
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
    let read = move |chunk: Range<u64>| {
        let (file, path) = (file.clone(), Arc::clone(&path));
        async move {
            let span = Span::of(&chunk);
            let read = file.read_at(span.buffer()?, span.start).await;
            span.filled(&path, read)?.range(&path, &chunk)
        }
    };
    iter(chunks).map(read).buffered(AHEAD).boxed()
}
