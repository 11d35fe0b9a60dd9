//! The location of a volume: `DEVICE`, `IMAGE`, the address of an NBD export, `qcow2:IMAGE`, `IMAGE@OFFSET`, `IMAGE@OFFSET+LENGTH`,
//! `IMAGE@pN`, or a logical volume of LVM as `DISK@VG/LV`. `lvm:`, `md:` and `part:` name a disk that is assembled from several disks.
//! `integrity:DATA,TAGS` combines two of these locations. The prefix `noload:` skips the recovery of the journal.

mod assembly;
mod open;
mod part;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

pub use self::assembly::{Assembly, AssemblyKind};
pub(crate) use self::open::refuse_to_write;
pub use self::open::{Halves, LocationOptions, OpenLocation, OpenParts};
pub use self::part::Part;
use self::part::{Bounds, Window};

use crate::device::image;
use crate::device::nbd::{self, Nbd};
use crate::device::{BlockFile, OpenMode, Psync};
use crate::error::{Context, Error, Result};

/// The prefix of an integrity device. The locations of its data and tags follow.
pub const INTEGRITY: &str = "integrity:";

/// The prefix of a volume that is opened without reading its journal.
pub const NO_LOAD: &str = "noload:";

/// The location of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// A device or image.
    Plain(Site),
    /// An [integrity device](crate::integrity).
    Integrity {
        /// The device, image or export that contains the protected data.
        data: Site,
        /// The device, image or export that contains the tags. `None` if the tags are in the tail of the data.
        tags: Option<Site>,
    },
    /// A location whose volume is opened without reading its journal.
    NoLoad(Box<Self>),
}

/// A block device, image or export, and the part of it that is used. No other fields will be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The device, image or export.
    pub medium: Medium,
    /// The part that is used.
    pub part: Part,
}

/// A device, image or export that contains the bytes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Medium {
    /// A block device or image, by its path.
    File(PathBuf),
    /// An export of an NBD server.
    Nbd(Box<nbd::Address>),
    /// An image of a virtual machine.
    Image(Box<image::Address>),
    /// A disk that is assembled from other disks.
    Assembly(Box<Assembly>),
}

impl Location {
    /// Parses a location that a user wrote. The text is the name of a device, image or export with an optional part ([`Site::parse`]), or
    /// `integrity:DATA`, or `integrity:DATA,TAGS`. DATA and TAGS have the same form as the first case. The prefix `noload:` may precede
    /// each of these forms. A text that begins with `integrity:` or `noload:` never names a file; a file with such a name is written
    /// `./integrity:...`.
    ///
    /// # Errors
    /// `InvalidInput` for an empty path, and for an offset beyond 64 bits.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let mut inner = text.as_bytes();
        // A second prefix `noload:` has no further effect.
        while let Some(rest) = inner.strip_prefix(NO_LOAD.as_bytes()) {
            inner = rest;
        }
        if inner.len() < text.len() {
            return Ok(Self::NoLoad(Box::new(Self::parse(OsStr::from_bytes(inner))?)));
        }
        match text.as_bytes().strip_prefix(INTEGRITY.as_bytes()) {
            Some(halves) => Self::parse_integrity(OsStr::from_bytes(halves)),
            None => Site::parse(text).map(Self::Plain),
        }
    }

    /// Parses an integrity device: `DATA,TAGS`, or `DATA` if the tags are in the tail of the data. The prefix `integrity:` is optional. If
    /// the whole text is the path of an existing file, this file is DATA. Otherwise, DATA ends at the first comma.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse).
    pub fn parse_integrity(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let bytes = bytes.strip_prefix(INTEGRITY.as_bytes()).unwrap_or(bytes);
        let half = |bytes: &[u8], name: &'static str| {
            Site::parse(OsStr::from_bytes(bytes)).context(|| format!("the {name} device"))
        };
        let comma = bytes.iter().position(|byte| *byte == b',');
        let comma = comma.filter(|_| !Path::new(OsStr::from_bytes(bytes)).exists());
        Ok(match comma {
            Some(comma) => Self::Integrity {
                data: half(&bytes[..comma], "data")?,
                tags: Some(half(&bytes[comma + 1..], "tag")?),
            },
            None => Self::Integrity { data: half(bytes, "data")?, tags: None },
        })
    }

    /// Returns a copy of the location with other paths. `path` returns the new path, or `None` if the path stays unchanged.
    #[must_use]
    pub fn with_paths(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let site = |site: &Site| site.with_paths(path);
        match self {
            Self::Plain(plain) => Self::Plain(site(plain)),
            Self::Integrity { data, tags } => {
                Self::Integrity { data: site(data), tags: tags.as_ref().map(site) }
            }
            Self::NoLoad(inner) => Self::NoLoad(Box::new(inner.with_paths(path))),
        }
    }

    /// The device, image or export that contains the data of the volume.
    #[must_use]
    pub fn data(&self) -> &Site {
        match self {
            Self::Plain(site) | Self::Integrity { data: site, .. } => site,
            Self::NoLoad(inner) => inner.data(),
        }
    }

    /// Returns the path of a block device or image if the volume occupies all of it, and `None` otherwise.
    #[must_use]
    pub fn whole_file(&self) -> Option<&Path> {
        match self {
            Self::Plain(Site { medium: Medium::File(path), part: Part::Whole }) => Some(path),
            Self::NoLoad(inner) => inner.whole_file(),
            _ => None,
        }
    }

    /// The device, image or export that contains the tags of an integrity device. `None` if the tags are in the tail of the
    /// [data](Self::data), or if the location is not an integrity device.
    #[must_use]
    pub fn tags(&self) -> Option<&Site> {
        match self {
            Self::Plain(_) => None,
            Self::Integrity { tags, .. } => tags.as_ref(),
            Self::NoLoad(inner) => inner.tags(),
        }
    }
}

impl Site {
    /// Creates a value for a whole block device or image.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { medium: Medium::File(path.into()), part: Part::Whole }
    }

    /// Returns a part of this device, image or export. Its displayed text is the text that a user would write for this part.
    #[must_use]
    pub fn within(&self, part: Part) -> Self {
        let is_address = matches!(self.medium, Medium::Nbd(_));
        match part {
            Part::Logical { group, volume } if is_address && self.part == Part::Whole => {
                let kind = AssemblyKind::Logical { group, volume };
                let assembly = Assembly { kind, disks: vec![self.clone()] };
                Self { medium: Medium::Assembly(Box::new(assembly)), part: Part::Whole }
            }
            part if self.part == Part::Whole => Self { medium: self.medium.clone(), part },
            part => {
                let assembly = Assembly { kind: AssemblyKind::Same, disks: vec![self.clone()] };
                Self { medium: Medium::Assembly(Box::new(assembly)), part }
            }
        }
    }

    fn with_paths(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let medium = match &self.medium {
            Medium::File(file) => Medium::File(path(file).unwrap_or_else(|| file.clone())),
            Medium::Nbd(address) => Medium::Nbd(Box::new(address.with_path(path))),
            Medium::Image(address) => Medium::Image(Box::new(address.with_path(path))),
            Medium::Assembly(assembly) => Medium::Assembly(Box::new(assembly.with_paths(path))),
        };
        Self { medium, part: self.part.clone() }
    }

    /// The path of the block device or image. `None` for an export, an image of a virtual machine, or an assembled disk.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.medium {
            Medium::File(path) => Some(path),
            Medium::Nbd(_) | Medium::Image(_) | Medium::Assembly(_) => None,
        }
    }

    /// Whether the displayed text of this value (`PATH@PART`) is also the path of an existing file.
    fn has_namesake(&self) -> bool {
        let path = match &self.medium {
            Medium::File(path) => path,
            Medium::Image(address) => &address.path,
            Medium::Nbd(_) | Medium::Assembly(_) => return false,
        };
        let mut text = path.clone().into_os_string();
        text.push(self.part.to_string());
        Path::new(&text).exists()
    }

    /// Parses the name of a device, image or export, as a user writes it. The text begins with `PATH`, with the [address](nbd::Address) of
    /// an export, or with the address of an [image](image::Address). A suffix can follow and select a part: `@OFFSET`, `@OFFSET+LENGTH`,
    /// `@pN` or `@VG/LV`. OFFSET and LENGTH are decimal or `0x…`, with an optional `K`, `M` or `G`. If the whole text, including `@`, is
    /// the path of an existing file, the text names that file. `@VG/LV` selects a logical volume of LVM, and must follow the path of an
    /// existing disk.
    ///
    /// # Errors
    /// `InvalidInput` for an empty path, an invalid address, or an offset beyond 64 bits.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(Error::invalid("the path of the volume is empty"));
        }
        if let Some(assembled) = Assembly::parse(text) {
            return assembled;
        }
        let is_address = nbd::Address::is_one(bytes);
        let image = image::Address::prefix_of(bytes);
        let prefix = image.map_or(0, |(_, len)| len);
        let file = &bytes[prefix..];
        if file.is_empty() {
            return Err(Error::invalid("the name of the image file is missing").at(text.display()));
        }
        let at = bytes.iter().rposition(|byte| *byte == b'@').filter(|at| *at > prefix);
        let exists = || Path::new(OsStr::from_bytes(file)).exists();
        let at = at.filter(|_| is_address || !exists());
        // A slash after the `@` may belong to a path, such as `me@home/disk.img`, or to an address. Therefore, `@VG/LV` is accepted only
        // after the path of an existing disk.
        let is_disk = |at: usize| {
            let path = |bytes| match image {
                Some((format, _)) => image::Address::parse(format, bytes).path,
                None => PathBuf::from(OsStr::from_bytes(bytes)),
            };
            let slash = bytes[at..].iter().position(|byte| *byte == b'/').unwrap_or(0);
            !is_address
                && path(&bytes[prefix..at]).metadata().is_ok_and(|found| !found.is_dir())
                && !path(&bytes[prefix..at + slash]).is_dir()
        };
        let part = |at: usize| {
            let text = std::str::from_utf8(&bytes[at + 1..]).ok()?;
            let logical = || Part::parse_logical(text).filter(|_| is_disk(at)).map(Ok);
            Part::parse(text).or_else(logical)
        };
        let (medium, part) = match at.and_then(|at| Some((at, part(at)?))) {
            Some((at, part)) => (&bytes[..at], part?),
            None => (bytes, Part::Whole),
        };
        let medium = OsStr::from_bytes(medium);
        let medium = if is_address {
            let address =
                medium.to_str().ok_or_else(|| Error::invalid("the NBD address is not UTF-8"));
            Medium::Nbd(Box::new(address?.parse()?))
        } else if let Some((format, len)) = image {
            Medium::Image(Box::new(image::Address::parse(format, &medium.as_bytes()[len..])))
        } else {
            Medium::File(medium.into())
        };
        Ok(Self { medium, part })
    }

    /// Returns the first byte and the length of the part, or `None` for the whole device. If `self` does not contain both numbers, reads
    /// the partition table or the LVM metadata.
    ///
    /// # Errors
    /// `NotFound` for a partition that does not exist; `Corrupt` for a damaged table; `InvalidInput` for a part that ends past the device;
    /// `Unsupported` for a logical volume that is not one range of the device; `Io`.
    pub fn window(&self) -> Result<Option<(u64, u64)>> {
        if self.part == Part::Whole {
            return Ok(None);
        }
        let window = match &self.medium {
            Medium::File(path) => self.window_of_file(path, false, false)?,
            Medium::Nbd(address) => {
                self.part.of(&Nbd::open(address, false)?, false, false).at(|| address)?
            }
            Medium::Image(address) => {
                self.part.of(&*image::look(address)?, false, false).at(|| address)?
            }
            Medium::Assembly(_) => {
                let what = "the part of an assembled disk is not one range of a device";
                return Err(Error::unsupported(what).at(self));
            }
        };
        match window.map(|window| window.bounds) {
            None => Ok(None),
            Some(Bounds::Range(start, len)) => Ok(Some((start, len))),
            #[cfg(feature = "lvm")]
            Some(Bounds::Stack(_)) => {
                Err(Error::unsupported("the logical volume is not one range of the device")
                    .at(self))
            }
        }
    }

    fn window_of_file(&self, path: &Path, truncated: bool, write: bool) -> Result<Option<Window>> {
        if self.part == Part::Whole {
            return Ok(None);
        }
        let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
        let device = Psync::new(Arc::new(BlockFile::open(path, &mode)?));
        self.part.of(&device, truncated, write).at(|| &self.medium)
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(OsStr::new(text))
    }
}

impl From<&Self> for Location {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}

macro_rules! from_text {
    ($($text:ty),*) => {
        $(impl TryFrom<$text> for Location {
            type Error = Error;

            fn try_from(text: $text) -> Result<Self> {
                Self::parse(text.as_ref())
            }
        })*
    };
}

from_text!(&str, &String, String, &OsStr, &Path, &PathBuf, PathBuf);

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(site) => site.fmt(f),
            Self::NoLoad(inner) => write!(f, "{NO_LOAD}{inner}"),
            Self::Integrity { data, tags: None } => write!(f, "{INTEGRITY}{data}"),
            Self::Integrity { data, tags: Some(tags) } => write!(f, "{INTEGRITY}{data},{tags}"),
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Nbd(address) => address.fmt(f),
            Self::Image(address) => address.fmt(f),
            Self::Assembly(assembly) => assembly.fmt(f),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Medium::Assembly(assembly) = &self.medium {
            assembly::show_part(&self.part, f)?;
            return assembly.fmt(f);
        }
        // If a file has the name `PATH@pN`, the text `PATH@pN` names this file. This code then uses the form `part:pN@PATH`, which always
        // names the part.
        if self.part != Part::Whole && self.has_namesake() {
            assembly::show_part(&self.part, f)?;
            return self.medium.fmt(f);
        }
        self.medium.fmt(f)?;
        self.part.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn part(text: &str) -> (String, Part) {
        let site = Site::parse(OsStr::new(text)).unwrap();
        (site.medium.to_string(), site.part)
    }

    #[test]
    fn parts_are_read_as_documented() {
        let no = |path: &str, part| (path.to_owned(), part);
        assert_eq!(part("a.img"), no("a.img", Part::Whole));
        assert_eq!(part("a.img@1048576"), no("a.img", Part::Offset(1 << 20)));
        assert_eq!(part("a.img@0x100000"), no("a.img", Part::Offset(1 << 20)));
        assert_eq!(part("a.img@1M"), no("a.img", Part::Offset(1 << 20)));
        assert_eq!(part("a.img@0x4k"), no("a.img", Part::Offset(4096)));
        assert_eq!(part("a.img@2G"), no("a.img", Part::Offset(2 << 30)));
        let range = |offset, len| Part::Range { offset, len };
        assert_eq!(part("a.img@1M+4K"), no("a.img", range(1 << 20, 4096)));
        assert_eq!(part("a.img@0+0x10"), no("a.img", range(0, 16)));
        assert_eq!(part("a.img@p12"), no("a.img", Part::Partition(12)));
        assert_eq!(part("me@home/a.img@p1"), no("me@home/a.img", Part::Partition(1)));
    }

    #[test]
    fn an_at_sign_that_begins_no_part_belongs_to_the_path() {
        for path in [
            "@",
            "@p1",
            "me@home/a.img",
            "a@",
            "a@p0",
            "a@px",
            "a@-1",
            "a@0x",
            "a@K",
            "a@1+",
            "a@+1",
        ] {
            assert_eq!(part(path), (path.to_owned(), Part::Whole));
        }
    }

    #[test]
    fn a_path_that_exists_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk@p1");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(part(path.to_str().unwrap()).1, Part::Whole);
        // If a file has the name of the part, the part is shown in the form `part:pN@PATH`.
        for prefix in ["", "qcow2:"] {
            let disk = format!("{prefix}{}", dir.path().join("disk").display());
            let site = Site::parse(OsStr::new(&disk)).unwrap().within(Part::Partition(1));
            assert_eq!(site.to_string(), format!("part:p1@{disk}"));
            assert_eq!(Site::parse(OsStr::new(&site.to_string())).unwrap(), site);
            let other = Site { part: Part::Partition(2), ..site };
            assert_eq!(other.to_string(), format!("{disk}@p2"));
        }
    }

    /// If the text before the `@` names a disk, the text after the `@` names a logical volume. Otherwise, the slash belongs to a path.
    #[test]
    fn a_logical_volume_follows_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        std::fs::write(&disk, b"").unwrap();
        let disk = disk.to_str().unwrap();
        let logical = |group: &str, volume: &str| Part::Logical {
            group: group.into(),
            volume: volume.into(),
        };
        let named = logical("vg-0.x_+", "root");
        for medium in [disk, &format!("qcow2:{disk}")] {
            let text = format!("{medium}@vg-0.x_+/root");
            assert_eq!(part(&text), (medium.to_owned(), named.clone()));
            assert_eq!(Site::parse(OsStr::new(&text)).unwrap().to_string(), text);
        }
        for rest in ["@vg/", "@/root", "@vg/a/b", "@vg/-a", "@../a", "@vg/.", "@v g/a", "@vg"] {
            let text = format!("{disk}{rest}");
            assert_eq!(part(&text), (text.clone(), Part::Whole));
        }
        let inside = format!("{}@vg/root", dir.path().display());
        std::fs::create_dir(format!("{disk}@2024")).unwrap();
        let beside = format!("{disk}@2024/root");
        let address = "nbd+unix:///?socket=/run/me@host/disk.sock";
        for text in ["none@vg/root", "qcow2:none@vg/root", address, &inside, &beside] {
            assert_eq!(part(text).1, Part::Whole, "{text}");
        }
    }

    #[test]
    fn an_offset_is_bounded_by_64_bits_and_by_the_device() {
        assert!("a.img@18446744073709551616".parse::<Location>().is_err());
        assert!("a.img@17179869184G".parse::<Location>().is_err());
        assert!("a.img@0+17179869184G".parse::<Location>().is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        let at = |part| Site { part, ..Site::file(&path) }.window();
        assert_eq!(at(Part::Offset(1000)).unwrap(), Some((1000, 3096)));
        let range = |offset, len| at(Part::Range { offset, len });
        assert_eq!(range(1000, 3096).unwrap(), Some((1000, 3096)));
        for (offset, len) in [(1000, 3097), (4096, 1), (1000, u64::MAX), (1000, 0)] {
            assert_eq!(range(offset, len).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(at(Part::Offset(4096)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(at(Part::Partition(1)).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_journal_is_skipped_where_the_location_says_so() {
        let parse = |text: &str| text.parse::<Location>().unwrap();
        let plain = parse("a.img@p1");
        for (text, shown) in
            [("noload:a.img@p1", "noload:a.img@p1"), ("noload:noload:a.img@p1", "noload:a.img@p1")]
        {
            let location = parse(text);
            assert_eq!(location, Location::NoLoad(Box::new(plain.clone())));
            assert_eq!((location.data(), location.to_string().as_str()), (plain.data(), shown));
        }
        let both = parse("noload:integrity:a,b");
        assert_eq!(both.tags(), parse("integrity:a,b").tags());
        assert_eq!(parse("./noload:a").to_string(), "./noload:a");
        assert!("noload:".parse::<Location>().is_err());
    }

    #[test]
    fn an_address_has_parts_too() {
        let site = |text: &str| Site::parse(OsStr::new(text));
        for (text, address, part) in [
            ("nbd://host/e@p2", "nbd://host/e", Part::Partition(2)),
            ("nbd+unix:///?socket=/s@1M", "nbd+unix:///?socket=/s", Part::Offset(1 << 20)),
            ("nbd://host/e%40p2", "nbd://host/e%40p2", Part::Whole),
        ] {
            let site = site(text).unwrap();
            assert_eq!((site.medium.to_string().as_str(), site.part.clone()), (address, part));
            assert_eq!(site.path(), None);
        }
        assert!(
            site("nbd+vsock://2/e").is_err(),
            "a location with an unknown NBD scheme must not be treated as a file name"
        );
        assert_eq!(site("./nbd://host").unwrap().path(), Some(Path::new("./nbd://host")));
    }

    #[test]
    fn the_format_of_an_image_is_named_by_its_prefix() {
        let site = |text: &str| Site::parse(OsStr::new(text));
        for (text, format, part) in [
            ("qcow2:/a/b.qcow2@p2", image::ImageFormat::Qcow2, Part::Partition(2)),
            ("vmdk:b.vmdk", image::ImageFormat::Vmdk, Part::Whole),
            ("vhdx:me@home/b@1M", image::ImageFormat::Vhdx, Part::Offset(1 << 20)),
        ] {
            let site = site(text).unwrap();
            let Medium::Image(address) = &site.medium else { panic!("{text}") };
            assert_eq!((address.format, site.part.clone()), (format, part));
            assert_eq!(site.path(), None);
            assert_eq!(Site::parse(site.to_string().as_ref()).unwrap(), site);
        }
        assert!(site("qcow2:").is_err());
        assert_eq!(site("./qcow2:a").unwrap().path(), Some(Path::new("./qcow2:a")));
        assert_eq!(site("qcow2").unwrap().path(), Some(Path::new("qcow2")));
    }

    #[test]
    fn an_integrity_device_has_one_or_two_halves() {
        let parse = |text: &str| text.parse::<Location>().unwrap();
        let site = |path: &str, part| Site { part, ..Site::file(path) };
        let two = parse("integrity:a.img@p1,b.img@1M");
        assert_eq!(two.data(), &site("a.img", Part::Partition(1)));
        assert_eq!(two.tags(), Some(&site("b.img", Part::Offset(1 << 20))));
        assert_eq!(two.to_string(), "integrity:a.img@p1,b.img@1048576");
        let tail = parse("integrity:a.img");
        assert_eq!((tail.data(), tail.tags()), (&site("a.img", Part::Whole), None));
        assert_eq!(parse("./integrity:a").data(), &site("./integrity:a", Part::Whole));
        let bare = Location::parse_integrity(OsStr::new("a.img@p1,b.img@1M"));
        assert_eq!(bare.unwrap(), two);
        for wrong in ["integrity:", "integrity:,b", "integrity:a,"] {
            assert!(wrong.parse::<Location>().is_err(), "{wrong}");
        }
    }
}
