//! Damaged images of virtual machines. qemu-img makes the images, in the formats qcow2, VMDK and VHDX.

use std::cell::RefCell;
use std::fs;
use std::io::IoSlice;
use std::process::Command;

use arbitrary::Arbitrary;
use ironmap::device::Device;
use ironmap::device::image::{Address, Image, ImageFormat, describe};
use ironmap::units::DevOffset;
use tempfile::TempDir;

const SIZE: u64 = 1 << 20;

/// For each image format: the options for qemu-img, and the areas of the image that contain metadata.
const KINDS: [(ImageFormat, &str, &[(u32, u32)]); 9] = [
    (ImageFormat::Qcow2, "", QCOW2),
    (ImageFormat::Qcow2, "-c", QCOW2),
    (ImageFormat::Qcow2, "-o cluster_size=512", &[(0, 112), (0, 8192)]),
    (ImageFormat::Qcow2, "-c -o cluster_size=4k,refcount_bits=1", &[(0, 112), (0, 32 << 10)]),
    (ImageFormat::Qcow2, "-c -o compression_type=zstd", QCOW2),
    (ImageFormat::Qcow2, "-o extended_l2=on", QCOW2),
    (ImageFormat::Vmdk, "-o subformat=monolithicSparse", &[(0, 96), (512, 512), (0, 24 << 10)]),
    (ImageFormat::Vmdk, "-o subformat=streamOptimized", &[(0, 96), (512, 512), (0, 24 << 10)]),
    (ImageFormat::Vhdx, "-o subformat=dynamic,block_size=1M", VHDX),
];
const QCOW2: &[(u32, u32)] =
    &[(0, 112), (64 << 10, 64), (128 << 10, 64), (192 << 10, 64), (256 << 10, 256), (0, 320 << 10)];
const VHDX: &[(u32, u32)] =
    &[(64 << 10, 128), (192 << 10, 128), (2 << 20, 512), (3 << 20, 64), (0, 1 << 22)];

struct Base {
    format: ImageFormat,
    bytes: Vec<u8>,
    areas: &'static [(u32, u32)],
}

struct Images {
    bases: Vec<Base>,
    dir: TempDir,
}

thread_local! {
    static IMAGES: RefCell<Images> = RefCell::new(Images::new());
}

/// The damage of one of the base images.
#[derive(Arbitrary, Debug)]
pub struct ImageDamage {
    base: u8,
    changes: Vec<(u8, u16, Change)>,
    cut: Option<u16>,
    /// The sector numbers of the reads and writes.
    used: Vec<u16>,
}

#[derive(Arbitrary, Debug)]
enum Change {
    Bit(u8),
    Byte(u8),
    Pointer(u16, u8),
    Word(u64),
}

impl Images {
    fn new() -> Self {
        let dir = TempDir::new_in("/dev/shm").expect("a directory in memory");
        let raw = dir.path().join("raw");
        let content: Vec<u8> = (0..SIZE).map(|at| (at >> 11) as u8 & 0xFC).collect();
        fs::write(&raw, content).expect("an image");
        let base = |(format, options, areas): (ImageFormat, &str, _)| {
            let path = dir.path().join("base");
            let mut convert = Command::new("qemu-img");
            convert.args(["convert", "-f", "raw", "-O", format.name()]);
            convert.args(options.split_whitespace()).args([&raw, &path]);
            // If qemu-img is not installed, there is no image to damage.
            let is_made = convert.status().is_ok_and(|status| status.success());
            is_made.then(|| Base { format, bytes: fs::read(&path).expect("an image"), areas })
        };
        Self { bases: KINDS.into_iter().filter_map(base).collect(), dir }
    }
}

impl ImageDamage {
    /// Reads and writes the damaged image.
    pub fn survive(&self) {
        IMAGES.with_borrow_mut(|images| {
            if images.bases.is_empty() {
                return;
            }
            let base = &images.bases[usize::from(self.base) % images.bases.len()];
            let path = images.dir.path().join("hostile");
            fs::write(&path, self.applied_to(base)).expect("an image");
            self.use_it(&Address::new(base.format, path));
        });
    }

    fn applied_to(&self, base: &Base) -> Vec<u8> {
        let mut bytes = base.bytes.clone();
        for (area, at, change) in &self.changes {
            let (start, len) = base.areas[usize::from(*area) % base.areas.len()];
            let at = (start + u32::from(*at) % len) as usize;
            let at = at.min(bytes.len() - 8);
            let word = at & !7;
            match change {
                Change::Bit(bit) => bytes[at] ^= 1 << (bit % 8),
                Change::Byte(byte) => bytes[at] = *byte,
                Change::Pointer(to, flags) => {
                    let to = u64::from(*to) << 9 | u64::from(flags & 3) << 62;
                    bytes[word..word + 8].copy_from_slice(&to.to_be_bytes());
                }
                Change::Word(any) => bytes[word..word + 8].copy_from_slice(&any.to_be_bytes()),
            }
        }
        if let Some(sectors) = self.cut {
            bytes.truncate((usize::from(sectors) << 9).max(512));
        }
        if base.format == ImageFormat::Vhdx {
            // The fuzz target repairs the checksums, because an attacker would write correct checksums.
            for (start, len) in [(64, 4096), (128, 4096), (192, 65536), (256, 65536)] {
                let Some(part) = bytes.get_mut(start << 10..(start << 10) + len) else { break };
                part[4..8].fill(0);
                let sum = crc32c::crc32c(part).to_le_bytes();
                part[4..8].copy_from_slice(&sum);
            }
        }
        bytes
    }

    fn use_it(&self, address: &Address) {
        let _ = describe(address);
        if let Ok(image) = Image::open(address, false) {
            let mut buf = vec![0; 64 << 10];
            for sector in &self.used {
                let _ = image.read_exact_at(&mut buf, DevOffset(u64::from(*sector) << 9));
            }
        }
        if address.format != ImageFormat::Qcow2 {
            return;
        }
        if let Ok(image) = Image::open(address, true) {
            for sector in &self.used {
                let at = DevOffset(u64::from(*sector) << 9);
                let _ = image.write_all_at(&[IoSlice::new(&[3; 8192])], at, false);
                let _ = image.write_zeroes(at, 96 << 10);
                let _ = image.discard(DevOffset(at.0 & !4095), 65536);
            }
            let _ = image.flush();
        }
    }
}
