//! e2fsck, dumpe2fs, resize2fs and the kernel accept the volumes that ironmap makes.
//!
//! - `fields`: many sizes and features. e2fsck finds no fault, and dumpe2fs prints the same as for a volume of mke2fs.
//! - `life`: the kernel writes to the volumes, which needs root, and resize2fs grows them.
//! - `crash`: power cuts at any moment.
//! - `devices`: refused devices, cleared ranges, and reproducible volumes.

mod crash;
mod devices;
mod fields;
mod life;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::common::image::{Image, words};
use ironmap::Result;
use ironmap::device::{BlockFile, OpenMode, Psync};
use ironmap::fs::ext4::{Features, MkfsOptions, Superblock};

const UUID: [u8; 16] = *b"\x1f\x0e\x3d\xad\x99\x90\x4a\x3a\x8f\x8e\x3a\x6d\x0b\x7c\x5e\x21";

/// Parses options in the syntax of mke2fs.
fn options(text: &str) -> MkfsOptions {
    let mut options = MkfsOptions::new().uuid(UUID).time(1_700_000_000);
    for pair in words(text).chunks_exact(2) {
        let number = || pair[1].parse::<u64>().unwrap();
        match pair[0] {
            "-O" => options.features.edit(pair[1]).unwrap(),
            "-b" => options.block_size = Some(number() as u32),
            "-C" => options.cluster_size = Some(number() as u32),
            "-I" => options.inode_size = Some(number() as u16),
            "-i" => options.inode_ratio = Some(number()),
            "-N" => options.inodes = Some(number()),
            "-G" => options.groups_per_flex = number() as u32,
            "-m" => options.reserved_percent = pair[1].parse().unwrap(),
            "-e" => options.on_error = pair[1].parse().unwrap(),
            "-L" => options.label = pair[1].into(),
            other => panic!("{other}"),
        }
    }
    options
}

/// The list of features for mke2fs. The volume gets exactly these features, and no default ones.
fn feature_list(features: &Features) -> String {
    let Features { compat, incompat, ro_compat } = features;
    let names = compat.names().chain(incompat.names()).chain(ro_compat.names());
    std::iter::once("none".to_owned()).chain(names).collect::<Vec<_>>().join(",")
}

/// Makes a volume in an existing file.
fn make_on(path: &Path, options: &MkfsOptions) -> Result<Superblock> {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let device = Psync::new(Arc::new(BlockFile::open(path, &mode)?));
    ironmap::tools::make(&device, options)
}

/// A new, sparse image of `size` bytes, with a volume.
fn make(size: u64, options: &MkfsOptions) -> Result<Image> {
    let image = Image::none();
    File::create(image.path()).unwrap().set_len(size).unwrap();
    make_on(&image.path(), &options.clone().zeroed(true))?;
    Ok(image)
}
