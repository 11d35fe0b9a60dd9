//! A disk that is assembled from other disks: a logical volume whose physical volumes are on several disks, an MD array, or a part of a part.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Medium, Part, Site};
use crate::error::{Error, Result};

/// The prefix of a logical volume on several disks: `lvm:VG/LV@DISK,DISK`.
const LVM: &str = "lvm:";
/// The prefix of an MD array: `md:DISK,DISK`.
const MD: &str = "md:";
/// The prefix of a part of an assembled disk: `part:PART@DISK`.
const PART: &str = "part:";

/// The maximum number of nested layers in a location. The parser recurses for each layer.
const LAYERS: usize = 16;

/// A disk that is assembled from other disks. A Linux MD array can be read but not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// How the disks are assembled.
    pub kind: AssemblyKind,
    /// The disks from which this disk is assembled.
    pub disks: Vec<Site>,
}

/// How disks are assembled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AssemblyKind {
    /// The disk is an LVM logical volume with this group and this name. Its physical volumes are the disks, or partitions of the disks.
    Logical {
        /// The name of the volume group.
        group: String,
        /// The name of the logical volume.
        volume: String,
    },
    /// The disk is a Linux MD array. The disks are its members.
    Md,
    /// The only disk, unchanged. A part of a part has this kind.
    Same,
}

impl Assembly {
    /// Returns the length of the prefix of an assembled disk, or `None` if the text has no such prefix.
    #[must_use]
    pub fn prefix_of(text: &[u8]) -> Option<usize> {
        [LVM, MD, PART].into_iter().find(|it| text.starts_with(it.as_bytes())).map(str::len)
    }

    /// Parses an assembled disk. Returns `None` if the text does not begin with one of the prefixes.
    pub(super) fn parse(text: &OsStr) -> Option<Result<Site>> {
        let bytes = text.as_bytes();
        let rest = OsStr::from_bytes(&bytes[Self::prefix_of(bytes)?..]);
        let layers = (0..bytes.len()).filter(|at| Self::prefix_of(&bytes[*at..]).is_some());
        if layers.take(LAYERS + 1).count() > LAYERS {
            let what = format!("the location has more than {LAYERS} layers");
            return Some(Err(Error::invalid(what)));
        }
        Some(match bytes[0] {
            b'l' => parse_logical(rest),
            b'm' => sites(rest).map(|disks| Self { kind: AssemblyKind::Md, disks }.whole()),
            _ => parse_part(rest),
        })
    }

    fn whole(self) -> Site {
        Site { medium: Medium::Assembly(Box::new(self)), part: Part::Whole }
    }

    /// Adds a hint to an error if the user probably meant a part of the array. In `md:DISK,DISK@p1`, the part `@p1` belongs to the last
    /// disk; the hint gives the location of this part of the array.
    pub(super) fn advise(&self, error: Error) -> Error {
        let Some((last, others)) = self.disks.split_last() else { return error };
        let is_whole = |site: &Site| site.part == Part::Whole;
        if self.kind != AssemblyKind::Md || is_whole(last) || !others.iter().all(is_whole) {
            return error;
        }
        let mut array = self.clone();
        if let Some(last) = array.disks.last_mut() {
            last.part = Part::Whole;
        }
        let part = array.whole().within(last.part.clone());
        let (kind, last) = (error.kind(), &last.part);
        Error::new(kind, format!("{error}; for the part {last} of the array, write {part}"))
    }

    /// Returns the same disks with other paths: see [`Location::with_paths`](super::Location::with_paths).
    pub(super) fn with_paths(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let disks = self.disks.iter().map(|site| site.with_paths(path)).collect();
        Self { kind: self.kind.clone(), disks }
    }
}

/// Parses `VG/LV@DISK,DISK`.
fn parse_logical(text: &OsStr) -> Result<Site> {
    let (name, disks) = split(text, "lvm:VG/LV@DISK or lvm:VG/LV@DISK,DISK")?;
    let Some(Part::Logical { group, volume }) = Part::parse_logical(name) else {
        return Err(Error::invalid(format!(
            "{name} is not the name of a logical volume: write VG/LV"
        )));
    };
    Ok(Assembly { kind: AssemblyKind::Logical { group, volume }, disks: sites(disks)? }.whole())
}

/// Parses `PART@DISK`.
fn parse_part(text: &OsStr) -> Result<Site> {
    let (name, disk) = split(text, "part:pN@DISK, part:OFFSET+LENGTH@DISK or part:VG/LV@DISK")?;
    let part = Part::parse(name).or_else(|| Part::parse_logical(name).map(Ok));
    let part = part.unwrap_or_else(|| {
        Err(Error::invalid(format!(
            "{name} is not a part: write pN, OFFSET, OFFSET+LENGTH or VG/LV"
        )))
    })?;
    let below = Site::parse(disk)?;
    Ok(below.within(part))
}

/// Splits a text at its first `@`.
fn split<'a>(text: &'a OsStr, syntax: &str) -> Result<(&'a str, &'a OsStr)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'@');
    let parts = at.and_then(|at| {
        Some((std::str::from_utf8(&bytes[..at]).ok()?, OsStr::from_bytes(&bytes[at + 1..])))
    });
    parts.ok_or_else(|| Error::invalid(format!("the name of the disk is missing: write {syntax}")))
}

/// Parses the names of disks, which are separated by commas. A text that begins with a prefix of an assembled disk is one name, and so is
/// the path of an existing file.
fn sites(text: &OsStr) -> Result<Vec<Site>> {
    let bytes = text.as_bytes();
    if Assembly::prefix_of(bytes).is_some() || Path::new(text).exists() {
        return Ok(vec![Site::parse(text)?]);
    }
    bytes.split(|byte| *byte == b',').map(|site| Site::parse(OsStr::from_bytes(site))).collect()
}

impl fmt::Display for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            AssemblyKind::Logical { group, volume } => write!(f, "{LVM}{group}/{volume}@")?,
            AssemblyKind::Md => f.write_str(MD)?,
            AssemblyKind::Same => {}
        }
        for (number, disk) in self.disks.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{disk}")?;
        }
        Ok(())
    }
}

/// Writes the prefix for a part of a disk: `part:p1@`. The caller then writes the name of the disk.
pub(super) fn show_part(part: &Part, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // The text of a part begins with `@`, which this code removes.
    match part.to_string().strip_prefix('@') {
        Some(part) => write!(f, "{PART}{part}@"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The displayed text of an assembled disk is equal to the text that was parsed.
    #[test]
    fn assembled_disks_are_shown_as_they_are_written() {
        for text in [
            "lvm:vg/root@a.img,qcow2:b.qcow2@p3",
            "lvm:vg/root@md:a,b",
            "md:a.img@p1,b.img@1048576+4096",
            "part:p2@md:a,b",
            "part:vg/root@md:a,b",
            "part:p1@part:p2@md:a,b",
            "part:p1@a.img@p2",
            "part:4096@lvm:vg/root@nbd://host/export",
        ] {
            let site = Site::parse(OsStr::new(text)).unwrap();
            assert_eq!(site.to_string(), text);
            assert_eq!(Site::parse(OsStr::new(&site.to_string())).unwrap(), site, "{text}");
        }
        let part = Site::parse(OsStr::new("part:p1@a.img")).unwrap();
        assert_eq!(part, Site { part: Part::Partition(1), ..Site::file("a.img") });
    }

    #[test]
    fn incomplete_names_say_what_to_write() {
        for (text, what) in [
            ("lvm:vg/root", "lvm:VG/LV@DISK"),
            ("lvm:root@a", "is not the name of a logical volume"),
            ("part:p1", "part:pN@DISK"),
            ("part:x@a", "is not a part"),
            ("md:", "empty"),
            ("md:a,", "empty"),
            (&*format!("{}a", "part:p1@".repeat(5000)), "more than 16 layers"),
        ] {
            let error = Site::parse(OsStr::new(text)).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
