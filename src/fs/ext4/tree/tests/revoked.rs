//! Tests of freed blocks whose content was written to the journal.

use std::io::IoSlice;
use std::process::Command;

use crate::fs::ext4::ROOT;
use crate::fs::ext4::for_tests::Image;
use crate::fs::{Credentials, FileSystem, NewFile, Writer};
use crate::units::FileBlock;

/// The blocks of a directory and of a symbolic link are freed and become data blocks of a file. The journal still contains copies of the
/// old content. Recovery must not write these copies over the file's data.
#[test]
fn revoked_blocks_do_not_come_back() {
    for kind in ["-t ext4 -b 1024", "-t ext3 -b 1024"] {
        let image = Image::with_file(kind, "32M");
        let fs = image.open_file().fs;
        let (who, target) = (Credentials::default(), [b't'; 200]);
        let blocks = [(&b"dir"[..], NewFile::Directory), (b"link", NewFile::Symlink(&target))].map(
            |(name, file)| {
                let number = fs.create(ROOT, name, file, 0o777, &who).unwrap();
                fs.inode(number).unwrap().fs_block(FileBlock(0)).unwrap().unwrap()
            },
        );
        fs.sync().unwrap();
        fs.rmdir(ROOT, b"dir").unwrap();
        fs.unlink(ROOT, b"link").unwrap();
        fs.sync().unwrap();
        let data = [7; 1024];
        for block in blocks {
            fs.blocks.write_device(block, &[IoSlice::new(&data)], true).unwrap();
        }
        // The image is copied without closing the volume, as after a crash. e2fsck replays the journal of the copy.
        let crashed = image.path().with_extension("crashed");
        std::fs::copy(image.path(), &crashed).unwrap();
        let out = Command::new("e2fsck").arg("-fy").arg(&crashed).output().unwrap();
        assert!(matches!(out.status.code(), Some(0 | 1)), "{kind}");
        let bytes = std::fs::read(&crashed).unwrap();
        for block in blocks {
            let at = block.0 as usize * 1024;
            assert!(bytes[at..at + 1024] == data, "{kind}: block {block}");
        }
    }
}
