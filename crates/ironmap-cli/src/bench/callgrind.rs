//! Counts the user instructions per request with callgrind. One run makes N requests, and another run makes 2N requests. The difference of
//! their counts is divided by N.

use std::process::Stdio;

use ironmap::{Error, Result};
use serde::Deserialize;

use super::launch::{command, prepare};
use super::report::Row;
use ironmap_load::errors::{go_on, io};
use ironmap_load::plan::Plan;

/// The number N of requests. Both runs have the same warm-up. The difference of their counts does not contain the warm-up.
const REQUESTS: u64 = 20_000;

/// Counts instructions for each target of each plan.
pub(super) fn count(plans: &[Plan]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut prepared = false;
    for plan in plans {
        prepare(plan, &mut prepared)?;
        let first = rows.len();
        for (index, target) in plan.targets.iter().enumerate() {
            let of = |requests: u64| {
                go_on()?;
                collected(&Plan { only: Some((index, requests)), jobs: 1, ..plan.clone() })
            };
            let (twice, mut served) = of(2 * REQUESTS)?;
            let instructions = (twice - of(REQUESTS)?.0) as f64 / REQUESTS as f64;
            let Served { engine, notices } = served.swap_remove(index);
            let base = rows.get(first).and_then(|row| row.instructions).unwrap_or(instructions);
            let above = instructions - base;
            rows.push(Row {
                instructions: Some(instructions),
                instructions_above_first: Some(above),
                engine,
                notices,
                ..Row::new(plan, target)
            });
        }
    }
    Ok(rows)
}

/// The engine that served a target. It can differ from the requested engine.
#[derive(Deserialize)]
struct Served {
    engine: String,
    notices: Vec<String>,
}

/// The number of instructions that callgrind collects during a launch, and the engine of each target.
fn collected(plan: &Plan) -> Result<(i64, Vec<Served>)> {
    let inner = command(plan)?;
    let output = std::process::Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io(&error, "run valgrind to count instructions"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    let served: Option<Vec<Served>> = serde_json::from_slice(&output.stdout).ok();
    count
        .zip(served.filter(|served| served.len() == plan.targets.len()))
        .filter(|_| output.status.success())
        .ok_or_else(|| {
            // The failure contains the error message of the launch, or the exit status of valgrind if there is no message.
            let own = text.lines().find_map(|line| line.strip_prefix("ironmap: bench: "));
            Error::invalid(format!(
                "callgrind: {}",
                own.or(text.lines().last()).unwrap_or_default()
            ))
        })
}
