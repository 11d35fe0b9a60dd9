//! Unknown features of the log. They prevent an open only if the log needs recovery.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ironmap::ErrorKind;

use crate::common::command::run;
use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;
use crate::state::{Mount, Variant, copy, make};

/// The byte offsets of `sb_features_log_incompat` and of the checksum.
const LOG_INCOMPAT: usize = 220;
const CRC: usize = 224;

/// Sets these features of the log, and updates the checksum.
fn set(image: &Image, features: u32) {
    let file = File::options().read(true).write(true).open(image.path()).unwrap();
    let mut sector = [0; 512];
    file.read_exact_at(&mut sector, 0).unwrap();
    sector[LOG_INCOMPAT..LOG_INCOMPAT + 4].copy_from_slice(&features.to_be_bytes());
    sector[CRC..CRC + 4].fill(0);
    let sum = crc32c::crc32c(&sector);
    sector[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&sector, 0).unwrap();
}

#[test]
fn unknown_features_of_a_dirty_log_are_refused() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let mkfs = "-s size=512";
    let variant = Variant { name: "features", size: "96M", mkfs, mount: "rw", newer: false };
    for (is_dirty, features, is_refused) in
        [(false, 0x8000_0000, false), (true, 0x8000_0000, true), (true, 0x1, false)]
    {
        let what = format!("dirty: {is_dirty}, features {features:#x}");
        let image = make(&variant);
        {
            let mount = Mount::new(&image, "rw").unwrap();
            File::create_new(mount.dir().join("file")).unwrap();
            if is_dirty {
                run("xfs_io", &["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()]);
            }
        }
        set(&image, features);
        let ours = copy(&image).open();
        let theirs = Mount::new(&image, "ro");
        assert_eq!(theirs.is_err(), is_refused, "{what}, the kernel");
        match ours {
            Ok(volume) => {
                assert!(!is_refused, "{what}");
                assert_eq!(volume.xfs().unwrap().log().recovered, is_dirty, "{what}");
            }
            Err(error) => {
                assert!(is_refused, "{what}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
                assert!(error.to_string().contains("feature 0x80000000"), "{what}: {error}");
            }
        }
    }
}
