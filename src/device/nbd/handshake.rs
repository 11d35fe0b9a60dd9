//! Negotiates a connection with a server: the size and the capabilities of an export, and the form of replies.

use std::io;
use std::time::Instant;

use super::SECTOR;
use super::stream::Socket;
use super::tls::Client;
use super::wire::{
    ALLOCATION, ExportFlags, FIXED_NEWSTYLE, Headers, INFO_BLOCK_SIZE, INFO_EXPORT, NO_ZEROES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, SERVER_MAGIC, option, option_reply,
};
use crate::error::{Errno, Error, ErrorKind, Result};

/// The longest reply to an option.
const MAX_REPLY: usize = 64 << 10;
/// The largest number of replies to one option.
const MAX_REPLIES: usize = 64;

/// An export as its server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) size: u64,
    pub(super) flags: ExportFlags,
    pub(super) blocks: Blocks,
    pub(super) headers: Headers,
    /// The number of the metadata context that reports which ranges of the export are zeros. `None` if the server does not support this
    /// context.
    pub(super) allocation: Option<u32>,
}

/// The request sizes that the server permits or prefers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) minimum: u32,
    pub(super) preferred: u32,
    pub(super) maximum: u32,
}

impl Blocks {
    /// The sizes for a server that does not report any. The protocol defines these sizes.
    const UNSAID: Self = Self { minimum: 1, preferred: 4096, maximum: 32 << 20 };

    fn check(self) -> Result<Self> {
        let Self { minimum, preferred, maximum } = self;
        let sound = minimum.is_power_of_two()
            && minimum <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= minimum
            && maximum >= preferred;
        if sound && maximum < SECTOR {
            let what = format!("the server does not accept requests of {SECTOR} bytes");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if sound {
            return Ok(self);
        }
        let sizes = format!("{minimum}, {preferred}, {maximum}");
        Err(broken(format!(
            "the minimum, preferred and maximum block sizes are not valid: {sizes}"
        )))
    }
}

fn broken(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Corrupt, text).context("the server violates the NBD protocol")
}

fn failed(error: &io::Error) -> Error {
    if let Some(cause) = error.get_ref() {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            io::ErrorKind::InvalidData => ErrorKind::Corrupt,
            _ => ErrorKind::Io(Errno(104)),
        };
        return Error::new(kind, cause.to_string());
    }
    let errno = error.raw_os_error().map_or_else(
        || match error.kind() {
            io::ErrorKind::TimedOut => Errno(110),
            io::ErrorKind::UnexpectedEof => Errno(104),
            _ => Errno::EIO,
        },
        Errno,
    );
    let place = if error.kind() == io::ErrorKind::UnexpectedEof {
        "the server closed the connection during the negotiation"
    } else {
        "negotiation"
    };
    Error::io(errno, place)
}

/// The client's end of a negotiation.
struct Talk<'a> {
    socket: &'a Socket,
    until: Instant,
}

impl Talk<'_> {
    fn bytes<const N: usize>(&self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.receive_all(&mut bytes, self.until).map_err(|error| failed(&error))?;
        Ok(bytes)
    }

    fn u16(&self) -> Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&self) -> Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&self) -> Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.socket.send_all(bytes, self.until).map_err(|error| failed(&error))
    }

    fn ask(&self, option: u32, data: &[u8]) -> Result<()> {
        let len = data.len() as u32;
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes()];
        self.send(&[head.concat(), data.to_vec()].concat())
    }

    /// Receives the next reply to an option: its type and its content.
    fn reply(&self, option: u32) -> Result<(u32, Vec<u8>)> {
        let (magic, answers) = (self.u64()?, self.u32()?);
        if magic != OPTION_REPLY_MAGIC || answers != option {
            return Err(broken(format!(
                "a reply to option {option} has a wrong magic number, or belongs to another option"
            )));
        }
        let (kind, len) = (self.u32()?, self.u32()? as usize);
        if len > MAX_REPLY {
            return Err(broken(format!("a reply to an option is too long: {len} bytes")));
        }
        let mut content = vec![0; len];
        self.socket.receive_all(&mut content, self.until).map_err(|error| failed(&error))?;
        Ok((kind, content))
    }

    /// Sends an option without content. Returns whether the server agrees to the option.
    fn agrees(&self, option: u32) -> Result<bool> {
        self.ask(option, &[])?;
        Ok(self.reply(option)?.0 == option_reply::ACK)
    }
}

/// Negotiates with a server on a new connection. If `tls` is set, TLS begins before all other options. Returns the socket that the caller
/// must use from then on.
///
/// # Errors
/// `NotFound` if the server has no such export; `NotPermitted` or `Unsupported` if the server refuses, or if its certificate is refused;
/// `Corrupt` for a server that violates the protocol; `Io`.
pub(super) fn negotiate(
    mut socket: Socket,
    name: &str,
    tls: Option<Client>,
    until: Instant,
) -> Result<(Socket, Export)> {
    let greeting = greet(&Talk { socket: &socket, until })?;
    if let Some(client) = tls {
        // TLS is negotiated before all other options, because answers of an unauthenticated server must not be used.
        start_tls(&Talk { socket: &socket, until })?;
        socket = client.start(socket, until).map_err(|error| failed(&error))?;
    }
    let talk = Talk { socket: &socket, until };
    let headers = if talk.agrees(option::EXTENDED_HEADERS)? {
        Headers::Extended
    } else if talk.agrees(option::STRUCTURED_REPLY)? {
        Headers::Structured
    } else {
        Headers::Simple
    };
    let allocation = match headers {
        Headers::Simple => None,
        _ => choose_allocation(&talk, name)?,
    };
    let export = match go(&talk, name, headers)? {
        Some(export) => export,
        None => by_name(&talk, name, headers, greeting & NO_ZEROES == 0)?,
    };
    Ok((socket, Export { allocation, ..export }))
}

/// Requests the metadata context that reports which ranges of the export are zeros. Returns the number of the context, or `None` if the
/// server does not support it.
fn choose_allocation(talk: &Talk<'_>, name: &str) -> Result<Option<u32>> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let one = 1u32.to_be_bytes();
    let content = [&text(name)[..], &one, &text(ALLOCATION)].concat();
    talk.ask(option::SET_META_CONTEXT, &content)?;
    let mut chosen = None;
    for _ in 0..MAX_REPLIES {
        let (kind, content) = talk.reply(option::SET_META_CONTEXT)?;
        match kind {
            option_reply::ACK => return Ok(chosen),
            option_reply::META_CONTEXT => {
                let number = content.split_first_chunk();
                let number = number.filter(|(_, name)| *name == ALLOCATION.as_bytes());
                chosen = number.map(|(number, _)| u32::from_be_bytes(*number)).or(chosen);
            }
            // The code ignores an error that concerns the export, because the later selection of the export returns the same error.
            kind if kind & option_reply::ERROR != 0 => return Ok(None),
            kind => {
                return Err(broken(format!("a reply to an option has the unknown type {kind}")));
            }
        }
    }
    Err(broken("the server sends too many replies about metadata contexts"))
}

/// Exchanges the greetings. Returns the server's flags.
fn greet(talk: &Talk<'_>) -> Result<u16> {
    if talk.u64()? != SERVER_MAGIC {
        return Err(broken("the greeting of the server is not an NBD greeting"));
    }
    if talk.u64()? != OPTION_MAGIC {
        let what = "the server uses oldstyle negotiation, which is not supported";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let greeting = talk.u16()?;
    if greeting & FIXED_NEWSTYLE == 0 {
        let what = "the server does not support fixed newstyle negotiation";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    talk.send(&u32::from(greeting & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())?;
    Ok(greeting)
}

/// Requests TLS. Fails if the server does not support TLS.
fn start_tls(talk: &Talk<'_>) -> Result<()> {
    talk.ask(option::STARTTLS, &[])?;
    let (kind, content) = talk.reply(option::STARTTLS)?;
    match kind {
        option_reply::ACK if content.is_empty() => Ok(()),
        option_reply::ACK => Err(broken("the server's reply to STARTTLS has content")),
        option_reply::UNSUPPORTED | option_reply::POLICY | option_reply::INVALID => {
            let text =
                with_text("the server does not offer TLS, but nbds:// requires TLS", &content);
            Err(Error::new(ErrorKind::Unsupported, text))
        }
        kind => Err(refused(kind, "", &content)),
    }
}

/// Selects the export with the option `GO`, which is newer than `EXPORT_NAME`. Returns `None` if the server does not support this option.
fn go(talk: &Talk<'_>, name: &str, headers: Headers) -> Result<Option<Export>> {
    let len = name.len() as u32;
    let asked = [&1u16.to_be_bytes()[..], &INFO_BLOCK_SIZE.to_be_bytes()].concat();
    talk.ask(option::GO, &[&len.to_be_bytes()[..], name.as_bytes(), &asked].concat())?;
    let (mut export, mut blocks) = (None, Blocks::UNSAID);
    for _ in 0..MAX_REPLIES {
        let (kind, content) = talk.reply(option::GO)?;
        match (kind, content.first_chunk().map(|kind| u16::from_be_bytes(*kind))) {
            (option_reply::ACK, _) => {
                let (size, flags) = export
                    .ok_or_else(|| broken("the server did not send the size of the export"))?;
                let blocks = blocks.check()?;
                return Ok(Some(Export { size, flags, blocks, headers, allocation: None }));
            }
            (option_reply::INFO, Some(INFO_EXPORT)) => {
                let [_, _, size @ .., high, low] = &content[..] else {
                    return Err(broken(
                        "the reply with the size and flags of the export has a wrong length",
                    ));
                };
                let size = size.try_into().map(u64::from_be_bytes);
                let size = size.map_err(|_| broken("the size of the export has a wrong length"))?;
                let flags = u16::from_be_bytes([*high, *low]);
                export = Some((size, ExportFlags::from_bits_retain(flags)));
            }
            (option_reply::INFO, Some(INFO_BLOCK_SIZE)) => {
                let (words, rest) = content[2..].as_chunks::<4>();
                let (&[minimum, preferred, maximum], []) = (words, rest) else {
                    return Err(broken("the reply with the block sizes has a wrong length"));
                };
                let [minimum, preferred, maximum] =
                    [minimum, preferred, maximum].map(u32::from_be_bytes);
                blocks = Blocks { minimum, preferred, maximum };
            }
            (option_reply::INFO, _) => {}
            (option_reply::UNSUPPORTED, _) => return Ok(None),
            (kind, _) => return Err(refused(kind, name, &content)),
        }
    }
    Err(broken("the server sends too many replies about the export"))
}

/// Selects the export with the older option `EXPORT_NAME`. A server without such an export closes the connection.
fn by_name(talk: &Talk<'_>, name: &str, headers: Headers, zeroes: bool) -> Result<Export> {
    talk.ask(option::EXPORT_NAME, name.as_bytes())?;
    let size = talk.u64().map_err(|error| match error.kind() {
        ErrorKind::Io(Errno(104)) => not_found(name),
        _ => error,
    })?;
    let flags = ExportFlags::from_bits_retain(talk.u16()?);
    if zeroes {
        talk.bytes::<124>()?;
    }
    Ok(Export { size, flags, blocks: Blocks::UNSAID, headers, allocation: None })
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the server has no export {name:?}"))
}

/// Returns the text of an error: a reason, followed by the server's text if the server has sent one.
fn with_text(why: &str, text: &[u8]) -> String {
    let text: String =
        String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { why.to_owned() } else { format!("{why}: {text}") }
}

fn refused(kind: u32, name: &str, text: &[u8]) -> Error {
    let (kind, why) = match kind {
        option_reply::UNKNOWN => return not_found(name),
        option_reply::POLICY => {
            (ErrorKind::NotPermitted, "the server does not permit access to the export")
        }
        option_reply::TLS_REQUIRED => {
            (ErrorKind::Unsupported, "the server requires TLS: write nbds:// instead of nbd://")
        }
        option_reply::BLOCK_SIZE_REQUIRED => {
            (ErrorKind::Unsupported, "the server does not accept the block sizes of this client")
        }
        option_reply::SHUTDOWN => (ErrorKind::Io(Errno::EIO), "the server is shutting down"),
        kind if kind & option_reply::ERROR == 0 => {
            return broken(format!("a reply to an option has the unknown type {kind}"));
        }
        _ => (ErrorKind::InvalidInput, "the server refuses the export"),
    };
    Error::new(kind, with_text(why, text))
}
