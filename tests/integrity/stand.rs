//! Small integrity devices in memory.

use std::io::IoSlice;
use std::sync::Arc;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{BoundedQueue, Device, DeviceQueue, Ram};
use ironmap::integrity::{
    FormatOptions, Info, Integrity, IntegrityOptions, Mode, Opened, TupleKind, format,
};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Errno, QueueOptions, Result};

use crate::rng::Rng;

/// A data device, and the device that stores its tags (checksums). The tags can also be on the data device itself.
pub(crate) struct Stand {
    pub(crate) data: Arc<Ram>,
    /// The device of the tags, or `None` if they are at the end of the data device.
    pub(crate) tags: Option<Arc<Ram>>,
    pub(crate) info: Info,
}

/// The format options for every kind of device.
pub(crate) fn all_options() -> impl Iterator<Item = FormatOptions> {
    let kinds = [TupleKind::T10, TupleKind::Nvme64];
    let modes = [Mode::Bitmap, Mode::Journal];
    let all = (0..16).map(move |number| {
        FormatOptions::new()
            .interval(if number & 1 == 0 { 512 } else { 4096 })
            .kind(kinds[number >> 1 & 1])
            .mode(modes[number >> 2 & 1])
            .generations(number >> 3 & 1 != 0)
            .application(0x1234)
            .region(64 << 10)
            .journal(256 << 10)
    });
    all.filter(|options| options.mode == Mode::Bitmap || !options.generations)
}

impl Stand {
    /// Formats devices that contain random bytes.
    pub(crate) fn new(size: u64, tail: bool, options: &FormatOptions, seed: u64) -> Self {
        let data = Arc::new(Ram::from_image(&Rng::new(seed).bytes(size as usize)));
        let tags = (!tail).then(|| Arc::new(Ram::new(8 << 20)));
        let info = format(
            &as_device(&data),
            tags.as_ref().map(as_device).as_ref(),
            options,
            &mut |_, _| {},
        )
        .unwrap();
        Self { data, tags, info }
    }

    pub(crate) fn open(&self) -> Opened {
        self.open_with(&IntegrityOptions::default()).unwrap()
    }

    pub(crate) fn open_with(&self, options: &IntegrityOptions) -> Result<Opened> {
        let data = self.data.clone() as Arc<dyn Device>;
        Integrity::open_with(data, self.tags.as_ref().map(as_device), options)
    }

    /// A copy of the devices with their present content. A power cut that loses no write would leave this content.
    pub(crate) fn snapshot(&self) -> Self {
        Self {
            data: Arc::new(self.data.snapshot()),
            tags: self.tags.as_ref().map(|tags| Arc::new(tags.snapshot())),
            info: self.info,
        }
    }

    pub(crate) fn tag_ram(&self) -> &Ram {
        self.tags.as_ref().unwrap_or(&self.data)
    }

    /// The byte at which the tags begin on their device.
    pub(crate) fn tags_at(&self) -> u64 {
        let sealed = 4096 - 4;
        let map = self.info.regions().div_ceil(sealed * 8);
        let generations = self.info.regions().div_ceil(sealed / 2);
        let generations = if self.info.generations { generations } else { 0 };
        self.info.area_start + 4096 * (1 + map + generations)
    }
}

pub(crate) fn as_device(ram: &Arc<Ram>) -> Arc<dyn Device> {
    Arc::clone(ram) as Arc<dyn Device>
}

/// Changes bytes of a device directly, so that the layers above the device do not see the change.
pub(crate) fn change(ram: &Ram, at: u64, change: impl FnOnce(&mut u8)) {
    let start = at / 4096 * 4096;
    let mut block = Buffer::aligned(4096).unwrap();
    ram.read_exact_at(&mut block, DevOffset(start)).unwrap();
    change(&mut block[(at - start) as usize]);
    ram.write_all_at(&[IoSlice::new(&block)], DevOffset(start), false).unwrap();
}

pub(crate) fn read(device: &dyn Device, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, DevOffset(at)).map(|()| bytes)
}

pub(crate) fn write(device: &dyn Device, at: u64, bytes: &[u8], fua: bool) -> Result<()> {
    let mut buffer = Buffer::aligned(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    device.write_all_at(&[IoSlice::new(&buffer)], DevOffset(at), fua)
}

pub(crate) fn bio(op: BioOp, at: u64, buffer: Buffer, token: u64) -> Bio {
    let end = BioEnd::Whole { token, inode: InodeNo(0), pos: FilePos(at) };
    let (flags, dev, at) = (BioFlags::empty(), Dev::OWN, DevOffset(at));
    Bio { op, flags, dev, at, memory: Memory::Flat(buffer), end }
}

/// Reads a range in every way: through the device, and through its queue with borrowed, split, and owned memory.
pub(crate) fn read_each_way(
    device: &Integrity,
    queue: &mut BoundedQueue,
    at: u64,
    len: usize,
) -> [Result<Vec<u8>, Errno>; 4] {
    use ironmap::device::LentPart;
    use std::io::IoSliceMut;
    let flags = BioFlags::empty();
    let errno = |error: ironmap::Error| error.errno();
    let itself = read(device, at, len).map_err(errno);
    let mut buffer = Buffer::aligned(len).unwrap();
    let now = queue.read_now(Dev::OWN, &mut buffer, DevOffset(at), flags);
    let now = now.map(|count| buffer[..count].to_vec());
    let mut buffer = Buffer::aligned(len).unwrap();
    let (one, two) = buffer.split_at_mut(len / 1024 * 512);
    let bufs = [IoSliceMut::new(one), IoSliceMut::new(two)].into_iter().collect();
    let mut part = LentPart::new(bufs, DevOffset(at));
    queue.read_parts_now(Dev::OWN, std::slice::from_mut(&mut part), flags);
    let result = part.result;
    drop(part);
    let in_parts = result.map(|count| buffer[..count].to_vec());
    queue.submit(bio(BioOp::Read, at, Buffer::aligned(len).unwrap(), 7)).unwrap();
    queue.wait(1).unwrap();
    let done = queue.pop().unwrap();
    assert!(matches!(done.bio.end, BioEnd::Whole { token: 7, .. }));
    let owned = done.result.map(|count| done.bio.memory.buffers()[0][..count].to_vec());
    [itself, now, in_parts, owned]
}

pub(crate) fn queue(device: &dyn Device) -> BoundedQueue {
    device.queue(&QueueOptions::new().depth(64)).unwrap()
}
