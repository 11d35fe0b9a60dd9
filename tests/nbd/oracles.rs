//! ironmap writes exports. The programs of libnbd and qemu-img read them.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ironmap::device::Device;
use ironmap::units::DevOffset;

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::data::{Load, SIZE, content};
use crate::require;
use crate::server::Server;

/// After random requests, nbdcopy and `qemu-img compare` read the right bytes of the export. After zeros are written, the map of nbdinfo
/// contains no data range.
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
        // Each line contains an offset, a length, and the flags of base:allocation. In the flags, 1 means a hole, and 2 means that the
        // range reads as zeros.
        let flags = |line: &str| line.split_whitespace().nth(2).unwrap().parse::<u32>().unwrap();
        assert!(map.lines().all(|line| flags(line) & 2 != 0), "{program} {args}: {map}");
    }
}

/// The ranges of an export that read as zeros, as libnbd reports them. They are sorted, and adjacent ranges are joined.
fn zeros_of(uri: &str) -> Vec<std::ops::Range<u64>> {
    let map = String::from_utf8(run("nbdinfo", &["--map", uri])).unwrap();
    let mut zeros: Vec<std::ops::Range<u64>> = Vec::new();
    for line in map.lines() {
        let words: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [at, len, flags] = words[..] else { panic!("a line of nbdinfo: {line}") };
        match zeros.last_mut() {
            _ if flags & 2 == 0 => {}
            Some(last) if last.end == at => last.end += len,
            _ => zeros.push(at..at + len),
        }
    }
    zeros
}

/// The ranges that read as zeros, as the device reports them. They are the gaps between the ranges that may contain data.
fn gaps_of(device: &dyn Device) -> Vec<std::ops::Range<u64>> {
    let (mut at, mut gaps) = (0, Vec::<std::ops::Range<u64>>::new());
    while at < device.size() {
        let data = device.data_from(DevOffset(at)).unwrap();
        assert!(data.start.0 >= at && data.end >= data.start, "{data:?} from {at}");
        match gaps.last_mut() {
            _ if data.start.0 == at => {}
            Some(last) if last.end == at => last.end = data.start.0,
            _ => gaps.push(at..data.start.0),
        }
        assert!(data.end.0 > at, "{data:?} from {at}");
        at = data.end.0;
    }
    gaps
}

/// If the server reports ranges without data, ironmap reports the same ranges as nbdinfo, even after a reconnection. If the server does not
/// report such ranges, the whole export counts as data. In a part of an export, positions are relative to the start of the part.
#[test]
fn ranges_without_data_are_those_of_nbdinfo() {
    require!([
        Need::Tool("nbdkit"),
        Need::Tool("qemu-nbd"),
        Need::Tool("qemu-img"),
        Need::Tool("nbdinfo"),
    ]);
    let dir = scratch_in(Path::new("/dev/shm"));
    let (raw, qcow2) = (dir.path().join("raw"), dir.path().join("qcow2"));
    let (raw, qcow2) = (raw.to_str().unwrap(), qcow2.to_str().unwrap());
    let rng = &mut Rng::new(0x0057_a705);
    let mut bytes = vec![0; SIZE];
    for _ in 0..20 {
        let (at, len) = (rng.below(60) as usize * 65536, 1 + rng.below(100_000) as usize);
        bytes[at..at + len].copy_from_slice(&rng.bytes(len));
    }
    std::fs::write(raw, &bytes).unwrap();
    // The conversion to qcow2 and back turns ranges of zeros into holes of the file.
    run("qemu-img", &["convert", "-O", "qcow2", raw, qcow2]);
    run("qemu-img", &["convert", "-O", "raw", qcow2, raw]);
    let disk = std::fs::read(qcow2).unwrap();
    let nbdkit = format!("-f --exit-with-parent -U SOCKET file {raw}");
    for (program, args, tells) in [
        ("nbdkit", nbdkit.clone(), true),
        ("nbdkit", format!("--no-sr {nbdkit}"), false),
        ("qemu-nbd", "-t -e 8 -k SOCKET -f qcow2 DISK".to_owned(), true),
    ] {
        let mut server = Server::start(program, &args, &disk);
        let uri = server.address("").to_string();
        let device = server.open(false).unwrap();
        let expected = if tells { zeros_of(&uri) } else { Vec::new() };
        assert_eq!(!expected.is_empty(), tells, "{program} {args}: {expected:?}");
        assert_eq!(gaps_of(&device), expected, "{program} {args}");
        let part = server.open(false).unwrap().part(1 << 20, 2 << 20).unwrap();
        let within = |zeros: &std::ops::Range<u64>| {
            let (start, end) = (zeros.start.max(1 << 20), zeros.end.min(3 << 20));
            (start < end).then(|| start - (1 << 20)..end - (1 << 20))
        };
        let of_part: Vec<_> = expected.iter().filter_map(within).collect();
        assert_eq!(gaps_of(&part), of_part, "{program} {args}, a part");
        server.kill();
        server.restart();
        assert_eq!(gaps_of(&device), expected, "{program} {args}, after a restart");
    }
}

/// One reply of the server describes many ranges. So the map of an export with many data ranges needs few requests.
#[test]
fn many_ranges_need_few_questions() {
    require!([Need::Tool("nbdkit"), Need::Tool("nbdinfo")]);
    const PIECES: u64 = 500;
    let mut server = Server::nbdkit("--filter=log file DISK logfile=DIR/asked", &[]);
    let file = std::fs::File::create(server.disk()).unwrap();
    file.set_len(PIECES * 32768).unwrap();
    for piece in 0..PIECES {
        file.write_all_at(&[1; 4096], piece * 32768 + 8192).unwrap();
    }
    let uri = server.address("").to_string();
    let expected = zeros_of(&uri);
    assert_eq!(expected.len() as u64, PIECES + 1);
    server.kill();
    server.restart();
    assert_eq!(gaps_of(&server.open(false).unwrap()), expected);
    server.stop();
    let asked = std::fs::read_to_string(server.path("asked")).unwrap();
    let asked = asked.lines().filter(|line| line.contains(" Extents ")).count();
    assert!((1..=4).contains(&asked), "{asked} questions");
}

/// The size of an export need not be a multiple of 512. The export can be read to its end. If the server has larger blocks, the export can
/// be read to the end of the last whole block.
#[test]
fn the_last_bytes_of_an_export_are_read() {
    require!([Need::Tool("nbdkit")]);
    let disk = Rng::new(0x1a57).bytes((1 << 20) + 1000);
    for (args, len) in [
        ("file DISK", disk.len()),
        ("--filter=blocksize-policy file DISK blocksize-minimum=4096", 1 << 20),
    ] {
        let server = Server::nbdkit(args, &disk);
        let device = server.open(false).unwrap();
        assert_eq!(device.size(), len as u64, "{args}");
        let mut found = vec![0; len - 7];
        device.read_exact_at(&mut found, DevOffset(7)).unwrap();
        assert!(found == disk[7..len], "{args}");
        assert!(device.read_exact_at(&mut [0; 2], DevOffset(len as u64 - 1)).is_err(), "{args}");
        assert_eq!(gaps_of(&device), [], "{args}");
        assert_eq!(
            server.open(true).unwrap().size(),
            1 << 20 | if len % 512 == 0 { 0 } else { 512 }
        );
    }
}
