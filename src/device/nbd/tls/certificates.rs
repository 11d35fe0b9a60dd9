//! Authentication of a server by its certificate. The chain of certificates must lead to a trusted authority. The certificate must be valid
//! for the server's name.

use std::io::{self, BufRead as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore,
    SignatureScheme,
};

use super::{Client, Refusal, Session, State};
use crate::device::nbd::Server;
use crate::error::{Errno, Error, ErrorKind, Result};

/// Creates a TLS client for a server, with the certificates in a directory.
pub(super) fn client(
    directory: Option<&Path>,
    hostname: Option<&str>,
    server: &Server,
) -> Result<Client> {
    let host = match (hostname, server) {
        (Some(name), _) => name,
        (None, Server::Tcp(host, _)) => host,
        (None, Server::Unix(_)) => return Err(Error::invalid("tls-hostname is missing")),
    };
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| Error::invalid(format!("{host:?} is not a host name")))?;
    let lacks = Arc::new(AtomicBool::new(false));
    let config = config(directory, &lacks)?;
    let place = format!("TLS with {}", name.to_str());
    let tls = ClientConnection::new(Arc::new(config), name);
    let mut tls = tls.map_err(|error| Error::invalid(format!("{place}: {error}")))?;
    // The session's buffer needs no limit, because the session accepts more bytes only after all bytes in the buffer were sent.
    tls.set_buffer_limit(None);
    Ok(Client { session: Box::new(Verified { tls, place: place.clone(), lacks }), place })
}

/// A TLS session with a server whose certificate is verified.
struct Verified {
    tls: ClientConnection,
    place: String,
    /// Whether the server has requested a client certificate that this client does not have.
    lacks: Arc<AtomicBool>,
}

impl Session for Verified {
    fn decrypt(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<State> {
        loop {
            let state = self.tls.process_new_packets();
            let mut reader = self.tls.reader();
            while let Ok(chunk @ [_, ..]) = reader.fill_buf() {
                plain.extend_from_slice(chunk);
                let len = chunk.len();
                reader.consume(len);
            }
            if state.map_err(|error| explained(&self.place, &error))?.peer_has_closed() {
                return Ok(State::Closed);
            }
            if bytes.is_empty() {
                let is_open = !self.tls.is_handshaking();
                return Ok(if is_open { State::Open } else { State::Handshake });
            }
            self.tls.read_tls(&mut bytes)?;
        }
    }

    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(bytes)
    }

    fn close(&mut self) {
        self.tls.send_close_notify();
    }

    fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    fn write(&mut self, mut server: &mut dyn Write) -> io::Result<usize> {
        self.tls.write_tls(&mut server)
    }

    fn refusal(&self) -> Refusal {
        match self.lacks.load(Ordering::Relaxed) {
            true => Refusal { what: NO_CERTIFICATE, is_certain: true },
            false => Refusal::UNKNOWN,
        }
    }
}

const NO_CERTIFICATE: &str = "the server requires a client certificate: put client-cert.pem and client-key.pem into the directory of tls-certificates=DIR";

/// Converts an error of the TLS library to one line for the user.
fn explained(place: &str, error: &rustls::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, PermissionDenied};
    let (kind, why) = match error {
        rustls::Error::InvalidCertificate(refused) => {
            (PermissionDenied, format!("the server's certificate {}", certificate(refused)))
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            (PermissionDenied, NO_CERTIFICATE.to_owned())
        }
        rustls::Error::AlertReceived(alert) => {
            (PermissionDenied, format!("the server refuses the TLS session ({alert:?})"))
        }
        rustls::Error::InvalidMessage(_) => {
            (InvalidData, format!("the server sends something other than TLS ({error})"))
        }
        rustls::Error::DecryptError => {
            (InvalidData, "data from the server cannot be decrypted".to_owned())
        }
        other => (InvalidData, other.to_string()),
    };
    io::Error::new(kind, format!("{place}: {why}"))
}

/// Returns the reason why the client refuses a certificate. The text continues a sentence that begins with "the server's certificate".
fn certificate(refused: &CertificateError) -> String {
    use CertificateError as Refused;
    let why = match refused {
        Refused::UnknownIssuer | Refused::BadSignature => "is not signed by a trusted authority",
        Refused::Expired | Refused::ExpiredContext { .. } => "has expired",
        Refused::NotValidYet | Refused::NotValidYetContext { .. } => "is not valid yet",
        Refused::Revoked => "was revoked",
        Refused::NotValidForName | Refused::NotValidForNameContext { .. } => "is for another name",
        _ => "is refused",
    };
    let words = refused.to_string();
    // For an unknown issuer and a revoked certificate, the TLS library's text contains only an identifier. For all other errors, its text
    // contains names and times, so this text is added.
    if matches!(refused, Refused::UnknownIssuer | Refused::Revoked) {
        why.to_owned()
    } else if words.contains("UnsupportedCertVersion") {
        "has version 1, but version 3 is required (openssl x509 -extfile makes one)".to_owned()
    } else if words.contains("CaUsedAsEndEntity") {
        "is the certificate of an authority (CA:true), not of a server or client".to_owned()
    } else {
        format!("{why} ({words})")
    }
}

/// A client without a certificate of its own. It records whether the server requests a certificate.
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

/// Returns the path of an optional file if the file exists. If this cannot be determined, the result is an error, because the file could be
/// a list of revoked certificates.
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

/// The configuration: the trusted authorities, and the client's own certificate.
fn config(dir: Option<&Path>, lacks: &Arc<AtomicBool>) -> Result<ClientConfig> {
    let wrong = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::NotPermitted, format!("the certificates cannot be used: {error}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(match dir {
        Some(dir) => authorities(&dir.join("ca-cert.pem"))?,
        None => authorities_of_the_system()?,
    });
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let revoked = dir.map(|dir| dir.join("ca-crl.pem"));
    let verifier = match revoked.map(existing).transpose()?.flatten() {
        // Some authorities in a chain have no list of revoked certificates. Therefore, a certificate with an unknown revocation status is
        // accepted.
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
        error => Error::new(ErrorKind::NotPermitted, error.to_string()).at(path),
    }
}

/// Reads all objects of one kind from a PEM file. The file must contain at least one object of this kind.
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
            Error::new(ErrorKind::NotPermitted, error.to_string()).at(path.display())
        })?;
    }
    Ok(roots)
}

/// Returns the authorities that the system trusts. Certificates that cannot be parsed are skipped, because most servers do not need them.
fn authorities_of_the_system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 {
        let what = "this system has no trusted authorities for TLS: tls-certificates=DIR names a directory with their certificates";
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    Ok(roots)
}
