//! The readers of one index on several devices (see devices.sh).

use std::error::Error;
use std::path::Path;

use diskann_disk::search::provider::aligned_file_reader::AlignedFileReaderFactory;
use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use ironmap::prelude::*;

use crate::ReaderFactory;
use crate::search::{Search, search_by};

/// A reader, and a copy of the index.
pub struct Source {
    /// The name of the reader.
    pub reader: &'static str,
    /// The place of the index.
    pub place: &'static str,
    /// Carries out queries by this reader.
    pub search: Search,
}

impl Source {
    /// Whether this is DiskANN's own reader.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.reader == OWN
    }
}

const OWN: &str = "DiskANN io_uring";

/// Opens the index for `threads` threads in all ways. DiskANN's own readers are first.
///
/// # Errors
/// The errors of DiskANN and of ironmap; an error if a host file is not read around the kernel.
pub fn open(
    index: &DiskIndexReader,
    devices: &Path,
    threads: usize,
) -> Result<Vec<Source>, Box<dyn Error>> {
    let mut sources = Vec::new();
    for place in ["ext4", "xfs"] {
        let path = devices.join(place).join("index").to_string_lossy().into_owned();
        let search = search_by(index, AlignedFileReaderFactory::new(path), threads)?;
        sources.push(Source { reader: OWN, place, search });
    }
    let host = Host::new(&HostOptions::new())?;
    for place in ["ext4", "xfs"] {
        let path = devices.join(place).join("index");
        let file = host.open_with(path, FileOptions::new())?;
        if let Some(refusal) = file.host().and_then(|report| report.refusal) {
            return Err(format!("the kernel serves the index on {place}: {refusal}").into());
        }
        let search = search_by(index, ReaderFactory::new(host.clone(), file), threads)?;
        sources.push(Source { reader: "ironmap host", place, search });
    }
    let device = devices.join("volume").canonicalize()?;
    let volume = Volume::open(device)?;
    let file = volume.open("/index")?;
    let search = search_by(index, ReaderFactory::new(volume, file), threads)?;
    sources.push(Source { reader: "ironmap volume", place: "volume", search });
    Ok(sources)
}
