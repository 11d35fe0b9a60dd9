//! The targets of a bench.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use ironmap::dio::StablePages;
use serde::{Deserialize, Serialize};

/// The method for stable pages: it ensures that the memory of a write does not change during the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Integrity {
    /// The method [`StablePages::ZeroCopy`].
    ZeroCopy,
    /// The method [`StablePages::Bounce`].
    Bounce,
    /// The method [`StablePages::Lazy`].
    Lazy,
    /// The method [`StablePages::Owned`].
    Owned,
}

impl From<Integrity> for StablePages {
    fn from(integrity: Integrity) -> Self {
        match integrity {
            Integrity::ZeroCopy => Self::ZeroCopy,
            Integrity::Bounce => Self::Bounce,
            Integrity::Lazy => Self::Lazy,
            Integrity::Owned => Self::Owned,
        }
    }
}

/// The options of a target that has several ways to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Whether requests may take the library's simple path, the fast code for a request that fits in one bio.
    pub simple: bool,
    /// The method for stable pages. By default, the requirements of the device decide.
    pub integrity: Option<Integrity>,
    /// Whether each batch of reads is one call of `Queue::read_many`.
    pub many: bool,
}

impl Variant {
    /// The default variant.
    pub const USUAL: Self = Self { simple: true, integrity: None, many: false };

    /// The method for stable pages, if the user chose one.
    pub fn stable_pages(self) -> Option<StablePages> {
        self.integrity.map(StablePages::from)
    }
}

/// The object to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the comment of each variant describes the fields")]
pub enum TargetSpec {
    /// A block device, image, NBD export or integrity device. Requests start at `offset` if there is one.
    Raw { path: PathBuf, offset: Option<u64> },
    /// A file through the kernel's file system.
    Kernel { path: PathBuf },
    /// A file of a volume through ironmap.
    Vol { volume: String, path: String, variant: Variant },
    /// A file of a mounted file system through ironmap.
    Host { path: PathBuf, variant: Variant },
    /// A device that completes every request at once and transfers nothing.
    Null { size: u64 },
}

impl TargetSpec {
    /// Returns the target with another variant. `None` if this target has no variants.
    pub fn with(&self, variant: Variant) -> Option<Self> {
        match self {
            Self::Vol { volume, path, .. } => {
                Some(Self::Vol { volume: volume.clone(), path: path.clone(), variant })
            }
            Self::Host { path, .. } => Some(Self::Host { path: path.clone(), variant }),
            _ => None,
        }
    }

    /// The variant, if the target has variants.
    pub fn variant(&self) -> Option<Variant> {
        match self {
            Self::Vol { variant, .. } | Self::Host { variant, .. } => Some(*variant),
            _ => None,
        }
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw { path, offset: None } => write!(f, "raw:{}", path.display()),
            Self::Raw { path, offset: Some(offset) } => {
                write!(f, "raw:{}@{offset}", path.display())
            }
            Self::Kernel { path } => write!(f, "kernel:{}", path.display()),
            Self::Vol { volume, path, .. } => write!(f, "vol:{volume}:{path}"),
            Self::Host { path, .. } => write!(f, "host:{}", path.display()),
            Self::Null { size } => write!(f, "null:{size}"),
        }
    }
}
