//! Multiple mount protection on an export. One node loses its connection, and another node claims the volume.

use std::path::Path;

use ironmap::fs::ext4::MkfsOptions;
use ironmap::location::LocationOptions;
use ironmap::{ErrorKind, Location, Volume, VolumeOptions};

use crate::common::command::run;
use crate::common::skip::Need;
use crate::proxy::Proxy;
use crate::require;
use crate::server::Server;

const NEEDS: [Need; 2] = [Need::Tool("nbdkit"), Need::Tool("mke2fs")];

/// The arguments of a server, and the block size of a volume. The block size is equal to the server's unit of requests, or shorter.
const SERVED: [(&str, &str); 2] = [
    ("file DISK", "4096"),
    (
        "--filter=blocksize-policy file DISK blocksize-minimum=4096 blocksize-preferred=4096 blocksize-error-policy=error",
        "1024",
    ),
];

fn served((args, block): (&str, &str)) -> Server {
    let server = Server::nbdkit(args, &vec![0; 32 << 20]);
    let options = format!("-Fqt ext4 -b {block} -O mmp -E mmp_update_interval=1");
    let disk = server.disk();
    run("mke2fs", &[options.split(' ').collect(), vec![disk.to_str().unwrap()]].concat());
    server
}

fn opened(address: &dyn std::fmt::Display) -> Volume {
    let location: Location = address.to_string().parse().unwrap();
    VolumeOptions::new().write(true).open(location).unwrap()
}

fn check(disk: &Path) {
    run("e2fsck", &["-fn", disk.to_str().unwrap()]);
}

/// If a node loses its connection for a short time only, it still owns the volume.
#[test]
fn a_node_that_comes_back_goes_on() {
    require!(NEEDS);
    SERVED.into_iter().for_each(come_back);
}

fn come_back(kind: (&str, &str)) {
    let mut server = served(kind);
    let proxy = Proxy::gated(&server);
    let volume = opened(&proxy.address("&timeout=60"));
    for number in 0..5 {
        volume.write(format!("/{number}"), vec![number; 300_000]).unwrap();
        proxy.close();
        proxy.open();
        if number % 2 == 0 {
            volume.fs().sync().unwrap();
        }
    }
    volume.close().unwrap();
    drop(volume);
    server.stop();
    check(&server.disk());
    let volume = Volume::open(server.disk()).unwrap();
    for number in 0..5 {
        assert!(volume.read(format!("/{number}")).unwrap() == vec![number; 300_000]);
    }
}

/// A node lost its connection, and another node has claimed the volume. The first node does not overwrite data of the second. This also
/// applies to writes that the client keeps for a restart of the server, and to writes without a reply.
#[test]
fn a_node_that_was_cut_off_leaves_the_volume_to_the_next() {
    require!(NEEDS);
    SERVED.into_iter().for_each(cut_off);
}

fn cut_off(kind: (&str, &str)) {
    let server = served(kind);
    let proxy = Proxy::gated(&server);
    let first = opened(&proxy.address("&timeout=120"));
    first.write("/first", vec![b'A'; 6 << 20]).unwrap();
    proxy.close();
    let second = opened(&server.address(""));
    second.write("/second", vec![b'B'; 9 << 20]).unwrap();
    second.close().unwrap();
    drop(second);
    let before = std::fs::read(server.disk()).unwrap();
    proxy.open();
    let error = first.fs().sync().unwrap_err();
    assert!(error.to_string().contains("another node has overwritten the MMP block"), "{error}");
    assert!(first.close().is_err());
    drop(first);
    assert!(std::fs::read(server.disk()).unwrap() == before, "it was written");
    check(&server.disk());
}

/// If another node uses a volume, mkfs cannot replace the volume, even with `force`.
#[test]
fn a_volume_that_is_held_is_not_replaced() {
    require!(NEEDS);
    let server = served(SERVED[0]);
    let volume = opened(&server.address(""));
    let other: Location = server.address("").to_string().parse().unwrap();
    let other = other.open(&LocationOptions::new().write(true)).unwrap();
    let error = ironmap::tools::make(&*other.device, &MkfsOptions::new().force(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    volume.write("/file", b"still here").unwrap();
    volume.close().unwrap();
    drop(volume);
    check(&server.disk());
    ironmap::tools::make(&*other.device, &MkfsOptions::new().force(true)).unwrap();
}
