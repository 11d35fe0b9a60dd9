//! A file with a position that advances. It implements tokio's traits for reading and writing.

use std::io::{Error, ErrorKind, Result, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ironmap::{Buffer, DioFlags};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::file::{AsyncFile, Transferred};
use crate::promise::Answer;

/// The length of the buffer of a stream.
const BUFFER: usize = 256 << 10;

/// A file with a position. It implements tokio's `AsyncRead`, `AsyncSeek` and `AsyncWrite`. A read fetches up to 256 KiB into a buffer,
/// which serves later reads. A write returns as soon as its data are copied. A flush waits until the last write is carried out, and then
/// syncs the file.
pub struct Stream {
    file: AsyncFile,
    pos: u64,
    state: State,
}

enum State {
    Idle(Option<Buffer>),
    /// The buffer contains bytes of the file, beginning at the position.
    Read {
        buffer: Buffer,
        from: usize,
        to: usize,
    },
    Reading(Answer<Transferred>),
    Writing(Answer<Transferred>, usize),
    Syncing(Answer<ironmap::Result<()>>),
}

impl Stream {
    /// Creates a stream whose position is the start of the file.
    #[must_use]
    pub fn new(file: AsyncFile) -> Self {
        Self { file, pos: 0, state: State::Idle(None) }
    }

    /// Waits until no request is in flight. Afterwards the state is `Idle` or `Read`.
    fn settle(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.state {
            State::Idle(_) | State::Read { .. } => Poll::Ready(Ok(())),
            State::Reading(answer) => match ready!(Pin::new(answer).poll(context)) {
                Ok((to, buffer)) => {
                    self.state = State::Read { buffer, from: 0, to };
                    Poll::Ready(Ok(()))
                }
                Err(failed) => {
                    self.state = State::Idle(failed.buffer);
                    Poll::Ready(Err(failed.error.into()))
                }
            },
            State::Writing(answer, len) => match ready!(Pin::new(answer).poll(context)) {
                Ok((count, buffer)) => {
                    let whole = count == *len;
                    self.state = State::Idle(Some(buffer));
                    let full = || Error::new(ErrorKind::StorageFull, "the volume is full");
                    Poll::Ready(if whole { Ok(()) } else { Err(full()) })
                }
                Err(failed) => {
                    self.state = State::Idle(failed.buffer);
                    Poll::Ready(Err(failed.error.into()))
                }
            },
            State::Syncing(answer) => {
                let synced = ready!(Pin::new(answer).poll(context));
                self.state = State::Idle(None);
                Poll::Ready(synced.map_err(Into::into))
            }
        }
    }

    /// Takes the buffer out of the state. Unread bytes in it are lost.
    fn buffer(&mut self) -> Result<Buffer> {
        let kept = match std::mem::replace(&mut self.state, State::Idle(None)) {
            State::Idle(buffer) => buffer,
            State::Read { buffer, .. } => Some(buffer),
            _ => None,
        };
        match kept.filter(|buffer| buffer.len() == BUFFER) {
            Some(buffer) => Ok(buffer),
            None => Buffer::aligned(BUFFER).map_err(Into::into),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        loop {
            ready!(self.settle(context))?;
            let this = &mut *self;
            if let State::Read { buffer, from, to } = &mut this.state {
                let count = into.remaining().min(*to - *from);
                if count > 0 || *to < BUFFER {
                    into.put_slice(&buffer[*from..*from + count]);
                    *from += count;
                    this.pos += count as u64;
                    // A short read means that the file ends here. A later read tries again, because the file may have grown.
                    if *from == *to {
                        let buffer = this.buffer()?;
                        this.state = State::Idle(Some(buffer));
                    }
                    return Poll::Ready(Ok(()));
                }
            }
            if into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let buffer = this.buffer()?;
            this.state = State::Reading(this.file.read_at(buffer, this.pos));
        }
    }
}

impl AsyncSeek for Stream {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> Result<()> {
        let place = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::Current(distance) => self.pos.checked_add_signed(distance),
            SeekFrom::End(distance) => self.file.file().size().checked_add_signed(distance),
        };
        let place = place
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a position before the start"))?;
        if let State::Read { .. } = self.state {
            let buffer = self.buffer()?;
            self.state = State::Idle(Some(buffer));
        }
        self.pos = place;
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        ready!(self.settle(context))?;
        Poll::Ready(Ok(self.pos))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        ready!(self.settle(context))?;
        let count = bytes.len().min(BUFFER);
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut buffer = self.buffer()?;
        buffer[..count].copy_from_slice(&bytes[..count]);
        if count < BUFFER {
            // A request always writes its whole buffer, so a shorter write needs a buffer of its own length.
            let mut short = Buffer::aligned(count)?;
            short.copy_from_slice(&buffer[..count]);
            buffer = short;
        }
        let answer = self.file.write_at(buffer, self.pos, DioFlags::empty());
        self.state = State::Writing(answer, count);
        self.pos += count as u64;
        Poll::Ready(Ok(count))
    }

    /// Waits for the last write, and then makes all completed writes durable.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            let syncs = matches!(self.state, State::Syncing(_));
            ready!(self.settle(context))?;
            if syncs {
                return Poll::Ready(Ok(()));
            }
            self.state = State::Syncing(self.file.sync_data());
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_flush(context)
    }
}
