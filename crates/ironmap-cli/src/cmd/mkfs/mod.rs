//! `ironmap mkfs`: makes an ext4 volume on a device or in an image file.

mod advice;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{ArgAction, ValueEnum};
use ironmap::fs::ext4::{Features, Incompat, MkfsOptions, OnError, Superblock};
use ironmap::fs::uuid_text;
use ironmap::location::Medium;
use ironmap::{ErrorKind, Location};
use ironmap_image::oci::Platform;
pub(crate) use ironmap_image::uuid::parse_uuid;
use ironmap_image::{Content, Failure, Image, Report, device_name, room};
use rustix::param::page_size;

use self::advice::advice;
use crate::compress::Method;
use crate::failure::{FORCED, hint_at, overwrite};
use crate::size::size;
use crate::target;
use crate::terminal::{one_line, stdout};

/// Makes an ext4 volume on a device, in a partition of an image, or in an image file
///
/// The defaults are those of mke2fs. If SIZE is given, a missing image file is made, and a shorter image file is extended. Without --force,
/// a device or image with a file system or a partition table is refused. A device or image in use is always refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mkfs /dev/sdb1
  ironmap mkfs --label data disk.img 10G
  ironmap mkfs -d /srv/root root.img 2G
  docker export box | ironmap mkfs -d - root.img 2G
  ironmap mkfs --shrink -O ^has_journal -d tree small.img
  ironmap mkfs --oci -d base.tar.gz -d app.tar.gz root.img 2G
  skopeo copy docker://debian:12 oci:debian && ironmap mkfs --oci -d debian root.img
  ironmap mkfs -O ^has_journal,bigalloc --force disk.img@p2
  ironmap mkfs --uuid 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d --time 0 same-bytes-twice.img 64M")]
pub(crate) struct Args {
    /// The block size in bytes: 1024 to 65536, K for KiB; by default 4K, or 1K for a volume below 512 MiB
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    block_size: Option<u64>,
    /// The cluster size in bytes, with the feature bigalloc; by default 16 blocks
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = size)]
    cluster_size: Option<u64>,
    /// The inode size in bytes: 128 up to the block size; by default 256
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = size)]
    inode_size: Option<u64>,
    /// Make one inode for each BYTES of the volume; the default depends on the volume's size
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size, conflicts_with = "inodes")]
    inode_ratio: Option<u64>,
    /// The number of inodes; 0 for the default
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Features to switch on (or off, with a ^ before the name), separated by commas; 'none' switches all off; mmp is on by default for an NBD export
    #[arg(short = 'O', long, value_name = "FEATURE,...", allow_hyphen_values = true)]
    features: Vec<String>,
    /// The type, as in mke2fs: ext4, ext3 (with a journal, but without features of ext4) or ext2 (without a journal); -O changes its features
    #[arg(short = 't', long = "type", value_enum, value_name = "TYPE", default_value = "ext4")]
    kind: Kind,
    /// The label, at most 16 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: OsString,
    /// The UUID. By default, it is random. With $SOURCE_DATE_EPOCH, it is derived from that time, the label, the size and the block size
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<Uuid>,
    /// The secret of directory hashes, written as a UUID; by default the value of --uuid if given, otherwise random
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    hash_seed: Option<Uuid>,
    /// The time of creation, in seconds since 1970; by default $SOURCE_DATE_EPOCH, or now
    #[arg(long, value_name = "SECONDS")]
    time: Option<i64>,
    /// The journal size in bytes; the default depends on the volume's size. For no journal, use -O ^has_journal
    #[arg(short = 'J', long, value_name = "BYTES", value_parser = size)]
    journal_size: Option<u64>,
    /// The percentage of the blocks that is reserved for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5.0)]
    reserved: f64,
    /// The reaction to corruption: continue, remount-ro (no more changes) or panic (no reads either)
    #[arg(short = 'e', long = "errors", value_name = "BEHAVIOR", default_value = "continue")]
    on_error: OnError,
    /// The number of groups per flex group: a power of two. A flex group stores the bitmaps and the inode tables of its groups together
    #[arg(short = 'G', long, value_name = "GROUPS", default_value_t = 16)]
    flex_groups: u32,
    /// The number of consecutive blocks on one disk of a RAID
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, hide_default_value = true)]
    stride: u16,
    /// The number of data blocks in a full stripe of a RAID
    #[arg(long, value_name = "BLOCKS", default_value_t = 0, hide_default_value = true)]
    stripe_width: u32,
    /// The owner of the root directory, as numbers; by default the superuser
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    root_owner: Option<(u32, u32)>,
    /// Discard the whole device first
    #[arg(long)]
    discard: bool,
    /// Let the kernel zero the inode tables after the volume is mounted
    #[arg(long)]
    lazy_tables: bool,
    /// Overwrite a file system or a partition table; -F -F also overwrites a member of an MD array or of an LVM volume group
    #[arg(short = 'F', long, action = ArgAction::Count)]
    force: u8,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Fill the volume from a directory or a tar archive (- is an archive on standard input); can be repeated. Later sources replace files
    /// of earlier sources
    ///
    /// Owners, modes, times, links, devices, holes and extended attributes are kept. An archive may be compressed by gzip or zstd. The
    /// archive is read once, from the beginning to the end. If several members have the same name, the last member is kept.
    #[arg(short = 'd', long = "directory", value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// SOURCE is an OCI image layout, an archive of a layout, or a layer of an OCI image. Name the lowest layer first: .wh.NAME and .wh..wh..opq hide files of
    /// lower layers
    #[arg(long, requires = "sources")]
    oci: bool,
    /// Choose the image with this name or digest (seven digits are enough) if an OCI image layout has several images
    #[arg(long, value_name = "NAME", requires = "oci")]
    image: Option<String>,
    /// Choose the image for OS/ARCH or OS/ARCH/VARIANT, for example linux/arm64, if there are several; by default the image for linux and this machine
    #[arg(long, value_name = "OS/ARCH", requires = "oci")]
    platform: Option<Platform>,
    /// Give all files from SOURCE this owner, as numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, requires = "sources")]
    owner: Option<(u32, u32)>,
    /// Map the owners of files from SOURCE, by lines 'FROM-UID:FROM-GID TO-UID:TO-GID'; users and groups are mapped independently
    #[arg(long, value_name = "FILE", requires = "sources", conflicts_with = "owner")]
    owner_map: Option<PathBuf>,
    /// At the end, make devices and directories, and set owners and modes, by a table with lines 'NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT'
    #[arg(long, value_name = "FILE")]
    device_table: Option<PathBuf>,
    /// Make a new image as small as the sources allow
    #[arg(long, requires = "sources", conflicts_with = "size")]
    shrink: bool,
    /// Make VOLUME, a new qcow2 image, with compressed clusters
    #[arg(long, value_name = "METHOD", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "deflate")]
    compress: Option<Method>,
    /// A block device, an image, nbd://HOST/EXPORT, qcow2:IMAGE, IMAGE@OFFSET, IMAGE@pN, or integrity:DATA,TAGS
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// The size of the volume in bytes, with an optional K, M, G or T; by default the whole device, or for a new image the needs of the sources
    #[arg(value_parser = size)]
    size: Option<u64>,
}

type Uuid = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Ext2,
    Ext3,
    Ext4,
}

impl Kind {
    /// The default features of ext4 that this type does not have. Source: mke2fs.conf(5) of Debian.
    fn lacks(self) -> &'static [&'static str] {
        const OF_EXT4: &str = "^extent,^huge_file,^flex_bg,^metadata_csum,^metadata_csum_seed,^64bit,^dir_nlink,^extra_isize,^orphan_file";
        match self {
            Self::Ext2 => &[OF_EXT4, "^has_journal"],
            Self::Ext3 => &[OF_EXT4],
            Self::Ext4 => &[],
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.context().check_changes(&args.volume)?;
    room::refuse_name(&args.volume, None, args.force > 0)?;
    let image = args.image(report)?;
    let made = image.build_with(&args.volume, report).map_err(|failure| args.explain(failure))?;
    let block = made.block_size.bytes();
    if block > page_size() {
        report.warning(format_args!(
            "the volume has blocks of {block} bytes: most kernels can mount it only if their memory pages are at least as large"
        ));
    }
    if args.quiet { Ok(()) } else { Ok(print(args, &made)?) }
}

impl Args {
    /// The volume and its content.
    fn image(&self, report: &Report) -> Result<Image, Failure> {
        let mut image = Image::ext4().options(self.options(report)?).skip_failed(true);
        image = image.overwrite(overwrite(self.force));
        if self.shrink {
            image = image.shrink();
        }
        if let Some(method) = self.compress {
            image = image.compress(method.into());
        }
        if let Some((uid, gid)) = self.owner {
            image = image.owner(uid, gid);
        }
        if let Some(map) = &self.owner_map {
            image = image.owners(map);
        }
        if let Some(table) = &self.device_table {
            image = image.device_table(table);
        }
        Ok(self.sources.iter().fold(image, |image, path| {
            image.add(if self.oci {
                Content::oci(path).image(self.image.clone()).platform(self.platform.clone())
            } else {
                Content::path(path)
            })
        }))
    }

    /// Adds advice to a failure: the size or the option that the user can add to the command line.
    fn explain(&self, failure: Failure) -> Failure {
        let advice = failure.too_small().and_then(|small| advice(small, self));
        let missing =
            failure.is_of(ErrorKind::NotFound).then(|| self.volume.whole_file()).flatten();
        match (advice, missing) {
            (Some(advice), _) => failure.because(advice),
            (_, Some(path)) if !device_name::is_of_node(path) => failure.because(format_args!(
                "add a size to make a new image, as in ironmap mkfs {} 1G",
                path.display()
            )),
            _ => hint_at(FORCED)(failure),
        }
    }

    fn options(&self, report: &Report) -> Result<MkfsOptions, Failure> {
        let mut features = Features::MODERN;
        if matches!(self.volume.data().medium, Medium::Nbd(_)) {
            // Other machines may open the export. Only MMP (multiple mount protection) shows other machines that the volume is in use.
            features.incompat |= Incompat::MMP;
        }
        let names = self.kind.lacks().iter().copied();
        for names in names.chain(self.features.iter().map(String::as_str)) {
            features.edit(names).map_err(|error| Failure::usage(&error))?;
        }
        let source_date = report.context().source_date()?;
        // A value that does not fit into 32 bits becomes an invalid size. The library's error then lists the valid sizes.
        let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        Ok(MkfsOptions::new()
            .size(self.size)
            .block_size(self.block_size.map(small))
            .cluster_size(self.cluster_size.map(small))
            .inode_size(self.inode_size.map(|size| u16::try_from(size).unwrap_or(u16::MAX)))
            .inodes(self.inodes.filter(|count| *count > 0))
            .inode_ratio(self.inode_ratio)
            .features(features)
            .label(self.label.as_bytes().to_vec())
            .uuid(self.uuid)
            .hash_seed(self.hash_seed)
            .time(self.time.or(source_date))
            .journal_size(self.journal_size)
            .reserved_percent(self.reserved)
            .stride(self.stride)
            .stripe_width(self.stripe_width)
            .groups_per_flex(self.flex_groups)
            .on_error(self.on_error)
            .root_owner(self.root_owner.unwrap_or_default())
            .discard(self.discard)
            .lazy_tables(self.lazy_tables))
    }
}

fn print(args: &Args, sb: &Superblock) -> std::io::Result<()> {
    let mut out = stdout();
    let block = sb.block_size.bytes();
    let Superblock { blocks_count, inodes_count, groups, .. } = sb;
    writeln!(
        out,
        "{}: {blocks_count} blocks of {block} bytes, {inodes_count} inodes, {groups} groups; UUID {}",
        one_line(&args.volume.to_string()),
        uuid_text(&sb.uuid)
    )?;
    out.flush()
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once(':');
    let numbers = parts.and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text} is not UID:GID"))
}
