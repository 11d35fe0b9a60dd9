//! TLS for connections to servers: whom it trusts, and its handshake. Afterwards a [pump](super::pump) has the connection.
//!
//! A server's certificate is always verified: its chain up to a trusted authority, and its name.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore,
    SignatureScheme,
};

use super::pump::Pump;
use super::stream::{Socket, Stream};
use super::{Server, Tls};
use crate::error::{Errno, Error, ErrorKind, Result};

/// One end of a connection that is to be encrypted.
pub(super) struct Client {
    config: ClientConfig,
    name: ServerName<'static>,
    /// The server has asked for a certificate that we do not have.
    lacks: Arc<AtomicBool>,
}

impl Client {
    /// Reads the certificates.
    pub(super) fn new(tls: &Tls, server: &Server) -> Result<Self> {
        let host = match (&tls.hostname, server) {
            (Some(name), _) => name,
            (None, Server::Tcp(host, _)) => host,
            (None, Server::Unix(_)) => return Err(Error::invalid("tls-hostname is missing")),
        };
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|_| Error::invalid(format!("{host:?} is no host name")))?;
        let lacks = Arc::new(AtomicBool::new(false));
        let config = config(tls.certificates.as_deref(), &lacks)?;
        Ok(Self { config, name, lacks })
    }

    /// The handshake. Gives back our end of the pump that has the connection from then on.
    pub(super) fn start(self, socket: Socket, until: Instant) -> io::Result<Socket> {
        let place = format!("TLS with {}", self.name.to_str());
        let session = ClientConnection::new(Arc::new(self.config), self.name);
        let mut session = session.map_err(|error| explained(&place, &error))?;
        let mut stream = Timed { socket: &socket, until };
        // It waits, until the handshake is complete.
        let done = session.complete_io(&mut stream);
        done.map_err(|error| failed(&place, &self.lacks, error))?;
        if session.is_handshaking() {
            return Err(failed(&place, &self.lacks, io::ErrorKind::UnexpectedEof.into()));
        }
        Pump::start(session, socket, place, self.lacks)
    }
}

/// The error for the end of a connection in or soon after the handshake, if it has no text yet.
fn failed(place: &str, lacks: &AtomicBool, error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(inner) => explained(place, inner),
        None => match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => closed(place, lacks),
            _ => error,
        },
    }
}

/// The error for a server that ends the connection without a reason, before it has said anything over it.
pub(super) fn closed(place: &str, lacks: &AtomicBool) -> io::Error {
    let (kind, why) = if lacks.load(Ordering::Relaxed) {
        (io::ErrorKind::PermissionDenied, NO_CERTIFICATE)
    } else {
        (io::ErrorKind::ConnectionAborted, "the server ends the connection")
    };
    io::Error::new(kind, format!("{place}: {why}"))
}

const NO_CERTIFICATE: &str = "the server demands a client certificate (client-cert.pem and client-key.pem in tls-certificates=DIR)";

/// An error of the TLS library as one clear line.
pub(super) fn explained(place: &str, error: &rustls::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, PermissionDenied};
    let (kind, why) = match error {
        rustls::Error::InvalidCertificate(refused) => {
            (PermissionDenied, format!("the server's certificate {}", certificate(refused)))
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            (PermissionDenied, NO_CERTIFICATE.to_owned())
        }
        rustls::Error::AlertReceived(alert) => {
            (PermissionDenied, format!("the server refuses it ({alert:?})"))
        }
        rustls::Error::InvalidMessage(_) => {
            (InvalidData, format!("the server sends something else than TLS ({error})"))
        }
        rustls::Error::DecryptError => {
            (InvalidData, "the bytes of the server are damaged".to_owned())
        }
        other => (InvalidData, other.to_string()),
    };
    io::Error::new(kind, format!("{place}: {why}"))
}

/// Why a certificate is refused, as the end of a sentence.
fn certificate(refused: &CertificateError) -> String {
    use CertificateError as Refused;
    let why = match refused {
        Refused::UnknownIssuer | Refused::BadSignature => "is of no trusted authority",
        Refused::Expired | Refused::ExpiredContext { .. } => "has expired",
        Refused::NotValidYet | Refused::NotValidYetContext { .. } => "is not valid yet",
        Refused::Revoked => "was revoked",
        Refused::NotValidForName | Refused::NotValidForNameContext { .. } => "is for another name",
        _ => "is refused",
    };
    let words = refused.to_string();
    // The library's own words have the names and the times; two of them are names of its own.
    if matches!(refused, Refused::UnknownIssuer | Refused::Revoked) {
        why.to_owned()
    } else if words.contains("UnsupportedCertVersion") {
        "is of version 1, and version 3 is needed (openssl x509 -extfile makes one)".to_owned()
    } else if words.contains("CaUsedAsEndEntity") {
        "is that of an authority (CA:true)".to_owned()
    } else {
        format!("{why} ({words})")
    }
}

/// A socket that waits until a point in time.
struct Timed<'a> {
    socket: &'a Socket,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            // A server may send a byte now and then.
            if Instant::now() >= self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.socket.receive(&mut [IoSliceMut::new(buf)], true) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                result => return result,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send_all(buf, self.until)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends as much as a socket takes without waiting.
pub(super) struct Unwaiting<'a>(pub(super) &'a Socket);

impl Write for Unwaiting<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Without a certificate of our own: takes note when a server asks for one.
#[derive(Debug)]
struct Without(Arc<AtomicBool>);

impl ResolvesClientCert for Without {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// The path of a file that need not be there. A file that cannot be read is an error: it could be a list of revoked certificates.
fn existing(path: PathBuf) -> Result<Option<PathBuf>> {
    match std::fs::symlink_metadata(&path) {
        Ok(_) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            Err(Error::io(errno, path.display().to_string()))
        }
    }
}

/// The authorities to trust, and the certificate of our own.
fn config(dir: Option<&Path>, lacks: &Arc<AtomicBool>) -> Result<ClientConfig> {
    let wrong = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::NotPermitted, format!("the certificates are of no use: {error}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(match dir {
        Some(dir) => authorities(&dir.join("ca-cert.pem"))?,
        None => authorities_of_the_system()?,
    });
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let revoked = dir.map(|dir| dir.join("ca-crl.pem"));
    let verifier = match revoked.map(existing).transpose()?.flatten() {
        // An authority may have none.
        Some(path) => verifier
            .with_crls(all::<CertificateRevocationListDer<'_>>(&path)?)
            .allow_unknown_revocation_status()
            .enforce_revocation_expiration(),
        None => verifier,
    };
    let verifier = verifier.build().map_err(|error| wrong(&error))?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_webpki_verifier(verifier);
    let own = dir.map(|dir| (dir.join("client-cert.pem"), dir.join("client-key.pem")));
    let has_own = match own.clone() {
        Some((chain, key)) => existing(chain)?.is_some() || existing(key)?.is_some(),
        None => false,
    };
    let mut config = match own.filter(|_| has_own) {
        Some((chain, key)) => {
            let secret = PrivateKeyDer::from_pem_file(&key).map_err(|error| unread(&key, error))?;
            let own = config.with_client_auth_cert(all(&chain)?, secret);
            own.map_err(|error| {
                let why = match &error {
                    rustls::Error::InvalidCertificate(refused) => {
                        format!("the certificate {}", certificate(refused))
                    }
                    other => other.to_string(),
                };
                wrong(&format!("{}: {why}", chain.display()))
            })?
        }
        None => config.with_client_cert_resolver(Arc::new(Without(Arc::clone(lacks)))),
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn unread(path: &Path, error: pem::Error) -> Error {
    let path = path.display().to_string();
    match error {
        pem::Error::Io(error) => Error::io(error.raw_os_error().map_or(Errno::EIO, Errno), path),
        error => Error::new(ErrorKind::Corrupt, error.to_string()).context(path),
    }
}

/// All objects of one kind in a PEM file, at least one.
fn all<T: PemObject>(path: &Path) -> Result<Vec<T>> {
    let objects: Result<Vec<T>, _> = T::pem_file_iter(path).and_then(Iterator::collect);
    let objects = objects.map_err(|error| unread(path, error))?;
    if objects.is_empty() {
        return Err(unread(path, pem::Error::NoItemsFound));
    }
    Ok(objects)
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in all::<CertificateDer<'_>>(path)? {
        roots.add(certificate).map_err(|error| {
            Error::new(ErrorKind::Corrupt, error.to_string()).context(path.display())
        })?;
    }
    Ok(roots)
}

/// Certificates that cannot be read are left out: there are many.
fn authorities_of_the_system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 {
        let what = "this system has no trusted authorities for TLS: tls-certificates=DIR names one";
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    Ok(roots)
}
