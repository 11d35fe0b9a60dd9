//! Shows an ext4 volume.

use std::io::Write;

use ironmap::fs::Timestamp;
use ironmap::fs::ext4::{Ext4, Journal, JournalState, RecordedErrors, Superblock};
use ironmap::fs::uuid_text;
use ironmap_image::Failure;
use ironmap_image::source::Source;
use serde::Serialize;

use super::Args;
use super::device::Device;
use crate::output::{Encoding, print_json};
use crate::show::{Clock, rfc3339};
use crate::terminal::stdout;

#[derive(Serialize)]
struct Info {
    volume: String,
    format: &'static str,
    label: String,
    last_mounted: String,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    uuid: String,
    features: Vec<String>,
    writable: bool,
    /// The reason why the volume is not writable. `None` if it is writable.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only: Option<String>,
    clean: bool,
    block_size: usize,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    cluster_size: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: u16,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    journal: JournalInfo,
    errors: Errors,
    made: Option<String>,
    mounted: Option<String>,
    written: Option<String>,
    checked: Option<String>,
    device: Device,
}

#[derive(Serialize)]
struct JournalInfo {
    state: &'static str,
    blocks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovered: Option<Recovered>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct Recovered {
    transactions: u32,
    blocks: u64,
    revoked: u64,
    fast_commits: u32,
}

#[derive(Serialize)]
struct Errors {
    /// The name of the volume's reaction to corruption.
    behavior: &'static str,
    detected: bool,
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LastError>,
}

#[derive(Serialize)]
struct LastError {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
}

pub(super) fn run(args: &Args, source: &Source, fs: &Ext4) -> Result<(), Failure> {
    let info = gather(args, source, fs);
    if args.json { print_json(&info) } else { Ok(print(&info, fs.superblock())?) }
}

fn gather(args: &Args, source: &Source, fs: &Ext4) -> Info {
    let volume = &source.volume;
    let sb = fs.superblock();
    let encoding = Encoding::of([&*sb.label, &*sb.last_mounted]);
    let features = sb.compat.names().chain(sb.incompat.names()).chain(sb.ro_compat.names());
    let time = |at: u64| (at != 0).then(|| rfc3339(seconds(at)));
    let refused = super::refused(source, &args.volume);
    let read_only = fs.check_writable().err().map(|error| error.to_string()).or(refused);
    let RecordedErrors { last, last_function, last_inode, last_block, .. } = &sb.errors;
    // In the superblock, 0 or an empty text means that a value is unknown.
    let last = LastError {
        time: (last.seconds != 0).then(|| rfc3339(*last)),
        function: (!last_function.is_empty()).then(|| last_function.clone()),
        inode: (*last_inode != 0).then_some(*last_inode),
        block: (*last_block != 0).then_some(*last_block),
    };
    Info {
        volume: args.volume.to_string(),
        format: sb.format(),
        label: encoding.text(&sb.label),
        last_mounted: encoding.text(&sb.last_mounted),
        encoding,
        uuid: uuid_text(&sb.uuid),
        features: features.collect(),
        writable: read_only.is_none(),
        read_only,
        clean: sb.clean,
        block_size: sb.block_size.bytes(),
        blocks: sb.blocks_count,
        free_blocks: sb.free_blocks,
        reserved_blocks: sb.reserved_blocks,
        cluster_size: u64::from(sb.cluster_blocks) * sb.block_size.bytes() as u64,
        inodes: sb.inodes_count,
        free_inodes: sb.free_inodes,
        inode_size: sb.inode_size,
        groups: sb.groups,
        blocks_per_group: sb.blocks_per_group,
        inodes_per_group: sb.inodes_per_group,
        journal: journal(fs.journal()),
        errors: Errors {
            behavior: sb.on_error.name(),
            detected: sb.errors.detected,
            count: sb.errors.count,
            last: (sb.errors.count != 0).then_some(last),
        },
        made: time(sb.times.made),
        mounted: time(sb.times.mounted),
        written: time(sb.times.written),
        checked: time(sb.times.checked),
        device: Device::of(volume, &args.volume),
    }
}

fn journal(journal: &Journal) -> JournalInfo {
    let (state, recovered, problem) = match &journal.state {
        JournalState::None => ("none", None, None),
        JournalState::Clean => ("clean", None, None),
        JournalState::External => ("external", None, None),
        JournalState::NotLoaded => ("not loaded", None, None),
        JournalState::Unreadable(error) => ("unreadable", None, Some(error.clone())),
        JournalState::Recovered(found) => {
            let recovered = Recovered {
                transactions: found.transactions,
                blocks: found.blocks,
                revoked: found.revoked,
                fast_commits: found.fast_commits,
            };
            ("recovered", Some(recovered), None)
        }
    };
    JournalInfo { state, blocks: journal.blocks, recovered, problem }
}

fn seconds(at: u64) -> Timestamp {
    Timestamp { seconds: i64::try_from(at).unwrap_or(i64::MAX), nanoseconds: 0 }
}

fn print(info: &Info, sb: &Superblock) -> std::io::Result<()> {
    let (mut out, clock) = (stdout(), Clock::local());
    let mut line = |label: &str, text: String| super::line(&mut out, label, &text);
    line("Volume", info.volume.clone())?;
    line("Format", info.format.to_owned())?;
    line("Label", info.label.clone())?;
    line("UUID", info.uuid.clone())?;
    line("Last mounted on", info.last_mounted.clone())?;
    line("Features", info.features.join(" "))?;
    let writable = || "can be written".to_owned();
    let access = info.read_only.as_ref().map_or_else(writable, |why| format!("read-only: {why}"));
    line("Access", access)?;
    line("State", state(info))?;
    line("Journal", journal_text(&info.journal))?;
    line("Errors", errors_text(&info.errors))?;
    line("On errors", info.errors.behavior.to_owned())?;
    let Info { blocks, block_size, free_blocks, reserved_blocks, cluster_size, .. } = info;
    line(
        "Blocks",
        format!("{blocks} of {block_size} bytes, {free_blocks} free, {reserved_blocks} reserved"),
    )?;
    if *cluster_size != *block_size as u64 {
        line("Clusters", format!("{cluster_size} bytes"))?;
    }
    let Info { inodes, inode_size, free_inodes, .. } = info;
    line("Inodes", format!("{inodes} of {inode_size} bytes, {free_inodes} free"))?;
    let Info { groups, blocks_per_group, inodes_per_group, .. } = info;
    line("Groups", format!("{groups} of {blocks_per_group} blocks and {inodes_per_group} inodes"))?;
    let times = [
        ("Made", sb.times.made),
        ("Last mounted", sb.times.mounted),
        ("Last written", sb.times.written),
        ("Last checked", sb.times.checked),
    ];
    for (label, at) in times {
        line(label, if at == 0 { "never".to_owned() } else { clock.full(seconds(at)) })?;
    }
    info.device.print(&mut line)?;
    out.flush()
}

fn state(info: &Info) -> String {
    let errors = if info.errors.detected { ", with errors" } else { "" };
    let clean = if info.clean { "clean" } else { "not unmounted cleanly" };
    format!("{clean}{errors}")
}

fn journal_text(journal: &JournalInfo) -> String {
    let size = format!("{} blocks", journal.blocks);
    match (&journal.recovered, &journal.problem, journal.state) {
        (Some(found), ..) => format!(
            "{size}, recovered in memory: {} transactions, {} blocks, {} fast commits; {} block copies were revoked",
            found.transactions, found.blocks, found.fast_commits, found.revoked
        ),
        (_, Some(problem), state) => format!("{state}: {problem}"),
        (.., "none" | "external" | "not loaded") => journal.state.to_owned(),
        (.., state) => format!("{size}, {state}"),
    }
}

fn errors_text(errors: &Errors) -> String {
    let Some(last) = &errors.last else { return "none recorded".to_owned() };
    let known = [
        last.time.as_ref().map(|time| format!("the last at {time}")),
        last.function.as_ref().map(|function| format!("in {function}")),
        last.inode.map(|inode| format!("inode {inode}")),
        last.block.map(|block| format!("block {block}")),
    ];
    let count = format!("{} recorded", errors.count);
    [Some(count)].into_iter().chain(known).flatten().collect::<Vec<_>>().join(", ")
}
