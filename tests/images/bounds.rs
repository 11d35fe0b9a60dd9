//! Every operation on a device, or on a part of a device, must stay within it. A range past the end is refused.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Dev, Memory};
use ironmap::device::image::{Address, Image, ImageFormat};
use ironmap::device::nbd::Nbd;
use ironmap::device::{
    AnyQueue, BlockFile, BoundedQueue, CutShort, Dax, Device, DeviceQueue, Faults, InRange,
    LentPart, Limits, Null, OpenMode, Psync, Ram, Record, Segmented, Sim, Uring, UringOptions,
};
use ironmap::integrity::{self, Integrity};
use ironmap::units::DevOffset;
use ironmap::{Buffer, Errno, ErrorKind, QueueOptions, Result};

use crate::common::nbd_export::{Form, OverNbd};
use crate::common::skip::Need;
use crate::make::{Dir, all, qcow2};
use crate::require;

const MIB: u64 = 1 << 20;
/// The size of an image. Then the start and the length of the part of the image that is used as a device.
const WHOLE: u64 = 8 * MIB;
const PART: (u64, u64) = (2 * MIB, 3 * MIB);
const FILL: u8 = 0x77;

/// Tries each operation with a range past the end of the device. Returns the names of the operations that the device does not refuse.
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
    // `data_from` has a position and no length. At the end of the device, it reports that there are no more data. This is not an error.
    if at.0 > device.size() && !refused(device.data_from(at).map(drop)) {
        found.push("data");
    }
    found
}

/// Tries ranges that begin before, at, and past the end of the device, and ranges whose end exceeds 64 bits.
fn sweep(name: &str, device: &dyn Device) {
    let size = device.size();
    let top = u64::MAX - 4095;
    let mut queue = device.queue(&QueueOptions::new().depth(2)).unwrap();
    for (at, len) in [
        (size - 4096, 8192),
        (0, size + 4096),
        (size, 4096),
        (size + 4096, 4096),
        (size + MIB, MIB),
        // The sum of this position and the start of the part overflows. Without a check, the result would be a position before the part.
        (u64::MAX - PART.0 + 1, 4096),
        (i64::MAX as u64 + 1 - PART.0, 4096),
        (top, 4096),
        (top - 4096, 8192),
        (u64::MAX - 511, 512),
    ] {
        assert_eq!(unbounded(device, at, len), [""; 0], "{name}: {len} bytes at {at}");
        let found = unbounded_in_queue(&mut queue, Dev::OWN, at, len);
        assert_eq!(found, [""; 0], "queue of {name}: {len} bytes at {at}");
    }
    let last = DevOffset(size - 4096);
    let mut buffer = Buffer::aligned(4096).unwrap();
    assert_eq!(queue.read_now(Dev::OWN, &mut buffer, last, BioFlags::empty()), Ok(4096), "{name}");
    assert_eq!(device.data_from(DevOffset(size)).unwrap(), DevOffset(size)..DevOffset(size));
    device.read_exact_at(&mut [0; 4096], DevOffset(size - 4096)).unwrap();
}

/// Sends requests for a range past the end to a queue. Returns the requests that are not refused.
fn unbounded_in_queue(queue: &mut BoundedQueue, dev: Dev, at: u64, len: u64) -> Vec<&'static str> {
    let mut buffer = Buffer::aligned(len as usize).unwrap();
    let (at, flags) = (DevOffset(at), BioFlags::empty());
    let read = queue.read_now(dev, &mut buffer, at, flags);
    let write = queue.write_now(dev, &[IoSlice::new(&buffer)], at, flags);
    let mut parts = [LentPart::new([IoSliceMut::new(&mut buffer)].into_iter().collect(), at)];
    queue.read_parts_now(dev, &mut parts, flags);
    let parts = parts[0].result;
    let mut queued = [BioOp::Read, BioOp::Write].map(|op| {
        let memory = Memory::Flat(Buffer::aligned(len as usize).unwrap());
        let end = BioEnd::Part { request: 0, part: 0 };
        assert!(queue.submit(Bio { op, flags, dev, at, memory, end }).is_ok());
        queue.wait(1).unwrap();
        queue.pop().unwrap().result
    });
    assert_eq!(queue.in_flight(), 0);
    let [queued_read, queued_write] = &mut queued;
    let results = [
        ("read", read),
        ("write", write),
        ("read of parts", parts),
        ("queued read", *queued_read),
        ("queued write", *queued_write),
    ];
    let accepted = results.into_iter().filter(|(_, result)| *result != Err(Errno::EINVAL));
    accepted.map(|(op, _)| op).collect()
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

/// A queue limits requests to an attached file to the range of this file, even after another file was detached.
#[test]
fn no_range_reaches_past_an_attached_file() {
    let dir = Dir::new();
    let raw = dir.raw("raw", &vec![FILL; WHOLE as usize]);
    let part = |path: &Path, window| {
        let mode = OpenMode { write: true, window: Some(window), ..OpenMode::default() };
        Arc::new(BlockFile::open(path, &mode).unwrap())
    };
    let own = part(&dir.raw("own", &[FILL; MIB as usize]), (0, MIB));
    let devices: [Box<dyn Device>; 2] = [
        Box::new(Psync::new(Arc::clone(&own))),
        Box::new(Uring::new(own, UringOptions::default())),
    ];
    for device in devices {
        let mut queue = device.queue(&QueueOptions::new().depth(2)).unwrap();
        let first = queue.attach(&part(&raw, PART), true).unwrap();
        queue.detach(first);
        let mut buffer = Buffer::aligned(4096).unwrap();
        let gone = queue.read_now(first, &mut buffer, DevOffset(0), BioFlags::empty());
        assert_eq!(gone, Err(Errno::EBADF));
        let second = queue.attach(&part(&raw, PART), false).unwrap();
        for at in [PART.1, PART.1 - 2048, u64::MAX - PART.0 + 1, u64::MAX - 4095] {
            assert_eq!(unbounded_in_queue(&mut queue, second, at, 4096), [""; 0], "{at}");
        }
        let last = DevOffset(PART.1 - 4096);
        assert_eq!(queue.read_now(second, &mut buffer, last, BioFlags::empty()), Ok(4096));
        assert_eq!(buffer[..], [FILL; 4096]);
    }
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
        let image = Image::open(&Address::new(format, path), false).unwrap();
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
    // No device has the addresses between the end of the first device and the start of the other device.
    let joined = Segmented::joined(ram(), vec![(Segmented::JOURNAL, ram())]);
    let end = Segmented::JOURNAL + PART.1;
    for at in [PART.1, Segmented::JOURNAL - 4096, end, end + MIB, u64::MAX - 4095] {
        assert!(joined.read_exact_at(&mut [0; 4096], DevOffset(at)).is_err(), "{at}");
    }
    joined.read_exact_at(&mut [0; 4096], DevOffset(end - 4096)).unwrap();
    // The device reports a larger size than it really has.
    let cut = CutShort::new(ram());
    for at in [PART.1, PART.1 + MIB, u64::MAX - 4095] {
        assert!(cut.read_exact_at(&mut [0; 4096], DevOffset(at)).is_err(), "{at}");
        assert!(cut.discard(DevOffset(at), 4096).is_err(), "{at}");
    }
}

/// A device that another program implements, without checks of ranges. It asserts that ironmap only sends ranges within the device.
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

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.expect(at, buf.len() as u64);
        self.0.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        self.expect(at, bufs.iter().map(|buf| buf.len() as u64).sum());
        self.0.write_all_at(bufs, at, fua)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.expect(at, len);
        self.0.discard(at, len)
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.expect(at, len);
        self.0.write_zeroes(at, len)
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::other(self.0.queue(options)?))
    }
}
