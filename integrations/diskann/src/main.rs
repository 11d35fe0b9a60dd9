//! Compares DiskANN's io_uring reader with ironmap:
//!
//!     ironmap-diskann build DIR                       builds the index in DIR, if it is not there, and prints the path of its largest file
//!     ironmap-diskann reads DIR DEVICES KIND TIMES    reads it on devices (see devices.sh), and prints rows of JSON
//!     ironmap-diskann search DIR DEVICES KIND TIMES   searches it
//!
//! KIND names the kind of the devices. TIMES multiplies the number of reads and queries; use it for fast devices.

mod measure;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use diskann_providers::storage::get_disk_index_file;
use ironmap_diskann::dataset;

use crate::measure::Measurement;

/// The seed of the vectors and queries.
const SEED: u64 = 7;
/// The number of vectors in the index.
const VECTORS: usize = 300_000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironmap-diskann: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["build", dir] => {
            let prefix = dataset::build(Path::new(dir), SEED, VECTORS)?;
            println!("{}", get_disk_index_file(&prefix));
            Ok(())
        }
        [what @ ("reads" | "search"), dir, devices, kind, times] => {
            let prefix = dataset::build(Path::new(dir), SEED, VECTORS)?;
            let measurement =
                Measurement::new(&prefix, Path::new(devices), (kind, times.parse()?))?;
            if what == "reads" { measurement.reads() } else { measurement.searches() }
        }
        _ => Err("the arguments are: build DIR, or reads or search DIR DEVICES KIND TIMES".into()),
    }
}
