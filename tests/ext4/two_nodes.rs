//! Two nodes (machines) share one volume with multiple mount protection. Only one node writes at a time. The next node finds everything
//! that the previous node wrote.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::command::run;
use crate::common::image::scratch;
use crate::common::process::pause;
use ironmap::bio::Buffer;
use ironmap::device::{Device, Layer, Layered, Ram, Request, Verdict};
use ironmap::fs::Clock;
use ironmap::fs::ext4::TuneOptions;
use ironmap::units::DevOffset;
use ironmap::{ErrorKind, NewSize, ResizeOptions, Volume};

/// The image offset of a superblock field. The field contains the number of the protection block. The volume has blocks of 1 KiB.
const MMP_BLOCK: usize = 1024 + 0x168;

/// A volume, and the position of its protection counter. A node that uses the volume increments the counter once a second.
fn protected(dir: &Path) -> (Arc<Ram>, DevOffset) {
    let image = dir.join("image");
    let mke2fs = "-Fq -t ext4 -b 1024 -O mmp -E mmp_update_interval=1";
    let image = image.to_str().unwrap();
    run("mke2fs", &mke2fs.split(' ').chain([image, "32M"]).collect::<Vec<_>>());
    let bytes = std::fs::read(image).unwrap();
    let block = u64::from_le_bytes(bytes[MMP_BLOCK..][..8].try_into().unwrap());
    (Arc::new(Ram::from_image(&bytes)), DevOffset(block * 1024))
}

fn check(ram: &Ram, dir: &Path) {
    let image = dir.join("left");
    ram.store(&std::fs::File::create(&image).unwrap()).unwrap();
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
}

fn bytes_of(ram: &Ram) -> Buffer {
    let mut bytes = Buffer::aligned(ram.size() as usize).unwrap();
    ram.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    bytes
}

fn writable(device: Arc<dyn Device>) -> ironmap::Result<Volume> {
    Volume::writable_on(device, Clock::default())
}

/// A node increments the protection counter from the beginning of its open. So another node detects the first node even before the first
/// node has claimed the volume.
#[test]
fn a_node_that_has_just_begun_is_seen() {
    let dir = scratch();
    let (ram, at) = protected(dir.path());
    let number = || {
        let mut sector = Buffer::aligned(1024).unwrap();
        ram.read_exact_at(&mut sector, at).unwrap();
        sector[4..8].to_vec()
    };
    let clean = number();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| writable(ram.clone()).unwrap());
        while number() == clean {
            pause(std::time::Duration::from_millis(1));
        }
        let refused = writable(ram.clone()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        let first = first.join().unwrap();
        first.write("/file", vec![1; 100_000]).unwrap();
        first.close().unwrap();
    });
    check(&ram, dir.path());
    let second = writable(ram.clone()).unwrap();
    assert!(second.read("/file").unwrap() == vec![1; 100_000]);
}

/// A device that calls an action immediately before the first write to the protection block. At this time the opening node has found no
/// other node, and has not yet claimed the volume.
struct Meddled {
    at: DevOffset,
    meddle: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Meddled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meddled")
    }
}

impl Layer for Meddled {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        if let Request::Write { at, .. } = request
            && *at == self.at
        {
            let meddle = self.meddle.lock().unwrap().take();
            meddle.into_iter().for_each(|meddle| meddle());
        }
        Verdict::pass(request)
    }
}

fn meddled(
    ram: &Arc<Ram>,
    at: DevOffset,
    meddle: impl FnOnce() + Send + 'static,
) -> Arc<dyn Device> {
    let meddle = Mutex::new(Some(Box::new(meddle) as Box<dyn FnOnce() + Send>));
    Arc::new(Layered::with_layer(ram.clone(), Meddled { at, meddle }))
}

/// An action for [`Meddled`]: another node opens the volume, does work, and closes the volume.
fn between(ram: &Arc<Ram>, work: fn(&Volume)) -> impl FnOnce() + Send + use<> {
    let ram = ram.clone();
    move || {
        let other = writable(ram).unwrap();
        work(&other);
        other.close().unwrap();
    }
}

fn write_files(volume: &Volume, numbers: Range<u8>) {
    for number in numbers {
        volume.write(format!("/other{number}"), vec![number; 50_000]).unwrap();
    }
}

fn assert_files(volume: &Volume, numbers: Range<u8>) {
    for number in numbers {
        let found = volume.read(format!("/other{number}")).unwrap();
        assert!(found == vec![number; 50_000], "/other{number}");
    }
}

/// A node reads the journal and the superblock before it claims the volume. Until the claim, another node can commit. So the first node
/// reads the journal and the superblock again after the claim.
#[test]
fn all_commits_up_to_the_claim_stay() {
    let dir = scratch();
    let (ram, at) = protected(dir.path());
    let other = writable(ram.clone()).unwrap();
    write_files(&other, 0..10);
    other.fs().sync().unwrap();
    // The other node works on another device, so the counter on this device does not change.
    let shared = Arc::new(Ram::from_image(&bytes_of(&ram)));
    let (seen, disk) = (ram.clone(), shared.clone());
    let device = meddled(&shared, at, move || {
        write_files(&other, 10..20);
        other.fs().sync().unwrap();
        disk.write_all_at(&[IoSlice::new(&bytes_of(&seen))], DevOffset(0), true).unwrap();
    });
    let volume = writable(device).unwrap();
    assert_files(&volume, 0..20);
    volume.write("/own", vec![7; 3 << 20]).unwrap();
    volume.close().unwrap();
    drop(volume);
    check(&shared, dir.path());
    assert_files(&Volume::on(shared).unwrap(), 0..20);
}

/// Another node changes the volume and closes it, immediately before this node claims the volume. The changes of both nodes are kept.
#[test]
fn all_that_another_node_did_up_to_the_claim_stays() {
    let dir = scratch();
    let (ram, at) = protected(dir.path());
    let device = meddled(&ram, at, between(&ram, |other| write_files(other, 0..20)));
    let volume = writable(device).unwrap();
    volume.write("/own", vec![7; 3 << 20]).unwrap();
    volume.close().unwrap();
    drop(volume);
    check(&ram, dir.path());

    let write = |other: &Volume| other.write("/third", vec![3; 4 << 20]).unwrap();
    let device = meddled(&ram, at, between(&ram, write));
    let smaller = ResizeOptions::new().size(NewSize::Bytes(24 << 20));
    ironmap::tools::resize(&device, &smaller, Clock::default()).unwrap();
    check(&ram, dir.path());
    let device = meddled(&ram, at, between(&ram, |other| other.remove_file("/third").unwrap()));
    let label = TuneOptions::new().label(Some(b"new".to_vec()));
    ironmap::tools::tune(&device, &label, Clock::default()).unwrap();
    check(&ram, dir.path());
    let volume = Volume::on(ram.clone()).unwrap();
    assert_files(&volume, 0..20);
    assert!(volume.read("/third").is_err() && volume.read("/own").unwrap() == vec![7; 3 << 20]);
}
