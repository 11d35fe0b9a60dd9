//! Prints the results as a table and as JSON.

use ironmap::sorting::Sorting;
use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use ironmap_image::Failure;

use crate::output::print_json;
use crate::terminal::stdout;
use crate::whole::Output;
use ironmap_load::plan::Plan;
use ironmap_load::target::TargetSpec;

/// One target under one combination of options.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub target: String,
    /// The target's kind and variant, for tables and plots.
    pub label: String,
    pub simple: Option<bool>,
    /// The method for stable pages (memory that does not change during a write), if the user chose one.
    pub integrity: Option<&'static str>,
    pub rw: &'static str,
    pub writes: bool,
    pub bs: usize,
    pub iodepth: u32,
    pub numjobs: usize,
    pub batch: usize,
    pub engine: String,
    pub iops: f64,
    pub iops_min: f64,
    pub iops_max: f64,
    pub ratio: f64,
    pub ratio_min: f64,
    pub ratio_max: f64,
    pub cpu_ns_per_io: f64,
    pub p50: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub instructions: Option<f64>,
    pub instructions_above_first: Option<f64>,
    pub counters: Vec<(String, u64)>,
    pub notices: Vec<String>,
}

impl Row {
    /// A row without figures.
    pub(super) fn new(plan: &Plan, target: &TargetSpec) -> Self {
        Self {
            target: target.to_string(),
            label: label(plan, target),
            simple: target.variant().map(|variant| variant.simple),
            integrity: integrity(target),
            rw: plan.rw.name(),
            writes: plan.rw.writes(),
            bs: plan.block,
            iodepth: plan.depth,
            numjobs: plan.jobs,
            batch: plan.batch_submit,
            ..Self::default()
        }
    }

    fn cpu_ms_per_gib(&self) -> f64 {
        self.cpu_ns_per_io / 1e6 * f64::from(1 << 30) / self.bs as f64
    }

    fn mib_s(&self) -> f64 {
        self.iops * self.bs as f64 / f64::from(1 << 20)
    }
}

/// Returns the target's kind and variant. If an earlier target of the plan has the same kind, also returns the target's name.
fn label(plan: &Plan, target: &TargetSpec) -> String {
    let text = target.to_string();
    let kind = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    let mut label = kind(&text);
    let mut earlier =
        plan.targets.iter().map(ToString::to_string).take_while(|other| *other != text);
    if earlier.any(|other| kind(&other) == label) {
        let name = text.rsplit(['/', ':']).next().unwrap_or_default();
        label = format!("{label} {name}");
    }
    if let Some(variant) = target.variant() {
        label = format!("{label} simple={}", u8::from(variant.simple));
        if variant.many {
            label.push_str(" read_many");
        }
    }
    match integrity(target) {
        None => label,
        Some(integrity) => format!("{label} {integrity}"),
    }
}

fn integrity(target: &TargetSpec) -> Option<&'static str> {
    target.variant()?.stable_pages().map(|stable| stable.name())
}

/// The write counters in the table. The first counts the writes by the simple path. The others count work that writes cause in the volume.
const WRITE_COUNTS: [&str; 5] = ["overwrites", "handles", "conversions", "zeroed", "exclusive"];

/// The columns of measured rows.
const FIGURES: [&str; 10] = [
    "IOPS",
    "MiB/s",
    "ratio (median of paired rounds)",
    "its spread",
    "CPU ns/IO",
    "CPU ms/GiB",
    "p50 ns",
    "p99 ns",
    "p99.9 ns",
    "simple hits",
];

/// Prints the rows as a table, and the notices below it.
pub(super) fn table(rows: &[Row]) -> io::Result<()> {
    let counted = rows.iter().any(|row| row.instructions.is_some());
    let figures: &[&str] = if counted { &["instructions/IO", "above first"] } else { &FIGURES };
    let writes = rows.iter().any(|row| row.writes);
    let counts: &[&str] = if writes && !counted { &WRITE_COUNTS } else { &[] };
    let work = ["target", "work", "engine", "depth", "batch", "jobs"];
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(work.iter().chain(figures).chain(counts));
    for row in rows {
        let mut cells = row.work_cells();
        cells.extend(if counted { row.instruction_cells() } else { row.figure_cells(counts) });
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut out = stdout();
    writeln!(out, "{table}")?;
    let mut notices: Vec<_> = rows
        .iter()
        .flat_map(|row| row.notices.iter().map(|notice| (row.label.clone(), notice)))
        .collect();
    notices.order();
    notices.dedup();
    for (label, notice) in notices {
        writeln!(out, "note: {label}: {notice}")?;
    }
    out.flush()
}

impl Row {
    /// The cells that describe the measured work.
    fn work_cells(&self) -> Vec<String> {
        vec![
            self.label.clone(),
            format!("{} {}", self.rw, self.bs),
            self.engine.clone(),
            self.iodepth.to_string(),
            self.batch.min(self.iodepth as usize).to_string(),
            self.numjobs.to_string(),
        ]
    }

    fn instruction_cells(&self) -> Vec<String> {
        vec![
            format!("{:.1}", self.instructions.unwrap_or_default()),
            format!("{:+.1}", self.instructions_above_first.unwrap_or_default()),
        ]
    }

    /// Returns the cells for [`FIGURES`], followed by the counters with the names in `counts`.
    fn figure_cells(&self, counts: &[&str]) -> Vec<String> {
        let counter = |wanted: &str| {
            let found = self.counters.iter().find(|(name, _)| name == wanted);
            found.map_or(String::from("-"), |(_, count)| count.to_string())
        };
        let mut cells = vec![
            format!("{:.0}", self.iops),
            format!("{:.0}", self.mib_s()),
            format!("{:.3}", self.ratio),
            format!("{:.3}..{:.3}", self.ratio_min, self.ratio_max),
            format!("{:.0}", self.cpu_ns_per_io),
            format!("{:.0}", self.cpu_ms_per_gib()),
            self.p50.to_string(),
            self.p99.to_string(),
            self.p99_9.to_string(),
            counter("simple_hits"),
        ];
        cells.extend(counts.iter().map(|name| counter(name)));
        cells
    }
}

#[derive(Serialize)]
struct Document<'a> {
    machine: Machine,
    results: Vec<JsonRow<'a>>,
}

#[derive(Serialize)]
struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
}

#[derive(Serialize)]
struct Latency {
    p50: u64,
    p99: u64,
    p99_9: u64,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    target: &'a str,
    rw: &'a str,
    bs: usize,
    iodepth: u32,
    numjobs: usize,
    batch: usize,
    engine: &'a str,
    simple: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    integrity: Option<&'a str>,
    iops: f64,
    iops_min: f64,
    iops_max: f64,
    mib_s: f64,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    cpu_ns_per_io: f64,
    cpu_ms_per_gib: f64,
    lat_ns: Latency,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions_per_io: Option<f64>,
    counters: BTreeMap<&'a str, u64>,
}

impl<'a> JsonRow<'a> {
    fn new(row: &'a Row) -> Self {
        Self {
            target: &row.target,
            rw: row.rw,
            bs: row.bs,
            iodepth: row.iodepth,
            numjobs: row.numjobs,
            batch: row.batch,
            engine: &row.engine,
            simple: row.simple.map(u8::from),
            integrity: row.integrity,
            iops: row.iops,
            iops_min: row.iops_min,
            iops_max: row.iops_max,
            mib_s: row.mib_s(),
            ratio: row.ratio,
            ratio_min: row.ratio_min,
            ratio_max: row.ratio_max,
            cpu_ns_per_io: row.cpu_ns_per_io,
            cpu_ms_per_gib: row.cpu_ms_per_gib(),
            lat_ns: Latency { p50: row.p50, p99: row.p99, p99_9: row.p99_9 },
            instructions_per_io: row.instructions,
            counters: row.counters.iter().map(|(name, count)| (name.as_str(), *count)).collect(),
        }
    }
}

/// Writes the rows and the machine as JSON. Without a file, the output is standard output.
pub(super) fn json(rows: &[Row], file: Option<Output>) -> Result<(), Failure> {
    let document =
        Document { machine: machine(), results: rows.iter().map(JsonRow::new).collect() };
    match file {
        None => print_json(&document),
        Some(file) => {
            file.write(&(serde_json::to_string_pretty(&document).map_err(io::Error::from)? + "\n"))
        }
    }
}

fn machine() -> Machine {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Machine {
        cpu: model.map_or(String::new(), |(_, name)| name.to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}
