//! A certificate authority and its certificates. openssl makes them.

use std::path::{Path, PathBuf};

use ironmap::device::nbd::Address;
use tempfile::TempDir;

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::skip::Need;

/// The programs that the tests with certificates need.
pub(crate) const NEEDS: [Need; 3] =
    [Need::Tool("nbdkit"), Need::Tool("openssl"), Need::Tool("faketime")];

const SERVER: &str = "basicConstraints=critical,CA:false\nextendedKeyUsage=serverAuth\n";
const CLIENT: &str = "basicConstraints=critical,CA:false\nextendedKeyUsage=clientAuth\n";

/// A certificate authority, with one directory for a server and several for clients.
pub(crate) struct Authority {
    dir: TempDir,
}

impl Authority {
    /// Makes an authority with two certificates: one for a server with the names `localhost` and 127.0.0.1, and one for a client.
    pub(crate) fn new() -> Self {
        Self::named("tests of ironmap")
    }

    /// Like [`Self::new`], but the authority has this name.
    pub(crate) fn named(name: &str) -> Self {
        let all = Self { dir: scratch_in(Path::new("/dev/shm")) };
        let (key, certificate) = (all.text("ca-key.pem"), all.text("ca-cert.pem"));
        let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj";
        let args: Vec<_> = new.split(' ').collect();
        let subject = format!("/CN={name}");
        let names = [&subject, "-keyout", &key, "-out", &certificate];
        run("openssl", &[&args[..], &names].concat());
        for dir in ["server", "client", "own"] {
            std::fs::create_dir(all.path(dir)).unwrap();
            std::fs::copy(&certificate, all.path(dir).join("ca-cert.pem")).unwrap();
        }
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
        all.sign("server/server", &format!("{SERVER}{names}"), None);
        all.sign("own/client", CLIENT, None);
        all
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes `NAME-key.pem` and `NAME-cert.pem`. The certificate has these extensions. With a date, it is valid for that day only.
    pub(crate) fn sign(&self, name: &str, extensions: &str, date: Option<&str>) {
        let of = |end: &str| self.text(&format!("{name}-{end}"));
        let (key, certificate, request) = (of("key.pem"), of("cert.pem"), of("request"));
        let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=one -keyout";
        let args: Vec<_> = new.split(' ').collect();
        run("openssl", &[&args[..], &[&key, "-out", &request]].concat());
        std::fs::write(self.path("extensions"), extensions).unwrap();
        let (ca, ca_key) = (self.text("ca-cert.pem"), self.text("ca-key.pem"));
        let extensions = self.text("extensions");
        let mut sign = vec!["openssl", "x509", "-req", "-days", "1", "-CAcreateserial"];
        sign.extend(["-in", &request, "-CA", &ca, "-CAkey", &ca_key]);
        sign.extend(["-extfile", &extensions, "-out", &certificate]);
        match date {
            Some(date) => run("faketime", &[&[date], &sign[..]].concat()),
            None => run("openssl", &sign[1..]),
        };
    }

    /// Makes the server's certificate for this DNS name. With a date, the certificate is valid for that day only.
    pub(crate) fn of_server(&self, dns: &str, date: Option<&str>) {
        self.sign("server/server", &format!("{SERVER}subjectAltName=DNS:{dns}\n"), date);
    }

    /// Revokes the certificate of the server, and gives the revocation list to the clients.
    pub(crate) fn revoke(&self) {
        let (index, config) = (self.text("index"), self.text("config"));
        std::fs::write(&index, "").unwrap();
        std::fs::write(self.path("number"), "01\n").unwrap();
        let number = self.text("number");
        let text = "default_md=sha256\ndefault_crl_days=30\ncrl_extensions=list\n";
        let text =
            format!("[ca]\ndefault_ca=it\n[it]\ndatabase={index}\ncrlnumber={number}\n{text}");
        let text = format!("{text}[list]\nauthorityKeyIdentifier=keyid:always\n");
        std::fs::write(&config, text).unwrap();
        let (ca, key) = (self.text("ca-cert.pem"), self.text("ca-key.pem"));
        let ca = ["ca", "-config", &config, "-cert", &ca, "-keyfile", &key];
        let (revoked, list) = (self.text("server/server-cert.pem"), self.text("client/ca-crl.pem"));
        run("openssl", &[&ca[..], &["-revoke", &revoked]].concat());
        run("openssl", &[&ca[..], &["-gencrl", "-out", &list]].concat());
    }

    /// The options of nbdkit for a server that requires TLS.
    pub(crate) fn options(&self) -> String {
        format!("--tls=require --tls-certificates={}", self.text("server"))
    }

    /// The certificate directory of a server.
    pub(crate) fn server(&self) -> PathBuf {
        self.path("server")
    }

    /// The certificate directory of a client that has no certificate of its own.
    pub(crate) fn client(&self) -> PathBuf {
        self.path("client")
    }

    /// The certificate directory of a client with a certificate.
    pub(crate) fn own(&self) -> PathBuf {
        self.path("own")
    }
}

/// The address of an export with TLS on a socket, for a client with these certificates.
pub(crate) fn address(socket: &Path, dir: &Path, query: &str) -> Address {
    let (socket, dir) = (socket.display(), dir.display());
    let hostname = if query.contains("tls-hostname") { "" } else { "&tls-hostname=localhost" };
    let text = format!("nbds+unix:///?socket={socket}&tls-certificates={dir}{hostname}{query}");
    text.parse().unwrap()
}
