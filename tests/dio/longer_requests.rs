//! The logical block of a device becomes larger while a volume on the device is open. The kernel refuses this change if a program has the
//! device open exclusively. If the kernel permits the change, a loss of data is always reported as an error.

use std::sync::Arc;
use std::time::Duration;

use ironmap::device::{BlockFile, Device, OpenMode, Psync, Uring, UringOptions};
use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions, VolumeOptions};

use crate::common::command::{output, run};
use crate::common::image::Image;
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;

/// Sets the sector size of a loop device. Returns whether the kernel accepts the change.
fn set_sectors(device: &LoopDevice, len: &str) -> bool {
    output("losetup", &["--sector-size", len, device.node()]).status.success()
}

/// After the logical block has become larger, writes fail with errors that name the reason. All synced data exist, and the volume can be
/// recovered.
#[test]
fn a_write_that_the_device_no_longer_takes_is_an_error() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("e2fsck")]);
    for engine in ["psync", "io_uring"] {
        let image = Image::mke2fs("32M", &["-t", "ext4", "-b", "1024"]);
        let loop_device = LoopDevice::with(&["--direct-io=on", "--sector-size=512"], image.path());
        let mode = OpenMode { exclusive: false, write: true, ..OpenMode::default() };
        let file = Arc::new(BlockFile::open(loop_device.node().as_ref(), &mode).unwrap());
        let device: Arc<dyn Device> = match engine {
            "psync" => Arc::new(Psync::new(file)),
            _ => Arc::new(Uring::new(file, UringOptions::default())),
        };
        let options = VolumeOptions::new().write(true).commit(Duration::ZERO);
        let volume = options.open_on(device).unwrap();
        let before = vec![7; 100_000];
        volume.write("/before", &before).unwrap();
        volume.fs().sync().unwrap();
        assert!(set_sectors(&loop_device, "4096"));
        let inode = volume.fs().resolve(b"/before", Follow::All).unwrap();
        let open = volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
        let mut queue = volume.queue(&QueueOptions::new()).unwrap();
        let error = open.write_at(&mut queue, &[8; 1024], FilePos(1024)).unwrap_err().to_string();
        assert!(
            error.contains("which the device does not support, or no longer supports"),
            "{engine}: {error}"
        );
        let made = volume.create_dir_all("/after").map(drop);
        let error = made.and_then(|()| volume.fs().sync()).unwrap_err().to_string();
        assert!(error.contains("has changed from 512 to 4096 bytes"), "{engine}: {error}");
        assert!(volume.close().is_err(), "{engine}");
        drop((open, queue));
        drop(volume);
        assert!(set_sectors(&loop_device, "512"));
        drop(loop_device);
        let path = image.path();
        let volume = VolumeOptions::new().write(true).open(path.to_str().unwrap()).unwrap();
        assert!(volume.read("/before").unwrap() == before, "{engine}");
        volume.close().unwrap();
        drop(volume);
        run("e2fsck", &["-fn", path.to_str().unwrap()]);
    }
}
