//! Authentication with a key that the server and this client share (pre-shared keys, PSK): RFC 4279 and 5489 in TLS 1.2, RFC 8446 in TLS
//! 1.3.
//!
//! This module uses OpenSSL, because rustls does not support pre-shared keys.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use openssl::error::ErrorStack;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslStream,
    SslVerifyMode, SslVersion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use super::{Client, Refusal, Session, State};
use crate::error::{Context as _, Errno, Error, ErrorKind, Result};

/// The longest key that every version of OpenSSL's interface accepts (`PSK_MAX_PSK_LEN`).
const MAX_KEY: usize = 256;
/// The shortest permitted key. An attacker with a recorded handshake could find a shorter key by trying all keys.
const MIN_KEY: usize = 16;
/// The largest size of a key file.
const MAX_FILE: u64 = 1 << 20;
/// The time limit for reading a key file that is a pipe.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest number of bytes of plain text in a record.
const RECORD: usize = 16 << 10;
/// The largest number of unsent bytes. Without this limit, a server could fill the client's memory by requesting answers without receiving
/// them.
const MAX_UNSENT: usize = 1 << 20;
/// The ciphers of TLS 1.2. Only ephemeral key exchange is permitted, so that a stolen key does not decrypt earlier recordings. Certificates
/// and ciphers without encryption are excluded.
const CIPHERS_1_2: &str =
    "kDHEPSK+AESGCM:ECDHE-PSK-CHACHA20-POLY1305:kECDHEPSK+AES128:!SHA1:!eNULL:!aNULL";
/// The ciphers of TLS 1.3: those with SHA-256, the default hash of pre-shared keys (RFC 8446, 4.2.11).
const CIPHERS_1_3: &str = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

/// Creates a TLS client with the key of a user from a key file. The file contains lines `USER:KEY` with the key in hexadecimal, as GnuTLS's
/// `psktool` writes them.
pub(super) fn client(keys: &Path, user: &str) -> Result<Client> {
    let key = key(keys, user).at(|| keys.display().to_string())?;
    let place = format!("TLS as {user}");
    let wrong = |error: ErrorStack| Error::unsupported(format!("{place}: {error}"));
    let context = context(user.to_owned(), key).map_err(wrong)?;
    let mut ssl = Ssl::new(&context).map_err(wrong)?;
    ssl.set_connect_state();
    let stream = SslStream::new(ssl, Wire::default()).map_err(wrong)?;
    let (record, place_of) = (vec![0; RECORD].into(), place.clone());
    let psk = Psk { stream, is_open: false, record, waiting: Vec::new(), place: place_of };
    Ok(Client { session: Box::new(psk), place })
}

fn context(user: String, key: Vec<u8>) -> Result<SslContext, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_cipher_list(CIPHERS_1_2)?;
    context.set_ciphersuites(CIPHERS_1_3)?;
    // With TLS 1.3, a server that does not have the key may send a certificate instead. The client trusts no authority, so it refuses every
    // certificate.
    context.set_verify(SslVerifyMode::PEER);
    context.set_options(SslOptions::NO_RENEGOTIATION | SslOptions::NO_TICKET);
    context.set_mode(SslMode::ENABLE_PARTIAL_WRITE | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    context.set_psk_client_callback(move |_, _, identity, secret| {
        let Some((name, end)) = identity.split_at_mut_checked(user.len()) else { return Ok(0) };
        let (Some(end), Some(secret)) = (end.first_mut(), secret.get_mut(..key.len())) else {
            return Ok(0);
        };
        name.copy_from_slice(user.as_bytes());
        *end = 0;
        secret.copy_from_slice(&key);
        Ok(key.len())
    });
    Ok(context.build())
}

/// Reads the key of a user.
fn key(path: &Path, user: &str) -> Result<Vec<u8>> {
    // The errors are not `Corrupt`, because `Corrupt` would mean that the volume is corrupt.
    let wrong = |what: String| Error::new(ErrorKind::NotPermitted, what);
    let bytes = content(path)?;
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let found = lines.filter_map(|line| line.strip_prefix(user.as_bytes())?.strip_prefix(b":"));
    // A user name may contain colons, so several lines may begin with this name and a colon. A key contains no colon, so this user's line
    // is the one in which only a key follows.
    let Some(digits) = found.into_iter().find(|key| !key.contains(&b':')) else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("the file has no key of the user {user:?}"),
        ));
    };
    let key = unhex(digits)
        .ok_or_else(|| wrong(format!("the key of {user:?} is not in hexadecimal digits")))?;
    if !(MIN_KEY..=MAX_KEY).contains(&key.len()) {
        let has = key.len();
        let what = format!(
            "the key of {user:?} has {has} bytes, but must have from {MIN_KEY} to {MAX_KEY} bytes"
        );
        return Err(Error::unsupported(what));
    }
    Ok(key)
}

/// Reads a key file. The file may be a pipe; if no program writes to the pipe, the content is empty.
fn content(path: &Path) -> Result<Vec<u8>> {
    let failed =
        |error: io::Error| Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), "");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = fs::File::from(file.map_err(|errno| failed(errno.into()))?);
    let mut bytes = Vec::new();
    let mut rest = (&file).take(MAX_FILE + 1);
    let until = Instant::now() + PATIENCE;
    // Bytes that were read before the interruption remain in `bytes`.
    while let Err(error) = rest.read_to_end(&mut bytes) {
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() >= until {
            return Err(failed(error));
        }
        let time = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&time));
    }
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::unsupported(format!("the key file has more than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
        _ => None,
    };
    text.chunks(2).map(pair).collect()
}

/// A TLS session with a server that has the same key.
struct Psk {
    stream: SslStream<Wire>,
    is_open: bool,
    /// The plain text of one record.
    record: Box<[u8]>,
    /// Bytes of requests that are not yet encrypted, because OpenSSL first needs the rest of a TLS message from the server.
    waiting: Vec<u8>,
    place: String,
}

impl Psk {
    fn encrypt_waiting(&mut self) -> io::Result<()> {
        let mut done = 0;
        while let rest @ [_, ..] = &self.waiting[done..] {
            match self.stream.ssl_write(rest) {
                Ok(count) => done += count,
                Err(error) if error.code() == ErrorCode::WANT_READ => break,
                Err(error) => return Err(explained(&self.place, &error)),
            }
        }
        self.waiting.drain(..done);
        Ok(())
    }
}

/// The bytes that were received from the server, and the bytes to be sent to the server.
#[derive(Debug, Default)]
struct Wire {
    received: Vec<u8>,
    taken: usize,
    to_send: Vec<u8>,
    sent: usize,
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut rest = self.received.get(self.taken..).unwrap_or_default();
        if rest.is_empty() {
            self.received.clear();
            self.taken = 0;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = rest.read(buf)?;
        self.taken += count;
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.sent == self.to_send.len() {
            self.to_send.clear();
            self.sent = 0;
        }
        self.to_send.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session for Psk {
    fn decrypt(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<State> {
        self.stream.get_mut().received.extend_from_slice(bytes);
        if !self.is_open {
            match self.stream.do_handshake() {
                Ok(()) => self.is_open = true,
                Err(error) if error.code() == ErrorCode::WANT_READ => return Ok(State::Handshake),
                Err(error) => return Err(explained(&self.place, &error)),
            }
        }
        let state = loop {
            match self.stream.ssl_read(&mut self.record) {
                Ok(count) => plain.extend_from_slice(&self.record[..count]),
                Err(error) => match error.code() {
                    ErrorCode::WANT_READ => break State::Open,
                    ErrorCode::ZERO_RETURN => break State::Closed,
                    _ => return Err(explained(&self.place, &error)),
                },
            }
        };
        self.encrypt_waiting()?;
        let wire = self.stream.get_ref();
        if wire.to_send.len() - wire.sent > MAX_UNSENT {
            let what = format!(
                "{}: the server sends TLS messages but does not receive the responses",
                self.place
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(state)
    }

    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.waiting.extend_from_slice(bytes);
        self.encrypt_waiting()
    }

    fn close(&mut self) {
        let _ = self.stream.shutdown();
    }

    fn wants_write(&self) -> bool {
        let wire = self.stream.get_ref();
        wire.sent < wire.to_send.len()
    }

    fn write(&mut self, server: &mut dyn Write) -> io::Result<usize> {
        let wire = self.stream.get_mut();
        let count = server.write(&wire.to_send[wire.sent..])?;
        wire.sent += count;
        Ok(count)
    }

    fn refusal(&self) -> Refusal {
        let what = "the server ended the connection: the server may not know the user, or may have another key";
        Refusal { what, is_certain: false }
    }
}

/// Converts an error of the TLS library to one line for the user.
fn explained(place: &str, error: &openssl::ssl::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, PermissionDenied};
    let reason = error.ssl_error().and_then(|stack| stack.errors().first()?.reason());
    let reason = reason.unwrap_or("unknown error");
    let (kind, why) = if let Some((_, alert)) = reason.split_once("alert ") {
        let refused = match alert {
            "unknown psk identity" | "decrypt error" | "bad record mac" => "the user or the key",
            _ => "the connection",
        };
        (PermissionDenied, format!("the server refuses {refused} ({alert})"))
    } else if reason == "certificate verify failed" {
        let why = "the server sent a certificate instead of using the pre-shared key";
        (PermissionDenied, why.to_owned())
    } else if reason == "decryption failed or bad record mac" {
        (InvalidData, "data from the server cannot be decrypted".to_owned())
    } else {
        (InvalidData, format!("the server does not support TLS with pre-shared keys ({reason})"))
    };
    io::Error::new(kind, format!("{place}: {why}"))
}
