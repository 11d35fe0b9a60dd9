//! An inode that the log changes shares a buffer with other inodes. The checksums of these other inodes are still verified.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use ironmap::ErrorKind;
use ironmap::fs::Follow;

use crate::common::command::run;
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::require;
use crate::state::{Mount, Variant, copy, make};

/// The byte offset of `di_uid`. If this field changes, only the checksum shows it.
const UID: u64 = 8;
const FILES: u64 = 50;

#[test]
fn damaged_neighbours_of_a_recovered_inode_are_found() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for mkfs in ["", "-i size=1024", "-b size=1024"] {
        let variant = Variant { name: "neighbours", size: "96M", mkfs, mount: "rw", newer: false };
        let image = make(&variant);
        let name = |number: u64| format!("name-{number}");
        let mut numbers = Vec::new();
        {
            let mount = Mount::new(&image, "rw").unwrap();
            for number in 0..FILES {
                let file = File::create_new(mount.dir().join(name(number))).unwrap();
                numbers.push(file.metadata().unwrap().ino());
            }
        }
        {
            let mount = Mount::new(&image, "rw,noatime").unwrap();
            let changed = mount.dir().join(name(20));
            std::fs::set_permissions(&changed, Permissions::from_mode(0o123)).unwrap();
            // The test also removes files while they are open. XFS stores the list of such files in the inode buffers.
            let _open = [30, 31].map(|number| {
                let path = mount.dir().join(name(number));
                let file = File::open(&path).unwrap();
                std::fs::remove_file(path).unwrap();
                file
            });
            let dir = mount.dir().to_str().unwrap();
            run("xfs_io", &["-x", "-c", "shutdown -f", dir]);
        }
        let in_log = [20, 30, 31];
        let victims = [19, 21, 29, 32];
        let device = File::options().read(true).write(true).open(image.path()).unwrap();
        let layout = Layout::of(&device);
        for victim in victims {
            let at = layout.place_of(numbers[victim as usize]) + UID;
            device.write_all_at(&[0x55], at).unwrap();
        }
        let ours = copy(&image).open().unwrap();
        assert!(ours.xfs().unwrap().log().recovered, "{mkfs}: the log is not dirty");
        let mount = Mount::new(&image, "ro").unwrap();
        for number in 0..FILES {
            let found = ours.fs().resolve(name(number).as_bytes(), Follow::All);
            let theirs = mount.dir().join(name(number)).metadata();
            let what = format!("{mkfs}: {}", name(number));
            if victims.contains(&number) {
                let error = found.err().unwrap_or_else(|| panic!("{what}: not found damaged"));
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                assert!(error.to_string().contains("di_crc"), "{what}: {error}");
                theirs.unwrap_err();
            } else if in_log[1..].contains(&number) {
                assert_eq!(found.err().unwrap().kind(), ErrorKind::NotFound, "{what}");
                theirs.unwrap_err();
            } else {
                let mode = if number == 20 { 0o123 } else { theirs.unwrap().mode() & 0o7777 };
                let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(found.stat().mode & 0o7777, mode, "{what}");
            }
        }
    }
}
