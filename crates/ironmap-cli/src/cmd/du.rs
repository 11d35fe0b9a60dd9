//! `ironmap du`: shows the space that trees use.

use std::collections::HashSet;
use std::io::{self, Write};
use std::rc::Rc;

use ironmap::fs::Follow;
use ironmap::units::InodeNo;
use ironmap_image::source::Source;
use ironmap_image::volumes::{Found, Volumes};
use ironmap_image::walk::{Visit, walk};
use ironmap_image::{Failure, Report};

use crate::show::human;
use crate::target::{self, Target};
use crate::terminal::{Out, stdout};

/// Shows the space that each directory and everything below it use, in KiB
///
/// A file counts once, even if it has several names or is in several of the trees.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap du -sh disk.img
  ironmap du -h disk.img@p2:/var /dev/sdb1:/home
  ironmap du -ab disk.img:/srv | sort -n | tail"
)]
pub(crate) struct Args {
    /// Also show files, not only directories
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Show sizes in bytes, not the space used
    #[arg(short, long)]
    bytes: bool,
    /// Show sizes as 1.5K, 234M, 2G
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Show only a sum for each argument
    #[arg(short, long)]
    summarize: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The directories or files; a volume without a path means its root
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::tree(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let several = args.targets.len() > 1;
    let mut sums = Sums { args, out: stdout(), several, above: Vec::new(), seen: HashSet::new() };
    report.each(&args.targets, |target, report| {
        sums.above.clear();
        let root = volumes.file(target, Follow::NotLast)?;
        walk(root, report, |found, visit, _| Ok(sums.visit(target, found, visit)?)).map(drop)
    })?;
    Ok(sums.out.flush()?)
}

struct Sums<'a> {
    args: &'a Args,
    out: Out,
    /// Whether the user named several trees. In this case, one tree may contain another.
    several: bool,
    /// For each directory on the current path: the space of all visited files below it. `None` if the directory was already counted.
    above: Vec<Option<u64>>,
    /// Counted files that the walk may find again, with their volumes.
    seen: HashSet<(*const Source, InodeNo)>,
}

impl Sums<'_> {
    fn visit(&mut self, target: &Target, found: &Found, visit: Visit) -> io::Result<()> {
        let named = |sums: &Self| sums.above.is_empty();
        if let Visit::Last { .. } = visit {
            let Some(sum) = self.above.pop().flatten() else { return Ok(()) };
            let shown = !self.args.summarize || named(self);
            return self.add(target, found, sum, shown);
        }
        let stat = found.inode.stat();
        let size = if self.args.bytes { stat.size } else { stat.blocks.saturating_mul(512) };
        let again = self.several || !found.is_directory() && stat.links > 1;
        let new = !again || self.seen.insert((Rc::as_ptr(&found.name.source), stat.inode));
        if found.is_directory() {
            self.above.push(new.then_some(size));
            return Ok(());
        }
        if !new {
            return Ok(());
        }
        let shown = self.args.all || named(self);
        self.add(target, found, size, shown)
    }

    fn add(&mut self, target: &Target, found: &Found, sum: u64, shown: bool) -> io::Result<()> {
        if let Some(Some(above)) = self.above.last_mut() {
            *above = above.saturating_add(sum);
        }
        if !shown {
            return Ok(());
        }
        let sum = match (self.args.human_readable, self.args.bytes) {
            (true, _) => human(sum),
            (false, true) => sum.to_string(),
            (false, false) => sum.div_ceil(1024).to_string(),
        };
        let path = [target.volume.to_string().as_bytes(), b":", found.name.path()].concat();
        write!(self.out, "{sum}\t")?;
        self.out.write_all(&self.out.shown(&path))?;
        writeln!(self.out)
    }
}
