//! Parses `VOLUME`, `VOLUME:/PATH` and `host:FILE` on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ironmap::Location;
use ironmap::device::image;
use ironmap::device::nbd::Address;
use ironmap::location::{Assembly, INTEGRITY, NO_LOAD};
use ironmap_image::Failure;
pub(crate) use ironmap_image::target::{Subject, Target, inode_of};

/// Parses `VOLUME:/PATH`.
pub(crate) fn parse(text: &OsStr) -> Result<Target, String> {
    let bytes = text.as_bytes();
    refuse_host(text)?;
    let Some(colon) = end_of_volume(bytes) else {
        return Err("the path in the volume is missing: write VOLUME:/PATH".to_owned());
    };
    let volume = parse_volume(OsStr::from_bytes(&bytes[..colon]))?;
    Ok(Target { volume, path: bytes[colon + 1..].to_vec() })
}

/// Parses `VOLUME:/PATH` or `VOLUME`. `VOLUME` means the root of the volume.
pub(crate) fn parse_tree(text: &OsStr) -> Result<Target, String> {
    if end_of_volume(text.as_bytes()).is_some() {
        return parse(text);
    }
    Ok(Target { volume: parse_volume(text)?, path: b"/".to_vec() })
}

/// Returns the length of the prefixes `integrity:` and `noload:` before the path of a volume. The length is 0 if there is no prefix.
fn prefix_of_volume(text: &[u8]) -> usize {
    [NO_LOAD, INTEGRITY].iter().fold(0, |at, prefix| {
        if text[at..].starts_with(prefix.as_bytes()) { at + prefix.len() } else { at }
    })
}

/// The end of the host name in the address that begins at `at`. `None` if no address begins there.
fn end_of_host(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..).filter(|rest| Address::is_one(rest))?;
    let slashes = rest.windows(3).position(|window| window == b"://")? + 3;
    let host =
        rest[slashes..].iter().position(|byte| *byte == b'/').unwrap_or(rest.len() - slashes);
    // A colon at the end of the host name belongs to the `:/` before the path in the volume.
    let ends = host > 0 && rest[..slashes + host].ends_with(b":");
    Some(at + slashes + host - usize::from(ends))
}

/// The end of the prefix at `at`, if the prefix names the format of an image. `None` if no prefix begins there.
fn end_of_format(text: &[u8], at: usize) -> Option<usize> {
    image::Address::prefix_of(text.get(at..)?).map(|(_, len)| at + len)
}

/// Returns the position at which the volume in `VOLUME:/PATH` ends: the first `:/` or `:<12>`. A `:/` within `integrity:/...`, `nbd://...`,
/// `qcow2:/...` or `md:/...` does not count.
pub(crate) fn end_of_volume(text: &[u8]) -> Option<usize> {
    let prefix = prefix_of_volume(text);
    let begin = |at| end_of_host(text, at).or_else(|| end_of_format(text, at)).unwrap_or(at);
    let is_assembled = |at: usize| Assembly::prefix_of(text.get(at..).unwrap_or_default());
    // Whether the name of another disk begins after this byte. This name may have its own prefix.
    let divides = |byte: u8| match byte {
        b',' => text[..prefix].ends_with(INTEGRITY.as_bytes()) || is_assembled(prefix).is_some(),
        b'@' => is_assembled(prefix).is_some(),
        _ => false,
    };
    let ends = |at: usize| {
        let path = text[at..].strip_prefix(b":");
        path.is_some_and(|path| path.starts_with(b"/") || inode_of(path).is_some())
    };
    let (mut at, mut is_begin) = (prefix, true);
    while at < text.len() {
        if is_begin {
            match is_assembled(at) {
                Some(len) => at += len,
                None => (at, is_begin) = (begin(at), false),
            }
            continue;
        }
        if ends(at) {
            return Some(at);
        }
        is_begin = divides(text[at]);
        at += 1;
    }
    None
}

fn refuse_host(text: &OsStr) -> Result<(), String> {
    if text.as_bytes().starts_with(HOST) {
        return Err(
            "host:FILE is only for map, stat and cat (write ./host for a volume named host)"
                .to_owned(),
        );
    }
    Ok(())
}

/// The prefix for a path to a file of a mounted file system.
const HOST: &[u8] = b"host:";

/// Parses `host:FILE`. Any other text is passed to `parse`.
fn parse_subject(
    text: &OsStr,
    parse: impl FnOnce(&OsStr) -> Result<Target, String>,
) -> Result<Subject, String> {
    match text.as_bytes().strip_prefix(HOST) {
        Some(b"") => Err("the path is missing: write host:FILE".to_owned()),
        Some(path) => Ok(Subject::Host(Path::new(OsStr::from_bytes(path)).to_owned())),
        None => parse(text).map(Subject::Volume),
    }
}

fn parse_anywhere(text: &OsStr) -> Result<Subject, String> {
    let bytes = text.as_bytes();
    let is_volume = prefix_of_volume(bytes) > 0
        || Address::is_one(bytes)
        || image::Address::prefix_of(bytes).is_some()
        || Assembly::prefix_of(bytes).is_some();
    let volume = is_volume || end_of_volume(bytes).is_some();
    if bytes.starts_with(HOST) || volume {
        return parse_subject(text, parse);
    }
    if bytes.is_empty() {
        return Err("the path is empty".to_owned());
    }
    Ok(Subject::Host(text.into()))
}

/// Parses `VOLUME`, or a tag of its device such as `LABEL=data`.
pub(crate) fn parse_volume(text: &OsStr) -> Result<Location, String> {
    refuse_host(text)?;
    let link = link_of_tag(text);
    // If udev has made no link for the tag, the result must be an error. Otherwise, a command could create a file with the name of the link
    // in /dev, which is a file system in memory.
    if let Some(link) = link.as_ref().filter(|link| !Path::new(link).exists()) {
        let (text, link) = (text.display(), link.display());
        return Err(format!(
            "no device has {text}: the udev link {link} does not exist; name the device"
        ));
    }
    Location::parse(link.as_deref().unwrap_or(text)).map_err(|error| error.to_string())
}

/// Returns the symbolic link that udev makes for the device with this tag. The tag has the syntax of mount(8), for example `LABEL=data`.
/// Returns `None` if a file with the name of the tag exists.
fn link_of_tag(text: &OsStr) -> Option<OsString> {
    let (tag, value) = text.to_str()?.split_once('=')?;
    let (dir, value) = match tag {
        "LABEL" => ("label", value.to_owned()),
        "PARTLABEL" => ("partlabel", value.to_owned()),
        "UUID" => ("uuid", value.to_lowercase()),
        "PARTUUID" => ("partuuid", value.to_lowercase()),
        _ => return None,
    };
    if value.is_empty() || Path::new(text).exists() {
        return None;
    }
    // Encodes the value as udev(7) does for the names of links.
    let plain =
        |char: char| char.is_alphanumeric() || !char.is_ascii() || "#+-.:=@_".contains(char);
    let name = value.chars().map(|char| match plain(char) {
        true => char.to_string(),
        false => format!("\\x{:02x}", u32::from(char)),
    });
    Some(format!("/dev/disk/by-{dir}/{}", name.collect::<String>()).into())
}

/// Parses `VOLUME`, or `VOLUME:/PATH` and returns only the volume.
pub(crate) fn parse_volume_of(text: &OsStr) -> Result<Location, String> {
    match parse(text) {
        Ok(target) => Ok(target.volume),
        Err(_) => parse_volume(text),
    }
}

/// Splits the arguments of a command like `mv` into sources and destination. `directory` is the value of `-t`, and `no_directory` is the
/// value of `-T`. The third result is `Some(true)` if the destination must be a directory, and `Some(false)` if the destination is always
/// the new name.
pub(crate) fn split_destination<'a, T>(
    targets: &'a [T],
    directory: Option<&'a T>,
    no_directory: bool,
) -> Result<(&'a [T], &'a T, Option<bool>), Failure> {
    if let Some(directory) = directory {
        return Ok((targets, directory, Some(true)));
    }
    let Some((dest, sources)) = targets.split_last().filter(|(_, sources)| !sources.is_empty())
    else {
        return Err(Failure::usage(
            "the destination is missing: name it last, as VOLUME:/DEST, or a directory with -t VOLUME:/DIR",
        ));
    };
    if no_directory && sources.len() > 1 {
        return Err(Failure::usage("-T takes exactly one source and one destination"));
    }
    let is_directory = if no_directory { Some(false) } else { (sources.len() > 1).then_some(true) };
    Ok((sources, dest, is_directory))
}

/// The parser of a `VOLUME` argument.
pub(crate) fn volume() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|text: OsString| parse_volume(&text))
}

/// The parser of an integrity device: `DATA,TAGS` or `DATA`.
pub(crate) fn integrity() -> impl TypedValueParser<Value = Location> {
    let parse =
        |text: OsString| Location::parse_integrity(&text).map_err(|error| error.to_string());
    OsStringValueParser::new().try_map(parse)
}

/// The parser of a `VOLUME:/PATH` argument.
pub(crate) fn target() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(|text: OsString| parse(&text))
}

/// The parser of a `VOLUME:/PATH` argument. `VOLUME` without a path means the root of the volume.
pub(crate) fn tree() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(|text: OsString| parse_tree(&text))
}

/// The parser of an argument that is `VOLUME:/PATH`, or a path of the host with or without `host:`.
pub(crate) fn anywhere() -> impl TypedValueParser<Value = Subject> {
    OsStringValueParser::new().try_map(|text: OsString| parse_anywhere(&text))
}

/// The parser of an argument that is `VOLUME:/PATH` or `host:FILE`.
pub(crate) fn subject() -> impl TypedValueParser<Value = Subject> {
    OsStringValueParser::new().try_map(|text: OsString| parse_subject(&text, parse))
}

/// The parser of a `VOLUME:/PATH` or `host:FILE` argument. `VOLUME` without a path means the root of the volume.
pub(crate) fn subject_or_tree() -> impl TypedValueParser<Value = Subject> {
    let parse = |text: OsString| parse_subject(&text, parse_tree);
    OsStringValueParser::new().try_map(parse)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ironmap::location::Part;
    use ironmap::units::InodeNo;

    use super::*;

    fn split(text: &str) -> (String, String) {
        let target = parse(OsStr::new(text)).unwrap();
        (target.volume.to_string(), String::from_utf8(target.path).unwrap())
    }

    #[test]
    fn the_first_colon_before_a_slash_splits() {
        let no = |volume: &str, path: &str| (volume.to_owned(), path.to_owned());
        assert_eq!(split("a.img:/"), no("a.img", "/"));
        assert_eq!(split("/dev/a:b:/c:/d"), no("/dev/a:b", "/c:/d"));
        assert_eq!(
            split("/dev/disk/by-path/pci-0:1.2:/etc"),
            no("/dev/disk/by-path/pci-0:1.2", "/etc")
        );
        for wrong in ["a.img", "a.img:etc", "", ":/etc", "/etc"] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_in_angle_brackets_is_a_path() {
        let no = |volume: &str, path: &str| (volume.to_owned(), path.to_owned());
        assert_eq!(split("a.img:<12>"), no("a.img", "<12>"));
        assert_eq!(split("a:<2>/etc:/x"), no("a", "<2>/etc:/x"));
        assert_eq!(split("a:/<12>"), no("a", "/<12>"));
        assert_eq!(split("a:<x>:/b"), no("a:<x>", "/b"));
        for wrong in ["a:<>", "a:<12", "a:<12>x", "a:<-1>", "a:<99999999999999999999>"] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(inode_of(b"<12>/a"), Some((InodeNo(12), &b"/a"[..])));
        let root = parse_tree(OsStr::new("a.img@p2")).unwrap();
        assert_eq!(root.to_string(), "a.img@p2:/");
    }

    #[test]
    fn the_colon_of_integrity_is_no_end_of_a_volume() {
        assert_eq!(
            split("integrity:/dev/a,/dev/b@p2:/c"),
            ("integrity:/dev/a,/dev/b@p2".to_owned(), "/c".to_owned())
        );
        assert_eq!(split("integrity:a:/c"), ("integrity:a".to_owned(), "/c".to_owned()));
        for wrong in ["integrity:/dev/a,/dev/b", "integrity:a"] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_anywhere(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_volume_of(OsStr::new(wrong)).is_ok(), "{wrong}");
        }
    }

    #[test]
    fn the_colons_of_an_address_are_no_end_of_a_volume() {
        let no = |volume: &str, path: &str| (volume.to_owned(), path.to_owned());
        assert_eq!(split("nbd://host:7/e:/c"), no("nbd://host:7/e", "/c"));
        assert_eq!(split("nbd://[::1]/e@p1:/c"), no("nbd://[::1]/e@p1", "/c"));
        assert_eq!(
            split("noload:nbd+unix:///?socket=/s:/c:/d"),
            no("noload:nbd+unix:///?socket=/s", "/c:/d")
        );
        let both = "integrity:nbd://a/x,nbd://b/y";
        assert_eq!(split(&format!("{both}:/c")), no(both, "/c"));
        assert_eq!(split("integrity:a,nbd://b/:<12>"), no("integrity:a,nbd://b/", "<12>"));
        for wrong in [both, "nbd://host/e", "nbd://host:7", "nbd://host"] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_anywhere(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_volume_of(OsStr::new(wrong)).is_ok(), "{wrong}");
        }
    }

    #[test]
    fn the_colons_of_an_assembled_disk_are_no_end_of_a_volume() {
        for volume in [
            "md:/dev/a,/dev/b",
            "md:qcow2:/a,nbd://host/e",
            "lvm:vg/root@/a,qcow2:/b@p3",
            "lvm:vg/root@md:/a,/b",
            "part:p1@md:qcow2:/a,b",
            "noload:part:vg/root@md:a,b",
        ] {
            assert_eq!(split(&format!("{volume}:/c")), (volume.to_owned(), "/c".to_owned()));
            assert!(parse(OsStr::new(volume)).is_err(), "{volume}");
            assert!(parse_anywhere(OsStr::new(volume)).is_err(), "{volume}");
            assert!(parse_volume_of(OsStr::new(volume)).is_ok(), "{volume}");
        }
    }

    #[test]
    fn the_colon_of_a_format_is_no_end_of_a_volume() {
        let no = |volume: &str, path: &str| (volume.to_owned(), path.to_owned());
        assert_eq!(split("qcow2:/a/b@p1:/c"), no("qcow2:/a/b@p1", "/c"));
        assert_eq!(split("vmdk:b:<12>"), no("vmdk:b", "<12>"));
        assert_eq!(split("noload:vhdx:/b:/c:/d"), no("noload:vhdx:/b", "/c:/d"));
        let both = "integrity:qcow2:/a,qcow2:/b";
        assert_eq!(split(&format!("{both}:/c")), no(both, "/c"));
        for wrong in ["qcow2:/a", "qcow2:a", both] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_anywhere(OsStr::new(wrong)).is_err(), "{wrong}");
            assert!(parse_volume_of(OsStr::new(wrong)).is_ok(), "{wrong}");
        }
    }

    #[test]
    fn a_part_of_the_image_belongs_to_the_volume() {
        let target = parse(OsStr::new("a.img@p2:/me@home")).unwrap();
        assert_eq!(target.volume.data().part, Part::Partition(2));
        assert_eq!(target.volume.data().path(), Some(Path::new("a.img")));
        assert_eq!(target.path, b"/me@home");
        assert_eq!(target.to_string(), "a.img@p2:/me@home");
    }

    #[test]
    fn host_comes_before_the_rule_of_the_colon() {
        let subject = |text: &str| parse_subject(OsStr::new(text), parse);
        for path in ["/a:/b", "a", "./host:/x"] {
            assert_eq!(subject(&format!("host:{path}")), Ok(Subject::Host(path.into())));
        }
        let Ok(Subject::Volume(target)) = subject("./host:/x") else {
            panic!("the subject is a volume")
        };
        assert_eq!(
            (target.volume.data().path(), &*target.path),
            (Some(Path::new("./host")), &b"/x"[..])
        );
        assert!(subject("host:").is_err());
        assert!(
            parse(OsStr::new("host:/x")).is_err(),
            "commands that support only volumes refuse host:"
        );
    }
}
