//! A volume has one owner. A second open is refused. The message names the first owner.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::command::{output, run};
use common::image::{Image, scratch};
use common::loop_device::{Attachment, LoopDevice};
use common::skip::Need;
use ironmap::device::Engine;
use ironmap::{ErrorKind, Volume, VolumeOptions};
use rustix::fs::FlockOperation;

fn open(path: &str) -> Result<Volume, ironmap::Error> {
    Volume::open(path)
}

fn open_for_writing(path: &str, engine: Engine) -> Result<Volume, ironmap::Error> {
    let options = VolumeOptions::new().engine(engine).write(true);
    options.open(path)
}

/// Asserts that the open fails with kind `Busy`, and that the message contains this text.
fn assert_busy(path: &str, reason: &str) {
    assert_refused(path, open(path), reason);
}

fn assert_refused(path: &str, opened: Result<Volume, ironmap::Error>, reason: &str) {
    let error = opened.err().unwrap_or_else(|| panic!("{path} was opened: {reason}"));
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(path) && error.to_string().contains(reason), "{error}");
}

/// Asserts that an open for writing fails with kind `Busy`. Tries each engine.
fn assert_not_written(path: &str, reason: &str) {
    for engine in [Engine::Auto, Engine::Psync, Engine::IoUring, Engine::Dax] {
        assert_refused(path, open_for_writing(path, engine), reason);
    }
}

#[test]
fn readers_share_an_image_and_a_writer_keeps_them_out() {
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
    drop((first, second));
    let writer = File::open(&path).unwrap();
    // A child process of another test may have a copy of the closed descriptor, until it executes its program.
    rustix::fs::flock(&writer, FlockOperation::LockExclusive).unwrap();
    assert_busy(&path, "locked by another program");
    drop(writer);
    open(&path).unwrap();
}

/// Copies of this process's descriptors for a file. A child process has such copies from the fork until it executes its program.
fn as_a_child_has_them(path: &str) -> Vec<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let path = Path::new(path).canonicalize().unwrap();
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_file = entries
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link.starts_with(&path)));
    let numbers = of_file.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    numbers.map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).unwrap()).collect()
}

/// After the close of a volume, other programs can lock it immediately. At this time another thread may start a child process with copies
/// of the descriptors.
#[test]
fn a_closed_volume_is_unlocked_while_a_child_has_its_files() {
    require!([Need::Tool("qemu-img"), Need::Tool("flock")]);
    for engine in [Engine::Psync, Engine::IoUring, Engine::Dax] {
        for write in [false, true] {
            let image = Image::mke2fs("4M", &["-t", "ext4"]);
            let path = image.path().to_str().unwrap().to_owned();
            let path = path.as_str();
            let copy = &format!("{path}.copy");
            let volume = VolumeOptions::new().engine(engine).write(write).open(path).unwrap();
            let kept = as_a_child_has_them(path);
            assert!(!kept.is_empty());
            let is_locked = |by: &[&str]| !output(by[0], &by[1..]).status.success();
            let flock = ["flock", "-n", "-x", path, "true"];
            let qemu = ["qemu-img", "convert", "-f", "raw", "-O", "raw", path, copy];
            assert!(is_locked(&flock), "{engine:?}");
            assert!(is_locked(&qemu) == write, "{engine:?}, write {write}");
            drop(volume);
            assert!(!is_locked(&flock), "{engine:?}, write {write}");
            assert!(!is_locked(&qemu), "{engine:?}, write {write}");
            drop(kept);
            std::fs::remove_file(copy).unwrap();
        }
    }
}

fn read_only(file: impl AsRef<OsStr>) -> LoopDevice {
    LoopDevice::with(&["--read-only"], file)
}

#[test]
fn an_image_that_the_kernel_has_is_refused() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let mount = image.mount("ro");
    let device = mount.device().to_owned();
    assert_busy(&path, &format!("attached to {device}"));
    assert_busy(&device, "mounted");
    drop(mount);

    // The second device is a loop device over the first device. No other program has opened the first device exclusively.
    let first = read_only(&path);
    let second = read_only(first.node());
    assert_busy(first.node(), &format!("attached to {}", second.node()));
    let (one, other) = (open(second.node()).unwrap(), second.node());
    assert_busy(other, "opened by one_owner");
    drop(one);
    open(other).unwrap();
}

/// The kernel lets a program open a read-only device for writing and refuses the writes later. ironmap refuses the open, and the message
/// names the device.
#[test]
fn a_read_only_device_is_not_opened_for_writing() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let device = read_only(image.path());
    let write = VolumeOptions::new().write(true);
    let error = write.open(device.node()).err().unwrap();
    let says = format!("{}: the device is read-only", device.node());
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::ReadOnly, says));
    open(device.node()).unwrap();
}

/// A shell in another mount namespace. The paths of its files do not exist in this namespace. When the value is dropped, the shell undoes
/// its work and ends.
struct Elsewhere {
    child: Child,
    /// The loop device that the shell has made.
    device: String,
    attachment: Attachment,
}

impl Elsewhere {
    /// Runs a script in another mount namespace, with these arguments. A tmpfs is mounted on `$1`. The script prints the loop device that
    /// it makes.
    fn new(script: &str, args: &[&str]) -> Self {
        let script = format!(
            "mount -t tmpfs none \"$1\"\n{script}\necho $loop\nread end || true\n\
             umount \"$1/mnt\" 2>/dev/null || true\nlosetup --detach $loop"
        );
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-ec", &script, "sh"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut device = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut device).unwrap();
        let device = device.trim().to_owned();
        assert!(device.starts_with("/dev/loop"), "the script has failed");
        Self { child, attachment: Attachment::of(&device), device }
    }

    /// Mounts an image in another mount namespace, through a loop device with these options.
    fn mounts(image: &Path, losetup: &str, mount: &str) -> (tempfile::TempDir, Self) {
        let hidden = scratch();
        let script = format!(
            "mkdir \"$1/there\" \"$1/mnt\"\nmount --bind \"$2\" \"$1/there\"\n\
             loop=$(losetup {losetup} --find --show \"$1/there/$3\")\n\
             mount {mount} $loop \"$1/mnt\""
        );
        let dir = image.parent().unwrap().to_str().unwrap();
        let name = image.file_name().unwrap().to_str().unwrap();
        let here = Self::new(&script, &[hidden.path().to_str().unwrap(), dir, name]);
        (hidden, here)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        self.attachment.wait_ended();
    }
}

/// A loop device of another mount namespace has an image open. ironmap refuses the image. The kernel reports a path of the loop device's
/// file that does not exist in this namespace.
#[test]
fn an_image_of_another_mount_namespace_is_refused() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("unshare")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let beside = image.beside("tags");
    File::create(&beside).unwrap().set_len(1 << 20).unwrap();
    {
        let (_hidden, there) = Elsewhere::mounts(&image.path(), "", "");
        assert_not_written(&path, "open for writing by another program");
        let attached = format!("attached to {}", there.device);
        assert_busy(&path, &attached);
        let halves = format!("integrity:{},{path}", beside.display());
        let locations = [format!("{path}@1048576"), format!("integrity:{path}"), halves];
        for location in locations {
            let error = open_for_writing(&location, Engine::Psync).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
    }
    {
        // The kernel has mounted the image read-only. A reader does not exclude a writer, but a mount does. ironmap detects the mount by
        // its loop device.
        let (_hidden, there) = Elsewhere::mounts(&image.path(), "--read-only", "-o ro,noload");
        assert_not_written(&path, &format!("attached to {}", there.device));
        assert_busy(&path, &format!("attached to {}", there.device));
    }
    drop(open_for_writing(&path, Engine::Psync).unwrap());
    image.check();
}

/// An ordinary user is not permitted to query loop devices. If no program has the file open, ironmap opens the file. If a loop device could
/// have the file open, and the user cannot query this device, ironmap refuses the file.
#[test]
fn a_user_is_refused_what_a_hidden_loop_device_may_serve() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("unshare")]);
    const NOBODY: u32 = 65534;
    let make = |owner: u32| {
        let image = Image::mke2fs("4M", &["-t", "ext4"]);
        run("chmod", &["755".as_ref(), image.path().parent().unwrap().as_os_str()]);
        run("chmod", &["666".as_ref(), image.path().as_os_str()]);
        std::os::unix::fs::chown(image.path(), Some(owner), Some(owner)).unwrap();
        image
    };
    let (own, other, free) = (make(NOBODY), make(0), make(NOBODY));
    let as_nobody = |path: String| {
        let opened = std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            open_for_writing(&path, Engine::Psync).map(drop)
        });
        opened.join().unwrap()
    };
    let path = |image: &Image| image.path().to_str().unwrap().to_owned();
    let refused = |image: &Image, reason: &str| {
        let error = as_nobody(path(image)).expect_err(reason);
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    };
    {
        let (_hidden, _there) = Elsewhere::mounts(&own.path(), "", "");
        refused(&own, "open for writing by another program");
        as_nobody(path(&free)).unwrap();
    }
    for (image, options) in [(&own, "--read-only"), (&other, "--read-only"), (&other, "")] {
        let mount = if options.is_empty() { "" } else { "-o ro,noload" };
        let (_hidden, _there) = Elsewhere::mounts(&image.path(), options, mount);
        refused(image, "may be attached to /dev/loop");
        as_nobody(path(&free)).unwrap();
    }
    as_nobody(path(&own)).unwrap();
}

/// If another program has an image open for writing or mapped, ironmap does not open the image for writing. This holds even if the other
/// program has not locked the image.
#[test]
fn an_image_that_is_open_for_writing_is_not_written() {
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    let path = image.path().to_str().unwrap().to_owned();
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    assert_not_written(&path, "open for writing by another program");
    open(&path).unwrap();
    drop(writer);
    // If a program only reads the image, the open is permitted.
    let _reader = File::open(&path).unwrap();
    open_for_writing(&path, Engine::Psync).unwrap();
}

/// ironmap finds the loop device of an image, whatever the image's name is. The kernel reports the complete name, even if it is not UTF-8
/// or contains a newline.
#[test]
fn a_loop_device_is_found_whatever_its_image_is_called() {
    require!([Need::Root, Need::Tool("losetup")]);
    let image = Image::mke2fs("4M", &["-t", "ext4"]);
    for name in [&b"\xFF\xFEimage"[..], b"image\n", b"two\nlines"] {
        let odd = image.path().with_file_name(OsString::from_vec(name.to_vec()));
        std::fs::hard_link(image.path(), &odd).unwrap();
        let device = read_only(&odd);
        assert_busy(image.path().to_str().unwrap(), &format!("attached to {}", device.node()));
        std::fs::remove_file(&odd).unwrap();
    }
}

/// ironmap detects that a block device is in use. The user of the device may use another device node, a partition of the disk, or the disk
/// of the partition.
#[test]
fn a_device_that_a_loop_device_serves_in_part_or_elsewhere_is_refused() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("unshare"), Need::Tool("addpart")]);
    let dir = scratch();
    let image = dir.path().join("disk");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let disk = LoopDevice::with(&["--partscan"], &image);
    run("mke2fs", &["-q", "-F", disk.node(), "4M"]);
    let number = Path::new(disk.node()).metadata().unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    {
        let hidden = scratch();
        let script = "mknod \"$1/node\" b $2 $3\nloop=$(losetup $4 --find --show \"$1/node\")";
        for option in ["--read-only", "--offset=512"] {
            let args =
                [hidden.path().to_str().unwrap(), &major.to_string(), &minor.to_string(), option];
            let there = Elsewhere::new(script, &args);
            assert_not_written(disk.node(), &format!("attached to {}", there.device));
            assert_busy(disk.node(), &format!("attached to {}", there.device));
        }
    }
    {
        let hidden = scratch();
        let script =
            "loop=$(losetup --find --show \"$2\")\nmkdir \"$1/mnt\"\nmount \"$3\" \"$1/mnt\"";
        let other = dir.path().join("other");
        File::create(&other).unwrap().set_len(1 << 20).unwrap();
        let args = [hidden.path().to_str().unwrap(), other.to_str().unwrap(), disk.node()];
        let _there = Elsewhere::new(script, &args);
        assert_not_written(disk.node(), "in use: mounted");
    }
    let (first, second) = (disk.partition(1, 1, 4), disk.partition(2, 8, 4));
    for part in [&first, &second] {
        run("mke2fs", &["-q", "-F", part]);
    }
    {
        let over = read_only(&second);
        let attached = format!("attached to {}", over.node());
        assert_not_written(disk.node(), &attached);
        assert_not_written(&second, &attached);
        drop(open_for_writing(&first, Engine::Psync).unwrap());
    }
    {
        let over = read_only(disk.node());
        assert_not_written(&second, &format!("attached to {}", over.node()));
    }
    drop(open_for_writing(&second, Engine::Psync).unwrap());
}
