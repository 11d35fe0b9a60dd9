//! Reads 64 random ranges of one object with a cold page cache, in one call of `get_ranges` and in 64 concurrent calls of `get_range`. The
//! bench compares a store with `LocalFileSystem` on the same file.
//!
//! Usage: `get_ranges DIR [ROUNDS]`. DIR is on a mounted ext4 or XFS file system. The bench makes the object `DIR/object` if it does not
//! exist. In each round, both stores read the same ranges, in alternating order. Before each read, the page cache drops the file. The
//! figures are medians.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use ironmap::{Host, HostOptions};
use ironmap_object_store::{Store, StoreOptions};
use object_store_0_14::local::LocalFileSystem;
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt};
use rustix::fs::{Advice, fadvise};

const SIZE: u64 = 256 << 20;
const RANGE: u64 = 4096;
const COUNT: usize = 64;

/// A xorshift generator of random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn make(path: &FilePath) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let (mut file, mut random) = (File::create(path)?, Random(7));
    let mut mib = vec![0; 1 << 20];
    for _ in 0..SIZE >> 20 {
        mib.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_ne_bytes()));
        file.write_all(&mib)?;
    }
    file.sync_all()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cargo passes options of its own to a bench. They begin with `--`, and are ignored here.
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let Some(dir) = words.next() else {
        println!("needs a directory on a mounted file system");
        return Ok(());
    };
    let rounds: usize = words.next().map_or(Ok(101), |rounds| rounds.parse())?;
    let file = FilePath::new(&dir).join("object");
    make(&file)?;
    let handle = File::open(&file)?;
    let host = Host::new(&HostOptions::new())?;
    println!("{:?}", host.open_with(&file, ironmap::FileOptions::new())?.host());
    let own = Store::directory(host, &dir, &StoreOptions::new())?;
    let local = LocalFileSystem::new_with_prefix(&dir)?;
    let stores: [&dyn ObjectStore; 2] = [&own, &local];
    for together in [true, false] {
        compare(stores, together, &handle, rounds).await?;
    }
    Ok(())
}

async fn read(
    store: &dyn ObjectStore,
    object: &Path,
    ranges: &[Range<u64>],
    together: bool,
) -> object_store_0_14::Result<Vec<Bytes>> {
    if together {
        store.get_ranges(object, ranges).await
    } else {
        try_join_all(ranges.iter().map(|range| store.get_range(object, range.clone()))).await
    }
}

/// Measures both stores. Either all ranges are in one call, or each range is in a separate call and all calls run at the same time.
async fn compare(
    stores: [&dyn ObjectStore; 2],
    together: bool,
    handle: &File,
    rounds: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let (object, mut random) = (Path::from("object"), Random(42));
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let starts = (0..COUNT).map(|_| random.next() % (SIZE / RANGE) * RANGE);
        let ranges: Vec<_> = starts.map(|start| start..start + RANGE).collect();
        let mut answers = Vec::new();
        for store in [round % 2, 1 - round % 2] {
            fadvise(handle, 0, None, Advice::DontNeed)?;
            let began = Instant::now();
            answers.push(read(stores[store], &object, &ranges, together).await?);
            times[store].push(began.elapsed());
        }
        assert!(answers[0] == answers[1], "the stores differ");
    }
    let pairs = times[0].iter().zip(&times[1]);
    let ratios = pairs.map(|(own, local)| local.as_secs_f64() / own.as_secs_f64());
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ([own, local], ratio) = (times.map(median), ratios[rounds / 2]);
    let calls = if together { "one get_ranges" } else { "64 get_range at once" };
    println!("{calls}: ironmap {own:?}, LocalFileSystem {local:?}, ratio {ratio:.2}");
    Ok(())
}
