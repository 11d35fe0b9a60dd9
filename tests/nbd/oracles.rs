//! Exports that ironmap has written, seen by libnbd's programs and by qemu-img.

use std::path::Path;

use ironmap::device::Device;
use ironmap::units::DevOffset;

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::skip::Need;
use crate::data::{Load, SIZE, content};
use crate::require;
use crate::server::Server;

/// The bytes of an export after random requests, by nbdcopy and by `qemu-img compare`; and after zeros, no range of data in nbdinfo's map.
#[test]
fn other_clients_see_the_same() {
    require!([
        Need::Tool("nbdkit"),
        Need::Tool("qemu-nbd"),
        Need::Tool("qemu-img"),
        Need::Tool("nbdcopy"),
        Need::Tool("nbdinfo"),
    ]);
    let dir = scratch_in(Path::new("/dev/shm"));
    let image = dir.path().join("image");
    run("qemu-img", &["create", "-q", "-f", "qcow2", image.to_str().unwrap(), "4M"]);
    let (raw, image, zeros) = (content(21), std::fs::read(&image).unwrap(), vec![0; SIZE]);
    let nbdkit = "-f --exit-with-parent -U SOCKET";
    let qemu = "-t -e 8 -k SOCKET --discard=unmap";
    for (program, args, disk, at_begin) in [
        ("nbdkit", format!("{nbdkit} file DISK"), &raw, &raw),
        ("nbdkit", format!("{nbdkit} memory 4M"), &raw, &zeros),
        ("qemu-nbd", format!("{qemu} -f raw DISK"), &raw, &raw),
        ("qemu-nbd", format!("{qemu} -f qcow2 DISK"), &image, &zeros),
    ] {
        let server = Server::start(program, &args, disk);
        let mut load = Load::new(server.open(true).unwrap(), at_begin.clone(), 21);
        load.steps(400);
        let model = load.end();
        let (uri, flat) = (server.address("").to_string(), server.path("flat"));
        let flat_path = flat.to_str().unwrap();
        run("nbdcopy", &[&*uri, flat_path]);
        assert!(std::fs::read(&flat).unwrap() == model, "{program} {args}: nbdcopy");
        std::fs::write(&flat, &model).unwrap();
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &*uri, flat_path]);
        let device = server.open(true).unwrap();
        device.write_zeroes(DevOffset(0), SIZE as u64).unwrap();
        device.flush().unwrap();
        let map = String::from_utf8(run("nbdinfo", &["--map", &*uri])).unwrap();
        // Offset, length, and the flags of base:allocation: 1 is a hole, 2 reads as zeros.
        let flags = |line: &str| line.split_whitespace().nth(2).unwrap().parse::<u32>().unwrap();
        assert!(map.lines().all(|line| flags(line) & 2 != 0), "{program} {args}: {map}");
    }
}
