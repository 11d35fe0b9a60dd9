//! Exact user instructions a request: the difference between a run of 2N requests and one of N, under callgrind.

use std::process::Stdio;

use ironmap::{Error, Result};

use super::launch::{command, prepare};
use super::load::Plan;
use super::report::Row;

/// N of the difference. The warm-up is the same in both runs and falls out.
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
                super::go_on()?;
                collected(&Plan { only: Some((index, requests)), jobs: 1, ..plan.clone() })
            };
            let instructions = (of(2 * REQUESTS)? - of(REQUESTS)?) as f64 / REQUESTS as f64;
            let base = rows.get(first).and_then(|row| row.instructions).unwrap_or(instructions);
            let above = instructions - base;
            rows.push(Row {
                instructions: Some(instructions),
                instructions_above_first: Some(above),
                engine: plan.engine.clone(),
                ..Row::new(plan, target)
            });
        }
    }
    Ok(rows)
}

/// Instructions that callgrind collects over a whole launch.
fn collected(plan: &Plan) -> Result<i64> {
    let inner = command(plan)?;
    let output = std::process::Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| super::io(&error, "valgrind, which counts the instructions,"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count
        .filter(|_| output.status.success())
        .ok_or_else(|| Error::invalid(format!("callgrind failed: {}", text.trim())))
}
