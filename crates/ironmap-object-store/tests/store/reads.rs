//! Tests reads of whole objects, of ranges, and of objects that are replaced.

use std::os::unix::fs::FileExt;

use futures_util::StreamExt;
use ironmap::{Host, HostOptions};
use ironmap_object_store::{Store, StoreOptions};
use object_store_0_14::path::Path;
use object_store_0_14::{Error, ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use crate::mounted::Mounted;
use crate::{both, content, of_directory, read};

/// Returns a store of each kind. If this machine permits it, also returns a store whose reads bypass the file system.
fn all() -> (Vec<Store>, (TempDir, Option<Mounted>)) {
    let (stores, dir) = both();
    let mut stores = Vec::from(stores);
    let mounted = Mounted::new();
    if let Some(mounted) = &mounted {
        std::fs::write(mounted.path().join("probe"), [1; 4096]).unwrap();
        let host = Host::new(&HostOptions::new()).unwrap();
        let probe = host.open(mounted.path().join("probe")).unwrap();
        assert_eq!(probe.host().unwrap().refusal, None);
        stores.push(Store::directory(host, mounted.path(), &StoreOptions::new()).unwrap());
    }
    (stores, (dir, mounted))
}

/// A stream returns the complete object that existed when the stream began, even if the object is replaced or deleted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_gives_one_object() {
    let (stores, _guards) = all();
    let path = Path::from("dir/object");
    for store in &stores {
        for deletes in [false, true] {
            let len = (9 << 20) + 1234;
            let (old, new) = (content(1, len), content(2, len));
            store.put(&path, old.clone().into()).await.unwrap();
            let mut stream = store.get(&path).await.unwrap().into_stream();
            let mut found = stream.next().await.unwrap().unwrap().to_vec();
            if deletes {
                store.delete(&path).await.unwrap();
            } else {
                store.put(&path, new.clone().into()).await.unwrap();
                assert!(read(store, path.as_ref()).await == new);
            }
            while let Some(chunk) = stream.next().await {
                found.extend_from_slice(&chunk.unwrap());
            }
            assert!(found == old, "{store}, deletes {deletes}");
        }
    }
}

/// Each range that is read equals the same slice of the content. Some ranges are aligned, and others are not. Some are longer than one
/// request. Some are at the end or past the end, and some are empty. Two ranges that touch within a block are read in both orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_slices() {
    let (stores, _guards) = all();
    let path = Path::from("object");
    let len = (3 << 20) + 77;
    let whole = content(3, len);
    for store in &stores {
        store.put(&path, whole.clone().into()).await.unwrap();
        let len = len as u64;
        let mut ranges = vec![0..0, 5..5, len..len, 0..1, 4095..4097, 0..len, len - 1..len];
        ranges.extend([0..1 << 20, 100_000..1_900_001, 1 << 20..len]);
        let touching = (0..len / 30_001).map(|at| at * 30_001..(at + 1) * 30_001);
        ranges.extend(touching.clone().chain(touching.rev()));
        let mut seed = 7_u64;
        for _ in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 33) % (len - 1);
            ranges.push(start..(start + 1 + (seed >> 20) % 9000).min(len));
        }
        let found = store.get_ranges(&path, &ranges).await.unwrap();
        assert_eq!(found.len(), ranges.len());
        for (range, found) in ranges.iter().zip(found) {
            let expected = &whole[range.start as usize..range.end as usize];
            assert!(found == expected, "{store}: {range:?}");
            if !range.is_empty() {
                let one = store.get_range(&path, range.clone()).await.unwrap();
                assert!(one == expected, "{store}: {range:?}");
            }
        }
        let past = store.get_ranges(&path, &[len - 3..len + 100, 0..1]).await.unwrap();
        assert!(past[0] == whole[len as usize - 3..]);
        #[expect(clippy::reversed_empty_ranges, reason = "the store must refuse it")]
        let refused = [len..len + 1, 9..5];
        for range in refused {
            store.get_ranges(&path, &[range]).await.unwrap_err();
        }
    }
}

/// A store of a directory keeps files open. A request sees all changes that other programs have made before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_other_programs_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let store = of_directory(&dir);
    let (path, file) = (Path::from("object"), dir.path().join("object"));
    for version in 0..20_u64 {
        let (first, second) = (content(3 * version, 20_000), content(3 * version + 1, 20_000));
        std::fs::write(&file, &first).unwrap();
        let tag = store.head(&path).await.unwrap().e_tag;
        assert!(read(&store, "object").await == first);
        // The change is in place, and the size stays the same.
        std::fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .write_all_at(&second, 0)
            .unwrap();
        assert!(read(&store, "object").await == second);
        assert_ne!(store.head(&path).await.unwrap().e_tag, tag);
        let other = dir.path().join("other");
        let third = content(3 * version + 2, 10_000);
        std::fs::write(&other, &third).unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert!(store.get_ranges(&path, &[0..5, 1000..10_000]).await.unwrap()[1] == third[1000..]);
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(store.get(&path).await.unwrap_err(), Error::NotFound { .. }));
    }
    // The test reads more files than the store keeps open.
    for number in 0..150_u64 {
        store.put(&Path::from(format!("{number}")), content(number, 5000).into()).await.unwrap();
    }
    for number in (0..150_u64).chain(0..150) {
        assert!(read(&store, &number.to_string()).await == content(number, 5000));
    }
}
