//! Exports over TLS: servers, certificates that are refused, and attackers on the connection.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ironmap::device::Device;
use ironmap::device::nbd::{Address, Nbd};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use crate::certificates::{Authority, NEEDS, address};
use crate::common::skip::Need;
use crate::data::{Load, content};
use crate::event_loop::{is_quiet_when_idle, transfer};
use crate::fake::{Fake, within};
use crate::require;
use crate::server::Server;

/// Sends random requests. Then compares the disk with a model.
pub(crate) fn random_requests(device: Nbd, mut server: Server, seed: u64, name: &str) {
    let mut load = Load::new(device, content(seed), seed);
    load.steps(600);
    let model = load.end();
    server.stop();
    assert!(std::fs::read(server.disk()).unwrap() == model, "{name}, seed {seed}");
}

/// Tests exports over TLS, over one connection and over several, with and without a client certificate. A model predicts the bytes.
#[test]
fn an_export_over_tls_holds_what_was_written() {
    require!(NEEDS);
    let authority = Authority::new();
    for (seed, args) in [
        "file DISK",
        "--tls-verify-peer file DISK",
        "--filter=multi-conn file DISK multi-conn-mode=disable",
        "--no-sr --filter=cache file DISK",
    ]
    .into_iter()
    .enumerate()
    {
        let args = format!("{} {args}", authority.options());
        let server = Server::nbdkit(&args, &content(seed as u64));
        let dir = if seed == 1 { authority.own() } else { authority.client() };
        let device = Nbd::open(&address(&server.socket(), &dir, ""), true).unwrap();
        random_requests(device, server, seed as u64, &args);
    }
}

/// An export of qemu over TLS contains the data that were written to it. The test uses TLS 1.2 and TLS 1.3.
#[test]
fn an_export_of_qemu_over_tls_holds_what_was_written() {
    require!([Need::Tool("qemu-nbd"), NEEDS[1], NEEDS[2]]);
    let authority = Authority::new();
    for (seed, version) in [(1, ""), (2, ",priority=NORMAL:-VERS-TLS1.3")] {
        let dir = authority.server();
        let object =
            format!("tls-creds-x509,id=it,endpoint=server,verify-peer=yes,dir={}", dir.display());
        let args =
            format!("--object {object}{version} --tls-creds it -t -e 8 -k SOCKET -f raw DISK");
        let server = Server::start("qemu-nbd", &args, &content(seed));
        let address = address(&server.socket(), &authority.own(), "");
        random_requests(Nbd::open(&address, true).unwrap(), server, seed, version);
    }
}

/// Over TCP, the certificate must match the host in the address. The test uses a DNS name, an IP address, and the name of another host.
#[test]
fn the_name_of_the_host_is_verified() {
    require!(NEEDS);
    let authority = Authority::new();
    let server = Server::nbdkit(&format!("{} file DISK", authority.options()), &content(1));
    let (listener, socket) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.socket());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, Ok(server)) = (client.unwrap(), UnixStream::connect(&socket)) else {
                return;
            };
            let mut there = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut there.0, &mut there.1);
                there.1.shutdown(std::net::Shutdown::Write)
            });
            let mut back = (server, client);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back.0, &mut back.1);
                back.1.shutdown(std::net::Shutdown::Both)
            });
        }
    });
    let open = |host: &str, query: &str| {
        let dir = authority.client();
        let text = format!("nbds://{host}:{port}/?tls-certificates={}{query}", dir.display());
        Nbd::open(&text.parse().unwrap(), false)
    };
    for host in ["localhost", "127.0.0.1"] {
        let mut found = [0; 512];
        open(host, "").unwrap().read_exact_at(&mut found, DevOffset(512)).unwrap();
        assert!(found == content(1)[512..1024]);
    }
    let error = open("127.0.0.1", "&tls-hostname=elsewhere.example").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    let text = error.to_string();
    assert!(
        text.contains("TLS with elsewhere.example: ") && text.contains("another name"),
        "{text}"
    );
    assert!(text.starts_with("nbds://127.0.0.1:"), "{text}");
}

/// Asserts that an open is refused. The message is one line, with the address and the reason.
fn refused(server: &Server, dir: &Path, query: &str, reason: &str) {
    let error = Nbd::open(&address(&server.socket(), dir, query), false).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(reason) && text.lines().count() == 1, "{text}");
    assert!(text.starts_with("nbds+unix:///?socket="), "{text}");
}

/// Invalid certificates are refused. The test covers each reason why the client refuses, and each reason why the server refuses.
#[test]
fn certificates_that_are_not_right_are_refused() {
    require!(NEEDS);
    let (authority, other) = (Authority::new(), Authority::named("somebody else"));
    let start = |args: &str| Server::nbdkit(&format!("{args} file DISK"), &content(1));
    let server = start(&authority.options());
    // The other authority has the same name but a different key.
    let same = Authority::new();
    refused(
        &server,
        &same.client(),
        "",
        "the server's certificate is not signed by a trusted authority",
    );
    refused(
        &server,
        &other.client(),
        "",
        "TLS with localhost: the server's certificate is not signed by a trusted authority",
    );
    refused(
        &server,
        &authority.client(),
        "&tls-hostname=else",
        "the server's certificate is for another name",
    );
    refused(&server, &authority.client().join("none"), "", "none/ca-cert.pem: No such file");
    std::fs::create_dir(other.client().join("empty")).unwrap();
    std::fs::write(other.client().join("empty/ca-cert.pem"), "x").unwrap();
    refused(&server, &other.client().join("empty"), "", "empty/ca-cert.pem: ");

    authority.revoke();
    refused(&server, &authority.client(), "", "the server's certificate was revoked");
    // If a revocation list exists but cannot be read, this is an error. A missing list is not an error.
    std::fs::remove_file(authority.client().join("ca-crl.pem")).unwrap();
    symlink("/nonexistent", authority.client().join("ca-crl.pem")).unwrap();
    refused(&server, &authority.client(), "", "ca-crl.pem: No such file");
    std::fs::remove_file(authority.client().join("ca-crl.pem")).unwrap();

    let verifying = start(&format!("{} --tls-verify-peer", authority.options()));
    refused(&verifying, &authority.client(), "", "the server requires a client certificate");
    for name in ["client-cert.pem", "client-key.pem"] {
        std::fs::copy(other.own().join(name), authority.client().join(name)).unwrap();
    }
    refused(&verifying, &authority.client(), "", "TLS with localhost: the server ");
    std::fs::remove_file(authority.client().join("client-key.pem")).unwrap();
    refused(&verifying, &authority.client(), "", "client/client-key.pem: No such file");
    std::fs::remove_file(authority.client().join("client-cert.pem")).unwrap();

    authority.of_server("localhost", Some("2020-01-01 00:00:00"));
    let expired = start(&authority.options());
    refused(&expired, &authority.client(), "", "the server's certificate has expired");
}

/// The client never changes from TLS to plain text. If a server requires TLS, a client without TLS gets this reason from the server.
#[test]
fn a_server_without_tls_is_refused() {
    require!(NEEDS);
    let authority = Authority::new();
    let plain = Server::nbdkit("file DISK", &content(1));
    refused(
        &plain,
        &authority.client(),
        "",
        "the server does not offer TLS, but nbds:// requires TLS",
    );
    let server = Server::nbdkit(&format!("{} file DISK", authority.options()), &content(1));
    let error = server.open(false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("the server requires TLS: write nbds:// instead of nbd://"),
        "{error}"
    );
}

/// Without `tls-certificates`, the client trusts the authorities of the system. A child process runs the test, with environment variables
/// that name the authorities.
#[test]
fn the_authorities_of_the_system_are_trusted() {
    const VARIABLE: &str = "IRONMAP_NBD_TLS_ADDRESS";
    if let Ok(address) = std::env::var(VARIABLE) {
        let result = Nbd::open(&address.parse::<Address>().unwrap(), false).map(drop);
        println!("opened: {result:?}");
        return;
    }
    require!(NEEDS);
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Server::nbdkit(&format!("{} file DISK", authority.options()), &content(1));
    let address =
        format!("nbds+unix:///?socket={}&tls-hostname=localhost", server.socket().display());
    let empty = server.path("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(server.path("none"), "").unwrap();
    let opened = |trusted: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tls::the_authorities_of_the_system_are_trusted", "--nocapture"]);
        command.env(VARIABLE, &address).env("SSL_CERT_FILE", trusted).env("SSL_CERT_DIR", &empty);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = opened(&authority.client().join("ca-cert.pem"));
    assert!(text.contains("opened: Ok(())"), "{text}");
    let text = opened(&other.client().join("ca-cert.pem"));
    assert!(text.contains("not signed by a trusted authority"), "{text}");
    let text = opened(&server.path("none"));
    assert!(text.contains("no trusted authorities for TLS: tls-certificates=DIR"), "{text}");
}

/// Acts as the server, up to the client's request for TLS. Returns whether the client has sent this request.
pub(crate) fn greet(stream: &mut UnixStream) -> bool {
    stream.write_all(&[&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat()).unwrap();
    let mut asked = [0; 4 + 16];
    stream.read_exact(&mut asked).is_ok() && asked[4..] == *b"IHAVEOPT\0\0\0\x05\0\0\0\0"
}

pub(crate) fn reply(option: u32, kind: u32) -> Vec<u8> {
    let magic = 0x0003_E889_0455_65A9_u64.to_be_bytes();
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &[0; 4]].concat()
}

fn answered(answer: impl Fn(&mut UnixStream) + Send + 'static) -> (ironmap::Error, Duration) {
    let authority = Authority::new();
    let (heard, said) = std::sync::mpsc::channel();
    let server = Fake::scripted(move |mut stream| {
        let is_asked = greet(&mut stream);
        answer(&mut stream);
        // From here on, the client must not send a request in plain text.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let is_plain = rest.windows(8).any(|bytes| bytes == b"IHAVEOPT");
        let _ = heard.send((is_asked, is_plain));
    });
    let began = Instant::now();
    let address = address(&server.socket(), &authority.client(), "&timeout=1");
    let error = Nbd::open(&address, false).unwrap_err();
    let waited = began.elapsed();
    assert_eq!(said.recv().unwrap(), (true, false));
    (error, waited)
}

/// Plain text between the reply to the TLS request and the handshake is an error. An attacker on the network could have inserted it
/// (compare CVE-2021-3716, for servers). The client requests TLS as its first option, so plain text cannot come earlier.
#[test]
fn plain_text_in_front_of_tls_is_an_error() {
    require!(NEEDS);
    // Replies to options that the client sends only after TLS has begun: extended headers, and an export.
    let forged = [reply(11, 1), reply(7, 1)];
    for injected in [forged.concat(), vec![0], b"NBDMAGIC".to_vec(), vec![0x16, 3, 3, 0xFF, 0xFF]] {
        let (error, _) = answered(move |stream| {
            stream.write_all(&[reply(5, 1), injected.clone()].concat()).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
        });
        let text = error.to_string();
        assert!(text.contains("TLS with localhost: the server "), "{text}");
        assert_ne!(error.kind(), ErrorKind::InvalidInput);
    }
    let (error, _) =
        answered(|stream| stream.write_all(&[reply(5, 1), forged_go()].concat()).unwrap());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("sends something other than TLS"), "{error}");
}

fn forged_go() -> Vec<u8> {
    reply(7, 1)
}

/// If the reply to the request for TLS is missing, or is not an acknowledgement, the open fails.
#[test]
fn other_answers_to_the_request_for_tls_are_errors() {
    require!(NEEDS);
    const ERROR: u32 = 1 << 31;
    for (kind, expected) in [
        (ERROR + 1, "does not offer TLS"),
        (ERROR + 2, "does not offer TLS"),
        (ERROR + 3, "does not offer TLS"),
        (ERROR + 7, "is shutting down"),
        (ERROR + 99, "refuses"),
        (3, "unknown type 3"),
    ] {
        let (error, _) = answered(move |stream| stream.write_all(&reply(5, kind)).unwrap());
        assert!(error.to_string().contains(expected), "{error}");
    }
    let (error, _) = answered(|stream| stream.write_all(&reply(8, 1)).unwrap());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let (error, waited) = within(Duration::from_secs(20), || {
        // The server acknowledges the request for TLS and then sends nothing.
        answered(|stream| stream.write_all(&reply(5, 1)).unwrap())
    });
    assert_eq!(error.errno(), Errno(110), "{error}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

/// If TLS has decrypted data that no call has read yet, the descriptor for an event loop is readable.
#[test]
fn event_loops_see_all_data() {
    require!(NEEDS);
    let authority = Authority::new();
    let single = "--filter=multi-conn file DISK multi-conn-mode=disable";
    for args in ["file DISK", single] {
        let args = format!("{} {args}", authority.options());
        for edge in [false, true] {
            let mut server = Server::nbdkit(&args, &content(1));
            let address = address(&server.socket(), &authority.client(), "");
            transfer(&Nbd::open(&address, true).unwrap(), &mut server, edge);
        }
        let mut server = Server::nbdkit(&args, &content(1));
        let address = address(&server.socket(), &authority.client(), "&timeout=1");
        is_quiet_when_idle(&Nbd::open(&address, true).unwrap(), &mut server, &args);
    }
}
