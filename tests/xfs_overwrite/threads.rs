//! Several threads overwrite one file at the same time.

use std::sync::Arc;

use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::content::assert_read_by_kernel;
use crate::{SEED, assert_only_data, filled, for_writing, known, open, require};
use ironmap::QueueOptions;
use ironmap::fs::Follow;

const THREADS: usize = 4;
const WRITES: usize = 400;

/// Several threads write to every sector, each thread to its own bytes. A write of a part of a sector does not lose the bytes of the other
/// threads.
#[test]
fn neighbours_within_a_sector_lose_nothing() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let Some(image) = filled(&[], 4096) else { return };
    let (mut files, before) = (known(&image), std::fs::read(image.path()).unwrap());
    let volume = open(&image).unwrap();
    let inode = volume.fs().resolve(b"whole", Follow::All).unwrap();
    let file = Arc::new(volume.open_inode(inode, for_writing()).unwrap());
    let content = &mut files.get_mut("whole").unwrap().content;
    let size = content.len();
    let written: Vec<Vec<(usize, Vec<u8>)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, volume) = (Arc::clone(&file), volume.clone());
                scope.spawn(move || {
                    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
                    let rng = &mut Rng::new(SEED + thread as u64);
                    let write = |_| {
                        let slot = rng.below((size / 512) as u64) as usize * 512;
                        let pos = slot + thread * 512 / THREADS;
                        let bytes = rng.bytes(512 / THREADS);
                        file.write_all_at(&mut queue, &bytes, pos as u64).unwrap();
                        (pos, bytes)
                    };
                    (0..WRITES).map(write).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (pos, bytes) in written.into_iter().flatten() {
        content[pos..pos + bytes.len()].copy_from_slice(&bytes);
    }
    drop(file);
    volume.close().unwrap();
    drop(volume);
    let what = format!("seed {SEED:#x}");
    assert_only_data(&image, &before, &files, &what);
    assert_read_by_kernel(&image, &files, &what);
}
