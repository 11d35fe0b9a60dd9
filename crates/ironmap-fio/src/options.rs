//! The options of a job.

use ironmap::dio::{DioFlags, StablePages};
use ironmap::{Engine, Error, FileOptions, Result};

/// The location of a job's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A volume, by the name that the user wrote.
    Volume(String),
    /// Mounted file systems of the host.
    Host,
}

/// A job's options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) source: Source,
    pub(crate) engine: Engine,
    /// Whether the job writes.
    pub(crate) writes: bool,
    pub(crate) file: FileOptions,
    /// The durability of each write.
    pub(crate) durable: DioFlags,
    pub(crate) depth: u32,
    /// The length of the longest request in bytes.
    pub(crate) max_block: usize,
    /// The number of bytes before the data of each buffer. These bytes give the data the misaligned address that the user requested.
    pub(crate) pad: usize,
    pub(crate) fixed_buffers: bool,
    pub(crate) simple: bool,
}

impl Source {
    pub(crate) fn of(volume: Option<&str>, host: bool, writes: bool) -> Result<Self> {
        match (volume, host) {
            (Some(_), true) => {
                Err(Error::invalid("volume= and host cannot be combined: give one of them"))
            }
            (Some(name), false) => Ok(Self::Volume(name.to_owned())),
            (None, true) if writes => Err(Error::invalid("host files can be read but not written")),
            (None, true) => Ok(Self::Host),
            (None, false) => Err(Error::invalid(
                "volume= is missing: name the device or image with the files, or give host for files of mounted file systems",
            )),
        }
    }
}

/// The method with this name for stable pages: it ensures that the memory of a write does not change during the write.
pub(crate) fn stable_pages(name: &str) -> Result<StablePages> {
    StablePages::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| {
        let names: Vec<_> = StablePages::ALL.iter().map(|way| way.name()).collect();
        Error::invalid(format!("integrity={name} is unknown: the values are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_one_place() {
        let volume = Source::Volume("image".into());
        assert_eq!(Source::of(Some("image"), false, true).expect("a volume"), volume);
        assert_eq!(Source::of(None, true, false).expect("the host"), Source::Host);
        for (volume, host, writes) in
            [(Some("image"), true, false), (None, false, false), (None, true, true)]
        {
            assert!(Source::of(volume, host, writes).is_err(), "{volume:?} {host} {writes}");
        }
    }

    #[test]
    fn ways_have_the_names_that_the_bench_gives_them() {
        assert!(stable_pages("lazy").is_ok_and(|way| way == StablePages::Lazy));
        assert!(stable_pages("none").is_err_and(|error| error.to_string().contains("zero-copy")));
    }
}
