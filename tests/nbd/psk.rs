//! Exports over TLS with pre-shared keys. The servers use TLS 1.2 and 1.3. Some keys are wrong.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use ironmap::device::Device as _;
use ironmap::device::nbd::{Address, Nbd};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use crate::certificates::{self, Authority};
use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::skip::Need;
use crate::data::{Load, content};
use crate::event_loop::{is_quiet_when_idle, transfer};
use crate::fake::{Fake, within};
use crate::lost::killed_under_load;
use crate::proxy::Proxy;
use crate::require;
use crate::server::Server;
use crate::tls::{greet, random_requests, reply};
use crate::tls_lost::survive_damage;

const NEEDS: [Need; 1] = [Need::Tool("nbdkit")];
const KEYS: &str = "alice:00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n\
                    bob:0123456789abcdef0123456789abcdef\n";

/// Starts nbdkit with these keys. The server requires TLS.
fn nbdkit(args: &str, seed: u64) -> Server {
    let args = format!("-f --exit-with-parent -U SOCKET --tls=require --tls-psk=DIR/file {args}");
    Server::with_file("nbdkit", &args, &content(seed), KEYS)
}

/// The address of an export, as a certain user connects to it. `keys` is the file that contains the key of the user.
fn address(server: &Server, user: &str, keys: &Path, query: &str) -> Address {
    address_of(&server.socket(), user, keys, query)
}

fn address_of(socket: &Path, user: &str, keys: &Path, query: &str) -> Address {
    let (socket, keys) = (socket.display(), keys.display());
    format!("nbds+unix://{user}@/?socket={socket}&tls-psk-file={keys}{query}").parse().unwrap()
}

/// Tests exports with a key, over one connection and over several. A model predicts the bytes. libnbd accepts the same URI.
#[test]
fn an_export_with_a_key_holds_what_was_written() {
    require!(NEEDS);
    let single = "--filter=multi-conn file DISK multi-conn-mode=disable";
    for (seed, args) in ["file DISK", single].into_iter().enumerate() {
        let server = nbdkit(args, seed as u64);
        for user in ["alice", "bob"] {
            let address = address(&server, user, &server.path("file"), "");
            let mut found = [0; 512];
            Nbd::open(&address, false).unwrap().read_exact_at(&mut found, DevOffset(512)).unwrap();
            assert!(found == content(seed as u64)[512..1024]);
            let text = address.to_string();
            let size = String::from_utf8(run("nbdinfo", &["--size", &text])).unwrap();
            assert_eq!(size.trim(), server_size(&server));
        }
        let address = address(&server, "alice", &server.path("file"), "");
        random_requests(Nbd::open(&address, true).unwrap(), server, seed as u64, args);
    }
}

fn server_size(server: &Server) -> String {
    std::fs::metadata(server.disk()).unwrap().len().to_string()
}

/// An export of qemu with a key contains the data that were written to it. The test uses TLS 1.2 and TLS 1.3.
#[test]
fn an_export_of_qemu_with_a_key_holds_what_was_written() {
    require!([Need::Tool("qemu-nbd")]);
    for (seed, version) in [
        (1, ""),
        (2, ",priority=NORMAL:-VERS-ALL:+VERS-TLS1.2"),
        (3, ",priority=NORMAL:-VERS-ALL:+VERS-TLS1.3"),
    ] {
        // The options contain the path of the key file.
        let dir = scratch_in(Path::new("/dev/shm"));
        let keys = dir.path().join("keys.psk");
        std::fs::write(&keys, KEYS).unwrap();
        let object = format!("tls-creds-psk,id=it,endpoint=server,dir={}", dir.path().display());
        let args =
            format!("--object {object}{version} --tls-creds it -t -e 8 -k SOCKET -f raw DISK");
        let server = Server::start("qemu-nbd", &args, &content(seed));
        let address = address(&server, "alice", &keys, "");
        random_requests(Nbd::open(&address, true).unwrap(), server, seed, version);
    }
}

/// Asserts that an open is refused. The message is one line, with the address and the reason.
fn refused(address: &Address, kind: ErrorKind, reason: &str) {
    let error = Nbd::open(address, false).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(reason) && text.lines().count() == 1, "{text}");
    assert!(text.starts_with("nbds+unix://") && error.kind() == kind, "{error:?}");
}

/// Wrong keys are refused. The test covers each reason why the client refuses, and each reason why the server refuses.
#[test]
fn keys_that_are_not_right_are_refused() {
    require!(NEEDS);
    let server = nbdkit("file DISK", 1);
    let keys = server.path("other");
    let write = |text: &str| std::fs::write(&keys, text).unwrap();
    let with = |user: &str| address(&server, user, &keys, "&timeout=5");
    refused(&with("alice"), ErrorKind::Io(Errno::ENOENT), "other: No such file");
    for (text, kind, reason) in [
        (
            &KEYS.replace("aabb", "bbaa")[..],
            ErrorKind::Io(Errno(104)),
            "the server ended the connection: the server may not know",
        ),
        ("", ErrorKind::NotFound, "the file has no key of the user \"alice\""),
        (
            "alic:00\nxalice:00\nalice",
            ErrorKind::NotFound,
            "the file has no key of the user \"alice\"",
        ),
        ("alice:0011223344556677889", ErrorKind::NotPermitted, "not in hexadecimal digits"),
        (
            "alice:+0112233445566778899aabbccddeeff",
            ErrorKind::NotPermitted,
            "not in hexadecimal digits",
        ),
        ("alice:00112233", ErrorKind::Unsupported, "has 4 bytes, but must have from 16 to 256"),
        ("alice:", ErrorKind::Unsupported, "has 0 bytes"),
    ] {
        write(text);
        refused(&with("alice"), kind, reason);
    }
    std::fs::write(&keys, [0xFF; 99]).unwrap();
    refused(&with("alice"), ErrorKind::NotFound, "the file has no key");
    std::fs::write(&keys, vec![b'a'; (1 << 20) + 1]).unwrap();
    refused(&with("alice"), ErrorKind::Unsupported, "more than 1048576 bytes");
    // In this case, one line of the key file is not valid UTF-8, and the lines end with a carriage return and a newline.
    std::fs::write(&keys, [b"m\xFCller:00\n", KEYS.replace('\n', "\r\n").as_bytes()].concat())
        .unwrap();
    Nbd::open(&with("alice"), false).unwrap();
    // In this case, the key file is a pipe without a writer.
    std::fs::remove_file(&keys).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &keys, rustix::fs::Mode::RUSR).unwrap();
    let began = std::time::Instant::now();
    refused(&with("alice"), ErrorKind::NotFound, "the file has no key");
    assert!(began.elapsed() < Duration::from_secs(5));
    std::fs::remove_file(&keys).unwrap();
    write(&format!("mallory:{}\n", "ab".repeat(32)));
    refused(
        &with("mallory"),
        ErrorKind::Io(Errno(104)),
        "the server ended the connection: the server may not know",
    );
}

/// Three connections are refused:
///
/// - to a server with a certificate instead of the key;
/// - to a server without TLS;
/// - from a client with certificates to a server with keys.
///
/// A certificate does not replace the key: any machine could have a certificate.
#[test]
fn servers_without_the_key_are_refused() {
    require!([certificates::NEEDS[0], certificates::NEEDS[1], certificates::NEEDS[2]]);
    let authority = Authority::new();
    let with_key = nbdkit("file DISK", 1);
    let keys = with_key.path("file");
    let server = Server::nbdkit(&format!("{} file DISK", authority.options()), &content(1));
    refused(&address(&server, "alice", &keys, ""), ErrorKind::NotPermitted, "the server ");
    let plain = Server::nbdkit("file DISK", &content(1));
    let reason = "the server does not offer TLS, but nbds:// requires TLS";
    refused(&address(&plain, "alice", &keys, ""), ErrorKind::Unsupported, reason);
    let other = certificates::address(&with_key.socket(), &authority.client(), "");
    refused(
        &other,
        ErrorKind::Io(Errno(104)),
        "TLS with localhost: the server ended the connection",
    );
    // The test uses each version of TLS.
    for (version, kind, reason) in [
        ("1.2", ErrorKind::Io(Errno(104)), "the server ended the connection"),
        (
            "1.3",
            ErrorKind::NotPermitted,
            "the server sent a certificate instead of using the pre-shared key",
        ),
    ] {
        let object = format!(
            "tls-creds-x509,id=it,endpoint=server,verify-peer=no,dir={},priority=NORMAL:-VERS-ALL:+VERS-TLS{version}",
            authority.server().display()
        );
        let args = format!("--object {object} --tls-creds it -t -k SOCKET -f raw DISK");
        let server = Server::start("qemu-nbd", &args, &content(1));
        refused(&address(&server, "alice", &keys, ""), kind, reason);
    }
}

/// A server is killed under load, and connections are cut or get one wrong byte. No acknowledged data are lost, and no wrong data are
/// returned.
#[test]
fn lost_and_damaged_connections_lose_nothing_with_keys() {
    require!(NEEDS);
    let single = "--filter=multi-conn file DISK multi-conn-mode=disable";
    let server = nbdkit("--filter=cache file DISK", 1);
    let address = address(&server, "alice", &server.path("file"), "");
    let mut load = Load::new(Nbd::open(&address, true).unwrap(), content(1), 1);
    let mut server = killed_under_load(server, &mut load, 1);
    let model = load.end();
    server.kill();
    assert!(std::fs::read(server.disk()).unwrap() == model);
    survive_damage(
        20,
        |seed| nbdkit(single, seed),
        |server, seed, in_handshake| {
            let below = if in_handshake { 1500 } else { 400_000 };
            match seed % 2 {
                0 => Proxy::damaging(server, seed, below),
                _ => Proxy::cutting(server, seed, below * 4),
            }
        },
        |proxy, server, query| address_of(proxy.socket(), "bob", &server.path("file"), query),
    );
}

/// If a server sends something that is not a handshake, or sends nothing, the open returns an error.
#[test]
fn a_server_that_does_not_speak_tls_is_an_error() {
    let dir = scratch_in(Path::new("/dev/shm"));
    let keys = dir.path().join("keys");
    std::fs::write(&keys, KEYS).unwrap();
    let open = |answer: &'static [u8], ends: bool| {
        let server = Fake::scripted(move |mut stream| {
            if !greet(&mut stream) {
                return;
            }
            let _ = stream.write_all(&[&reply(5, 1), answer].concat());
            if ends {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let address = address_of(&server.socket(), "alice", &keys, "&timeout=1");
        within(Duration::from_secs(20), move || Nbd::open(&address, false).unwrap_err())
    };
    let error = open(b"NBDMAGIC, and no TLS", false);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = open(b"", true);
    assert!(error.to_string().contains("the server ended the connection"), "{error}");
    let error = open(&[0x16, 3, 3, 0xFF, 0xFF], true);
    assert!(error.to_string().contains("TLS as alice: "), "{error}");
    assert_eq!(open(b"", false).errno(), Errno(110));
}

/// If TLS has decrypted data that no call has read yet, the descriptor for an event loop is readable.
#[test]
fn event_loops_see_all_data_with_keys() {
    require!(NEEDS);
    for edge in [false, true] {
        let mut server = nbdkit("file DISK", 1);
        let address = address(&server, "bob", &server.path("file"), "");
        transfer(&Nbd::open(&address, true).unwrap(), &mut server, edge);
    }
    let mut server = nbdkit("file DISK", 1);
    let address = address(&server, "bob", &server.path("file"), "&timeout=1");
    is_quiet_when_idle(&Nbd::open(&address, true).unwrap(), &mut server, "keys");
}
