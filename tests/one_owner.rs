//! A volume has one owner: who comes second is refused, with a reason that names the other.

mod common;

use std::fs::File;

use common::command::{output, run};
use common::image::Image;
use common::skip::Need;
use ironmap::{ErrorKind, Location, OpenOptions, Volume};
use rustix::fs::FlockOperation;

fn open(path: &str) -> Result<Volume, ironmap::Error> {
    Volume::open(&path.parse::<Location>().unwrap(), &OpenOptions::default())
}

/// `Busy`, with this in the text.
fn assert_busy(path: &str, reason: &str) {
    let error = open(path).err().unwrap_or_else(|| panic!("{path} was opened: {reason}"));
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(path) && error.to_string().contains(reason), "{error}");
}

#[test]
fn readers_share_an_image_and_a_writer_keeps_them_out() {
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
    drop((first, second));
    let writer = File::open(&path).unwrap();
    // A child of the other test may hold what was just closed, until it is another program.
    rustix::fs::flock(&writer, FlockOperation::LockExclusive).unwrap();
    assert_busy(&path, "locked by another program");
    drop(writer);
    open(&path).unwrap();
}

/// A loop device, detached on drop.
struct Attached(String);

impl Attached {
    fn new(file: &str) -> Self {
        let device = run("losetup", &["--read-only", "--find", "--show", file]);
        Self(String::from_utf8(device).unwrap().trim().to_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        output("losetup", &["--detach", &self.0]);
    }
}

#[test]
fn what_the_kernel_has_is_refused() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let mount = image.mount("ro");
    let device = mount.device().to_owned();
    assert_busy(&path, &format!("attached to {device}"));
    assert_busy(&device, "mounted");
    drop(mount);

    // The second device over the first: nobody else has opened that one exclusively.
    let first = Attached::new(&path);
    let second = Attached::new(&first.0);
    assert_busy(&first.0, &format!("attached to {}", second.0));
    let (one, other) = (open(&second.0).unwrap(), second.0.as_str());
    assert_busy(other, "opened by another program");
    drop(one);
    open(other).unwrap();
}

/// The kernel opens a read-only device for writing and refuses the writes: it is refused before, by its own name.
#[test]
fn a_read_only_device_is_not_opened_for_writing() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let device = Attached::new(image.path().to_str().unwrap());
    let write = OpenOptions { write: true, ..OpenOptions::default() };
    let error = Volume::open(&device.0.parse().unwrap(), &write).err().unwrap();
    let says = format!("{}: the device is read-only", device.0);
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::ReadOnly, says));
    open(&device.0).unwrap();
}
