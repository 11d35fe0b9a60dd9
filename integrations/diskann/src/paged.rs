//! Runs searches with page-aligned memory. Devices on zram need it, because the zram driver copies whole pages. DiskANN's reader requests
//! memory that is aligned to 512 bytes only, so a read from zram would overwrite the rest of the page.

use diskann::ANNResult;
use diskann_disk::search::provider::aligned_file_reader::traits::{
    AlignedFileReader, AlignedReaderFactory,
};
use diskann_disk::search::provider::aligned_file_reader::{AlignedRead, Alignment};
use diskann_quantization::num::PowerOfTwo;

/// An alignment of 4096 bytes.
#[derive(Clone, Copy, Debug)]
pub struct A4096;

impl Alignment for A4096 {
    const VALUE: PowerOfTwo = PowerOfTwo::V4096;
}

/// A factory that makes the readers of the factory `F`, but with page-aligned memory.
#[derive(Clone, Debug)]
pub struct Paged<F>(pub F);

/// A reader with page-aligned memory.
#[derive(Debug)]
pub struct PagedReader<R>(R);

impl<F: AlignedReaderFactory> AlignedReaderFactory for Paged<F> {
    type AlignedReaderType = PagedReader<F::AlignedReaderType>;

    fn build(&self) -> ANNResult<Self::AlignedReaderType> {
        Ok(PagedReader(self.0.build()?))
    }
}

impl<R: AlignedFileReader> AlignedFileReader for PagedReader<R> {
    type Alignment = A4096;

    fn read(&mut self, requests: &mut [AlignedRead<'_, u8, A4096>]) -> ANNResult<()> {
        let requests = requests.iter_mut().map(|request| {
            AlignedRead::<u8, R::Alignment>::new(request.offset(), request.aligned_buf_mut())
        });
        self.0.read(&mut requests.collect::<ANNResult<Vec<_>>>()?)
    }
}
