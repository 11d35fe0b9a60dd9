//! What a bench can be pointed at.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ironmap::{Error, Result};
use serde::{Deserialize, Serialize};

const KINDS: &str = "a target is raw:, kernel:, vol:, host: or null:";

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TargetSpec {
    /// A block device or image itself, from this byte on where one is named.
    Raw { path: PathBuf, offset: Option<u64> },
    /// A file through the kernel's file system.
    Kernel { path: PathBuf },
    /// A file of a volume through ironmap.
    Vol { volume: String, path: String, simple: bool },
    /// A file of a mounted file system through ironmap.
    Host { path: PathBuf, simple: bool },
    /// A device that completes at once.
    Null { size: u64 },
}

impl TargetSpec {
    /// The same target with the simple path on or off, where it has one.
    pub(super) fn with_simple(&self, on: bool) -> Option<Self> {
        match self {
            Self::Vol { volume, path, .. } => {
                Some(Self::Vol { volume: volume.clone(), path: path.clone(), simple: on })
            }
            Self::Host { path, .. } => Some(Self::Host { path: path.clone(), simple: on }),
            _ => None,
        }
    }

    /// Whether the simple path is on, where there is one.
    pub(super) fn simple(&self) -> Option<bool> {
        match self {
            Self::Vol { simple, .. } | Self::Host { simple, .. } => Some(*simple),
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
            "raw" => match rest.rsplit_once('@') {
                Some((path, offset)) => {
                    let offset = crate::size::size(offset).map_err(|error| wrong(&error))?;
                    Ok(Self::Raw { path: path.into(), offset: Some(offset) })
                }
                None => Ok(Self::Raw { path: rest.into(), offset: None }),
            },
            "kernel" => Ok(Self::Kernel { path: rest.into() }),
            "vol" => {
                let (volume, path) =
                    rest.split_once(":/").ok_or_else(|| wrong("want vol:VOLUME:/PATH"))?;
                Ok(Self::Vol { volume: volume.to_owned(), path: format!("/{path}"), simple: true })
            }
            "host" => Ok(Self::Host { path: rest.into(), simple: true }),
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
