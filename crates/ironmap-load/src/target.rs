//! The targets of a bench.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use ironmap::dio::StablePages;
use serde::{Deserialize, Serialize};

/// How the memory of requests is kept from changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Integrity {
    /// As [`StablePages::ZeroCopy`].
    ZeroCopy,
    /// As [`StablePages::Bounce`].
    Bounce,
    /// As [`StablePages::Lazy`].
    Lazy,
    /// As [`StablePages::Owned`].
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

/// How a target goes about it, where there are several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// The simple path is on.
    pub simple: bool,
    /// As the device needs it, if not given.
    pub integrity: Option<Integrity>,
}

impl Variant {
    /// The default.
    pub const USUAL: Self = Self { simple: true, integrity: None };

    /// The method that keeps memory from changing, by name.
    pub fn stable_pages(self) -> Option<StablePages> {
        self.integrity.map(StablePages::from)
    }
}

/// The object to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each variant describes its fields")]
pub enum TargetSpec {
    /// A block device, image, export or integrity device itself, from this byte on where one is named.
    Raw { path: PathBuf, offset: Option<u64> },
    /// A file through the kernel's file system.
    Kernel { path: PathBuf },
    /// A file of a volume through ironmap.
    Vol { volume: String, path: String, variant: Variant },
    /// A file of a mounted file system through ironmap.
    Host { path: PathBuf, variant: Variant },
    /// A device that completes at once.
    Null { size: u64 },
}

impl TargetSpec {
    /// The same target in another variant, where it has some.
    pub fn with(&self, variant: Variant) -> Option<Self> {
        match self {
            Self::Vol { volume, path, .. } => {
                Some(Self::Vol { volume: volume.clone(), path: path.clone(), variant })
            }
            Self::Host { path, .. } => Some(Self::Host { path: path.clone(), variant }),
            _ => None,
        }
    }

    /// The variant, where there are several.
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
