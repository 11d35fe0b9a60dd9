//! DataFusion returns the same results over ironmap's stores as over `LocalFileSystem`.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ironmap::fs::ext4::MkfsOptions;
use ironmap::location::LocationOptions;
use ironmap::{Host, HostOptions, Location, VolumeOptions};
use ironmap_datafusion::{OBJECT, PAGE_ROWS, id, look_up, scan, session, write};
use ironmap_object_store::{Store, StoreOptions};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};

/// The table has more than one row group. So DataFusion can skip row groups and pages in a look-up.
const PAGES: usize = 260;
const SEED: u64 = 11;

/// Makes a new ext4 volume in an image file, and opens it for writing.
fn volume(image: &Path) -> Result<Store, Box<dyn Error>> {
    fs::File::create(image)?.set_len(256 << 20)?;
    let location: Location = image.to_str().ok_or("a path that is not UTF-8")?.parse()?;
    let device = location.open(&LocationOptions::new().write(true))?.device;
    ironmap::tools::make(&*device, &MkfsOptions::new())?;
    drop(device);
    let volume = VolumeOptions::new().write(true).open(image)?;
    Ok(Store::volume(volume, &StoreOptions::new())?)
}

async fn compare(dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut table = Vec::new();
    write(&mut table, PAGES, SEED)?;
    let tables = dir.join("tables");
    fs::create_dir(&tables)?;
    let host = Host::new(&HostOptions::new())?;
    let directory = Store::directory(host, &tables, &StoreOptions::new())?;
    let volume = volume(&dir.join("disk.img"))?;
    for store in [&directory, &volume] {
        store.put(&OBJECT.into(), table.clone().into()).await?;
    }
    let kernel = session(Arc::new(LocalFileSystem::new_with_prefix(&tables)?)).await?;
    let rows = PAGES * PAGE_ROWS;
    let ids = [id(rows - 1), id(1) + 1, id(0), id(rows / 2), id(PAGE_ROWS), -1];
    let expected =
        [scan(&kernel).await?, look_up(&kernel, &ids).await?, look_up(&kernel, &ids[..1]).await?];
    // Four of the six ids are in the table. This check makes sure that the expected answers are not empty.
    assert_eq!(expected.each_ref().map(|batch| batch.num_rows()), [1, 4, 1]);
    for store in [directory, volume] {
        let name = store.to_string();
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let ours = session(store).await?;
        let results =
            [scan(&ours).await?, look_up(&ours, &ids).await?, look_up(&ours, &ids[..1]).await?];
        assert_eq!(results, expected, "{name}");
    }
    Ok(())
}

/// A full scan, look-ups of one id and look-ups of several ids return the same rows over three stores: `LocalFileSystem`, a store of the
/// same directory, and a store of a volume. The seed of the table is [`SEED`]. The test needs no root. Without root, the kernel serves the
/// files of the directory.
#[test]
fn results_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(compare(dir.path())).unwrap();
}
