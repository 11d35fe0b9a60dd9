//! Parses the description of a partition. An error message names the wrong word, and explains the mistake.

use std::path::PathBuf;

use ironmap::partition::kinds;

use super::{DiskPart, Fill, PartSize};
use crate::image::Image;
use crate::size;
use crate::uuid::parse_uuid;

/// The names of attributes, and their bits.
const ATTRIBUTES: [(&str, u8); 6] = [
    ("required", 0),
    ("no-block-io", 1),
    ("legacy-boot", 2),
    ("grow-file-system", 59),
    ("read-only", 60),
    ("no-auto", 63),
];

/// Returns the type with this name or GUID.
pub(super) fn kind(text: &str) -> Result<[u8; 16], String> {
    kinds::by_name(text).or_else(|| parse_uuid(text).ok()).ok_or_else(|| {
        format!(
            "{text} is not a partition type: write esp, xbootldr, root, root-verity, usr, home, srv, var, tmp, swap, linux-generic or another name of the Discoverable Partitions Specification, or a GUID"
        )
    })
}

fn part_size(text: &str) -> Result<PartSize, String> {
    match text {
        "rest" => Ok(PartSize::Rest),
        "min" => Ok(PartSize::Min),
        _ => size::some(text).map(PartSize::Bytes).map_err(|error| {
            format!(
                "{error}: write a size such as 512M, rest (all other space) or min (for the files)"
            )
        }),
    }
}

fn attributes(text: &str) -> Result<u64, String> {
    let hexadecimal = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    if let Some(Ok(bits)) = hexadecimal {
        return Ok(bits);
    }
    text.split('+').try_fold(0, |bits, name| {
        let known = ATTRIBUTES.iter().find(|(known, _)| *known == name);
        let (_, bit) = known.ok_or_else(|| {
            let names = ATTRIBUTES.map(|(name, _)| name).join(", ");
            format!(
                "attrs={name} is not known: write {names}, joined by +, or a number such as 0x4"
            )
        })?;
        Ok(bits | 1 << bit)
    })
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let numbers =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("owner={text} is not an owner: write numbers, as in owner=0:0"))
}

/// Splits a text at its commas. `\,` is a comma in a word.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let word = words.last_mut().filter(|_| char != ',');
        match word {
            Some(word) if char == '\\' && chars.peek() == Some(&',') => {
                word.extend(chars.next());
            }
            Some(word) => word.push(char),
            None => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The keys that together determine the content of a partition.
#[derive(Default)]
struct Content {
    fs: Option<String>,
    files: Vec<PathBuf>,
    owner: Option<(u32, u32)>,
}

/// Parses a description: see [`DiskPart::parse`].
pub(super) fn parse(text: &str) -> Result<DiskPart, String> {
    let (name, rest) = text.split_once(':').ok_or_else(|| {
        format!("{text} has no size: write TYPE:SIZE, as in {text}:512M or {text}:rest")
    })?;
    let (size, options) = rest.split_once(':').unwrap_or((rest, ""));
    kind(name)?;
    let mut part = DiskPart::new(name, part_size(size)?).map_err(|failure| failure.to_string())?;
    let mut content = Content::default();
    for word in words(options) {
        let (key, value) = word.split_once('=').unwrap_or((&word, ""));
        if value.is_empty() {
            return Err(format!("{key} has no value: write {key}=VALUE"));
        }
        let uuid = || parse_uuid(value).map_err(|error| format!("{key}: {error}"));
        match key {
            "fs" => content.fs = Some(value.to_owned()),
            "files" => content.files.push(value.into()),
            "owner" => content.owner = Some(owner(value)?),
            "label" => part.label = value.to_owned(),
            "guid" => part.guid = Some(uuid()?),
            "attrs" => part.attributes |= attributes(value)?,
            "fs-label" => part.fs_label = Some(value.to_owned()),
            "fs-uuid" => part.fs_uuid = Some(uuid()?),
            _ => {
                return Err(format!(
                    "{key} is not a key: write fs, files, label, guid, attrs, fs-label, fs-uuid or owner"
                ));
            }
        }
    }
    part.fill = fill(name, &part, content)?;
    Ok(part)
}

/// Returns the content of a partition, from the keys of its description.
fn fill(name: &str, part: &DiskPart, content: Content) -> Result<Fill, String> {
    let Content { fs, files, owner } = content;
    let usual = match part.kind_name().as_str() {
        "esp" | "xbootldr" => "fat",
        "swap" => "swap",
        known if known.ends_with("-verity") => "verity",
        _ if !files.is_empty() => "ext4",
        _ => "none",
    };
    let fs = fs.as_deref().unwrap_or(usual);
    if !files.is_empty() && !matches!(fs, "ext4" | "fat") {
        return Err(format!("files: a partition with fs={fs} has no files"));
    }
    if owner.is_some() && fs != "ext4" {
        return Err(format!("owner: the files of a partition with fs={fs} have no owners"));
    }
    Ok(match fs {
        "none" => Fill::Nothing,
        "swap" => Fill::Swap,
        "fat" | "vfat" => Fill::Fat(files),
        "verity" if kinds::verified_by(&part.kind).is_some() => Fill::Verity,
        "verity" => {
            return Err(format!(
                "fs=verity: the type {name} is not a type of hash trees: write a type such as root-verity"
            ));
        }
        "ext4" => {
            let image = files.into_iter().fold(Image::ext4(), Image::add);
            Fill::Volume(Box::new(match owner {
                Some((uid, gid)) => image.owner(uid, gid),
                None => image,
            }))
        }
        _ => return Err(format!("fs={fs} is not known: write ext4, fat, swap, verity or none")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message for a wrong word names the word and explains the mistake.
    #[test]
    fn a_wrong_word_is_named() {
        for (text, expected) in [
            ("esp", "esp has no size: write TYPE:SIZE"),
            ("rot:1G", "rot is not a partition type: write esp"),
            ("root:big", "big is not a size: write a size such as 512M, rest"),
            ("root:0", "0 is not a size above 0"),
            ("root:1G:label", "label has no value: write label=VALUE"),
            ("root:1G:lable=x", "lable is not a key: write fs, files, label"),
            ("root:1G:fs=xfs", "fs=xfs is not known: write ext4, fat"),
            ("root:1G:guid=7", "guid: 7 is not a UUID"),
            ("root:1G:attrs=readonly", "attrs=readonly is not known: write required"),
            ("root:1G:fs=ext4,owner=me", "owner=me is not an owner: write numbers"),
            ("esp:1G:owner=0:0", "owner: the files of a partition with fs=fat have no owners"),
            ("swap:1G:files=tree", "files: a partition with fs=swap has no files"),
            ("home:1G:fs=verity", "write a type such as root-verity"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// The type of a partition determines its default content. A value may contain commas.
    #[test]
    fn a_description_is_read() {
        let part = parse(r"esp:256M:files=a\,b/,files=c,label=EFI system,attrs=required+no-auto");
        let part = part.unwrap();
        assert_eq!(part.size, PartSize::Bytes(256 << 20));
        assert_eq!((part.label.as_str(), part.attributes), ("EFI system", 1 << 63 | 1));
        assert!(
            matches!(&part.fill, Fill::Fat(files) if *files == [PathBuf::from("a,b/"), "c".into()])
        );
        for (text, expected) in [
            ("root:rest", "Nothing"),
            ("root:min:files=tree", "Volume"),
            ("swap:1G", "Swap"),
            ("usr-arm64-verity:min", "Verity"),
            ("0FC63DAF-8483-4772-8E79-3D69D8477DE4:8M:fs=ext4", "Volume"),
            ("esp:8M:fs=none", "Nothing"),
        ] {
            let fill = format!("{:?}", parse(text).unwrap().fill);
            assert!(fill.starts_with(expected), "{text}: {fill}");
        }
    }
}
