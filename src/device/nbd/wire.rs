//! The messages of NBD as bytes. Numbers are big-endian. The source is doc/proto.md of the NBD project.

use crate::error::Errno;

/// The first eight bytes that a server sends.
pub(super) const SERVER_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// The next eight bytes that a server with newstyle negotiation sends. Each option also begins with these bytes.
pub(super) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// The first eight bytes of a reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;

/// The flags of the server's greeting, and of the client's answer.
pub(super) const FIXED_NEWSTYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;

/// Options of the negotiation.
pub(super) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub(super) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    /// The bit that marks a reply type as an error.
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const UNSUPPORTED: u32 = ERROR + 1;
    pub(crate) const POLICY: u32 = ERROR + 2;
    pub(crate) const INVALID: u32 = ERROR + 3;
    pub(crate) const TLS_REQUIRED: u32 = ERROR + 5;
    pub(crate) const UNKNOWN: u32 = ERROR + 6;
    pub(crate) const SHUTDOWN: u32 = ERROR + 7;
    pub(crate) const BLOCK_SIZE_REQUIRED: u32 = ERROR + 8;
}

/// Kinds of information about an export.
pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// The metadata context that reports which ranges of an export contain data, and which are zeros.
pub(super) const ALLOCATION: &str = "base:allocation";
/// The bit of the context `base:allocation` for a range of zeros.
pub(super) const READS_AS_ZEROS: u64 = 1 << 1;

bitflags::bitflags! {
    /// The capabilities of an export.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct ExportFlags: u16 {
        const HAS_FLAGS = 1 << 0;
        const READ_ONLY = 1 << 1;
        const SEND_FLUSH = 1 << 2;
        const SEND_FUA = 1 << 3;
        const SEND_TRIM = 1 << 5;
        const SEND_WRITE_ZEROES = 1 << 6;
        const CAN_MULTI_CONN = 1 << 8;
        const SEND_FAST_ZERO = 1 << 11;
        /// The capabilities that an export must still have after a reconnection, because requests may use them.
        const ABILITIES = Self::SEND_FLUSH.bits() | Self::SEND_FUA.bits() | Self::SEND_TRIM.bits()
            | Self::SEND_WRITE_ZEROES.bits() | Self::SEND_FAST_ZERO.bits() | Self::CAN_MULTI_CONN.bits();
        const _ = !0;
    }
}

/// A command to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
    BlockStatus = 7,
}

impl Command {
    /// Whether the command changes the content of the export.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }

    /// Whether the command leaves the export unchanged. Such a command can be sent again after a lost connection.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, Self::Read | Self::BlockStatus)
    }
}

/// The flag of a durable write. The server answers after the data are durable.
pub(super) const FUA: u16 = 1;
/// The flag of a request that zeros must be written fast. If writing the zeros would not be faster than writing data, the server refuses
/// the request with EOPNOTSUPP.
pub(super) const FAST_ZERO: u16 = 1 << 4;

/// The flag that limits the answer to a request for block status to one extent.
pub(super) const REQ_ONE: u16 = 1 << 3;
/// The number of bytes that the client stores for each extent of block status: the extent's length and the context bits, both big-endian.
pub(super) const STATUS: usize = 16;

/// The form of requests and replies that the client and the server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    /// Simple replies: each reply has one part.
    Simple,
    /// Structured replies: the reply to a read has several parts (chunks), and holes are not transferred.
    Structured,
    /// Extended replies: structured replies with lengths of 64 bits.
    Extended,
}

/// The longest header of a request.
pub(super) const REQUEST_MAX: usize = 32;

impl Headers {
    /// The header of a request.
    pub(super) fn request(
        self,
        command: Command,
        flags: u16,
        cookie: u64,
        at: u64,
        len: u32,
    ) -> ([u8; REQUEST_MAX], usize) {
        let (magic, end) = match self {
            Self::Simple | Self::Structured => (0x2560_9513_u32, 28),
            Self::Extended => (0x21E4_1C71, 32),
        };
        // With extended headers, a flag marks each request that carries data.
        let has_data = self == Self::Extended && command == Command::Write;
        let flags = if has_data { flags | 1 << 5 } else { flags };
        let mut bytes = [0; REQUEST_MAX];
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&at.to_be_bytes());
        if self == Self::Extended {
            bytes[24..32].copy_from_slice(&u64::from(len).to_be_bytes());
        } else {
            bytes[24..28].copy_from_slice(&len.to_be_bytes());
        }
        (bytes, end)
    }
}

/// The header of a reply, or of a part (chunk) of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) cookie: u64,
    pub(super) kind: ReplyKind,
    /// The number of bytes of content after the header. This number does not include the data in a simple reply to a read.
    pub(super) len: u64,
    /// Whether this part is the last part of the reply.
    pub(super) is_last: bool,
}

/// The content of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// The content is the complete reply. After a successful read, the data follow.
    Simple(Result<(), Errno>),
    /// An empty part.
    None,
    /// A position, and data.
    Data,
    /// A position, and the length of a range of zeros.
    Hole,
    /// The number of a context, and extents. Each extent consists of a length and flags, with 32 bits each.
    Status,
    /// The number of a context, the number of extents, and the extents. Each extent consists of a length and flags, with 64 bits each.
    WideStatus,
    /// An error, with a message.
    Error,
}

/// Chunk types starting at this number are errors.
const CHUNK_ERROR: u16 = 1 << 15;

impl Reply {
    /// Parses the header at the beginning of `bytes`. Returns the header and its length; `None` if the header is incomplete.
    ///
    /// # Errors
    /// The protocol rule that the header violates.
    pub(super) fn parse(
        headers: Headers,
        bytes: &[u8],
    ) -> Result<Option<(Self, usize)>, &'static str> {
        let Some(magic) = bytes.first_chunk().map(|magic| u32::from_be_bytes(*magic)) else {
            return Ok(None);
        };
        let (len, chunked) = match (magic, headers) {
            (0x6744_6698, Headers::Simple | Headers::Structured) => (16, false),
            (0x668E_33EF, Headers::Structured) => (20, true),
            (0x6E8A_278C, Headers::Extended) => (32, true),
            _ => return Err("the magic number of a reply is wrong"),
        };
        if bytes.len() < len {
            return Ok(None);
        }
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let cookie = word(8);
        if !chunked {
            let error = (word(4) >> 32) as u32;
            let result = if error == 0 { Ok(()) } else { Err(errno(error)) };
            let kind = ReplyKind::Simple(result);
            return Ok(Some((Self { cookie, kind, len: 0, is_last: true }, len)));
        }
        let (flags, kind) = ((word(0) >> 16) as u16, word(0) as u16);
        let kind = match kind {
            0 => ReplyKind::None,
            1 => ReplyKind::Data,
            2 => ReplyKind::Hole,
            5 => ReplyKind::Status,
            6 => ReplyKind::WideStatus,
            CHUNK_ERROR.. => ReplyKind::Error,
            _ => return Err("a chunk of a reply has an unknown type"),
        };
        let follows = if len == 32 { word(24) } else { word(12) & 0xFFFF_FFFF };
        Ok(Some((Self { cookie, kind, len: follows, is_last: flags & 1 != 0 }, len)))
    }
}

/// The errno that announces the server's shutdown.
pub(super) const ESHUTDOWN: Errno = Errno(108);

/// Converts an error number of the protocol to an errno. The protocol uses Linux's numbers.
pub(super) fn errno(number: u32) -> Errno {
    match number {
        1 => Errno::EPERM,
        12 => Errno::ENOMEM,
        22 => Errno::EINVAL,
        28 => Errno::ENOSPC,
        75 => Errno::EOVERFLOW,
        95 => Errno::EOPNOTSUPP,
        108 => ESHUTDOWN,
        _ => Errno::EIO,
    }
}
