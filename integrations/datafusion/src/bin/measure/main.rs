//! Compares DataFusion over ironmap's stores with DataFusion over `LocalFileSystem`. All stores contain the same table. The kernel's caches
//! are empty before each measurement.
//!
//! - `measure make FILE` writes the table.
//! - `measure run FORMAT ROUNDS KERNEL DEVICE DIR DEVICE VOLUME` prints a row of JSON for each query and store. Each store has its own
//!   device. `LocalFileSystem` reads the directory KERNEL, and `Store::directory` reads the directory DIR. Each of these directories is the
//!   root of the file system on the DEVICE that follows it. VOLUME is a device whose file system is not mounted. Each file system has the
//!   table.

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

/// The stores, each on a device of its own. All other stores are compared with the first store.
async fn contenders(
    (kernel, kernel_device): (&str, &str),
    (dir, device): (&str, &str),
    volume: &str,
) -> Result<Vec<Contender>, Box<dyn Error>> {
    // On XFS, ironmap reads files from the device only if the caller promises that no deduplication runs. The script makes the file system
    // and starts no deduplication.
    let options = StoreOptions::new().assume_no_dedupe(true);
    let host = Host::new(&HostOptions::new())?;
    let file =
        host.open_with(Path::new(dir).join(OBJECT), FileOptions::new().assume_no_dedupe(true))?;
    if let Some(refusal) = file.host().and_then(|report| report.refusal) {
        return Err(format!("the kernel serves the table: {refusal}").into());
    }
    drop(file);
    let kernel = session(Arc::new(LocalFileSystem::new_with_prefix(kernel)?)).await?;
    let directory = session(Arc::new(Store::directory(host, dir, &options)?)).await?;
    let own = session(Arc::new(Store::volume(Volume::open(volume)?, &options)?)).await?;
    Ok(vec![
        Contender::new("LocalFileSystem", kernel, kernel_device),
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
        ["run", format, rounds, kernel, kernel_device, dir, device, volume] => {
            let contenders = contenders((kernel, kernel_device), (dir, device), volume).await?;
            for query in QUERIES {
                compare(format, query, &contenders, rounds.parse()?).await?;
            }
            Ok(())
        }
        _ => Err(
            "usage: measure make FILE | measure run FORMAT ROUNDS KERNEL DEVICE DIR DEVICE VOLUME"
                .into(),
        ),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(run(&words))
}
