//! Tests a volume with two kinds of writes: direct writes, and writes through the page cache.

use std::process::Command;

use ironmap::fs::ext4::MkfsOptions;
use ironmap::units::FilePos;
use ironmap::{FileOptions, Files, QueueOptions, VolumeOptions};
use ironmap_image::Image;

const SEED: u64 = 20_261_130;
const LEN: u64 = 1 << 20;
const STEPS: u64 = 3000;

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Each read of a file sees all earlier writes of the file. The reads and writes are direct, or use the page cache. The block size is the
/// page size, or smaller. After the volume is closed, debugfs reads the same content, and e2fsck finds nothing.
#[test]
fn direct_and_cached_requests_see_each_other() {
    for block_size in [1024, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        let options = MkfsOptions::new().block_size(block_size);
        let content = vec![0xAA; LEN as usize];
        let new = Image::ext4().options(options).size(32 << 20);
        new.inject("/file", content.clone(), 0o644, (0, 0)).build(&image).unwrap();

        let mut model = content;
        let mut random = Random(SEED);
        let volume = VolumeOptions::new().write(true).cached(true).open(&*image).unwrap();
        let file = volume.open_with("/file", FileOptions::new().write(true)).unwrap();
        let number = volume.fs().resolve(b"/file", ironmap::fs::Follow::All).unwrap().number();
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        for step in 0..STEPS {
            let pos = random.below(LEN);
            let len = (1 + random.below(20_000)).min(LEN - pos) as usize;
            let range = pos as usize..pos as usize + len;
            let what = format!("seed {SEED}, step {step}, blocks of {block_size} bytes");
            let bytes = vec![step as u8; len];
            match random.below(4) {
                0 => {
                    assert_eq!(file.write_at(&mut queue, &bytes, FilePos(pos)).unwrap(), len);
                    model[range].copy_from_slice(&bytes);
                }
                1 => {
                    let writer = volume.fs().writable().unwrap();
                    assert_eq!(writer.write(number, FilePos(pos), &bytes).unwrap(), len);
                    model[range].copy_from_slice(&bytes);
                }
                2 => {
                    let mut read = vec![0; len];
                    assert_eq!(file.read_at(&mut queue, &mut read, FilePos(pos)).unwrap(), len);
                    assert!(read == model[range], "{what}");
                }
                _ => assert!(volume.read("/file").unwrap() == model, "{what}"),
            }
        }
        drop((file, queue));
        volume.close().unwrap();
        let tool = |name: &str, args: &[&str]| {
            let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            Command::new(name).args(args).arg(&image).env("PATH", path).output().unwrap()
        };
        assert!(tool("e2fsck", &["-fn"]).status.success());
        assert!(tool("debugfs", &["-R", "cat /file"]).stdout == model);
    }
}
