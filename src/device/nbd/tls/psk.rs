//! A server that has the same key as we (pre-shared keys, PSK): RFC 4279 and 5489 in TLS 1.2, RFC 8446 in TLS 1.3.
//!
//! By OpenSSL, since rustls has no such keys.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use openssl::error::ErrorStack;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslStream, SslVerifyMode,
    SslVersion,
};

use super::{BUFFER, Client, Refusal, Session, State};
use crate::error::{Context as _, Errno, Error, ErrorKind, Result};

/// The longest name of a user and the longest key that OpenSSL's interface is sure to have room for (`PSK_MAX_IDENTITY_LEN`, `PSK_MAX_PSK_LEN`).
const MAX_USER: usize = 128;
const MAX_KEY: usize = 256;
/// A shorter key can be found by trying all, beside one recorded handshake.
const MIN_KEY: usize = 16;
/// A file of keys is small.
const MAX_FILE: u64 = 1 << 20;
/// TLS 1.2: with keys of the moment, so that a stolen key does not decrypt earlier recordings; nothing with a certificate, nothing without encryption.
const CIPHERS_1_2: &str =
    "kDHEPSK+AESGCM:ECDHE-PSK-CHACHA20-POLY1305:kECDHEPSK+AES128:!SHA1:!eNULL:!aNULL";
/// TLS 1.3: those of SHA-256, the hash of keys without another one (RFC 8446, 4.2.11).
const CIPHERS_1_3: &str = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

/// A client that is this user in a file of keys, which has lines `USER:KEY` with the key in hexadecimal (GnuTLS's `psktool` writes it).
pub(super) fn client(keys: &Path, user: &str) -> Result<Client> {
    let key = key(keys, user).context(|| keys.display().to_string())?;
    let place = format!("TLS as {user}");
    let wrong = |error: ErrorStack| Error::unsupported(format!("{place}: {error}"));
    let context = context(user.to_owned(), key).map_err(wrong)?;
    let mut ssl = Ssl::new(&context).map_err(wrong)?;
    ssl.set_connect_state();
    let stream = SslStream::new(ssl, Wire::default()).map_err(wrong)?;
    Ok(Client { session: Box::new(Psk { stream, is_open: false, place: place.clone() }), place })
}

fn context(user: String, key: Vec<u8>) -> Result<SslContext, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls_client())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_cipher_list(CIPHERS_1_2)?;
    context.set_ciphersuites(CIPHERS_1_3)?;
    // A server of TLS 1.3 may show a certificate in the place of the key. No authority is trusted, so none is right.
    context.set_verify(SslVerifyMode::PEER);
    context.set_options(SslOptions::NO_RENEGOTIATION | SslOptions::NO_TICKET);
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

/// The key of a user.
fn key(path: &Path, user: &str) -> Result<Vec<u8>> {
    let read =
        |error: io::Error| Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), "");
    let mut text = String::new();
    let file = fs::File::open(path).map_err(read)?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::new(ErrorKind::Corrupt, "it is no text"),
        _ => read(error),
    })?;
    let lines = text.lines().map(str::trim_end);
    let Some(digits) = lines.filter_map(|line| line.rsplit_once(':')).find(|of| of.0 == user)
    else {
        return Err(Error::new(ErrorKind::NotFound, format!("it has no key of the user {user:?}")));
    };
    let key = unhex(digits.1).ok_or_else(|| {
        let what = format!("the key of {user:?} is not in hexadecimal digits");
        Error::new(ErrorKind::Corrupt, what)
    })?;
    if !(MIN_KEY..=MAX_KEY).contains(&key.len()) {
        let has = key.len();
        let what = format!(
            "the key of {user:?} has {has} bytes: from {MIN_KEY} to {MAX_KEY} are accepted"
        );
        return Err(Error::unsupported(what));
    }
    if user.len() > MAX_USER || user.contains('\0') {
        return Err(Error::unsupported(format!("a user has at most {MAX_USER} bytes")));
    }
    Ok(key)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

/// A session with a server that has our key.
struct Psk {
    stream: SslStream<Wire>,
    is_open: bool,
    place: String,
}

/// Bytes from and for the server.
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
        loop {
            let before = plain.len();
            plain.resize(before + BUFFER, 0);
            let read = self.stream.ssl_read(&mut plain[before..]);
            plain.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(_) => {}
                Err(error) => match error.code() {
                    ErrorCode::WANT_READ => return Ok(State::Open),
                    ErrorCode::ZERO_RETURN => return Ok(State::Closed),
                    _ => return Err(explained(&self.place, &error)),
                },
            }
        }
    }

    fn encrypt(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.stream.ssl_write(bytes);
            let count = count.map_err(|error| explained(&self.place, &error))?;
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
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
        let what = "the server ends the connection: it may not know the user, or have another key";
        Refusal { what, is_certain: false }
    }
}

/// An error of the TLS library as one clear line.
fn explained(place: &str, error: &openssl::ssl::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, PermissionDenied};
    let reason = error.ssl_error().and_then(|stack| stack.errors().first()?.reason());
    let reason = reason.unwrap_or("unknown error");
    let (kind, why) = if let Some((_, alert)) = reason.split_once("alert ") {
        (PermissionDenied, format!("the server refuses the user or the key ({alert})"))
    } else if reason == "certificate verify failed" {
        let why = "the server shows a certificate instead of knowing the key";
        (PermissionDenied, why.to_owned())
    } else if reason == "decryption failed or bad record mac" {
        (InvalidData, "the bytes of the server are damaged".to_owned())
    } else {
        (InvalidData, format!("the server does not speak TLS with such keys ({reason})"))
    };
    io::Error::new(kind, format!("{place}: {why}"))
}
