//! Devices with old data in the inode tables. mke2fs did not initialise these tables.

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::skip::{Need, note_part};
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, NewFile};
use ironmap::{Volume, VolumeOptions};

/// The options of mke2fs, and whether the volume has a journal. mke2fs does not overwrite unused blocks.
const KINDS: [(&str, bool); 4] = [
    ("-b 1024 -N 16384", true),
    ("-b 4096 -N 16384 -g 4096", true),
    ("-b 4096 -N 16384 -O ^metadata_csum,uninit_bg", true),
    ("-b 4096 -N 16384 -O ^has_journal", false),
];

/// A volume on a device that was filled with random bytes.
fn image(kind: &str) -> Image {
    let image = Image::none();
    let path = image.path();
    std::fs::write(&path, vec![0xA5; 64 << 20]).unwrap();
    let lazily = ["-Fq", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard"];
    let args = [&lazily[..], &words(kind), &[path.to_str().unwrap(), "64M"]].concat();
    run("mke2fs", &args);
    image
}

fn open(image: &Image) -> Volume {
    let options = VolumeOptions::new().write(true);
    crate::common::beneath::open(&image.location(), &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Makes directories with a few files each. The file system places the directories in several groups.
fn fill(volume: &Volume, who: &str) {
    let (fs, root) = (volume.fs(), Credentials::default());
    for number in 0..12 {
        let name = format!("{who} {number}");
        let dir = fs
            .writable()
            .unwrap()
            .create(ROOT, name.as_bytes(), NewFile::Directory, 0o755, &root)
            .unwrap();
        for file in 0..=number {
            let name = format!("file {file}");
            fs.writable()
                .unwrap()
                .create(dir, name.as_bytes(), NewFile::Regular, 0o644, &root)
                .unwrap();
        }
    }
}

/// ironmap or the kernel makes the first inode in a block of an inode table. After a crash or a close, e2fsck and the kernel see no old
/// content of this block.
#[test]
fn the_neighbours_of_new_inodes_are_empty() {
    for (kind, journal) in KINDS {
        let image = image(kind);
        let volume = open(&image);
        fill(&volume, "first");
        volume.fs().sync().unwrap();
        if journal {
            let crashed = image.copy();
            crashed.repair_journal();
            crashed.check();
        }
        fill(&volume, "second");
        volume.close().unwrap();
        drop(volume);
        image.check();
        if let Some(reason) = Need::Root.missing() {
            note_part("the_neighbours_of_new_inodes_are_empty", "the kernel", &reason);
        } else {
            // Without `noinit_itable`, the kernel's background thread would fill the tables with zeros.
            let mount = image.mount("rw,noinit_itable");
            for number in 0..12 {
                let dir = mount.dir().join(format!("kernel {number}"));
                std::fs::create_dir(&dir).unwrap();
                std::fs::write(dir.join("file"), b"").unwrap();
                std::fs::write(mount.dir().join(format!("first {number}/by the kernel")), b"")
                    .unwrap();
            }
            drop(mount);
            image.check();
        }
        let volume = open(&image);
        fill(&volume, "third");
        volume.close().unwrap();
        drop(volume);
        image.check();
    }
}
