//! Simulates power cuts at every request of a workload, and checks all states that the device can then have. An operation that has returned
//! is durable. An operation in progress is either complete or has no effect.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use ironmap::device::{Crashes, Device, Limits, Ram, Record};
use ironmap::fs::ext4::MkfsOptions;
use ironmap::{DioFlags, FileOptions, Files, QueueOptions, Volume, VolumeOptions};
use ironmap_object_store::Store;
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt, PutMode};

use crate::{content, of_volume};

const SIZE: u64 = 24 << 20;
const SEED: u64 = 0x000b_1ec7;
const STAGE: &str = ".ironmap-object-store";

type Objects = BTreeMap<String, Bytes>;

fn open(device: Arc<dyn Device>) -> Volume {
    VolumeOptions::new().write(true).commit(Duration::ZERO).open_on(device).unwrap()
}

/// The length in bytes of the objects whose path begins with `noise`. Version N of such an object has the content of version 1000 + N.
const NOISE: usize = 20_000;
/// A file that the user of the volume writes without the store.
const DIRECT: &str = "/direct";

/// The store of the workload, and its volume.
struct Stand {
    store: Store,
    volume: Volume,
}

impl Stand {
    /// Carries out an operation while other tasks write other objects and the user of the volume syncs a file. These tasks cause commits of
    /// the journal between the steps of the operation.
    async fn beside<T>(&self, version: u64, operation: impl Future<Output = T>) -> T {
        let others = (0..2).map(|other| {
            let (store, path) = (self.store.clone(), Path::from(format!("noise/{other}")));
            let new = content(1000 + version, NOISE);
            tokio::spawn(async move { drop(store.put(&path, new.into()).await.unwrap()) })
        });
        let mut others: Vec<_> = others.collect();
        let volume = self.volume.clone();
        others.push(tokio::task::spawn_blocking(move || {
            let file =
                volume.open_with(DIRECT, FileOptions::new().write(true).create(true)).unwrap();
            let mut queue = volume.queue(&QueueOptions::new()).unwrap();
            for _ in 0..12 {
                file.append(&mut queue, &[7; 512], DioFlags::empty()).unwrap();
                file.sync(&mut queue).unwrap();
            }
        }));
        let result = operation.await;
        for other in others {
            other.await.unwrap();
        }
        result
    }
}

/// Runs the operations. After operation N has returned, the mark N is added to the recorded requests of the device. Element N of the result
/// contains the objects after operation N.
async fn run(volume: Volume, record: &Record) -> Vec<Objects> {
    let stand = Stand { store: of_volume(volume.clone()), volume };
    let store = &stand.store;
    let mut states = vec![Objects::new()];
    let mut done = |change: &dyn Fn(&mut Objects)| {
        let mut objects = states.last().unwrap().clone();
        change(&mut objects);
        states.push(objects);
        record.mark(states.len() as u64 - 1);
    };
    let path = Path::from;
    let sizes = [10_usize, 70_000, 4096, 300_001];
    for (version, size) in sizes.into_iter().enumerate() {
        let new = content(version as u64, size);
        stand.beside(version as u64, store.put(&path("a"), new.clone().into())).await.unwrap();
        done(&|objects| drop(objects.insert("a".into(), new.clone())));
    }
    let new = content(10, 5000);
    let mode = PutMode::Create.into();
    let deep = path("dir/deep/b");
    let put = store.put_opts(&deep, new.clone().into(), mode);
    stand.beside(4, put).await.unwrap();
    done(&|objects| drop(objects.insert("dir/deep/b".into(), new.clone())));
    let mut upload = store.put_multipart(&path("a")).await.unwrap();
    let parts = [content(20, 100_000), content(21, 777), content(22, 65_536)];
    for part in &parts {
        upload.put_part(part.clone().into()).await.unwrap();
    }
    stand.beside(5, upload.complete()).await.unwrap();
    done(&|objects| drop(objects.insert("a".into(), parts.concat().into())));
    stand.beside(6, store.copy(&path("a"), &path("dir/c"))).await.unwrap();
    done(&|objects| drop(objects.insert("dir/c".into(), objects["a"].clone())));
    stand.beside(7, store.rename(&path("dir/deep/b"), &path("other/b"))).await.unwrap();
    done(&|objects| {
        let moved = objects.remove("dir/deep/b").unwrap();
        objects.insert("other/b".into(), moved);
    });
    store.rename(&path("other/b"), &path("a")).await.unwrap();
    done(&|objects| {
        let moved = objects.remove("other/b").unwrap();
        objects.insert("a".into(), moved);
    });
    let tag = store.head(&path("a")).await.unwrap().e_tag;
    let version = object_store_0_14::UpdateVersion { e_tag: tag, version: None };
    let new = content(30, 40_000);
    let mode = PutMode::Update(version).into();
    stand.beside(8, store.put_opts(&path("a"), new.clone().into(), mode)).await.unwrap();
    done(&|objects| drop(objects.insert("a".into(), new.clone())));
    store.delete(&path("dir/c")).await.unwrap();
    done(&|objects| drop(objects.remove("dir/c")));
    states
}

/// Returns the objects that a new store shows on a volume after its recovery. Asserts that the store has removed all drafts, the files of
/// incomplete objects.
async fn objects(image: Ram, what: &str) -> Objects {
    let volume = open(Arc::new(image));
    let store = of_volume(volume.clone());
    if volume.exists(STAGE).unwrap() {
        assert!(volume.read_dir(STAGE).unwrap().next().is_none(), "{what}: a draft is left");
    }
    let mut objects = Objects::new();
    for meta in store.list(None).try_collect::<Vec<_>>().await.unwrap() {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes.len() as u64, meta.size);
        if meta.location.as_ref() == &DIRECT[1..] {
            continue;
        }
        if meta.location.as_ref().starts_with("noise/") {
            let whole = (0..9).any(|version| bytes == content(1000 + version, NOISE));
            assert!(whole, "{what}: {} is torn: {} bytes", meta.location, bytes.len());
            continue;
        }
        objects.insert(meta.location.to_string(), bytes);
    }
    objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_returned_survives_and_none_is_torn() {
    let ram = Ram::new(SIZE);
    let limits = Limits { volatile_cache: true, ..*ram.limits() };
    let base = ram.with_limits(limits);
    ironmap::tools::make(&base, &MkfsOptions::new()).unwrap();
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let states = run(open(Arc::clone(&record) as Arc<dyn Device>), &record).await;
    // The superblock of ext4 is not torn in this test: it has one checksum over 1024 bytes, and Linux does not accept a torn superblock
    // either.
    let superblock = ironmap::units::DevOffset(1024)..ironmap::units::DevOffset(2048);
    let mut crashes = Crashes::new(&base, record.log()).with_atomic(superblock);
    let names = crashes.names(SEED, 1);
    let mut in_progress = 0;
    for name in &names {
        let done = crashes.log().marks(name.cut).last().unwrap_or(0) as usize;
        let found = objects(crashes.state(*name), &name.to_string()).await;
        let next = states.get(done + 1);
        assert!(
            found == states[done] || next == Some(&found),
            "state {name}, after operation {done}: {:?}",
            found.iter().map(|(path, bytes)| (path, bytes.len())).collect::<Vec<_>>()
        );
        in_progress += usize::from(found != states[done]);
    }
    println!("{} states, {in_progress} with an operation that had not returned", names.len());
    assert!(names.len() > 100);
}
