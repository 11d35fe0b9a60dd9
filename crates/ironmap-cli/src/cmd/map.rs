//! `ironmap map`: shows the location of a file's data, in the style of `filefrag -v`.

use ironmap::device::Segmented;
use ironmap::fs::{FileType, Follow, Inode};
use ironmap::iomap::{Iomap, IomapFlags, IomapType, MapFile, Mappings};
use ironmap::units::FilePos;
use ironmap::{Error, ErrorKind, FileOptions};
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::host_source::HostSource;
use crate::output::{Encoding, Served, print_json};
use crate::target::{self, Subject, Target};
use crate::terminal::{one_line, stdout};

/// Shows the extents of files: the locations of their blocks on the device
///
/// Blocks that are contiguous in the file and on the device are shown as one extent. Preallocated blocks past the end of a file are shown
/// for a volume's file, but not for a host file. If a host file must be read through the kernel, the reason is shown instead of the
/// extents.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap map disk.img:/var/lib/db/data
  ironmap map --json disk.img:/var/lib/db/data | jq '.extents | length'
  ironmap map host:/srv/index/segment.7")]
pub(crate) struct Args {
    /// Write a JSON object for each file, with positions and lengths in bytes
    #[arg(long)]
    json: bool,
    /// The files or directories
    #[arg(value_name = "VOLUME:/PATH|host:FILE", value_parser = target::subject(), required = true)]
    targets: Vec<Subject>,
}

/// The map of a file. Positions and lengths are in bytes.
#[derive(Serialize)]
struct MapRecord {
    /// The volume; `None` for a file of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    path: String,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    size: u64,
    block_size: u32,
    /// The extents; `None` if the kernel serves the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    extents: Option<Vec<ExtentRecord>>,
    #[serde(flatten)]
    served: Option<Served>,
}

#[derive(Serialize)]
struct ExtentRecord {
    logical: u64,
    /// The position on the device; `None` for data in the inode.
    #[serde(skip_serializing_if = "Option::is_none")]
    physical: Option<u64>,
    length: u64,
    flags: Vec<&'static str>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    report.each(&args.targets, |subject, _| {
        let record = match subject {
            Subject::Volume(target) => of_volume(&mut volumes, target)?,
            Subject::Host(path) => of_host(path)?,
        };
        if args.json { print_json(&record) } else { Ok(print(subject, &record)?) }
    })
}

fn of_volume(volumes: &mut Volumes, target: &Target) -> Result<MapRecord, Failure> {
    let inode = volumes.file(target, Follow::All)?.inode;
    let extents = checked(&inode).map_err(|error| Failure::at(target, &error))?;
    let encoding = Encoding::of([&*target.path]);
    Ok(MapRecord {
        volume: Some(target.volume.to_string()),
        path: encoding.text(&target.path),
        encoding,
        size: inode.size(),
        block_size: inode.stat().block_size,
        extents: Some(extents),
        served: None,
    })
}

fn checked(inode: &Inode) -> Result<Vec<ExtentRecord>, Error> {
    if !matches!(inode.file_type(), FileType::Regular | FileType::Directory) {
        return Err(Error::new(ErrorKind::WrongFileType, "is neither a file nor a directory"));
    }
    extents(inode, inode.size())
}

fn of_host(path: &Path) -> Result<MapRecord, Failure> {
    let (file, report) = HostSource::open()?.file(path, FileOptions::default())?;
    let (extents, report) = match extents(&file, report.size) {
        Ok(extents) => (Some(extents), report),
        // The file has lost its lease. The kernel serves its reads, so the map is not available.
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            (None, file.host().unwrap_or(report))
        }
        Err(error) => return Err(Failure::at(path.display(), &error)),
    };
    let name = path.as_os_str().as_bytes();
    let encoding = Encoding::of([name]);
    Ok(MapRecord {
        volume: None,
        path: encoding.text(name),
        encoding,
        size: report.size,
        block_size: report.block_size,
        extents,
        served: Some(Served::of(&report)),
    })
}

fn extents(file: &impl MapFile, size: u64) -> Result<Vec<ExtentRecord>, Error> {
    let mut extents = Vec::new();
    // The loop covers the complete map: unwritten extents may lie past the end of the file.
    for iomap in Mappings::new(file, FilePos(0), FilePos(i64::MAX as u64)) {
        let iomap = iomap?;
        if iomap.kind != IomapType::Hole {
            extents.push(extent(&iomap, size));
        }
        if iomap.flags.contains(IomapFlags::LAST) {
            break;
        }
    }
    if let Some(last) = extents.last_mut() {
        last.flags.insert(0, "last");
    }
    Ok(extents)
}

fn extent(iomap: &Iomap, size: u64) -> ExtentRecord {
    let journal = iomap.flags.contains(IomapFlags::JOURNAL);
    let realtime = iomap.addr.0.checked_sub(Segmented::REALTIME);
    let inline = iomap.kind == IomapType::Inline && !journal;
    let flags = [
        (iomap.kind == IomapType::Unwritten, "unwritten"),
        (inline, "inline"),
        (journal, "journal"),
        (realtime.is_some(), "realtime"),
        (iomap.pos.0 < size && iomap.end().0 >= size, "eof"),
    ];
    ExtentRecord {
        logical: iomap.pos.0,
        physical: (!inline).then_some(realtime.unwrap_or(iomap.addr.0)),
        length: iomap.len,
        flags: flags.into_iter().filter_map(|(set, name)| set.then_some(name)).collect(),
    }
}

/// Prints the map in blocks, like filefrag. The column `expected` contains the position that would make an extent contiguous with the
/// previous extent. Extents are also contiguous if their distance on the device equals their distance in the file.
fn print(target: &Subject, map: &MapRecord) -> std::io::Result<()> {
    let (name, block) = (one_line(&target.to_string()), u64::from(map.block_size));
    let (size, blocks) = (map.size, map.size.div_ceil(block));
    let mut out = stdout();
    writeln!(out, "File size of {name} is {size} ({blocks} blocks of {block} bytes)")?;
    if let Some(served) = &map.served {
        writeln!(out, "Served by {}", one_line(&served.to_string()))?;
    }
    let Some(extents) = &map.extents else { return out.flush() };
    writeln!(out, " ext:     logical_offset:        physical_offset: length:   expected: flags:")?;
    let mut found = 0;
    let mut before: Option<&ExtentRecord> = None;
    for (index, extent) in extents.iter().enumerate() {
        let gap = before.and_then(|before| gap(before, extent));
        found += u32::from(index == 0 || gap.is_some());
        before = Some(extent);
        let count = extent.length.div_ceil(block);
        let (first, last) = (extent.logical / block, extent.logical / block + count - 1);
        write!(out, "{index:4}: {first:8}..{last:8}: ")?;
        match extent.physical.map(|physical| physical / block) {
            Some(start) => write!(out, "{start:10}..{:10}: ", start + count - 1)?,
            None => write!(out, "{:>10}..{:>10}: ", "-", "-")?,
        }
        let gap = gap.map_or(String::new(), |expected| format!("{}:", expected / block));
        let line = format!("{count:6}: {gap:>11} {}", extent.flags.join(","));
        writeln!(out, "{}", line.trim_end())?;
    }
    let s = if found == 1 { "" } else { "s" };
    writeln!(out, "{name}: {found} extent{s} found")?;
    out.flush()
}

/// The position that would make an extent contiguous with the previous extent. `None` if the extents are contiguous.
fn gap(before: &ExtentRecord, extent: &ExtentRecord) -> Option<u64> {
    let expected = before.physical?.saturating_add(before.length);
    let hole = extent.logical.saturating_sub(before.logical.saturating_add(before.length));
    let follows = |at: u64| extent.physical == Some(at);
    (!follows(expected) && !follows(expected.saturating_add(hole))).then_some(expected)
}
