//! The earlier suites with another layer beneath every volume (tests/common/beneath.rs), and power cuts.

use std::process::Command;

use crate::shell::{Result, Status, Tee, WORKSPACE, command, fail, run, say, variable};

/// The layers, each with the programs of suites whose volumes lie on devices that the tests open, and the suites in `./x test`. Of a queue to an
/// export, `dio` and `no_alloc` would count what only the system's queues have.
const LAYERS: [(&str, &str, &str); 4] = [
    ("integrity-bitmap", OF_DEVICES, SHORT_OF_DEVICES),
    ("integrity-journal", OF_DEVICES, SHORT_OF_DEVICES),
    ("nbd", OF_VOLUMES, SHORT_OF_VOLUMES),
    ("nbd-plain", OF_VOLUMES, SHORT_OF_VOLUMES),
];
const OF_DEVICES: &str = "--test dio --test no_alloc --test ext4 --test differential --test model";
const OF_VOLUMES: &str = "--test ext4 --test differential --test model";
const SHORT_OF_DEVICES: &str =
    "--test dio --test ext4 -- dio_simple:: dio_generic:: dio_async:: write_open:: crash_data::";
const SHORT_OF_VOLUMES: &str = "--test ext4 -- write_open:: crash_data::";
/// Suites of these programs that have devices of their own.
const NOT_BENEATH: [&str; 6] =
    ["stable", "broken_orphans", "damaged_reading", "empty_nodes", "met_errors", "mkfs"];
/// Of the crash suites what ironmap itself writes: the kernel's requests go past the device.
const OURS: &str =
    "what_ironmap_leaves what_threads quota_is_recovered what_is_durable broken_promises";
/// The features of the workspace, as the tests have been built already.
fn test(programs: &str) -> String {
    format!("cargo test {WORKSPACE} --no-fail-fast {programs}")
}

/// The suites with each of these layers, or with every one where none is named.
pub(crate) fn suites(names: &[&str]) -> Result {
    if let Some(name) = names.iter().find(|name| LAYERS.iter().all(|layer| layer.0 != **name)) {
        return fail(format!("there is no layer {name}"));
    }
    let skips: String = NOT_BENEATH.iter().map(|suite| format!(" --skip {suite}::")).collect();
    each(|name, programs, _| {
        if !names.is_empty() && !names.contains(&name) {
            return Ok(());
        }
        run(&mut with(name, &test(&format!("{programs} --{skips}"))))
    })
}

pub(crate) fn short(tee: &Tee) -> Result {
    each(|name, _, short| tee.run(&mut with(name, &test(short))))
}

/// So many crash states of each kind of workload, also with each layer.
pub(crate) fn crash(states: &str) -> Result {
    let of = |mut command: Command| {
        command.env("IRONMAP_CRASH_STATES", states);
        if variable("RUST_TEST_THREADS").is_none() {
            let processors = std::thread::available_parallelism()?;
            command.env("RUST_TEST_THREADS", processors.to_string());
        }
        run(&mut command)
    };
    of(command(&test("--test ext4 -- --nocapture crash:: crash_data::")))?;
    each(|name, _, _| of(with(name, &test(&format!("--test ext4 -- --nocapture {OURS}")))))
}

/// Every layer has its turn, whatever the one before came to.
fn each(mut tests: impl FnMut(&str, &str, &str) -> Result) -> Result {
    let mut status = Status::default();
    for (name, programs, short) in LAYERS {
        say(format!("beneath every volume: {name}"));
        status.add(tests(name, programs, short));
    }
    status.result()
}

fn with(layer: &str, words: &str) -> Command {
    let mut command = command(words);
    command.env("IRONMAP_BENEATH", layer);
    command
}
