//! The readers that are compared. They read copies of one index on several devices (see devices.sh).

use std::error::Error;
use std::path::Path;

use diskann::ANNResult;
use diskann_disk::search::provider::aligned_file_reader::AlignedFileReaderFactory;
use diskann_disk::search::provider::aligned_file_reader::traits::AlignedReaderFactory;
use diskann_disk::storage::disk_index_reader::DiskIndexReader;
use ironmap::prelude::*;

use crate::ReaderFactory;
use crate::paged::Paged;
use crate::reads::{Reads, reads_by};
use crate::search::{Search, search_by};

/// A reader together with the copy of the index that it reads.
pub struct Source {
    /// The name of the reader.
    pub reader: &'static str,
    /// The name of the place where this copy is stored.
    pub place: &'static str,
    /// Carries out queries with this reader.
    pub search: Search,
    /// Carries out reads with this reader.
    pub reads: Reads,
}

const OWN: &str = "DiskANN io_uring";

impl Source {
    /// Whether this reader belongs to DiskANN.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.reader == OWN
    }
}

/// The index in memory and the devices, which all sources share.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The part of the index that is in memory.
    pub index: &'a DiskIndexReader,
    /// The directory that devices.sh makes. It contains the mounted file systems, and a link to the volume's device.
    pub devices: &'a Path,
    /// Whether searches need page-aligned memory.
    pub paged: bool,
}

impl Place<'_> {
    /// Opens the index for `threads` threads with each reader. DiskANN's own readers are first in the list.
    ///
    /// # Errors
    /// Returns the errors of DiskANN and of ironmap. If the kernel serves a host file, returns an error.
    pub fn open(&self, threads: usize) -> Result<Vec<Source>, Box<dyn Error>> {
        let mut sources = Vec::new();
        for place in ["ext4", "xfs"] {
            let path = self.devices.join(place).join("index");
            let size = path.metadata()?.len();
            let path = path.to_string_lossy().into_owned();
            let factory = || AlignedFileReaderFactory::new(path.clone());
            sources.push(self.source((OWN, place), factory, size, threads)?);
        }
        let host = Host::new(&HostOptions::new())?;
        for place in ["ext4", "xfs"] {
            let file = host.open(self.devices.join(place).join("index"))?;
            if let Some(refusal) = file.host().and_then(|report| report.refusal) {
                return Err(format!("the kernel serves the index on {place}: {refusal}").into());
            }
            let size = file.size();
            let factory = ReaderFactory::new(host.clone(), file);
            let names = ("ironmap host", place);
            sources.push(self.source(names, || factory.clone(), size, threads)?);
        }
        let volume = Volume::open(self.devices.join("volume").canonicalize()?)?;
        let file = volume.open("/index")?;
        let size = file.size();
        let factory = ReaderFactory::new(volume, file);
        let names = ("ironmap volume", "volume");
        sources.push(self.source(names, || factory.clone(), size, threads)?);
        Ok(sources)
    }

    fn source<F: AlignedReaderFactory + 'static>(
        &self,
        (reader, place): (&'static str, &'static str),
        factory: impl Fn() -> F,
        size: u64,
        threads: usize,
    ) -> ANNResult<Source> {
        let search = match self.paged {
            true => search_by(self.index, Paged(factory()), threads)?,
            false => search_by(self.index, factory(), threads)?,
        };
        Ok(Source { reader, place, search, reads: reads_by(factory(), size) })
    }
}
