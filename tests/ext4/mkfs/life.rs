//! Uses new volumes: the kernel mounts and writes them, and resize2fs grows them.

use std::fs::{self, File};

use super::{make, options};
use crate::common::command::run;
use crate::common::skip::{Need, note_part};
use crate::require;

const MIB: u64 = 1 << 20;

/// Creates files of all sizes in some directories, and removes or changes some of them.
fn fill(root: &std::path::Path) {
    for dir in 0..20 {
        let dir = root.join(format!("directory {dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..40_usize {
            fs::write(dir.join(format!("file {file}")), vec![b'x'; file * file * 7]).unwrap();
        }
    }
    fs::write(root.join("large"), vec![b'y'; 5 << 20]).unwrap();
    fs::remove_dir_all(root.join("directory 7")).unwrap();
}

#[test]
fn the_kernel_writes_to_it() {
    require!([Need::Root, Need::Tool("losetup")]);
    let cases = [
        "",
        "-b 4096",
        "-O ^has_journal",
        "-O ^has_journal,^extent,^flex_bg,^metadata_csum,^huge_file,^dir_nlink,^extra_isize",
        "-O ^extent",
        "-O uninit_bg",
        "-O ^metadata_csum",
        "-O meta_bg",
        "-O sparse_super2",
        "-b 4096 -O bigalloc",
        "-b 1024 -O bigalloc",
        "-O inline_data,ea_inode,large_dir",
        "-O quota,project",
        "-O mmp",
        "-O fast_commit",
        "-I 128",
        "-I 1024",
    ];
    for text in cases {
        let image = make(64 * MIB, &options(text)).unwrap();
        match image.try_mount("rw") {
            Ok(mount) => fill(mount.dir()),
            Err(refusal) => {
                note_part("the_kernel_writes_to_it", text, &refusal);
                continue;
            }
        }
        image.check();
        let volume = image.open().unwrap();
        let large = volume.fs().resolve(b"/large", ironmap::fs::Follow::All).unwrap();
        assert_eq!(large.size(), 5 << 20, "{text}");
    }
}

/// resize2fs grows the volume, and e2fsck finds no fault. This shows that the resize inode is valid.
#[test]
fn resize2fs_grows_it() {
    require!([Need::Tool("resize2fs")]);
    let cases =
        ["-b 1024", "-b 4096", "-b 1024 -O ^flex_bg", "-b 4096 -O ^64bit", "-b 1024 -O ^extent"];
    for text in cases.into_iter().chain(["-O meta_bg", "-b 4096 -O ^resize_inode", "-O quota"]) {
        let image = make(50 * MIB, &options(text)).unwrap();
        for size in [300 * MIB, 2500 * MIB] {
            File::options().write(true).open(image.path()).unwrap().set_len(size).unwrap();
            run("resize2fs", &[image.path()]);
            image.check();
        }
    }
}
