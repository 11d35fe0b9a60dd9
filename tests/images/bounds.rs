//! Every operation on a range of a device is held within the device, or within the part of one.

use std::io::IoSlice;
use std::sync::Arc;

use ironmap::device::image::{Address, Image, ImageFormat};
use ironmap::device::nbd::Nbd;
use ironmap::device::{
    AnyQueue, BlockFile, CutShort, Dax, Device, Faults, Joined, Limits, Null, OpenMode, Psync, Ram,
    Record, Sim, Uring, UringOptions,
};
use ironmap::integrity::{self, Integrity};
use ironmap::units::DevOffset;
use ironmap::{Buffer, ErrorKind, QueueOptions, Result};

use crate::common::nbd_export::{Form, OverNbd};
use crate::common::skip::Need;
use crate::make::{Dir, all, qcow2};
use crate::require;

const MIB: u64 = 1 << 20;
/// All of an image, and the part of it that is a device.
const WHOLE: u64 = 8 * MIB;
const PART: (u64, u64) = (2 * MIB, 3 * MIB);
const FILL: u8 = 0x77;

/// The names of the operations that a device does not refuse past its end.
fn unbounded(device: &dyn Device, at: u64, len: u64) -> Vec<&'static str> {
    let mut buffer = Buffer::aligned(len as usize).unwrap();
    let at = DevOffset(at);
    let refused = |result: Result<()>| {
        result.is_err_and(|error| matches!(error.kind(), ErrorKind::InvalidInput))
    };
    let results = [
        ("read", device.read_exact_at(&mut buffer, at)),
        ("write", device.write_all_at(&[IoSlice::new(&buffer)], at, false)),
        ("durable write", device.write_all_at(&[IoSlice::new(&buffer)], at, true)),
        ("discard", device.discard(at, len)),
        ("zeros", device.write_zeroes(at, len)),
    ];
    let accepted = results.into_iter().filter_map(|(op, result)| (!refused(result)).then_some(op));
    let mut found: Vec<_> = accepted.collect();
    // No range, but a position: at the end there is no more data.
    if at.0 > device.size() && !refused(device.data_from(at).map(drop)) {
        found.push("data");
    }
    found
}

/// Tries ranges over the end, from the end on, past it, and those whose end exceeds 64 bits.
fn sweep(name: &str, device: &dyn Device) {
    let size = device.size();
    let top = u64::MAX - 4095;
    for (at, len) in [
        (size - 4096, 8192),
        (0, size + 4096),
        (size, 4096),
        (size + 4096, 4096),
        (size + MIB, MIB),
        // As a sum with the beginning of the part, the part before it.
        (u64::MAX - PART.0 + 1, 4096),
        (i64::MAX as u64 + 1 - PART.0, 4096),
        (top, 4096),
        (top - 4096, 8192),
        (u64::MAX - 511, 512),
    ] {
        assert_eq!(unbounded(device, at, len), [""; 0], "{name}: {len} bytes at {at}");
    }
    assert_eq!(device.data_from(DevOffset(size)).unwrap(), DevOffset(size)..DevOffset(size));
    device.read_exact_at(&mut [0; 4096], DevOffset(size - 4096)).unwrap();
}

#[test]
fn no_range_reaches_past_a_part_of_an_image() {
    let dir = Dir::new();
    let raw = dir.raw("raw", &vec![FILL; WHOLE as usize]);
    let open = || {
        let mode = OpenMode { write: true, window: Some(PART), ..OpenMode::default() };
        BlockFile::open(&raw, &mode).unwrap()
    };
    sweep("psync", &Psync::new(Arc::new(open())));
    sweep("io_uring", &Uring::new(Arc::new(open()), UringOptions::default()));
    sweep("dax", &Dax::new(&open()).unwrap());
    sweep("null", &Null::over(Arc::new(Psync::new(Arc::new(open())))));
    assert!(std::fs::read(&raw).unwrap() == vec![FILL; WHOLE as usize], "the image was changed");
}

#[test]
fn no_range_reaches_past_a_part_of_an_image_of_a_virtual_machine() {
    require!([Need::Tool("qemu-img")]);
    let dir = Dir::new();
    let bytes = vec![FILL; WHOLE as usize];
    let raw = dir.raw("raw", &bytes);
    let path = dir.convert(&raw, "qcow2", "qcow2", &[]);
    sweep("qcow2", &qcow2(&path, true).unwrap().part(PART.0, PART.1).unwrap());
    assert!(all(&qcow2(&path, false).unwrap()) == bytes, "the image was changed");
    for (format, name) in [(ImageFormat::Vmdk, "vmdk"), (ImageFormat::Vhdx, "vhdx")] {
        let path = dir.convert(&raw, name, name, &[]);
        let image = Image::open(&Address { format, path }, false).unwrap();
        sweep(name, &image.part(PART.0, PART.1).unwrap());
    }
}

#[test]
fn no_range_reaches_past_a_part_of_an_export() {
    let dir = Dir::new();
    let raw = dir.raw("raw", &vec![FILL; WHOLE as usize]);
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let served = Arc::new(Psync::new(Arc::new(BlockFile::open(&raw, &mode).unwrap())));
    for form in [Form::Extended, Form::Plain] {
        let export = OverNbd::new(served.clone(), form);
        sweep("nbd", &export);
        let address = export.address();
        let part = Nbd::open(&address, true).unwrap().part(PART.0, PART.1).unwrap();
        sweep("a part of nbd", &part);
    }
    assert!(std::fs::read(&raw).unwrap() == vec![FILL; WHOLE as usize], "the image was changed");
}

#[test]
fn no_range_reaches_past_a_device_over_another_one() {
    let ram = || Arc::new(Ram::new(PART.1)) as Arc<dyn Device>;
    sweep("ram", &*ram());
    sweep("null", &Null::new(PART.1));
    sweep("recorded", &Record::new(ram()));
    sweep("with faults", &Sim::new(ram(), Faults::default()));
    sweep("a stranger's", &Stranger(Ram::new(PART.1)));
    let data = ram();
    integrity::format(&data, None, &integrity::FormatOptions::new(), &mut |_, _| {}).unwrap();
    sweep("integrity", &Integrity::open(data, None).unwrap().device);
    // Its addresses go on where the other device is seen.
    let joined = Joined::new(ram(), vec![(Joined::JOURNAL, ram())]);
    let end = Joined::JOURNAL + PART.1;
    for at in [PART.1, Joined::JOURNAL - 4096, end, end + MIB, u64::MAX - 4095] {
        assert!(joined.read_exact_at(&mut [0; 4096], DevOffset(at)).is_err(), "{at}");
    }
    joined.read_exact_at(&mut [0; 4096], DevOffset(end - 4096)).unwrap();
    // It claims to have no end.
    let cut = CutShort::new(ram());
    for at in [PART.1, PART.1 + MIB, u64::MAX - 4095] {
        assert!(cut.read_exact_at(&mut [0; 4096], DevOffset(at)).is_err(), "{at}");
        assert!(cut.discard(DevOffset(at), 4096).is_err(), "{at}");
    }
}

/// A device of another program, which checks nothing: each range that it gets is within it.
struct Stranger(Ram);

impl Stranger {
    fn expect(&self, at: DevOffset, len: u64) {
        assert!(at.0.checked_add(len).is_some_and(|end| end <= self.0.size()), "{len} at {at}");
    }
}

impl Device for Stranger {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.expect(at, buf.len() as u64);
        self.0.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        self.expect(at, bufs.iter().map(|buf| buf.len() as u64).sum());
        self.0.write_all_at(bufs, at, fua)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn discard_within(&self, at: DevOffset, len: u64) -> Result<()> {
        self.expect(at, len);
        self.0.discard(at, len)
    }

    fn zero_within(&self, at: DevOffset, len: u64) -> Result<()> {
        self.expect(at, len);
        self.0.write_zeroes(at, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
        self.0.queue(options)
    }
}
