//! Tests conditions, and writers that compete, fail, or are dropped.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::future::join_all;
use ironmap::VolumeOptions;
use ironmap::device::Ram;
use ironmap::fs::{Clock, Timestamp};
use ironmap_object_store::Store;
use object_store_0_14::path::Path;
use object_store_0_14::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

use crate::{both, content, of_directory, of_volume, read, volume};

const STAGE: &str = ".ironmap-object-store";

/// If several writers want to replace the same version, exactly one succeeds. The others see that the object has changed. Two stores of
/// one directory exclude each other like two processes, because each attempt opens the lock file itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_writer_replaces_a_version() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (of_directory(&dir), of_directory(&dir));
    let on_volume = of_volume(volume(64 << 20));
    for stores in [[first, second], [on_volume.clone(), on_volume]] {
        let path = Path::from("race");
        stores[0].put(&path, "0".into()).await.unwrap();
        for round in 0..25 {
            let meta = stores[0].head(&path).await.unwrap();
            let version = UpdateVersion { e_tag: meta.e_tag, version: None };
            let tries = (0..8).map(|writer| {
                let (store, path) = (stores[writer % 2].clone(), path.clone());
                let mode = PutMode::Update(version.clone());
                let text = format!("{round} {writer}");
                tokio::spawn(async move {
                    (text.clone(), store.put_opts(&path, text.into(), mode.into()).await)
                })
            });
            let results = join_all(tries.collect::<Vec<_>>()).await;
            let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            let (won, lost): (Vec<_>, Vec<_>) =
                results.into_iter().partition(|(_, put)| put.is_ok());
            assert_eq!(won.len(), 1, "round {round}");
            assert_eq!(read(&stores[1], "race").await, won[0].0);
            for (_, put) in lost {
                let error = put.unwrap_err();
                assert!(matches!(error, Error::Precondition { .. }), "{error}");
            }
        }
    }
}

/// If several puts, copies and renames create the same object, exactly one succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_writer_creates_an_object() {
    let (stores, _dir) = both();
    for store in &stores {
        for round in 0..10 {
            let path = Path::from(format!("dir{round}/new"));
            let tries = (0..6).map(|writer| {
                let (store, path) = (store.clone(), path.clone());
                tokio::spawn(async move {
                    let from = Path::from(format!("from{writer}"));
                    store.put(&from, format!("{writer}").into()).await.unwrap();
                    match writer % 3 {
                        0 => {
                            let mode = PutMode::Create.into();
                            store.put_opts(&path, "put".into(), mode).await.map(drop)
                        }
                        1 => store.copy_if_not_exists(&from, &path).await,
                        _ => store.rename_if_not_exists(&from, &path).await,
                    }
                })
            });
            let results = join_all(tries.collect::<Vec<_>>()).await;
            let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
            for error in results.into_iter().filter_map(Result::err) {
                assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
            }
        }
    }
}

/// Each content has its own tag, even if the clock does not advance and all objects have the same size.
#[tokio::test]
async fn tags_differ_within_a_tick() {
    let ram = Arc::new(Ram::new(64 << 20));
    ironmap::tools::make(&*ram, &ironmap::fs::ext4::MkfsOptions::new()).unwrap();
    let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });
    let volume = VolumeOptions::new().write(true).clock(clock).open_on(ram).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for store in [of_volume(volume), of_directory(&dir)] {
        let mut tags = HashSet::new();
        for version in 0..100_u64 {
            let put = store.put(&Path::from("object"), content(version, 64).into()).await.unwrap();
            let tag = put.e_tag.unwrap();
            assert_eq!(store.head(&Path::from("object")).await.unwrap().e_tag, Some(tag.clone()));
            assert!(tags.insert(tag), "{store}: version {version}");
        }
    }
}

/// Returns the names of the drafts, the files of incomplete objects, in a directory.
fn drafts(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join(STAGE)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock#0").collect()
}

/// A store removes the drafts (files of incomplete objects) of a process that was killed, but not the drafts of another store.
#[tokio::test]
async fn drafts_of_the_dead_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let first = of_directory(&dir);
    let mut upload = first.put_multipart(&Path::from("object")).await.unwrap();
    upload.put_part("living".into()).await.unwrap();
    std::fs::write(dir.path().join(STAGE).join("999-0#1"), "dead").unwrap();
    assert_eq!(drafts(dir.path()).len(), 2);
    let second = of_directory(&dir);
    assert_eq!(drafts(dir.path()).len(), 1);
    upload.complete().await.unwrap();
    assert_eq!(read(&second, "object").await, "living");
    assert!(drafts(dir.path()).is_empty());

    let volume = volume(32 << 20);
    volume.create_dir(STAGE).unwrap();
    volume.write(format!("{STAGE}/999-0#1"), "dead").unwrap();
    let _store = of_volume(volume.clone());
    assert!(volume.read_dir(STAGE).unwrap().next().is_none());
}

/// An upload with a part that was not written does not become an object.
#[tokio::test]
async fn an_upload_needs_all_its_parts() {
    let (stores, dir) = both();
    for store in &stores {
        let path = Path::from("object");
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part("written".into()).await.unwrap();
        drop(upload.put_part("dropped".into()));
        let error = upload.complete().await.unwrap_err();
        assert!(error.to_string().contains("7 of 14 bytes"), "{error}");
        upload.complete().await.unwrap_err();
        upload.abort().await.unwrap_err();
        let mut aborted = store.put_multipart(&path).await.unwrap();
        aborted.put_part("written".into()).await.unwrap();
        aborted.abort().await.unwrap();
        assert!(matches!(store.head(&path).await.unwrap_err(), Error::NotFound { .. }));
    }
    // The threads carry out all requests that were begun before the last handle was dropped.
    drop(stores);
    assert!(drafts(dir.path()).is_empty());
}

fn poll_once<T>(future: impl Future<Output = T>) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

/// Futures are dropped in flight. The object is then one complete version, no draft remains, and the store still works.
#[test]
fn dropped_futures_leave_whole_objects() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(64 << 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let path = Path::from("object");
    let len = 300_000;
    let drop_many = |store: &Store| {
        runtime.block_on(store.put(&path, content(0, len).into())).unwrap();
        for version in 1..60_u64 {
            poll_once(store.put(&path, content(version, len).into()));
            poll_once(store.get_ranges(&path, &[0..4096, 100_000..200_000]));
            poll_once(store.copy(&path, &Path::from("copy")));
            poll_once(store.list_with_delimiter(None));
            poll_once(async {
                let mut upload = store.put_multipart(&path).await.unwrap();
                upload.put_part(content(version, len).into()).await.unwrap();
                upload.complete().await.unwrap();
            });
            let found = runtime.block_on(read(store, "object"));
            let versions = 0..=version;
            assert!(versions.into_iter().any(|version| found == content(version, len)));
        }
        let last = content(99, len);
        runtime.block_on(store.put(&Path::from("last"), last.clone().into())).unwrap();
        assert!(runtime.block_on(read(store, "last")) == last);
    };
    let store = of_directory(&dir);
    drop_many(&store);
    drop(store);
    assert!(drafts(dir.path()).is_empty());
    let store = of_volume(volume.clone());
    drop_many(&store);
    drop(store);
    assert!(volume.read_dir(STAGE).unwrap().next().is_none());
}

/// The drop of a store waits for all requests that were begun. After the drop, the object exists and its draft does not exist.
#[test]
fn the_drop_of_a_store_waits_for_its_requests() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let store = of_directory(&dir);
        let path = Path::from(format!("object{round}"));
        poll_once(store.put(&path, content(round, 300_000).into()));
        drop(store);
        assert!(drafts(dir.path()).is_empty(), "round {round}");
        let found = std::fs::read(dir.path().join(path.as_ref())).unwrap();
        assert!(found == content(round, 300_000), "round {round}");
    }
}
