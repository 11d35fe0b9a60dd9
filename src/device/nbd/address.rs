//! The address of an NBD export, in the syntax of the NBD URI specification (doc/uri.md of the NBD project).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};

/// The port that IANA assigns to NBD.
const PORT: u16 = 10809;
/// The default time-out. If a server does not answer for this time, the request fails.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time-out that an address may specify, in seconds: a day.
const MAX_TIMEOUT: u64 = 86_400;
/// The longest user name that both GnuTLS and OpenSSL accept.
const MAX_USER: usize = 128;
pub(super) const WITHOUT_TLS: &str = "this build of ironmap has no support for TLS (feature `tls`)";
pub(super) const WITHOUT_PSK: &str = "this build of ironmap has no support for pre-shared keys (feature `psk`): use certificates, as in tls-certificates=DIR";

/// The address of an export: `nbd://HOST[:PORT]/EXPORT`, or `nbd+unix:///EXPORT?socket=PATH`; with TLS `nbds://` and `nbds+unix://`.
///
/// The query (after `?`) can contain these fields. `timeout=SECONDS` is the time for which a request waits for an answer, including
/// reconnections; the default is 60. `flush=none` permits writes to a server that has no flush command; each answered write then counts as
/// durable. TLS is configured by `tls-certificates=DIR` and `tls-hostname=NAME`, or by `tls-psk-file=FILE` with `USER@` before the host:
/// see [`Tls`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The location of the server.
    pub server: Server,
    /// The name of the export. The empty name is the server's default export.
    pub export: String,
    /// The time for which a request waits for an answer.
    pub timeout: Duration,
    /// Whether the address permits writes to a server that has no flush command.
    pub without_flush: bool,
    /// The authentication of a connection with TLS.
    pub tls: Option<Tls>,
}

/// How the two sides of a TLS connection authenticate each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The server must have a certificate of a trusted authority.
    Certificates {
        /// A directory with the file `ca-cert.pem`. It can also contain `ca-crl.pem`, `client-cert.pem` and `client-key.pem`. Without a
        /// directory, the authorities of the system are trusted.
        directory: Option<PathBuf>,
        /// The name that the server's certificate must have, if it differs from the name of the host.
        hostname: Option<String>,
    },
    /// The server and this client share a key (pre-shared keys, PSK).
    Psk {
        /// A file with a line `USER:KEY` for each user, the key in hexadecimal digits.
        keys: PathBuf,
        /// The user name of this client.
        user: String,
    },
}

/// The fields of an address that concern TLS.
#[derive(Default)]
struct TlsFields {
    user: Option<String>,
    keys: Option<PathBuf>,
    directory: Option<PathBuf>,
    hostname: Option<String>,
    kind: Option<String>,
}

/// The location of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A host's name or address, and a TCP port.
    Tcp(String, u16),
    /// The path of a socket on this machine.
    Unix(PathBuf),
}

impl Address {
    /// The prefixes of all forms of NBD addresses, including forms that ironmap does not support.
    const SCHEMES: [&'static str; 6] =
        ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://", "nbd+vsock://", "nbds+vsock://"];

    /// Whether a text begins with the prefix of an NBD address.
    #[must_use]
    pub fn is_one(text: &[u8]) -> bool {
        Self::SCHEMES.iter().any(|scheme| text.starts_with(scheme.as_bytes()))
    }

    /// Returns a copy of the address in which the function `path` has replaced the paths of the socket, the certificates and the keys. If
    /// `path` returns `None`, the path stays unchanged.
    #[must_use]
    pub fn with_path(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let other = |old: &PathBuf| path(old).unwrap_or_else(|| old.clone());
        let server = match &self.server {
            Server::Unix(socket) => Server::Unix(other(socket)),
            tcp => tcp.clone(),
        };
        let tls = self.tls.clone().map(|tls| match tls {
            Tls::Certificates { directory, hostname } => {
                Tls::Certificates { directory: directory.as_ref().map(other), hostname }
            }
            Tls::Psk { keys, user } => Tls::Psk { keys: other(&keys), user },
        });
        Self { server, tls, ..self.clone() }
    }

    fn parse(text: &str) -> Result<Self> {
        let (is_unix, is_tls, rest) = match text.split_once("://") {
            Some(("nbd", rest)) => (false, false, rest),
            Some(("nbd+unix", rest)) => (true, false, rest),
            Some(("nbds", rest)) => (false, true, rest),
            Some(("nbds+unix", rest)) => (true, true, rest),
            _ => {
                let schemes = "nbd://, nbd+unix://, nbds:// or nbds+unix://";
                return Err(Error::invalid(format!("the address must begin with {schemes}")));
            }
        };
        if is_tls && !cfg!(feature = "tls") {
            return Err(Error::unsupported(WITHOUT_TLS));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = user_and_host(authority)?;
        let mut tls = TlsFields { user, ..TlsFields::default() };
        let mut address = Self {
            server: Server::Unix(PathBuf::new()),
            export: decoded(export)?,
            timeout: TIMEOUT,
            without_flush: false,
            tls: None,
        };
        let mut socket = None;
        for field in query.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            match (name, value) {
                ("socket", path) if is_unix && !path.is_empty() => socket = Some(decoded(path)?),
                ("timeout", seconds) => address.timeout = timeout(seconds)?,
                ("flush", "none") => address.without_flush = true,
                (name, value) if name.starts_with("tls-") && is_tls => tls.take(name, value)?,
                (name, _) if name.starts_with("tls-") => {
                    return Err(Error::invalid(format!(
                        "the parameter {name} is only for nbds:// and nbds+unix://"
                    )));
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "an address of this kind cannot have the parameter {field}"
                    )));
                }
            }
        }
        if is_unix {
            let socket =
                socket.ok_or_else(|| Error::invalid("the parameter ?socket=PATH is missing"))?;
            if !host.is_empty() {
                return Err(Error::invalid(format!(
                    "an address with a Unix socket has no host, but {host} is given"
                )));
            }
            address.server = Server::Unix(socket.into());
        } else {
            address.server = tcp_server(host)?;
        }
        if address.export.len() > 4096 {
            return Err(Error::invalid("the export's name has more than 4096 bytes"));
        }
        if is_tls {
            address.tls = Some(tls.chosen(is_unix)?);
        } else if tls.user.is_some() {
            return Err(Error::invalid("a user name is only for nbds:// and nbds+unix://"));
        }
        Ok(address)
    }
}

impl TlsFields {
    fn take(&mut self, name: &str, value: &str) -> Result<()> {
        let refused = |what: &str| Err(Error::unsupported(format!("{name}={value}: {what}")));
        match (name, value) {
            ("tls-certificates", dir) if !dir.is_empty() => {
                self.directory = Some(decoded(dir)?.into());
            }
            ("tls-hostname", host) if !host.is_empty() => self.hostname = Some(decoded(host)?),
            ("tls-psk-file", file) if !file.is_empty() => self.keys = Some(decoded(file)?.into()),
            ("tls-type", "x509" | "psk") => self.kind = Some(value.to_owned()),
            // ironmap verifies every server, so a parameter that requests verification changes nothing.
            ("tls-verify-peer", "1" | "true") => {}
            ("tls-type", "anon") | ("tls-verify-peer", "0" | "false") => {
                return refused(
                    "ironmap always verifies the server; tls-certificates=DIR names the trusted authorities",
                );
            }
            _ => {
                return Err(Error::invalid(format!("the parameter {name}={value} is not valid")));
            }
        }
        Ok(())
    }

    fn chosen(self, is_unix: bool) -> Result<Tls> {
        let is_psk = self.kind.as_deref() == Some("psk");
        let has_psk = self.keys.is_some() || self.user.is_some();
        let is_missing = |what: &str| Error::invalid(format!("{what} is missing"));
        if is_psk || (self.kind.is_none() && has_psk) {
            if !cfg!(feature = "psk") {
                return Err(Error::unsupported(WITHOUT_PSK));
            }
            if self.directory.is_some() || self.hostname.is_some() {
                let what =
                    "a pre-shared key cannot be combined with tls-certificates or tls-hostname";
                return Err(Error::invalid(what));
            }
            let user = self.user.filter(|user| !user.is_empty());
            let user = user.ok_or_else(|| is_missing("the user of the key (USER@HOST)"))?;
            if user.len() > MAX_USER || user.contains(char::is_control) {
                let what = "the name is too long, or has control characters";
                return Err(Error::invalid(format!("the user {user:?}: {what}")));
            }
            let keys = self.keys.ok_or_else(|| is_missing("tls-psk-file=FILE"))?;
            return Ok(Tls::Psk { keys, user });
        }
        if has_psk {
            return Err(Error::invalid(
                "certificates cannot be combined with a user name or tls-psk-file",
            ));
        }
        if is_unix && self.hostname.is_none() {
            return Err(is_missing("a Unix socket has no host name to verify: tls-hostname=NAME"));
        }
        Ok(Tls::Certificates { directory: self.directory, hostname: self.hostname })
    }
}

/// Splits an authority (`USER@HOST`) into the decoded user name and the host.
fn user_and_host(authority: &str) -> Result<(Option<String>, &str)> {
    match authority.rsplit_once('@') {
        Some((user, _)) if user.contains('@') => {
            let what = "the address has too many @: an @ in the user name is written %40, and @pN comes last";
            Err(Error::invalid(what))
        }
        Some((user, host)) => Ok((Some(decoded(user)?), host)),
        None => Ok((None, authority)),
    }
}

fn timeout(seconds: &str) -> Result<Duration> {
    let seconds = seconds.parse().ok().filter(|seconds| (1..=MAX_TIMEOUT).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        Error::invalid(format!("timeout= must be a number of seconds from 1 to {MAX_TIMEOUT}"))
    })
}

fn tcp_server(authority: &str) -> Result<Server> {
    let (host, port) = match authority.rsplit_once(':') {
        // A bracket after the last colon shows that the colon is part of an IPv6 address. The address then has no port.
        Some((host, port)) if !port.contains(']') => {
            let digits = port.bytes().all(|digit| digit.is_ascii_digit()).then_some(port);
            let number = digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0);
            (host, number.ok_or_else(|| Error::invalid(format!("{port:?} is not a TCP port")))?)
        }
        _ => (authority, PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.is_none() && host.contains([':', '[', ']']) {
        return Err(Error::invalid(format!(
            "{host:?} is not a host name; an IPv6 address must be in brackets"
        )));
    }
    let host = bare.unwrap_or(host);
    if host.is_empty() {
        return Err(Error::invalid("the host is missing"));
    }
    Ok(Server::Tcp(decoded(host)?, port))
}

/// Decodes percent-encoded bytes.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high << 4 | low) as u8),
            _ => return Err(Error::invalid("a % must be followed by two hexadecimal digits")),
        }
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("the decoded address is not UTF-8"))
}

fn encode(f: &mut fmt::Formatter<'_>, text: &[u8], kept: &[u8]) -> fmt::Result {
    text.iter().try_for_each(|&byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            write!(f, "{}", char::from(byte))
        } else {
            write!(f, "%{byte:02X}")
        }
    })
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text).map_err(|error| error.at(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        f.write_str(if self.tls.is_some() { "nbds" } else { "nbd" })?;
        f.write_str(if matches!(self.server, Server::Unix(_)) { "+unix://" } else { "://" })?;
        if let Some(Tls::Psk { user, .. }) = &self.tls {
            encode(f, user.as_bytes(), b"")?;
            f.write_str("@")?;
        }
        match &self.server {
            Server::Tcp(host, port) => {
                if host.contains(':') {
                    f.write_str("[")?;
                    encode(f, host.as_bytes(), b":")?;
                    f.write_str("]")?;
                } else {
                    encode(f, host.as_bytes(), b"")?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
            }
            Server::Unix(_) => {}
        }
        f.write_str("/")?;
        encode(f, self.export.as_bytes(), b"/")?;
        if self.timeout != TIMEOUT {
            fields.push(format!("timeout={}", self.timeout.as_secs()));
        }
        if self.without_flush {
            fields.push("flush=none".to_owned());
        }
        let mut separator = "?";
        let mut encoded = |f: &mut fmt::Formatter<'_>, name: &str, value: &[u8]| {
            write!(f, "{separator}{name}=")?;
            separator = "&";
            encode(f, value, b"/")
        };
        if let Server::Unix(socket) = &self.server {
            encoded(f, "socket", socket.as_os_str().as_encoded_bytes())?;
        }
        match &self.tls {
            None => {}
            Some(Tls::Certificates { directory, hostname }) => {
                if let Some(directory) = directory {
                    encoded(f, "tls-certificates", directory.as_os_str().as_encoded_bytes())?;
                }
                if let Some(name) = hostname {
                    encoded(f, "tls-hostname", name.as_bytes())?;
                }
            }
            Some(Tls::Psk { keys, .. }) => {
                encoded(f, "tls-psk-file", keys.as_os_str().as_encoded_bytes())?;
            }
        }
        for field in fields {
            write!(f, "{separator}{field}")?;
            separator = "&";
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
