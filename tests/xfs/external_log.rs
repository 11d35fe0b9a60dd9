//! A volume with its log on a separate device. Only the log shows whether the volume needs recovery.

use std::path::Path;

use ironmap::{ErrorKind, Location, VolumeOptions};

use crate::common::command::run;
use crate::common::image::{Image, scratch};
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::fill::{Amount, fill};
use crate::{SIZE, require};

#[test]
fn a_volume_is_read_with_its_log_and_refused_without() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let dir = scratch();
    let log = dir.path().join("log");
    run("truncate", &["-s", "64M", log.to_str().unwrap()]);
    let options = format!("logdev={},size=64m", log.display());
    let image = Image::mkfs_xfs(SIZE, &["-l", &options]).unwrap();
    for recovers in [false, true] {
        let device = LoopDevice::new(&log);
        let names = {
            let mount = image.mount(&format!("rw,logdev={}", device.node()));
            if !recovers {
                fill(mount.dir(), 4096, Amount::Small, true);
            }
            std::fs::create_dir(mount.dir().join(format!("recovers {recovers}"))).unwrap();
            if recovers {
                let args = ["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()];
                let names = names(mount.dir());
                run("xfs_io", &args);
                names
            } else {
                names(mount.dir())
            }
        };
        drop(device);
        let refused = VolumeOptions::new().open(image.path().as_path()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(
            refused.to_string().contains("the log of the XFS volume is on a separate device"),
            "{refused}"
        );
        let journal = Location::try_from(log.as_path()).unwrap();
        let volume = VolumeOptions::new().journal(journal).open(image.path().as_path()).unwrap();
        assert_eq!(volume.xfs().unwrap().log().recovered, recovers);
        let root = volume.fs().inode(volume.fs().root()).unwrap();
        let entries = root.read_dir().unwrap().map(|entry| entry.unwrap().name);
        let mut found: Vec<_> = entries.filter(|name| name != b"." && name != b"..").collect();
        found.sort();
        assert_eq!(found, names, "recovers: {recovers}");
    }
}

/// ironmap and the kernel refuse the log of another volume, even if that log is clean. A clean log of another volume says nothing about
/// this volume.
#[test]
fn a_log_of_another_volume_is_refused() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let dir = scratch();
    let logs = ["one", "other"].map(|name| dir.path().join(name));
    let volumes = logs.each_ref().map(|log| {
        run("truncate", &["-s", "64M", log.to_str().unwrap()]);
        Image::mkfs_xfs(SIZE, &["-l", &format!("logdev={},size=64m", log.display())]).unwrap()
    });
    let [volume, other] = &volumes;
    let path = volume.path();
    let open = |log: &Path| {
        let journal = Location::try_from(log).unwrap();
        VolumeOptions::new().journal(journal).open(path.as_path())
    };
    for state in ["new", "clean", "dirty"] {
        if state != "new" {
            let device = LoopDevice::new(&logs[1]);
            let mount = other.mount(&format!("rw,logdev={}", device.node()));
            std::fs::create_dir(mount.dir().join(state)).unwrap();
            if state == "dirty" {
                run("xfs_io", &["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()]);
            }
        }
        let error = open(&logs[1]).err().unwrap_or_else(|| panic!("{state}: opened"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{state}: {error}");
        assert!(error.to_string().contains("h_fs_uuid"), "{state}: {error}");
        if state != "new" {
            let device = LoopDevice::new(&logs[1]);
            volume.try_mount(&format!("ro,logdev={}", device.node())).map(drop).unwrap_err();
        }
        open(&logs[0]).unwrap_or_else(|error| panic!("{state}: {error}"));
    }
    let inside = Image::mkfs_xfs(SIZE, &[]).unwrap();
    let journal = Location::try_from(logs[0].as_path()).unwrap();
    let refused = VolumeOptions::new().journal(journal).open(inside.path().as_path()).err();
    assert_eq!(refused.unwrap().kind(), ErrorKind::InvalidInput);
}

fn names(dir: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_encoded_bytes();
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}
