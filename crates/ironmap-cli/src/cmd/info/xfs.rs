//! Shows an XFS volume.

use std::collections::BTreeMap;
use std::io::Write;

use ironmap::fs::uuid_text;
use ironmap::fs::xfs::{Superblock, Xfs};
use ironmap_image::Failure;
use ironmap_image::source::Source;
use serde::Serialize;

use super::Args;
use super::device::Device;
use crate::output::{Encoding, print_json};
use crate::terminal::stdout;

const READ_ONLY: &str = "only existing data of files can be overwritten";

#[derive(Serialize)]
struct Info {
    volume: String,
    format: &'static str,
    version: u8,
    label: String,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    uuid: String,
    features: Vec<String>,
    writable: bool,
    /// The reason why the volume is not writable.
    read_only: String,
    clean: bool,
    block_size: usize,
    blocks: u64,
    free_blocks: u64,
    sector_size: usize,
    directory_block_size: usize,
    inodes: u64,
    free_inodes: u64,
    inode_size: usize,
    groups: u32,
    blocks_per_group: u32,
    realtime_blocks: u64,
    log: Log,
    device: Device,
}

#[derive(Serialize)]
struct Log {
    state: &'static str,
    blocks: u32,
    external: bool,
    transactions: u64,
    /// The number of changes to extent maps and extended attributes that recovery finished in memory.
    finished: u64,
    finished_attributes: u64,
    /// The number of operations of each kind that the kernel will finish when it mounts the volume.
    unfinished: BTreeMap<&'static str, u64>,
}

pub(super) fn run(args: &Args, source: &Source, fs: &Xfs) -> Result<(), Failure> {
    let info = gather(args, source, fs);
    if args.json { print_json(&info) } else { Ok(print(&info)?) }
}

fn gather(args: &Args, source: &Source, fs: &Xfs) -> Info {
    let (sb, log): (&Superblock, _) = (fs.superblock(), fs.log());
    let encoding = Encoding::of([&*sb.label]);
    let (groups, blocks_per_group) = sb.groups();
    let (inodes, free_inodes) = sb.inodes();
    let (log_blocks, external) = sb.log();
    Info {
        volume: args.volume.to_string(),
        format: "xfs",
        version: sb.version,
        label: encoding.text(&sb.label),
        encoding,
        uuid: uuid_text(&sb.uuid),
        features: sb.features(),
        writable: false,
        read_only: super::refused(source, &args.volume).unwrap_or_else(|| READ_ONLY.to_owned()),
        clean: !log.recovered,
        block_size: sb.block_size(),
        blocks: sb.blocks(),
        free_blocks: sb.free_blocks(),
        sector_size: sb.sector_size(),
        directory_block_size: sb.directory_block_size(),
        inodes,
        free_inodes,
        inode_size: sb.inode_size(),
        groups,
        blocks_per_group,
        realtime_blocks: sb.realtime_blocks,
        log: Log {
            state: if log.recovered { "recovered" } else { "clean" },
            blocks: log_blocks,
            external,
            transactions: log.transactions,
            finished: log.finished,
            finished_attributes: log.finished_attributes,
            unfinished: log.unfinished.iter().copied().collect(),
        },
        device: Device::of(&source.volume, &args.volume),
    }
}

fn print(info: &Info) -> std::io::Result<()> {
    let mut out = stdout();
    let mut line = |label: &str, text: String| super::line(&mut out, label, &text);
    line("Volume", info.volume.clone())?;
    line("Format", format!("{}, version {}", info.format, info.version))?;
    line("Label", info.label.clone())?;
    line("UUID", info.uuid.clone())?;
    line("Features", info.features.join(" "))?;
    line("Access", format!("read-only: {}", info.read_only))?;
    let state = if info.clean { "clean" } else { "not unmounted cleanly" };
    line("State", state.to_owned())?;
    let external = if info.log.external { ", on a separate device" } else { "" };
    let recovered = match info.log.transactions {
        0 => String::new(),
        count => format!(", recovered in memory: {count} transactions"),
    };
    line("Log", format!("{} blocks, {}{external}{recovered}", info.log.blocks, info.log.state))?;
    if info.log.finished > 0 {
        let (all, attributes) = (info.log.finished, info.log.finished_attributes);
        let maps = all - attributes;
        line(
            "Finished",
            format!("in memory: {maps} map changes and {attributes} attribute changes"),
        )?;
    }
    for (what, count) in &info.log.unfinished {
        line("Not finished", format!("{count} times {what}"))?;
    }
    let Info { blocks, block_size, free_blocks, .. } = info;
    line("Blocks", format!("{blocks} of {block_size} bytes, {free_blocks} free"))?;
    let Info { sector_size, directory_block_size, .. } = info;
    line("Sectors", format!("{sector_size} bytes"))?;
    line("Directories", format!("blocks of {directory_block_size} bytes"))?;
    let Info { inodes, free_inodes, inode_size, .. } = info;
    line("Inodes", format!("{inodes} of {inode_size} bytes, {free_inodes} free"))?;
    line("Groups", format!("{} of {} blocks", info.groups, info.blocks_per_group))?;
    if info.realtime_blocks > 0 {
        line("Realtime", format!("{} blocks", info.realtime_blocks))?;
    }
    info.device.print(&mut line)?;
    out.flush()
}
