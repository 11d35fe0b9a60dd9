//! What a job asks for, as its options say.

use ironmap::dio::{DioFlags, StablePages};
use ironmap::{Engine, Error, FileOptions, Result};

/// A job's options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The volume, as the user wrote it.
    pub(crate) volume: String,
    pub(crate) engine: Engine,
    /// Whether the job writes.
    pub(crate) writes: bool,
    pub(crate) file: FileOptions,
    /// Of every write.
    pub(crate) durable: DioFlags,
    pub(crate) depth: u32,
    /// Bytes of the longest request.
    pub(crate) max_block: usize,
    /// Bytes before the data of each buffer, so that its address is as misaligned as the job wants it.
    pub(crate) pad: usize,
    pub(crate) fixed_buffers: bool,
    pub(crate) simple: bool,
}

/// A way to keep memory from changing, by its name.
pub(crate) fn stable_pages(name: &str) -> Result<StablePages> {
    StablePages::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| {
        let names: Vec<_> = StablePages::ALL.iter().map(|way| way.name()).collect();
        Error::invalid(format!("integrity={name}: there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_the_names_that_the_bench_gives_them() {
        assert!(stable_pages("lazy").is_ok_and(|way| way == StablePages::Lazy));
        assert!(stable_pages("none").is_err_and(|error| error.to_string().contains("zero-copy")));
    }
}
