//! Files of a mounted file system on an NVMe namespace. ironmap reads these files through the namespace's character device.

use std::path::PathBuf;
use std::process::Command;

use ironmap::device::path::DevicePathKind;
use ironmap::units::FilePos;
use ironmap::{Engine, FileOptions, Host, HostOptions, QueueOptions};

use crate::given;
use crate::reads::assert_reads;

struct Mounted(PathBuf);

impl Mounted {
    fn on(device: &str) -> Self {
        let mounted = Command::new("mount").args(["-t", "ext4", device, "/mnt"]).status().unwrap();
        assert!(mounted.success());
        Self("/mnt".into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_mounted_file_is_read_by_commands() {
    let content = std::fs::read(given("LAB_DATA")).unwrap();
    for device in [given("LAB_BLOCK1"), given("LAB_BLOCK2")] {
        for engine in [Engine::Psync, Engine::IoUring] {
            let mounted = Mounted::on(&device);
            let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
            let file = host.open_with(mounted.0.join("data"), FileOptions::default()).unwrap();
            let report = file.host().unwrap();
            let device_path =
                report.device.as_ref().unwrap().device_path.as_ref().map(|(_, kind)| *kind);
            assert!(report.is_raw() && device_path == Some(DevicePathKind::NvmeChar), "{report:?}");
            assert_reads(
                &file,
                |depth| host.queue(&QueueOptions::new().depth(depth)).unwrap(),
                &content,
                0x905,
                &format!("mounted {device}, {engine}"),
            );
            let mut queue = host.queue(&QueueOptions::default()).unwrap();
            file.read_at(&mut queue, &mut [0; 4096], FilePos(0)).unwrap();
            assert_eq!(queue.stats().kernel_served, 0);
        }
    }
}
