//! `ironmap disk`: makes a whole disk, with a partition table, partitions and their content.

use std::io::Write;
use std::path::PathBuf;

use clap::ArgAction;
use ironmap::fs::uuid_text;
use ironmap::{Location, Part};
use ironmap_image::disk::{Disk, DiskPart, MadeDisk, MadePart, kind_name};
use ironmap_image::uuid::{Uuid, parse_uuid};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::cmd::verity::hexadecimal;
use crate::failure::{FORCED, hint_at, overwrite};
use crate::output::print_json;
use crate::size::size;
use crate::target;
use crate::terminal::{one_line, stdout};

/// Makes a disk: a GPT, partitions, and their content, in an image file or on a device
///
/// An image file is made under a temporary name, and gets its name when it is complete. A device or image with known content is refused without
/// --force. With $SOURCE_DATE_EPOCH, equal sources give equal bytes.
///
/// PART is TYPE:SIZE[:KEY=VALUE,...]. TYPE is a name of the Discoverable Partitions Specification (esp, xbootldr, root, root-verity, usr, home, srv, var, tmp,
/// swap, linux-generic, root-arm64, ...), linux-lvm, linux-raid, bios-boot or a GUID. SIZE is a number of bytes with an optional K, M, G or T; rest, for the
/// remaining space; or min, for the smallest size of the content. Keys: fs (ext4, fat, swap, verity, none), files (a directory, or an archive for ext4; can be
/// repeated), label, fs-label, guid, fs-uuid, attrs (required, no-block-io, legacy-boot, grow-file-system, read-only, no-auto, joined by +), owner (UID:GID).
/// The usual fs is fat for esp and xbootldr, swap for swap, verity for root-verity, and ext4 for other partitions with files. \, is a comma in a value.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap disk disk.img 4G --part esp:256M:files=efi --part root:rest:files=tree,label=root
  ironmap disk usr.img --part usr:min:files=tree --part usr-verity:min
  ironmap disk disk.img 8G --from parts.txt
  ironmap disk --force /dev/sdb --part esp:512M --part swap:2G --part root:rest:fs=ext4")]
pub(crate) struct Args {
    /// A partition, after the others; can be repeated
    #[arg(short, long = "part", value_name = "PART")]
    parts: Vec<String>,
    /// Read partitions from a file, one PART per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Derive all GUIDs, UUIDs and salts that are not given from this text; by default they are random, or derived from $SOURCE_DATE_EPOCH
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// The GUID of the disk
    #[arg(long, value_parser = parse_uuid)]
    guid: Option<Uuid>,
    /// The sector size of an image: 512 or 4096; by default 512. A block device has its own sector size
    #[arg(long, value_name = "BYTES", value_parser = size)]
    sector_size: Option<u64>,
    /// Overwrite a file system or a partition table; -F -F also overwrites a member of an MD array or of an LVM volume group
    #[arg(short = 'F', long, action = ArgAction::Count)]
    force: u8,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// An image file, a block device, nbd://HOST/EXPORT or qcow2:IMAGE
    #[arg(value_name = "DISK", value_parser = target::volume())]
    disk: Location,
    /// The size of the disk in bytes, with an optional K, M, G or T; by default the needs of the partitions, or with a rest the size of an existing image. A
    /// device keeps its size
    #[arg(value_parser = size)]
    size: Option<u64>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut disk = Disk::new().overwrite(overwrite(args.force));
    if let Some(size) = args.size {
        disk = disk.size(size);
    }
    if let Some(size) = args.sector_size {
        disk = disk.sector_size(u32::try_from(size).unwrap_or(u32::MAX));
    }
    if let Some(guid) = args.guid {
        disk = disk.guid(guid);
    }
    if let Some(seed) = &args.seed {
        disk = disk.seed(seed);
    }
    for part in args.parts()? {
        disk = disk.part(part);
    }
    let made = disk.build_with(&args.disk, report).map_err(hint_at(FORCED))?;
    if args.json {
        print_json(&Shown::new(&made))?;
    } else if !args.quiet {
        print(args, &made)?;
    }
    Ok(())
}

impl Args {
    /// The partitions of the file, and then those of the command line.
    fn parts(&self) -> Result<Vec<DiskPart>, Failure> {
        let mut parts = Vec::new();
        if let Some(path) = &self.from {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| Failure::host(path.display(), error))?;
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let part = DiskPart::parse(line);
                parts.push(part.map_err(|failure| {
                    Failure::usage(format!("{} line {number}: {failure}", path.display()))
                })?);
            }
        }
        for text in &self.parts {
            let part = DiskPart::parse(text);
            parts
                .push(part.map_err(|failure| Failure::usage(format!("--part {text}: {failure}")))?);
        }
        if parts.is_empty() {
            let what =
                "a disk needs partitions: write --part TYPE:SIZE, as in --part root:rest:fs=ext4";
            return Err(Failure::usage(what));
        }
        Ok(parts)
    }
}

/// A disk, for JSON.
#[derive(Serialize)]
struct Shown {
    size: u64,
    sector_size: u64,
    guid: String,
    partitions: Vec<ShownPart>,
}

#[derive(Serialize)]
struct ShownPart {
    number: usize,
    r#type: String,
    type_guid: String,
    guid: String,
    start: u64,
    size: u64,
    label: String,
    content: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    root_hash: Option<String>,
}

impl Shown {
    fn new(made: &MadeDisk) -> Self {
        let parts = made.parts.iter().zip(1..).map(|(part, number)| ShownPart {
            number,
            r#type: kind_name(&part.kind),
            type_guid: uuid_text(&part.kind),
            guid: uuid_text(&part.guid),
            start: part.start,
            size: part.len,
            label: part.label.clone(),
            content: part.content,
            root_hash: part.root_hash.map(|hash| hexadecimal(&hash)),
        });
        Self {
            size: made.size,
            sector_size: made.sector,
            guid: uuid_text(&made.guid),
            partitions: parts.collect(),
        }
    }
}

fn print(args: &Args, made: &MadeDisk) -> std::io::Result<()> {
    let mut out = stdout();
    let disk = one_line(&args.disk.to_string());
    writeln!(out, "{disk}: {} bytes; GUID {}", made.size, uuid_text(&made.guid))?;
    for (part, number) in made.parts.iter().zip(1..) {
        let MadePart { kind, guid, start, len, label, content, root_hash, .. } = part;
        let content = if content.is_empty() { "no content" } else { content };
        let place = Location::Plain(args.disk.data().within(Part::Partition(number)));
        let place = one_line(&place.to_string());
        write!(
            out,
            "{place}: {}, {len} bytes at {start}, {content}; GUID {}",
            kind_name(kind),
            uuid_text(guid)
        )?;
        if !label.is_empty() {
            write!(out, ", label {}", one_line(label))?;
        }
        writeln!(out)?;
        if let Some(hash) = root_hash {
            writeln!(out, "{place}: root hash {}", hexadecimal(hash))?;
        }
    }
    out.flush()
}
