//! `ironmap bench`: measures several targets, which take turns in one process.
//!
//! A launch is a process that runs chunks of about two milliseconds for each target in turn. The figure of a launch is the median over its
//! chunks. The placement of pages differs between processes, so the figure of the bench is the median over several launches. The ratios of
//! two runs differ by only a few percent, even on a machine with other work.

mod beneath;
mod callgrind;
mod fixture;
mod launch;
mod metadata;
mod plot;
mod report;
mod target;

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use ironmap::{Engine, Error, Location, Result};
use ironmap_image::spared::Spared;
use ironmap_image::{Failure, Report};

use self::beneath::Beneath;
use self::fixture::{Fixture, FixtureKind, FsKind};
use crate::interrupt;
use crate::terminal::print_line;
use crate::whole::Output;
use ironmap_load::errors::end_when;
use ironmap_load::plan::{Content, Plan};
use ironmap_load::positions::Rw;
use ironmap_load::prepare::ToWrite;
use ironmap_load::target::{Integrity, TargetSpec, Variant};

/// The variants of the simple path to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Simple {
    /// The simple path is off.
    #[value(name = "0")]
    Off,
    /// The simple path is on.
    #[value(name = "1")]
    On,
    /// The bench measures both variants, each in a separate row.
    Both,
}

/// The values of `--integrity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    One(Integrity),
    All,
}

/// Parses a count of at least one.
fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("{text} is not a number of at least 1"))
}

/// Parses a finite time in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 86400.0);
    seconds.ok_or_else(|| format!("{text} is not a number of seconds up to 86400"))
}

fn protection(text: &str) -> std::result::Result<Protection, String> {
    if text == "all" {
        return Ok(Protection::All);
    }
    Integrity::from_str(text, false).map(Protection::One)
}

/// The values of `--sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sync {
    /// Each write is durable when it completes, as with O_DSYNC.
    Dsync,
}

/// Measure targets side by side.
#[derive(Args, Debug)]
#[command(after_help = "\
Targets:
  raw:DEV[@OFFSET]     the block device or image itself: the limit of the speed. If a vol: or host: target is on the same device
                       (or on its disk, or on a copy of the device), the requests of raw: use the blocks of the file
  kernel:FILE          the same work through the kernel's file system, O_DIRECT
  vol:VOLUME:/PATH     ironmap, unmounted volume
  host:FILE            ironmap, file of a mounted file system
  null:SIZE            a device that completes at once: the cost of the engine itself

Options that take a list (1,64,256) give a row for each combination.

Examples:
  ironmap bench raw:disk.img vol:disk.img:/data --simple both
  ironmap bench kernel:/data/table host:/data/table                  (root: it reads the device)
  ironmap bench --fixture zram --engine psync --simple both          (root; makes and removes the devices)
  ironmap bench --fixture loop --engine io_uring --iodepth 1,64,256
  ironmap bench --fixture partition --fs xfs
  ironmap bench --fixture zram --rw randrw --numjobs 16 --files 32
  ironmap bench --fixture loop --rw write --bs 2k --numjobs 8 --iodepth 256 --engine io_uring --fallocate
  ironmap bench raw:/dev/ram0 --rw randwrite --destroy               (destroys its content)
  ironmap bench --fixture zram --metadata 100000                     (files made, looked up, removed, synced)
  ironmap bench --fixture shm --beneath integrity --integrity all --rw read,write --bs 4k,64k,1m
  ironmap bench --fixture shm --instructions                         (needs valgrind)")]
pub(crate) struct BenchArgs {
    /// The targets; ratios are relative to the first target.
    #[arg(required_unless_present_any = ["fixture", "launch"], value_parser = target::target)]
    targets: Vec<TargetSpec>,
    /// Work: read and write (sequential), randread, randwrite, and the mixes rw and randrw.
    #[arg(long, value_delimiter = ',', default_value = "randread")]
    rw: Vec<Rw>,
    /// The percentage of reads in a mix.
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Allow writes that destroy the targets' content, also on XFS; not needed with a fixture.
    #[arg(long)]
    destroy: bool,
    /// Create and write the files of kernel: and vol: targets again before the measurement. A fixture always does this.
    #[arg(long, conflicts_with = "fallocate")]
    overwrite: bool,
    /// Before each launch, create the files again with unwritten extents. Each block is written once. The time includes the final sync.
    #[arg(long, conflicts_with = "instructions")]
    fallocate: bool,
    /// Sync the file (fdatasync) after this number of writes of a job.
    #[arg(long, value_name = "WRITES", default_value_t = 0)]
    fsync: u64,
    /// Each write is durable when it completes.
    #[arg(long)]
    sync: Option<Sync>,
    /// Spread the requests over this number of files of each target: FILE.0, FILE.1 and so on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    files: u16,
    /// Bytes per request.
    #[arg(long, value_delimiter = ',', default_value = "4k", value_parser = crate::size::some)]
    bs: Vec<u64>,
    /// The maximum length of the range, or the total size of the files that are made.
    #[arg(long, value_parser = crate::size::size)]
    size: Option<u64>,
    /// Requests in flight per job. At depth 1, engines that complete each request at once (such as psync) use the synchronous calls.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    iodepth: Vec<u32>,
    /// Threads, each with its own queue.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = count)]
    numjobs: Vec<usize>,
    /// psync, io_uring, io_uring_poll, dax, null or auto.
    #[arg(long, value_delimiter = ',', default_value = "psync")]
    engine: Vec<Engine>,
    /// Requests to submit together, limited by the depth.
    #[arg(long, value_delimiter = ',', default_value = "32", value_parser = count)]
    batch_submit: Vec<usize>,
    /// Completions to wait for together. The default is the number of requests to submit together.
    #[arg(long, value_parser = count)]
    batch_complete: Option<usize>,
    /// Register the buffers with the kernel.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    fixedbufs: u8,
    /// Read every cache line of the data after its completion.
    #[arg(long)]
    touch: bool,
    /// The simple path of vol: and host: targets.
    #[arg(long, default_value = "1")]
    simple: Simple,
    /// How ironmap protects the memory of requests from changes (vol: and host: targets): zero-copy (no protection), bounce, lazy, owned or
    /// all. Each method has its own row. By default, the requirements of the device decide.
    #[arg(long, value_delimiter = ',', value_parser = protection)]
    integrity: Vec<Protection>,
    /// Also read vol: and host: targets by Queue::read_many. One call makes a batch of --iodepth reads into borrowed memory.
    #[arg(long)]
    many: bool,
    /// Seconds per target, launch and combination.
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    runtime: f64,
    /// The number of launches; each figure is the median over the launches.
    #[arg(long, default_value = "5", value_parser = count)]
    rounds: usize,
    /// CPUs to pin the jobs to; by default the last CPU.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// For host: targets on XFS with reflink: promise that no program dedupes them during the bench.
    #[arg(long)]
    assume_no_dedupe: bool,
    /// Make and fill devices, measure raw:, vol:, host: and kernel: on them, and remove the devices. host: and kernel: need root.
    #[arg(long)]
    fixture: Option<FixtureKind>,
    /// Measure only these targets of the fixture; ratios are relative to the first target.
    #[arg(long, requires = "fixture", value_delimiter = ',', conflicts_with = "metadata")]
    only: Vec<target::Kind>,
    /// Create, look up and remove this number of files on the fixture's device, and sync with several threads. ironmap and the kernel's
    /// ext4 are compared.
    #[arg(long, requires = "fixture", value_name = "FILES", conflicts_with_all = ["targets", "json", "plot"])]
    metadata: Option<usize>,
    /// The file system of the fixture.
    #[arg(long, default_value = "ext4", requires = "fixture")]
    fs: FsKind,
    /// The layer between the device and the volume of the fixture. Only the volume is measured. With --integrity all, each method that
    /// protects memory from changes is compared with zero-copy.
    #[arg(long, requires = "fixture", conflicts_with = "metadata")]
    beneath: Option<Beneath>,
    /// Count instructions per request with callgrind instead of time. Needs valgrind.
    #[arg(long)]
    instructions: bool,
    /// Write the results as JSON to this file; - is standard output.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the results as SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Run one launch of a plan; only for the bench itself.
    #[arg(long, hide = true)]
    launch: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, report: &Report) -> std::result::Result<(), Failure> {
    end_when(interrupt::caught);
    if let Some(plan) = &args.launch {
        return launch::child(plan);
    }
    permit(args).map_err(Failure::usage)?;
    check_outputs(args, report)?;
    let outputs = Outputs::create(args)?;
    // After a signal, the current launch ends. Then the bench ends and removes the fixture.
    interrupt::remember();
    // A signal also ends child processes. In this case, the signal is reported instead of the child's failure.
    measure(args, outputs).map_err(|failure| interrupt::check().err().unwrap_or(failure))
}

fn failed(error: &Error) -> Failure {
    Failure::at("bench", error)
}

/// Prints a line.
fn print(line: impl Display) -> std::result::Result<(), Failure> {
    Ok(print_line(line)?)
}

/// Refuses to write results over a target.
fn check_outputs(args: &BenchArgs, report: &Report) -> std::result::Result<(), Failure> {
    let outputs = [&args.json, &args.plot];
    for path in outputs.into_iter().flatten() {
        if let Some(target) = args.targets.iter().find(|target| is_in(target, path, report)) {
            return Err(Failure::new(format!(
                "{}: the results would overwrite the file that contains the target {target}",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The files for the results. They are opened before the measurement. If a file cannot be written, the error is reported at once.
struct Outputs {
    /// The output of `--json`. `Some(None)` means standard output.
    json: Option<Option<Output>>,
    plot: Option<Output>,
}

impl Outputs {
    fn create(args: &BenchArgs) -> std::result::Result<Self, Failure> {
        if let Some(name) = args.plot.as_deref().and_then(plot::other_name) {
            return Err(Failure::usage(name));
        }
        let file =
            |path: &PathBuf| (path.as_os_str() != "-").then(|| Output::create(path)).transpose();
        let json = args.json.as_ref().map(file).transpose()?;
        let plot = args.plot.as_deref().map(Output::create).transpose()?;
        Ok(Self { json, plot })
    }
}

/// Whether a target is the file at `path`, or a volume in this file.
fn is_in(target: &TargetSpec, path: &Path, report: &Report) -> bool {
    let location = match target {
        TargetSpec::Raw { path, .. }
        | TargetSpec::Kernel { path }
        | TargetSpec::Host { path, .. } => path.as_os_str().as_bytes(),
        TargetSpec::Vol { volume, .. } => volume.as_bytes(),
        TargetSpec::Null { .. } => return false,
    };
    let location = Location::parse(OsStr::from_bytes(location));
    location.is_ok_and(|location| Spared::of(&location, report.context()).has(path))
}

fn measure(args: &BenchArgs, outputs: Outputs) -> std::result::Result<(), Failure> {
    let failed = |error: Error| failed(&error);
    if let (Some(files), Some(kind)) = (args.metadata, args.fixture) {
        let table = metadata::run(kind, files, args.rounds.max(1)).map_err(failed)?;
        return print(table);
    }
    let writes = args.writes();
    let of_kind = |kind| match args.beneath {
        None => Fixture::new(kind, args.fs, args.files_to_write()),
        Some(beneath) => {
            let block = args.bs.iter().copied().min().unwrap_or_default();
            Fixture::over(kind, beneath, block, writes)
        }
    };
    let fixture = args.fixture.map(of_kind).transpose().map_err(failed)?;
    let mut targets = args.targets.clone();
    if let Some(fixture) = &fixture {
        targets.extend(fixture.targets());
    }
    targets
        .retain(|target| args.only.is_empty() || args.only.iter().any(|kind| kind.is_of(target)));
    if targets.is_empty() {
        return Err(Failure::usage("--only: the fixture does not have these targets"));
    }
    let mut targets = variants(&targets, args.simple, &args.integrity);
    if args.many {
        let many = Variant { many: true, ..Variant::USUAL };
        targets.extend(targets.clone().iter().filter_map(|target| target.with(many)));
    }
    let plans = plans(args, &targets);
    let rows = if args.instructions {
        callgrind::count(&plans).map_err(failed)?
    } else {
        launch::measure(&plans, args.rounds.max(1))?
    };
    report::table(&rows)?;
    for note in fixture.iter().flat_map(Fixture::notes) {
        print(format_args!("note: {note}"))?;
    }
    drop(fixture);
    if let Some(file) = outputs.json {
        report::json(&rows, file)?;
    }
    if let Some(file) = outputs.plot {
        file.write(&plot::svg(&rows).map_err(failed)?)?;
    }
    Ok(())
}

impl BenchArgs {
    fn writes(&self) -> bool {
        self.rw.iter().any(|rw| rw.writes())
    }

    /// How files are prepared before the measurement.
    fn content(&self) -> Option<Content> {
        if self.fallocate {
            Some(Content::Unwritten)
        } else {
            (self.overwrite || self.fixture.is_some() && self.writes()).then_some(Content::Written)
        }
    }

    /// The files that are made for each target that is written.
    fn files_to_write(&self) -> Option<ToWrite> {
        let (files, size) = (self.files.into(), self.size);
        self.content().map(|content| ToWrite { files, size, content })
    }
}

/// Refuses options that would destroy content, if `--destroy` is missing. Also refuses options that would not measure the requested work.
fn permit(args: &BenchArgs) -> std::result::Result<(), &'static str> {
    let keeps = |target: &TargetSpec| matches!(target, TargetSpec::Null { .. });
    let harms = args.writes() || args.content().is_some();
    if harms && !args.destroy && !args.targets.iter().all(keeps) {
        return Err(
            "the measurement would destroy the content of the targets: confirm this with --destroy",
        );
    }
    if args.fallocate && args.rw.iter().any(|rw| *rw != Rw::Write) {
        return Err("--fallocate measures the first write of each block: use it with --rw write");
    }
    let several = args.integrity.len() > 1 || args.integrity.contains(&Protection::All);
    if args.fallocate && (args.simple == Simple::Both || several) {
        return Err(
            "--fallocate measures one variant of a target at a time: choose one value of --simple and --integrity",
        );
    }
    if args.many && args.rw.iter().any(|rw| rw.writes()) {
        return Err("--many needs --rw read or randread");
    }
    if args.beneath.is_some() && args.fs == FsKind::Xfs {
        return Err("--beneath needs a fixture with ext4");
    }
    Ok(())
}

/// The targets, each with all its variants.
fn variants(targets: &[TargetSpec], simple: Simple, integrity: &[Protection]) -> Vec<TargetSpec> {
    let simple: &[bool] = match simple {
        Simple::Off => &[false],
        Simple::On => &[true],
        Simple::Both => &[false, true],
    };
    let mut ways: Vec<_> = integrity
        .iter()
        .flat_map(|protection| match protection {
            Protection::One(one) => vec![Some(*one)],
            Protection::All => Integrity::value_variants().iter().copied().map(Some).collect(),
        })
        .collect();
    if ways.is_empty() {
        ways.push(None);
    }
    let wanted: Vec<_> = simple
        .iter()
        .flat_map(|simple| {
            ways.iter().map(|way| Variant { simple: *simple, integrity: *way, many: false })
        })
        .collect();
    let variants = |target: &TargetSpec| -> Vec<TargetSpec> {
        let with: Vec<_> = wanted.iter().filter_map(|variant| target.with(*variant)).collect();
        if with.is_empty() { vec![target.clone()] } else { with }
    };
    targets.iter().flat_map(variants).collect()
}

/// Makes a plan for each combination of option values.
fn plans(args: &BenchArgs, targets: &[TargetSpec]) -> Vec<Plan> {
    let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let mut plans = Vec::new();
    for rw in &args.rw {
        for engine in &args.engine {
            for block in &args.bs {
                for jobs in &args.numjobs {
                    for depth in &args.iodepth {
                        for batch in &args.batch_submit {
                            let jobs = (*jobs).max(1);
                            let all = || (0..=last).collect();
                            let cpus = match (&args.cpus[..], jobs) {
                                ([], 1) => vec![last],
                                ([], _) => all(),
                                (cpus, _) => cpus.to_vec(),
                            };
                            plans.push(Plan {
                                targets: targets.to_vec(),
                                engine: engine.to_string(),
                                rw: *rw,
                                reads: args.rwmixread,
                                block: *block as usize,
                                files: args.files.into(),
                                content: args.content(),
                                dsync: args.sync == Some(Sync::Dsync),
                                fsync: args.fsync,
                                depth: (*depth).max(1),
                                jobs,
                                batch_submit: (*batch).max(1),
                                batch_complete: args.batch_complete.unwrap_or(*batch).max(1),
                                fixed_buffers: args.fixedbufs == 1,
                                touch: args.touch,
                                assume_no_dedupe: args.assume_no_dedupe,
                                size: args.size,
                                runtime_ms: (args.runtime * 1000.0) as u64,
                                cpus,
                                only: None,
                            });
                        }
                    }
                }
            }
        }
    }
    plans
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(args: &str) -> std::result::Result<BenchArgs, String> {
        let args = ["bench"].into_iter().chain(args.split_whitespace());
        Command::try_parse_from(args)
            .map(|command| command.bench)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn there_is_a_plan_for_each_combination() {
        let args =
            parse("null:1m --iodepth 1,64 --batch-submit 1,8,16 --bs 4k,64k --rw read,randread");
        let args = args.unwrap();
        let plans = plans(&args, &args.targets);
        assert_eq!(plans.len(), 2 * 3 * 2 * 2);
        assert!(plans.iter().all(|plan| plan.batch_complete == plan.batch_submit));
        let args = parse("null:1m --batch-submit 1,8 --batch-complete 4").unwrap();
        let complete =
            super::plans(&args, &args.targets).into_iter().map(|plan| plan.batch_complete);
        assert_eq!(complete.collect::<Vec<_>>(), [4, 4]);
    }

    #[test]
    fn only_targets_with_a_simple_path_are_measured_without_it() {
        let targets = ["raw:/dev/null", "vol:image:/file", "host:/file"]
            .map(|text| target::target(text).unwrap());
        let simple = |which| -> Vec<_> {
            let variants = variants(&targets, which, &[]);
            variants.iter().map(|it| it.variant().map(|variant| variant.simple)).collect()
        };
        let both = [None, Some(false), Some(true), Some(false), Some(true)];
        assert_eq!(simple(Simple::Both), both);
        assert_eq!(simple(Simple::Off), [None, Some(false), Some(false)]);
    }

    #[test]
    fn there_is_a_row_for_each_way_to_keep_memory_from_changing() {
        let args = parse("raw:/dev/null vol:image:/file --integrity zero-copy,owned").unwrap();
        let ways = |args: &BenchArgs| -> Vec<_> {
            let variants = variants(&args.targets, args.simple, &args.integrity);
            variants.iter().map(|it| it.variant().and_then(|variant| variant.integrity)).collect()
        };
        assert_eq!(ways(&args), [None, Some(Integrity::ZeroCopy), Some(Integrity::Owned)]);
        assert_eq!(ways(&parse("vol:image:/file --integrity all").unwrap()).len(), 4);
        assert!(parse("vol:image:/file --integrity none").is_err());
    }

    #[test]
    fn existing_content_is_destroyed_only_on_request() {
        for (args, permitted) in [
            ("raw:/dev/ram0 --rw randwrite", false),
            ("raw:/dev/ram0 --rw randread,rw", false),
            ("kernel:/file --overwrite", false),
            ("null:1m kernel:/file --rw write --fixture zram", false),
            ("raw:/dev/ram0 --rw randwrite --destroy", true),
            ("raw:/dev/ram0 --rw randread", true),
            ("null:1m --rw randrw", true),
            ("--fixture zram --rw randrw", true),
        ] {
            assert_eq!(permit(&parse(args).unwrap()).is_ok(), permitted, "{args}");
        }
        assert!(parse("").is_err(), "a bench of nothing");
    }

    #[test]
    fn unwritten_blocks_are_measured_once() {
        for args in ["--rw randwrite", "--rw write --simple both", "--rw rw"] {
            let args = parse(&format!("--fixture shm --fallocate {args}")).unwrap();
            assert!(permit(&args).is_err(), "{args:?}");
        }
    }
}
