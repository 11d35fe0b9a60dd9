//! Two nodes and one volume with multiple mount protection: only one writes it at a time, and the next one finds all that the last one wrote.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Where the superblock has the number of the block of the protection, for blocks of 1 KiB.
const MMP_BLOCK: usize = 1024 + 0x168;

/// A volume whose holder counts once in a second, and the place of its number.
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

fn writable(device: Arc<dyn Device>) -> ironmap::Result<Volume> {
    Volume::writable_on(device, Clock::default())
}

/// From the first moment on: a node that waits for its claim counts already.
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

/// A device on which another node has the volume at the moment of the claim: it was open when this node looked last, or so it seemed.
struct Meddled {
    at: DevOffset,
    other: Arc<Ram>,
    meddle: Mutex<fn(Arc<Ram>)>,
    done: AtomicBool,
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
            && !self.done.swap(true, Ordering::Relaxed)
        {
            let meddle = *self.meddle.lock().unwrap();
            meddle(self.other.clone());
        }
        Verdict::pass(request)
    }
}

fn meddled(ram: &Arc<Ram>, at: DevOffset, meddle: fn(Arc<Ram>)) -> Arc<dyn Device> {
    let (other, meddle) = (ram.clone(), Mutex::new(meddle));
    let layer = Meddled { at, other, meddle, done: AtomicBool::new(false) };
    Arc::new(Layered::with_layer(ram.clone(), layer))
}

fn write_files(ram: Arc<Ram>) {
    let other = writable(ram).unwrap();
    for number in 0..20_u8 {
        other.write(format!("/other{number}"), vec![number; 50_000]).unwrap();
    }
    other.close().unwrap();
}

fn assert_files(volume: &Volume) {
    for number in 0..20_u8 {
        let found = volume.read(format!("/other{number}")).unwrap();
        assert!(found == vec![number; 50_000], "/other{number}");
    }
}

/// All that a node read before its claim may be old: it is read again.
#[test]
fn all_that_another_node_wrote_up_to_the_claim_stays() {
    let dir = scratch();
    let (ram, at) = protected(dir.path());
    let volume = writable(meddled(&ram, at, write_files)).unwrap();
    volume.write("/own", vec![7; 3 << 20]).unwrap();
    assert_files(&volume);
    volume.close().unwrap();
    drop(volume);
    check(&ram, dir.path());
    assert_files(&Volume::on(ram.clone()).unwrap());

    let device = meddled(&ram, at, |ram| {
        let other = writable(ram).unwrap();
        other.write("/third", vec![3; 4 << 20]).unwrap();
        other.close().unwrap();
    });
    let smaller = ResizeOptions::new().size(NewSize::Bytes(24 << 20));
    Volume::resize(&device, &smaller, Clock::default()).unwrap();
    check(&ram, dir.path());
    let device = meddled(&ram, at, |ram| {
        let other = writable(ram).unwrap();
        other.remove_file("/third").unwrap();
        other.close().unwrap();
    });
    let label = TuneOptions::new().label(Some(b"new".to_vec()));
    Volume::tune(&device, &label, Clock::default()).unwrap();
    check(&ram, dir.path());
    let volume = Volume::on(ram.clone()).unwrap();
    assert_files(&volume);
    assert!(volume.read("/third").is_err() && volume.read("/own").unwrap() == vec![7; 3 << 20]);
}
