//! The targets of a bench.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use ironmap::device::image;
use ironmap::device::nbd::Address;
use ironmap::dio::StablePages;
use ironmap::location::INTEGRITY;
use ironmap::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::target::end_of_volume;

const KINDS: &str = "a target is raw:, kernel:, vol:, host: or null:";

/// How the memory of requests is kept from changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Integrity {
    ZeroCopy,
    Bounce,
    Lazy,
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
pub(super) struct Variant {
    /// The simple path is on.
    pub simple: bool,
    /// As the device needs it, if not given.
    pub integrity: Option<Integrity>,
}

impl Variant {
    /// The default.
    pub(super) const USUAL: Self = Self { simple: true, integrity: None };

    /// The method that keeps memory from changing, by name.
    pub(super) fn stable_pages(self) -> Option<StablePages> {
        self.integrity.map(StablePages::from)
    }
}

/// The object to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TargetSpec {
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
    pub(super) fn with(&self, variant: Variant) -> Option<Self> {
        match self {
            Self::Vol { volume, path, .. } => {
                Some(Self::Vol { volume: volume.clone(), path: path.clone(), variant })
            }
            Self::Host { path, .. } => Some(Self::Host { path: path.clone(), variant }),
            _ => None,
        }
    }

    /// The variant, where there are several.
    pub(super) fn variant(&self) -> Option<Variant> {
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

impl FromStr for TargetSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::invalid(format!("{text}: {what}"));
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(KINDS))?;
        match kind {
            "raw"
                if rest.starts_with(INTEGRITY)
                    || Address::is_one(rest.as_bytes())
                    || image::Address::prefix_of(rest.as_bytes()).is_some() =>
            {
                Ok(Self::Raw { path: rest.into(), offset: None })
            }
            "raw" => match rest.rsplit_once('@') {
                Some((path, offset)) => {
                    let offset = crate::size::size(offset).map_err(|error| wrong(&error))?;
                    Ok(Self::Raw { path: path.into(), offset: Some(offset) })
                }
                None => Ok(Self::Raw { path: rest.into(), offset: None }),
            },
            "kernel" => Ok(Self::Kernel { path: rest.into() }),
            "vol" => {
                let end = end_of_volume(rest.as_bytes());
                let end = end.ok_or_else(|| wrong("expected vol:VOLUME:/PATH"))?;
                let (volume, path) = (rest[..end].to_owned(), rest[end + 1..].to_owned());
                Ok(Self::Vol { volume, path, variant: Variant::USUAL })
            }
            "host" => Ok(Self::Host { path: rest.into(), variant: Variant::USUAL }),
            "null" => {
                Ok(Self::Null { size: crate::size::size(rest).map_err(|error| wrong(&error))? })
            }
            _ => Err(wrong(KINDS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_what_they_print() {
        for text in [
            "raw:/dev/ram0",
            "raw:/dev/ram0@8192",
            "kernel:/mnt/f",
            "vol:disk.img@p2:/a:/b",
            "raw:integrity:/dev/ram0@p1,/dev/ram1@p2",
            "vol:integrity:/dev/ram0,/dev/ram1@p2:/a",
            "vol:integrity:/dev/a,/dev/b:/f",
            "host:/mnt/f:/g@8",
            "null:4096",
        ] {
            assert_eq!(text.parse::<TargetSpec>().unwrap().to_string(), text);
        }
        let spec: TargetSpec = "raw:/dev/ram0@8k".parse().unwrap();
        assert_eq!(spec, TargetSpec::Raw { path: "/dev/ram0".into(), offset: Some(8192) });
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for text in ["", "disk.img", "tape:/dev/st0", "raw:/dev/ram0@x", "vol:disk.img", "null:big"]
        {
            assert!(text.parse::<TargetSpec>().is_err(), "{text}");
        }
    }
}
