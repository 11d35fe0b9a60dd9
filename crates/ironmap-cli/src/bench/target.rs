//! The syntax of the targets of a bench.

use clap::ValueEnum;
use ironmap::device::image;
use ironmap::device::nbd::Address;
use ironmap::location::INTEGRITY;
use ironmap::{Error, Result};
use ironmap_load::target::{TargetSpec, Variant};

use crate::size::size;
use crate::target::end_of_volume;

const KINDS: &str = "a target is raw:, kernel:, vol:, host: or null:";

/// A kind of target.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    Raw,
    Vol,
    Host,
    Kernel,
}

impl Kind {
    pub(super) fn is_of(self, target: &TargetSpec) -> bool {
        match self {
            Self::Raw => matches!(target, TargetSpec::Raw { .. }),
            Self::Vol => matches!(target, TargetSpec::Vol { .. }),
            Self::Host => matches!(target, TargetSpec::Host { .. }),
            Self::Kernel => matches!(target, TargetSpec::Kernel { .. }),
        }
    }
}

/// The target that an argument names.
pub(super) fn target(text: &str) -> Result<TargetSpec> {
    let wrong = |what: &str| Error::invalid(format!("{text}: {what}"));
    let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(KINDS))?;
    match kind {
        "raw"
            if rest.starts_with(INTEGRITY)
                || Address::is_one(rest.as_bytes())
                || image::Address::prefix_of(rest.as_bytes()).is_some() =>
        {
            Ok(TargetSpec::Raw { path: rest.into(), offset: None })
        }
        "raw" => match rest.rsplit_once('@') {
            Some((path, offset)) => {
                let offset = size(offset).map_err(|error| wrong(&error))?;
                Ok(TargetSpec::Raw { path: path.into(), offset: Some(offset) })
            }
            None => Ok(TargetSpec::Raw { path: rest.into(), offset: None }),
        },
        "kernel" => Ok(TargetSpec::Kernel { path: rest.into() }),
        "vol" => {
            let end = end_of_volume(rest.as_bytes());
            let end = end.ok_or_else(|| wrong("expected vol:VOLUME:/PATH"))?;
            let (volume, path) = (rest[..end].to_owned(), rest[end + 1..].to_owned());
            Ok(TargetSpec::Vol { volume, path, variant: Variant::USUAL })
        }
        "host" => Ok(TargetSpec::Host { path: rest.into(), variant: Variant::USUAL }),
        "null" => Ok(TargetSpec::Null { size: size(rest).map_err(|error| wrong(&error))? }),
        _ => Err(wrong(KINDS)),
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
            assert_eq!(target(text).unwrap().to_string(), text);
        }
        let spec = target("raw:/dev/ram0@8k").unwrap();
        assert_eq!(spec, TargetSpec::Raw { path: "/dev/ram0".into(), offset: Some(8192) });
    }

    #[test]
    fn an_unknown_target_is_refused() {
        for text in ["", "disk.img", "tape:/dev/st0", "raw:/dev/ram0@x", "vol:disk.img", "null:big"]
        {
            assert!(target(text).is_err(), "{text}");
        }
    }
}
