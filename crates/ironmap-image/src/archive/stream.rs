//! The decompressed bytes of an archive. The first bytes show the compression.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use flate2::bufread::GzDecoder;
use rustix::fs::OFlags;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::stop::Stop;

/// The number of bytes of one read from a file or a pipe.
const BUFFER: usize = 256 << 10;

/// The first bytes of compressed files: gzip (RFC 1952), zstd (RFC 8878), and formats that are recognised but not supported.
const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
const ZSTD_SKIPPED: &[u8] = &[0x2A, 0x4D, 0x18];
const UNREAD: [(&[u8], &str); 4] = [
    (b"\xFD7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"LZIP", "lzip"),
    (&[0x04, 0x22, 0x4D, 0x18], "lz4"),
];

/// The decompressed bytes of an archive.
pub(super) enum Stream {
    /// An uncompressed file. A skip seeks instead of reading.
    Plain(BufReader<Input>),
    Packed(Box<dyn Read + Send>),
}

impl Stream {
    /// Skips `len` bytes, or fewer if the stream ends earlier. Returns the number of skipped bytes.
    pub(super) fn skip(&mut self, len: u64) -> io::Result<u64> {
        match self {
            Self::Plain(source) => {
                let left = source.get_ref().left().saturating_add(source.buffer().len() as u64);
                let len = len.min(left).min(i64::MAX as u64);
                source.seek_relative(len as i64).map(|()| len)
            }
            Self::Packed(source) => io::copy(&mut source.take(len), &mut io::sink()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(source) => source.read(bytes),
            Self::Packed(source) => source.read(bytes),
        }
    }
}

/// The decompressed content of a file or a pipe.
pub(super) fn open(input: Input) -> io::Result<Stream> {
    let seeks = input.end.is_some();
    let mut source = BufReader::with_capacity(BUFFER, input);
    if seeks && is_plain(source.fill_buf()?) {
        return Ok(Stream::Plain(source));
    }
    unpacked(source).map(Stream::Packed)
}

/// The decompressed bytes of a file.
pub(crate) fn decompressed(input: Input) -> io::Result<Box<dyn Read + Send>> {
    unpacked(BufReader::with_capacity(BUFFER, input))
}

fn is_plain(head: &[u8]) -> bool {
    let packed = UNREAD.iter().map(|(magic, _)| *magic).chain([GZIP, ZSTD]);
    !packed.into_iter().any(|magic| head.starts_with(magic)) && !is_skipped_frame(head)
}

/// Whether these bytes begin a skippable frame of zstd.
fn is_skipped_frame(head: &[u8]) -> bool {
    head.get(1..4) == Some(ZSTD_SKIPPED) && head[0] & 0xF0 == 0x50
}

fn unpacked(mut source: BufReader<impl Read + Send + 'static>) -> io::Result<Box<dyn Read + Send>> {
    // A read from a pipe may be short, so this code repeats reads until the first block is complete. A file shorter than a block is not a
    // tar archive.
    let mut head = Vec::new();
    (&mut source).take(512).read_to_end(&mut head)?;
    let begins = |magic: &[u8]| head.starts_with(magic);
    let kind = UNREAD.iter().find(|(magic, _)| begins(magic));
    if let Some((_, name)) = kind {
        let what = format!(
            "the archive is compressed with {name}, which is not supported: decompress the archive first"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let (gzip, zstd) = (begins(GZIP), begins(ZSTD) || is_skipped_frame(&head));
    let source = BufReader::with_capacity(BUFFER, io::Cursor::new(head).chain(source));
    Ok(if gzip {
        Box::new(Gzip { decoder: Some(GzDecoder::new(source)) })
    } else if zstd {
        Box::new(Zstd { source, decoder: FrameDecoder::new() })
    } else {
        Box::new(source)
    })
}

/// A file. A signal interrupts its reads, even while they wait for data.
pub(crate) struct Input {
    file: File,
    /// The request to stop. It is set only for a file whose reads may wait for data.
    waits: Option<Stop>,
    /// Whether the open file has other readers. If so, reads do not use the position of the descriptor.
    is_shared: bool,
    at: u64,
    /// The end of the bytes to read, if the file can be read at any position.
    end: Option<u64>,
}

impl Input {
    pub(crate) fn new(mut file: File, stop: &Stop) -> Self {
        let Ok(at) = file.stream_position() else {
            return Self { file, waits: Some(stop.clone()), is_shared: false, at: 0, end: None };
        };
        let kind = file.metadata().map(|found| found.file_type());
        let ends = kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device());
        let end = ends.then(|| file.seek(SeekFrom::End(0)).ok()).flatten();
        // Files of /proc report a size of 0, so this size must not limit the reads.
        let end = end.filter(|end| *end > 0 && file.seek(SeekFrom::Start(at)).is_ok());
        Self { file, waits: None, is_shared: false, at, end }
    }

    /// Opens the range of `len` bytes at position `at` of a file.
    pub(crate) fn part(path: &Path, at: u64, len: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(at))?;
        let end = Some(at.saturating_add(len));
        Ok(Self { file, waits: None, is_shared: false, at, end })
    }

    /// Reads `len` bytes from position `at` of an open file, which may have other readers.
    pub(crate) fn shared(file: &File, at: u64, len: u64) -> io::Result<Self> {
        let (file, end) = (file.try_clone()?, Some(at.saturating_add(len)));
        Ok(Self { file, waits: None, is_shared: true, at, end })
    }

    fn left(&self) -> u64 {
        self.end.map_or(u64::MAX, |end| end.saturating_sub(self.at))
    }

    /// Opens a file. The open does not wait for a writer of a FIFO.
    pub(crate) fn open(path: &Path, stop: &Stop) -> io::Result<Self> {
        let mut options = File::options();
        if path.metadata()?.file_type().is_fifo() {
            options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        }
        options.read(true).open(path).map(|file| Self::new(file, stop))
    }

    pub(crate) fn stdin(stop: &Stop) -> io::Result<Self> {
        let stdin = rustix::io::dup(rustix::stdio::stdin())?;
        Ok(Self::new(File::from(stdin), stop))
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.is_shared {
            let at = match to {
                SeekFrom::Start(at) => Some(at),
                SeekFrom::Current(by) => self.at.checked_add_signed(by),
                SeekFrom::End(by) => self.end.unwrap_or(0).checked_add_signed(by),
            };
            self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        } else {
            self.at = self.file.seek(to)?;
        }
        Ok(self.at)
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = self.left().min(bytes.len() as u64) as usize;
        let bytes = &mut bytes[..most];
        while let Some(stop) = &self.waits {
            stop.wait(&self.file, || true).map_err(|_| io::Error::other("interrupted"))?;
            match self.file.read(bytes) {
                // Another process has read the available bytes, so this read waits again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
        let count = if self.is_shared {
            self.file.read_at(bytes, self.at)?
        } else {
            self.file.read(bytes)?
        };
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads the members of a gzip file in order. Like gzip(1), ignores zeros after the last member, because tapes pad their blocks with zeros.
struct Gzip<R> {
    /// The decoder of the current member. It is `None` only during a read.
    decoder: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let count = decoder.read(bytes)?;
            if count > 0 || bytes.is_empty() || !has_member(decoder.get_mut())? {
                return Ok(count);
            }
            let ended = self.decoder.take();
            self.decoder = ended.map(|decoder| GzDecoder::new(decoder.into_inner()));
        }
        Ok(0)
    }
}

/// Whether another gzip member follows. Zeros up to the end of the file are skipped.
///
/// # Errors
/// Fails if other bytes follow. gzip(1) ignores such bytes with a warning, and tar(1) fails.
fn has_member(source: &mut impl BufRead) -> io::Result<bool> {
    let mut padded = false;
    loop {
        let bytes = source.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        if zeros < bytes.len() {
            let begins = bytes.len().min(GZIP.len());
            let member = !padded && bytes[..begins] == GZIP[..begins];
            return if member { Ok(true) } else { Err(trailing("gzip", "member")) };
        }
        if zeros == 0 {
            return Ok(false);
        }
        padded = true;
        source.consume(zeros);
    }
}

/// The error for bytes after the end of a complete stream.
fn trailing(format: &str, part: &str) -> io::Error {
    io::Error::other(format!(
        "{format}: trailing bytes follow the last {part}: remove these bytes, or use the output of {format} -dc"
    ))
}

/// Reads the frames of a zstd file in order. Skippable frames are skipped.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let Self { source, decoder } = self;
            let count = decoder.read(bytes)?;
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            if !decoder.is_finished() {
                let decoded = decoder.decode_blocks(source, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(failed)?;
            } else if decoder.can_collect() == 0 && !self.next_frame()? {
                return Ok(0);
            }
        }
    }
}

impl<R: BufRead> Zstd<R> {
    /// Ends a frame, and begins the next frame if there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        let Self { source, decoder } = self;
        if let Some(written) = decoder.get_checksum_from_data()
            && decoder.get_calculated_checksum() != Some(written)
        {
            return Err(failed("the checksum of a frame is wrong"));
        }
        *decoder = FrameDecoder::new();
        if source.fill_buf()?.is_empty() {
            return Ok(false);
        }
        match decoder.init(&mut *source) {
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                io::copy(&mut source.take(length.into()), &mut io::sink())?;
            }
            Err(FrameDecoderError::ReadFrameHeaderError(
                ReadFrameHeaderError::BadMagicNumber(_)
                | ReadFrameHeaderError::MagicNumberReadError(_),
            )) => return Err(trailing("zstd", "frame")),
            begun => begun.map_err(failed)?,
        }
        Ok(true)
    }
}

fn failed(error: impl Display) -> io::Error {
    io::Error::other(format!("zstd: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        let mut stream = unpacked(BufReader::new(io::Cursor::new(bytes)))?;
        stream.read_to_end(&mut found).map(|_| found)
    }

    /// Consecutive gzip members form one stream. Only zeros may follow the last member, and gzip(1) ignores them.
    #[test]
    fn zeros_past_the_last_member_of_gzip_are_ignored() {
        let member = |text: &[u8]| {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            io::Write::write_all(&mut encoder, text).unwrap();
            encoder.finish().unwrap()
        };
        let all = [member(&[1; 300_000]), member(b"two")].concat();
        let expected = [&[1; 300_000], &b"two"[..]].concat();
        for zeros in [0, 1, 2, 600_000] {
            assert_eq!(read([&all[..], &vec![0; zeros]].concat()).unwrap(), expected, "{zeros}");
        }
        assert!(read(all[..all.len() - 1].to_vec()).is_err());
    }

    /// If any bytes follow a complete stream, the error mentions trailing bytes. The error for a truncated stream does not mention them.
    #[test]
    fn trailing_bytes_are_no_truncation() {
        let level = flate2::Compression::fast();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        io::Write::write_all(&mut encoder, b"text").unwrap();
        let gzip = encoder.finish().unwrap();
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(&b"text"[..], level);
        for (stream, magic) in [(&gzip, GZIP), (&zstd, ZSTD)] {
            for bytes in [&b"x"[..], b"garbage\n", &[0, 0, 1], &[0x1F, 0x8C], &[b'x'; 600_000]] {
                let error = read([stream, bytes].concat()).unwrap_err();
                assert!(error.to_string().contains("trailing bytes"), "{bytes:?}: {error}");
            }
            for cut in [&stream[..stream.len() - 1], &[stream, magic].concat()] {
                let error = read(cut.to_vec()).unwrap_err();
                assert!(!error.to_string().contains("trailing bytes"), "{error}");
            }
        }
    }

    /// Consecutive frames form one stream, even with skippable frames between them. A truncated frame is an error.
    #[test]
    fn all_frames_are_read() {
        let frame = |text: &[u8]| {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            ruzstd::encoding::compress_to_vec(text, level)
        };
        let skipped = [&[0x5A, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let (one, two) = (vec![1; 300_000], b"two".to_vec());
        let all = [&skipped, &frame(&one), &skipped, &frame(&two)].map(Vec::as_slice).concat();
        assert_eq!(read(all.clone()).unwrap(), [one, two].concat());
        assert!(read(all[..all.len() - 1].to_vec()).is_err());
    }
}
