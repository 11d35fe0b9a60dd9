//! Runs launches, and computes the medians over the launches. Each launch is a process that runs one plan.

use std::io::Error as IoError;
use std::process::{Command, Stdio};

use ironmap::{Error, Result};
use ironmap_image::Failure;
use ironmap_load::errors::{go_on, io};
use ironmap_load::figures::{Measured, median};
use ironmap_load::load::run;
use ironmap_load::plan::{Content, Plan};
use ironmap_load::prepare;

use super::report::Row;
use crate::failure::reported;

/// Runs a plan and prints the results. This process is a child of [`measure`].
pub(super) fn child(plan: &str) -> Result<(), Failure> {
    let failed = |error: Error| super::failed(&error);
    let plan: Plan =
        serde_json::from_str(plan).map_err(|error| failed(Error::invalid(error.to_string())))?;
    let measured = run(&plan).map_err(failed)?;
    super::print(serde_json::to_string(&measured).map_err(IoError::from)?)
}

/// The command that runs a plan in a child.
pub(super) fn command(plan: &Plan) -> Result<Command> {
    let program =
        std::env::current_exe().map_err(|error| io(&error, "find the path of this program"))?;
    let plan = serde_json::to_string(plan).map_err(|error| Error::invalid(error.to_string()))?;
    let mut command = Command::new(program);
    command
        .args(["bench", "--launch", &plan])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    Ok(command)
}

/// Runs each plan `launches` times and takes medians.
pub(super) fn measure(plans: &[Plan], launches: usize) -> Result<Vec<Row>, Failure> {
    let failed = |error: Error| super::failed(&error);
    let progress = crate::output::progress("measuring", (plans.len() * launches) as u64);
    let mut rows = Vec::new();
    let mut prepared = false;
    for plan in plans {
        let mut results: Vec<Vec<Measured>> = Vec::new();
        for _ in 0..launches {
            prepare(plan, &mut prepared).map_err(failed)?;
            results.push(launch(plan)?);
            go_on().map_err(failed)?;
            progress.inc(1);
        }
        for (index, target) in plan.targets.iter().enumerate() {
            let of_target: Vec<&Measured> =
                results.iter().filter_map(|result| result.get(index)).collect();
            rows.push(row(plan, target, &of_target));
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// Makes the files for a plan before the first launch. Files with unwritten extents are made before each launch, because they can be
/// measured only once.
pub(super) fn prepare(plan: &Plan, prepared: &mut bool) -> Result<()> {
    match plan.content {
        Some(Content::Written) if *prepared => Ok(()),
        Some(content) => {
            *prepared = true;
            prepare::files(plan, content)
        }
        None => Ok(()),
    }
}

fn launch(plan: &Plan) -> Result<Vec<Measured>, Failure> {
    let failed = |error: Error| super::failed(&error);
    let output = command(plan).map_err(failed)?.output();
    let output = output.map_err(|error| failed(io(&error, "launch a child process")))?;
    match output.status.code() {
        Some(0) => {}
        // The child process has already reported its failure.
        Some(code) => return Err(reported(code)),
        None => {
            return Err(Failure::new(format!(
                "bench: a child process was killed: {}",
                output.status
            )));
        }
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::new(format!("bench: cannot read the result of a child process: {error}"))
    })
}

fn row(plan: &Plan, target: &ironmap_load::target::TargetSpec, launches: &[&Measured]) -> Row {
    let middle = |of: fn(&Measured) -> f64| median(launches.iter().map(|measured| of(measured)));
    let least = |of: fn(&Measured) -> f64| {
        launches.iter().map(|measured| of(measured)).fold(f64::MAX, f64::min)
    };
    let most =
        |of: fn(&Measured) -> f64| launches.iter().map(|measured| of(measured)).fold(0.0, f64::max);
    let iops = |measured: &Measured| 1e9 / measured.ns;
    let last = launches.last().copied().cloned().unwrap_or_default();
    Row {
        iops: middle(iops),
        iops_min: least(iops),
        iops_max: most(iops),
        ratio: middle(|measured| measured.ratio),
        ratio_min: least(|measured| measured.ratio),
        ratio_max: most(|measured| measured.ratio),
        cpu_ns_per_io: middle(|measured| measured.cpu_ns),
        p50: middle(|measured| measured.p50 as f64) as u64,
        p99: middle(|measured| measured.p99 as f64) as u64,
        p99_9: middle(|measured| measured.p99_9 as f64) as u64,
        engine: last.engine,
        notices: last.notices,
        counters: last.counters,
        ..Row::new(plan, target)
    }
}
