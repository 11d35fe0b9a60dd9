//! Tests the names of objects: names that are the same as with `LocalFileSystem`, and names that a store refuses.

use std::process::Command;
use std::sync::Arc;

use futures_util::TryStreamExt;
use ironmap::VolumeOptions;
use ironmap::device::{Device, Ram};
use ironmap::fs::ext4::MkfsOptions;
use object_store_0_14::local::LocalFileSystem;
use object_store_0_14::path::Path;
use object_store_0_14::{Error, ObjectStore, ObjectStoreExt, PutMode};

use crate::{both, of_directory, of_volume, read};

async fn listed(store: &dyn ObjectStore) -> Vec<(String, u64)> {
    let objects = store.list(None).map_ok(|meta| (meta.location.to_string(), meta.size));
    let mut objects: Vec<_> = objects.try_collect().await.unwrap();
    objects.sort_unstable();
    objects
}

/// `LocalFileSystem` is the oracle. Both stores show the same objects under the same paths, for objects that either of them has written.
#[tokio::test]
async fn names_are_those_of_local_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let (own, local) = (of_directory(&dir), LocalFileSystem::new_with_prefix(dir.path()).unwrap());
    let paths =
        ["plain", "a/b/c", "a/b%2Fc", "sp ace/ä😀", "#", "x#1a", "100%", "-dash", ".hidden/y"];
    for (number, path) in paths.iter().enumerate() {
        let path = Path::parse(path).unwrap();
        let content = "x".repeat(number + 1);
        let writer: &dyn ObjectStore = if number % 2 == 0 { &own } else { &local };
        writer.put(&path, content.clone().into()).await.unwrap();
        assert_eq!(read(&own, path.as_ref()).await, content);
        assert_eq!(read(&local, path.as_ref()).await, content);
    }
    // The file of an unfinished upload by `LocalFileSystem` is not an object.
    std::fs::write(dir.path().join("plain#1"), "half").unwrap();
    std::os::unix::fs::symlink("plain", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("missing", dir.path().join("broken")).unwrap();
    assert_eq!(listed(&own).await, listed(&local).await);
    let upload = own.put_multipart(&Path::from("new")).await.unwrap();
    assert_eq!(listed(&own).await, listed(&local).await);
    drop(upload);
}

/// Paths that the store itself uses are refused, and the error names the path. The store's directory is never listed.
#[tokio::test]
async fn reserved_names_are_refused() {
    let (stores, _dir) = both();
    for store in &stores {
        store.put(&Path::from("dir/a"), "x".into()).await.unwrap();
        for path in ["", "a#1", "dir/a#27", ".ironmap-object-store", ".ironmap-object-store/x"] {
            let path = Path::parse(path).unwrap();
            let errors = [
                store.put(&path, "x".into()).await.unwrap_err(),
                store.get(&path).await.unwrap_err(),
                store.delete(&path).await.unwrap_err(),
                store.copy(&Path::from("dir/a"), &path).await.unwrap_err(),
                store.rename(&path, &Path::from("b")).await.unwrap_err(),
            ];
            for error in errors {
                assert!(error.to_string().contains(path.as_ref()), "{error}");
            }
        }
        let stage = Path::from(".ironmap-object-store");
        let level = store.list_with_delimiter(Some(&stage)).await.unwrap();
        assert!(level.objects.is_empty() && level.common_prefixes.is_empty());
        assert_eq!(store.list(Some(&stage)).try_collect::<Vec<_>>().await.unwrap(), []);
        assert_eq!(listed(store).await, [("dir/a".to_owned(), 1)]);
    }
}

/// A path cannot be both an object and a prefix. The attempt is an error, and changes nothing.
#[tokio::test]
async fn a_directory_is_no_object() {
    let (stores, _dir) = both();
    for store in &stores {
        store.put(&Path::from("dir/a"), "x".into()).await.unwrap();
        store.put(&Path::from("dir"), "y".into()).await.unwrap_err();
        store.put_opts(&Path::from("dir"), "y".into(), PutMode::Create.into()).await.unwrap_err();
        store.put(&Path::from("dir/a/b"), "z".into()).await.unwrap_err();
        for path in ["dir", "dir/a/b"] {
            let path = Path::from(path);
            let gone = [
                store.get(&path).await.unwrap_err(),
                store.head(&path).await.unwrap_err(),
                store.delete(&path).await.unwrap_err(),
                store.rename(&path, &Path::from("moved")).await.unwrap_err(),
            ];
            for error in gone {
                assert!(matches!(error, Error::NotFound { .. }), "{store}: {error}");
            }
        }
        assert_eq!(listed(store).await, [("dir/a".to_owned(), 1)]);
        // A directory without objects is not listed as a prefix.
        store.delete(&Path::from("dir/a")).await.unwrap();
        assert!(store.list_with_delimiter(None).await.unwrap().common_prefixes.is_empty());
    }
}

/// On volumes that cannot be changed, writes are not supported, and the error gives the reason.
#[tokio::test]
async fn a_volume_for_reading_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut stores = Vec::new();
    // Makes an XFS volume that contains a file with the name `object`. The file is named in a prototype for mkfs.xfs.
    let (proto, source) = (dir.path().join("proto"), dir.path().join("source"));
    std::fs::write(&source, "content").unwrap();
    let lines = format!("/dummy\n0 0\nd--755 0 0\nobject ---644 0 0 {}\n$\n", source.display());
    std::fs::write(&proto, lines).unwrap();
    std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
    match Command::new("mkfs.xfs").arg("-q").arg("-p").arg(&proto).arg(&image).status() {
        Ok(status) if status.success() => {
            let volume = VolumeOptions::new().write(true).open(image.as_path()).unwrap();
            stores.push(of_volume(volume));
        }
        result => eprintln!("SKIP XFS: needs mkfs.xfs ({result:?})"),
    }
    let ram = Arc::new(Ram::new(32 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    let device = Arc::clone(&ram) as Arc<dyn Device>;
    let volume = VolumeOptions::new().write(true).open_on(device).unwrap();
    volume.write("/object", "content").unwrap();
    volume.close().unwrap();
    stores.push(of_volume(VolumeOptions::new().open_on(Arc::new(ram.snapshot())).unwrap()));
    for store in &stores {
        let (object, other) = (Path::from("object"), Path::from("other"));
        assert_eq!(read(store, "object").await, "content", "{store}");
        let errors = [
            store.put(&other, "x".into()).await.unwrap_err(),
            store.put(&object, "CONTENT".into()).await.unwrap_err(),
            store.put_multipart(&other).await.unwrap_err(),
            store.copy(&object, &other).await.unwrap_err(),
            store.rename(&object, &other).await.unwrap_err(),
            store.delete(&object).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::NotSupported { .. }), "{store}: {error:?}");
        }
        assert_eq!(listed(store).await, [("object".to_owned(), 7)]);
    }
}
