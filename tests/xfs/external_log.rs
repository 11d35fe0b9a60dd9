//! A volume with its log on a device of its own: whether that needs recovery is in the log alone.

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
        assert!(refused.to_string().contains("log is on a device of its own"), "{refused}");
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

fn names(dir: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_encoded_bytes();
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}
