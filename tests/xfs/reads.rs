//! Counts reads of the device. If the blocks of a directory are in memory, a lookup sends no request.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use ironmap::device::{Layer, Layered, Request, Verdict};
use ironmap::{Volume, VolumeOptions};

use crate::common::image::{Image, scratch};
use crate::common::skip::Need;
use crate::{SIZE, collisions, note, require};

/// The number of names with the same hash, and the number of names with different hashes. A lookup of a name with the common hash must
/// compare many entries.
const NAMES: usize = 300;

/// How many times each part of the device was read.
#[derive(Clone, Debug, Default)]
struct Reads(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Layer for Reads {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        if let Request::Read { at, .. } = request {
            *self.0.lock().unwrap().entry(at.0).or_default() += 1;
        }
        Verdict::pass(request)
    }
}

/// A volume made by mkfs.xfs. One directory contains all of the names.
fn image(block: u32, directory: u32) -> Result<Image, String> {
    let dir = scratch();
    let (proto, empty) = (dir.path().join("proto"), dir.path().join("empty"));
    std::fs::write(&empty, "").unwrap();
    let mut lines = b"/\n0 0\nd--755 0 0\n".to_vec();
    for (number, name) in collisions::names(NAMES).into_iter().enumerate() {
        for name in [&name[..], number.to_string().as_bytes()] {
            lines.extend(name);
            lines.extend(b" ---644 0 0 ");
            lines.extend(empty.as_os_str().as_bytes());
            lines.push(b'\n');
        }
    }
    lines.extend(b"$\n");
    std::fs::write(&proto, lines).unwrap();
    let (block, directory) = (format!("size={block}"), format!("size={directory}"));
    Image::mkfs_xfs(SIZE, &["-b", &block, "-n", &directory, "-p", proto.to_str().unwrap()])
}

#[test]
fn a_block_of_a_directory_is_read_once() {
    require!([Need::Tool("mkfs.xfs")]);
    let sizes = || (10..=16).map(|log| 1 << log);
    for (block, directory) in
        sizes().flat_map(|block| sizes().map(move |directory| (block, directory)))
    {
        if directory < block || directory < 4096 {
            continue;
        }
        let what = format!("blocks of {block}, directory blocks of {directory}");
        let image = match image(block, directory) {
            Ok(image) => image,
            Err(refusal) => {
                note(&format!("{what}: {refusal}"));
                continue;
            }
        };
        let below =
            image.location().open(&VolumeOptions::default().location_options()).unwrap().device;
        let reads = Reads::default();
        let volume = Volume::on(Arc::new(Layered::with_layer(below, reads.clone()))).unwrap();
        assert_eq!(volume.xfs().unwrap().superblock().directory_block_size(), directory as usize);
        let root = volume.fs().inode(volume.fs().root()).unwrap();
        reads.0.lock().unwrap().clear();
        for name in collisions::names(NAMES) {
            root.lookup(&name).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let reads = reads.0.lock().unwrap();
        let again: Vec<_> = reads.iter().filter(|(_, count)| **count > 1).collect();
        assert!(again.is_empty(), "{what}: byte and number of reads: {again:?}");
        assert!(!reads.is_empty(), "{what}: nothing was read");
    }
}
