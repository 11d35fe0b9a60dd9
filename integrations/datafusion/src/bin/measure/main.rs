//! Compares DataFusion over ironmap's stores with DataFusion over `LocalFileSystem`. All stores contain the same table. The kernel's caches
//! are empty before each measurement.
//!
//! - `measure make FILE` writes the table.
//! - `measure run FORMAT DIR DEVICE VOLUME ROUNDS` prints a row of JSON for each query and store. DIR is a directory of the file system on
//!   DEVICE, and contains the table. VOLUME is a device with a copy of this file system. The copy is not mounted.

mod rounds;

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use ironmap::{FileOptions, Host, HostOptions, Volume};
use ironmap_datafusion::{OBJECT, session, write};
use ironmap_object_store::{Store, StoreOptions};
use object_store::local::LocalFileSystem;

use rounds::{Contender, PAGES, Query, compare};

const SEED: u64 = 1;

const QUERIES: [Query; 4] = [
    Query::Scan,
    Query::LookUps { ids: 1, count: 200, at_once: 1 },
    Query::LookUps { ids: 16, count: 100, at_once: 1 },
    Query::LookUps { ids: 1, count: 400, at_once: 8 },
];

/// The stores that contain one file system. All other stores are compared with the first one.
async fn contenders(
    dir: &Path,
    device: &str,
    volume: &str,
) -> Result<Vec<Contender>, Box<dyn Error>> {
    // On XFS, ironmap reads files from the device only if the caller promises that no deduplication runs. The script makes the file system
    // and starts no deduplication.
    let options = StoreOptions::new().assume_no_dedupe(true);
    let host = Host::new(&HostOptions::new())?;
    let file = host.open_with(dir.join(OBJECT), FileOptions::new().assume_no_dedupe(true))?;
    if let Some(refusal) = file.host().and_then(|report| report.refusal) {
        return Err(format!("the kernel serves the table: {refusal}").into());
    }
    drop(file);
    let kernel = session(Arc::new(LocalFileSystem::new_with_prefix(dir)?)).await?;
    let directory = session(Arc::new(Store::directory(host, dir, &options)?)).await?;
    let own = session(Arc::new(Store::volume(Volume::open(volume)?, &options)?)).await?;
    Ok(vec![
        Contender::new("LocalFileSystem", kernel, device),
        Contender::new("Store::directory", directory, device),
        Contender::new("Store::volume", own, volume),
    ])
}

async fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    match words {
        ["make", file] => {
            let file = BufWriter::new(File::create(file)?);
            Ok(write(file, PAGES, SEED)?)
        }
        ["run", format, dir, device, volume, rounds] => {
            let contenders = contenders(Path::new(dir), device, volume).await?;
            for query in QUERIES {
                compare(format, query, &contenders, rounds.parse()?).await?;
            }
            Ok(())
        }
        _ => Err("usage: measure make FILE | measure run FORMAT DIR DEVICE VOLUME ROUNDS".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(run(&words))
}
