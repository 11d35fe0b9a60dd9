//! Tests random changes of an image, and the states that a power cut can leave.

use std::collections::HashSet;
use std::io::IoSlice;
use std::path::Path;
use std::process::Command;

use super::super::file::recorded::{RECORDING, Recording, put};
use super::super::{Compression, CreateOptions};
use super::{Driver as _, Qcow2, create};

const SECTOR: usize = 512;
const SIZE: u64 = 3 << 20;

/// A generator of random numbers.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// A number that identifies one write of a sector. The content of the sector is this number, repeated.
type Stamp = u64;

/// The contents that each sector may have after a power cut: the content as of the last flush, and all later contents. The second field
/// contains the current contents.
struct Model(Vec<HashSet<Stamp>>, Vec<Stamp>);

impl Model {
    fn new() -> Self {
        let count = SIZE as usize / SECTOR;
        Self(vec![HashSet::from([0]); count], vec![0; count])
    }

    fn change(&mut self, sectors: std::ops::Range<usize>, stamp: Stamp) {
        for sector in sectors {
            self.0[sector].insert(stamp);
            self.1[sector] = stamp;
        }
    }

    fn flush(&mut self) {
        for (possible, stamp) in self.0.iter_mut().zip(&self.1) {
            *possible = HashSet::from([*stamp]);
        }
    }
}

fn stamps(image: &Qcow2) -> Vec<Stamp> {
    let mut bytes = vec![0; SIZE as usize];
    image.read(&mut bytes, 0).unwrap();
    let stamp = |sector: &[u8]| {
        let stamp = Stamp::from_le_bytes(sector[..8].try_into().unwrap());
        assert!(sector.chunks_exact(8).all(|part| part == stamp.to_le_bytes()), "a torn sector");
        stamp
    };
    bytes.chunks_exact(SECTOR).map(stamp).collect()
}

/// Makes a change to a random range, or a flush.
fn step(image: &Qcow2, model: &mut Model, rng: &mut Rng, stamp: Stamp) {
    let count = SIZE as usize / SECTOR;
    let most = if rng.next().is_multiple_of(8) { 900 } else { 30 };
    let len = 1 + rng.next() as usize % most;
    let first = rng.next() as usize % (count - len);
    let (at, bytes) = ((first * SECTOR) as u64, len * SECTOR);
    match rng.next() % 10 {
        0 => {
            image.flush().unwrap();
            model.flush();
        }
        1 => {
            image.discard(at, bytes as u64).unwrap();
            let now = stamps(image);
            for (sector, stamp) in now.into_iter().enumerate().skip(first).take(len) {
                model.change(sector..sector + 1, stamp);
            }
        }
        2 => {
            image.write_zeroes(at, bytes as u64).unwrap();
            model.change(first..first + len, 0);
        }
        // This arm writes whole clusters, which are compressed.
        3 | 4 => {
            let cluster = image.header.cluster();
            let at = at / cluster * cluster;
            let len = (bytes as u64).next_multiple_of(cluster).min(SIZE - at);
            let data = stamp.to_le_bytes().repeat(len as usize / 8);
            image.write(&[IoSlice::new(&data)], at).unwrap();
            let first = at as usize / SECTOR;
            model.change(first..first + data.len() / SECTOR, stamp);
        }
        _ => {
            image.write(&[IoSlice::new(&stamp.to_le_bytes().repeat(bytes / 8))], at).unwrap();
            model.change(first..first + len, stamp);
        }
    }
}

/// Returns the file after a power cut: it contains all durable writes, and some sectors of the writes since the last sync.
fn after_power_cut(rng: &mut Rng) -> Vec<u8> {
    RECORDING.with_borrow(|Recording { durable, pending }| {
        let mut file = durable.clone();
        let odds = rng.next() % 4;
        for (at, bytes) in pending {
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if odds == 0 || rng.next() % 4 >= odds {
                    put(&mut file, at + number * SECTOR, sector);
                }
            }
        }
        file
    })
}

/// Asserts that `qemu-img check` finds at most leaked clusters: its exit code is 0 or 3. Does nothing if qemu-img is not installed.
fn check_by_qemu(path: &Path) {
    let Ok(found) = Command::new("qemu-img").arg("check").arg(path).output() else { return };
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(matches!(found.status.code(), Some(0 | 3)), "{text}");
}

/// After a power cut, each sector has the data of the last flush or newer data, no cluster is used twice, and the image can be opened for
/// writing without a repair.
#[test]
fn a_power_cut_leaves_a_sound_image() {
    for (seed, cluster_size) in [(1, 512), (2, 4096), (3, 65536), (4, 1024), (5, 512)] {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("image"), dir.path().join("copy"));
        let compression = if seed == 3 { Compression::Zstd } else { Compression::Deflate };
        let options = CreateOptions { cluster_size, compression, ..CreateOptions::new(SIZE) };
        create(&path, &options).unwrap();
        let durable = std::fs::read(&path).unwrap();
        RECORDING.set(Recording { durable, pending: Vec::new() });
        let (mut image, _) = Qcow2::open(&path, None, true, false).unwrap();
        image.compress(true);
        let (mut model, mut rng) = (Model::new(), Rng(seed));
        for number in 1..400 {
            step(&image, &mut model, &mut rng, number);
            if number % 5 != 0 {
                continue;
            }
            std::fs::write(&copy, after_power_cut(&mut rng)).unwrap();
            let found = stamps(&Qcow2::open(&copy, None, false, false).unwrap().0);
            for (sector, stamp) in found.iter().enumerate() {
                let possible = &model.0[sector];
                assert!(possible.contains(stamp), "seed {seed}, step {number}, sector {sector}");
            }
            if number % 25 == 0 {
                check_by_qemu(&copy);
            }
        }
        assert!(stamps(&image) == model.1, "seed {seed}");
        drop(image);
        assert!(stamps(&Qcow2::open(&path, None, true, false).unwrap().0) == model.1);
        check_by_qemu(&path);
    }
}
