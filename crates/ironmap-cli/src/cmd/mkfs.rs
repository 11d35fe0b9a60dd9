//! `ironmap mkfs`: an ext4 volume on a device or in an image file.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ironmap::device::{BlockFile, OpenMode};
use ironmap::fs::ext4::{Features, MkfsOptions, OnError, Superblock};
use ironmap::location::{OpenOptions as OpenLocation, Part, Site};
use ironmap::{Engine, ErrorKind, Location, Volume};

use crate::cmd::cp;
use crate::epoch::source_date;
use crate::failure::{Failure, Report};
use crate::output::stdout;
use crate::show::uuid;
use crate::size::size;
use crate::source::Source;
use crate::target::{self, named};

/// Makes an ext4 volume on a device, in a partition of an image, or in an image file
///
/// What is not asked for is chosen as mke2fs chooses it. An image file that does not exist is made where a size is given, and one that
/// is shorter is extended. What holds a file system or a partition table already is refused without --force, and what is in
/// use in any case.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mkfs /dev/sdb1
  ironmap mkfs --label data disk.img 10G
  ironmap mkfs -d /srv/root root.img 2G
  ironmap mkfs -O ^has_journal,bigalloc --force disk.img@p2
  ironmap mkfs --uuid 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d --time 0 same-bytes-twice.img 64M")]
pub(crate) struct Args {
    /// Bytes of a block: 1024 to 65536, K for KiB; by default 4K, and 1K below 512 MiB
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    block_size: Option<u64>,
    /// Bytes of a cluster, with the feature bigalloc; by default 16 blocks
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = size)]
    cluster_size: Option<u64>,
    /// Bytes of an inode: 128 to a block; by default 256
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = size)]
    inode_size: Option<u64>,
    /// Make one inode for so many bytes of the volume; by default by its size
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size, conflicts_with = "inodes")]
    inode_ratio: Option<u64>,
    /// Make so many inodes; 0 for as many as by default
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Features to switch on, or off with a ^ before the name, with commas between them; 'none' switches off all
    #[arg(short = 'O', long, value_name = "FEATURE,...", allow_hyphen_values = true)]
    features: Vec<String>,
    /// The label, at most 16 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: OsString,
    /// The UUID; by default a random one, or with $SOURCE_DATE_EPOCH one made of that, label, size and block size
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<Uuid>,
    /// The secret of directory hashes, written as a UUID; by default the UUID where that is given, else random
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    hash_seed: Option<Uuid>,
    /// When everything was made, in seconds since 1970; by default $SOURCE_DATE_EPOCH, or now
    #[arg(long, value_name = "SECONDS")]
    time: Option<i64>,
    /// Bytes of the journal; by default by the volume's size. Without a journal: -O ^has_journal
    #[arg(short = 'J', long, value_name = "BYTES", value_parser = size)]
    journal_size: Option<u64>,
    /// Percentage of the blocks that is kept for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5.0)]
    reserved: f64,
    /// What becomes of the volume when corruption is met: continue, remount-ro (nothing is changed any more) or panic (nor read)
    #[arg(short = 'e', long = "errors", value_name = "BEHAVIOR", default_value = "continue")]
    on_error: OnError,
    /// Groups whose bitmaps and inode tables lie together: a power of two
    #[arg(short = 'G', long, value_name = "GROUPS", default_value_t = 16)]
    flex_groups: u32,
    /// Blocks that a member of a RAID holds in a row
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, hide_default_value = true)]
    stride: u16,
    /// Blocks of data of a whole stripe of a RAID
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, hide_default_value = true)]
    stripe_width: u32,
    /// Who owns the root directory, by number; by default the superuser
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    root_owner: Option<(u32, u32)>,
    /// Tell the device first that it holds nothing
    #[arg(long)]
    discard: bool,
    /// Leave it to the kernel to zero the inode tables once the volume is mounted
    #[arg(long)]
    lazy_tables: bool,
    /// Do it although there is a file system or a partition table already
    #[arg(short = 'F', long)]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Fill it with what this directory holds, with owners, modes, times, links and attributes
    #[arg(short, long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// A block device, an image, IMAGE@OFFSET, IMAGE@pN, or integrity:DATA,TAGS
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// Bytes of the volume, with an optional K, M, G or T; by default the whole device
    #[arg(value_parser = size)]
    size: Option<u64>,
}

type Uuid = [u8; 16];

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if crate::source::no_load() || matches!(args.volume, Location::NoLoad(_)) {
        return Err(Failure::usage("noload: without its journal a volume is only read"));
    }
    let mut options = args.options()?;
    if let Some(dir) = &args.directory {
        let found = dir.metadata().map_err(|error| Failure::host(dir.display(), error))?;
        if !found.is_dir() {
            return Err(Failure::host(dir.display(), rustix::io::Errno::NOTDIR));
        }
    }
    let room = make_room(args)?;
    options.zeroed = room == Room::New;
    let path = &args.volume.data().path;
    let superblock = make(args, &options).inspect_err(|_| room.undo(path))?;
    if let Some(dir) = &args.directory {
        fill(args, dir, options.time, &superblock, report)?;
    }
    if args.quiet { Ok(()) } else { Ok(print(args, &superblock)?) }
}

/// Copies a directory into the new volume.
fn fill(
    args: &Args,
    dir: &Path,
    time: Option<i64>,
    superblock: &Superblock,
    report: &mut Report,
) -> Result<(), Failure> {
    let source = Rc::new(Source::open_at(&args.volume, time)?);
    let filled = cp::into::fill(&source, dir, report);
    let closed = source.close();
    filled.and(closed).map_err(|failure| {
        let needs = failure.is_for_space().then(|| Needs::of(dir, superblock)).and_then(Result::ok);
        match needs.and_then(|needs| needs.advice(args, dir, superblock)) {
            Some(advice) => failure.because(advice),
            None => failure,
        }
    })
}

/// What a tree takes of a volume.
#[derive(Default)]
struct Needs {
    inodes: u64,
    /// In whole blocks or clusters.
    bytes: u64,
}

impl Needs {
    fn of(dir: &Path, made: &Superblock) -> std::io::Result<Self> {
        // A larger volume has blocks of 4096 bytes.
        let block = made.block_size.bytes() as u64;
        let block = (block * u64::from(made.cluster_blocks)).max(4096);
        let (mut needs, mut seen, mut pending) =
            (Self::default(), HashSet::new(), vec![dir.to_owned()]);
        while let Some(dir) = pending.pop() {
            let mut names = 0;
            for entry in std::fs::read_dir(&dir)? {
                let (name, path) = {
                    let entry = entry?;
                    (entry.file_name(), entry.path())
                };
                // An entry has a head of eight bytes, and blocks of entries are two thirds full.
                names += (name.len() as u64 + 12) * 3 / 2;
                let stat = path.symlink_metadata()?;
                if stat.is_dir() {
                    pending.push(path);
                } else if stat.nlink() < 2 || seen.insert((stat.dev(), stat.ino())) {
                    let data = cp::into::data_of(&path, &stat, block);
                    let outside =
                        if stat.is_symlink() && stat.len() > IN_INODE { block } else { 0 };
                    needs.inodes += 1;
                    needs.bytes += data + outside + attributes_of(&path).next_multiple_of(block);
                }
            }
            needs.inodes += 1;
            needs.bytes += names.max(1).next_multiple_of(block);
        }
        Ok(needs)
    }

    /// What the volume is too small for, and what should do: a third for the volume's own metadata is plenty. `None` where it should have done,
    /// and something else is wrong.
    fn advice(&self, args: &Args, dir: &Path, made: &Superblock) -> Option<String> {
        const MIB: u64 = 1 << 20;
        let Self { inodes, bytes } = *self;
        let (size, count) =
            (made.blocks_count * made.block_size.bytes() as u64, u64::from(made.inodes_count));
        // Some are the file system's own.
        let few = inodes + 16 > count;
        let (wanted, inode_size) = (inodes + 64, u64::from(made.inode_size));
        let room = bytes + bytes / 3 + args.journal_size.unwrap_or(0) + 8 * MIB;
        // Bytes for each inode: 16 KiB are the most by default.
        let usual = (size / count.max(1)).max(1);
        let (room, for_inodes) = match args.inodes {
            Some(_) => (room + wanted.max(count) * inode_size, 0),
            None => {
                let usual = if wanted * usual < 512 * MIB { usual } else { usual.max(16 << 10) };
                (room + room / usual * inode_size * 2, wanted * usual)
            }
        };
        let enough = room.max(for_inodes).div_ceil(MIB);
        let (dir, bytes) = (dir.display(), bytes.div_ceil(MIB));
        let takes = format!("{dir} takes {inodes} inodes and about {bytes}M");
        match args.inodes {
            Some(_) if few => {
                let enough = enough.max(size.div_ceil(MIB));
                Some(format!("{takes}: {wanted} --inodes and {enough}M should do"))
            }
            _ if enough * MIB <= size => None,
            _ => Some(format!("the volume is too small for {takes}: {enough}M should do")),
        }
    }
}

/// A link is in its inode up to this length.
const IN_INODE: u64 = 59;

/// About how much room the extended attributes of a file take.
fn attributes_of(path: &Path) -> u64 {
    let mut names = vec![0; 64 << 10];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names) else { return 0 };
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| rustix::fs::lgetxattr(path, name, &mut [0_u8; 0][..]).unwrap_or(0);
    // An entry has a head of 16 bytes.
    names.map(|name| (name.len() + value(name) + 20) as u64).sum()
}

fn make(args: &Args, options: &MkfsOptions) -> Result<Superblock, Failure> {
    let how = OpenLocation { engine: Engine::Psync, write: true, force: false };
    let opened = args.volume.open(&how).map_err(|error| Failure::open(&error))?;
    let size = args.size.unwrap_or(opened.device.size());
    let derived = source_date()?.map(|time| derived_uuid(args, size, time));
    let options = MkfsOptions { uuid: options.uuid.or(derived), ..options.clone() };
    let superblock = Volume::make(&*opened.device, &options).map_err(|error| {
        let asked = error.kind() == ErrorKind::InvalidInput;
        let error = named(&args.volume, error);
        if asked { Failure::usage(&error) } else { Failure::open(&error) }
    })?;
    if let Some(integrity) = opened.integrity {
        integrity.device.close().map_err(|error| Failure::at(&args.volume, &error))?;
    }
    Ok(superblock)
}

/// What was done to an image to give it the size that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// It was made.
    New,
    /// It was extended from this length.
    Extended(u64),
    /// Nothing.
    Old,
}

impl Room {
    /// No volume was made: the image is as it was. Nothing helps if that fails too.
    fn undo(self, path: &Path) {
        let _ = match self {
            Self::New => std::fs::remove_file(path),
            Self::Extended(len) => set_len(path, len),
            Self::Old => Ok(()),
        };
    }
}

/// Makes an image of the size that was asked for, or extends one.
fn make_room(args: &Args) -> Result<Room, Failure> {
    let Location::Plain(Site { path, part: Part::Whole }) = &args.volume else {
        return Ok(Room::Old);
    };
    let Some(size) = args.size else { return Ok(Room::Old) };
    let failed = |error| Failure::host(path.display(), error);
    match File::create_new(path) {
        Ok(file) => file.set_len(size).map(|()| Room::New).map_err(failed),
        Err(error) if error.kind() == IoErrorKind::AlreadyExists => extend(path, size),
        Err(error) => Err(failed(error)),
    }
}

fn extend(path: &Path, size: u64) -> Result<Room, Failure> {
    let failed = |error| Failure::host(path.display(), error);
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() >= size {
        return Ok(Room::Old);
    }
    // Not that of somebody who has it.
    let mode = OpenMode { write: true, ..OpenMode::default() };
    drop(BlockFile::open(path, &mode).map_err(|error| Failure::open(&error))?);
    set_len(path, size).map(|()| Room::Extended(metadata.len())).map_err(failed)
}

fn set_len(path: &Path, len: u64) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(len)
}

impl Args {
    fn options(&self) -> Result<MkfsOptions, Failure> {
        let mut features = Features::MODERN;
        for names in &self.features {
            features.edit(names).map_err(|error| Failure::usage(&error))?;
        }
        let source_date = source_date()?;
        // What does not fit the type is no size that there is; the library says which there are.
        let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        Ok(MkfsOptions {
            size: self.size,
            block_size: self.block_size.map(small),
            cluster_size: self.cluster_size.map(small),
            inode_size: self.inode_size.map(|size| u16::try_from(size).unwrap_or(u16::MAX)),
            inodes: self.inodes.filter(|count| *count > 0),
            inode_ratio: self.inode_ratio,
            features,
            label: self.label.as_bytes().to_vec(),
            uuid: self.uuid,
            hash_seed: self.hash_seed,
            time: self.time.or(source_date),
            journal_size: self.journal_size,
            reserved_percent: self.reserved,
            stride: self.stride,
            stripe_width: self.stripe_width,
            groups_per_flex: self.flex_groups,
            on_error: self.on_error,
            root_owner: self.root_owner.unwrap_or_default(),
            discard: self.discard,
            zeroed: false,
            lazy_tables: self.lazy_tables,
            force: self.force,
        })
    }
}

/// The UUID of a reproducible build: what is asked for in the same words, of the same size, gets the same one, of version 8, variant 1 of
/// RFC 9562.
fn derived_uuid(args: &Args, size: u64, time: i64) -> Uuid {
    let Args { block_size, label, .. } = args;
    // FNV-1a of 128 bits.
    let words = format!("{time} {size} {block_size:?} {label:?}");
    let hash = words.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    let mut uuid = hash.to_be_bytes();
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn print(args: &Args, sb: &Superblock) -> std::io::Result<()> {
    let mut out = stdout();
    let block = sb.block_size.bytes();
    let Superblock { blocks_count, inodes_count, groups, .. } = sb;
    writeln!(
        out,
        "{}: {blocks_count} blocks of {block} bytes, {inodes_count} inodes, {groups} groups; UUID {}",
        args.volume,
        uuid(&sb.uuid)
    )?;
    out.flush()
}

fn parse_uuid(text: &str) -> Result<Uuid, String> {
    let wrong = || format!("{text} is no UUID");
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    let byte = |pair: &[u8; 2]| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
    };
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once(':');
    let numbers = parts.and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text} is not UID:GID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_bytes_with_or_without_dashes() {
        let bytes = parse_uuid("00112233-4455-6677-8899-aAbBcCdDeEfF").unwrap();
        assert_eq!(bytes[..3], [0, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xFF);
        assert_eq!(parse_uuid("00112233445566778899aabbccddeeff"), Ok(bytes));
        for wrong in
            ["", "0011", "00112233-4455-6677-8899-aabbccddeef", "g0112233445566778899aabbccddeeff"]
        {
            assert!(parse_uuid(wrong).is_err(), "{wrong}");
        }
    }
}
