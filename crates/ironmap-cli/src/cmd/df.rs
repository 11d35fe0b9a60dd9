//! `ironmap df`: shows the free space of volumes.

use std::io::Write;

use ironmap::fs::Usage;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::show::human;
use crate::target::{self, Target};
use crate::terminal::{one_line, stdout};

/// Shows the size and the free space of volumes, in KiB
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap df -h /dev/sdb1 disk.img@p2
  ironmap df -i disk.img"
)]
pub(crate) struct Args {
    /// Show sizes as 1.5K, 234M, 2G
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Show inodes, not space
    #[arg(short, long)]
    inodes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The volumes; VOLUME:/PATH means its volume
    #[arg(value_name = "VOLUME", value_parser = target::tree(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let headings = match (args.inodes, args.human_readable) {
        (true, _) => ["Filesystem", "Inodes", "IUsed", "IFree", "IUse%"],
        (false, true) => ["Filesystem", "Size", "Used", "Avail", "Use%"],
        (false, false) => ["Filesystem", "1K-blocks", "Used", "Available", "Use%"],
    };
    let mut rows = vec![headings.map(str::to_owned)];
    report.each(&args.targets, |target, _| {
        let usage = volumes.open(&target.volume)?.fs().usage();
        rows.push(row(args, one_line(&target.volume.to_string()), &usage));
        Ok(())
    })?;
    if rows.len() == 1 {
        return Ok(());
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let [name_w, size_w, used_w, free_w, percent_w] = widths;
    let mut out = stdout();
    for [name, size, used, free, percent] in &rows {
        writeln!(
            out,
            "{name:name_w$} {size:>size_w$} {used:>used_w$} {free:>free_w$} {percent:>percent_w$}"
        )?;
    }
    Ok(out.flush()?)
}

fn row(args: &Args, name: String, usage: &Usage) -> [String; 5] {
    let (all, free, available) = if args.inodes {
        (usage.inodes, usage.free.inodes, usage.free.inodes)
    } else {
        (usage.blocks, usage.free.blocks, usage.free.available)
    };
    let used = all.saturating_sub(free);
    let unit = if args.inodes { 1 } else { u64::from(usage.block_size) };
    let shown = |count: u64| {
        let count = count.saturating_mul(unit);
        match (args.human_readable, args.inodes) {
            (true, _) => human(count),
            (false, true) => count.to_string(),
            (false, false) => count.div_ceil(1024).to_string(),
        }
    };
    // The percentage is relative to the space for users. The blocks that are reserved for the superuser are not a part of this space.
    let whole = u128::from(used) + u128::from(available);
    let percent = match whole {
        0 => "-".to_owned(),
        whole => format!("{}%", (u128::from(used) * 100).div_ceil(whole)),
    };
    [name, shown(all), shown(used), shown(available), percent]
}
