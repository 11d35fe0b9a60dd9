//! Tests promises of a store that object_store's tests do not cover: durable and atomic writes, conditions, names, and reads of replaced
//! objects.

mod crash;
mod mounted;
mod names;
mod reads;
mod writers;

use std::sync::Arc;

use bytes::Bytes;
use ironmap::device::Ram;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::{Host, HostOptions, Volume, VolumeOptions};
use ironmap_object_store::{Store, StoreOptions};
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

fn volume(size: u64) -> Volume {
    let ram = Arc::new(Ram::new(size));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    VolumeOptions::new().write(true).open_on(ram).unwrap()
}

fn of_volume(volume: Volume) -> Store {
    Store::volume(volume, &StoreOptions::new()).unwrap()
}

fn of_directory(dir: &TempDir) -> Store {
    let host = Host::new(&HostOptions::new()).unwrap();
    Store::directory(host, dir.path(), &StoreOptions::new()).unwrap()
}

/// Returns a store of each kind. The directory of the second store exists until the guard is dropped.
fn both() -> ([Store; 2], TempDir) {
    let dir = tempfile::tempdir().unwrap();
    ([of_volume(volume(128 << 20)), of_directory(&dir)], dir)
}

/// Returns bytes that differ between versions and between positions.
fn content(version: u64, len: usize) -> Bytes {
    let words = (0..len.div_ceil(8) as u64).map(|word| word.wrapping_mul(31) ^ version << 40);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(len).collect();
    bytes.into()
}

async fn read(store: &impl ObjectStore, path: &str) -> Bytes {
    store.get(&Path::parse(path).unwrap()).await.unwrap().bytes().await.unwrap()
}
