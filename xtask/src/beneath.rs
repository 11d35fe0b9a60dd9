//! The earlier suites with an integrity device beneath every volume (tests/common/beneath.rs), and power cuts.

use std::process::Command;

use crate::shell::{Result, Status, Tee, command, run, say, variable};

const MODES: [&str; 2] = ["bitmap", "journal"];
/// Programs of suites whose volumes lie on devices that the tests open, and the suites there that have devices of their own.
const PROGRAMS: &str = "--test dio --test ext4 --test differential --test model --test no_alloc";
const NOT_BENEATH: [&str; 6] =
    ["stable", "broken_orphans", "damaged_reading", "empty_nodes", "met_errors", "mkfs"];
/// Of the crash suites what ironmap itself writes: the kernel's requests go past the device.
const OURS: &str =
    "what_ironmap_leaves what_threads quota_is_recovered what_is_durable broken_promises";
/// The part of them in `./x test`.
const SHORT: &str = "dio_simple:: dio_generic:: dio_async:: write_open:: crash_data::";

/// The suites with a device of each of these modes, or of every mode where none is named.
pub(crate) fn suites(modes: &[&str]) -> Result {
    let modes = if modes.is_empty() { &MODES } else { modes };
    let skips: String = NOT_BENEATH.iter().map(|suite| format!(" --skip {suite}::")).collect();
    each(modes, |mode| {
        run(&mut with(mode, &format!("cargo test --no-fail-fast {PROGRAMS} --{skips}")))
    })
}

pub(crate) fn short(tee: &Tee) -> Result {
    let tests = format!("cargo test --no-fail-fast --test dio --test ext4 -- {SHORT}");
    each(&MODES, |mode| tee.run(&mut with(mode, &tests)))
}

/// So many crash states of each kind of workload, also with a device of each mode.
pub(crate) fn crash(states: &str) -> Result {
    let of = |mut command: Command| {
        command.env("IRONMAP_CRASH_STATES", states);
        if variable("RUST_TEST_THREADS").is_none() {
            let processors = std::thread::available_parallelism()?;
            command.env("RUST_TEST_THREADS", processors.to_string());
        }
        run(&mut command)
    };
    of(command("cargo test --test ext4 -- --nocapture crash:: crash_data::"))?;
    for mode in MODES {
        say(format!("crash: with an integrity device beneath, {mode}"));
        of(with(mode, &format!("cargo test --test ext4 -- --nocapture {OURS}")))?;
    }
    Ok(())
}

/// Every mode has its turn, whatever the one before came to.
fn each(modes: &[&str], mut tests: impl FnMut(&str) -> Result) -> Result {
    let mut status = Status::default();
    for mode in modes {
        say(format!("an integrity device beneath: {mode}"));
        status.add(tests(mode));
    }
    status.result()
}

fn with(mode: &str, words: &str) -> Command {
    let mut command = command(words);
    command.env("IRONMAP_BENEATH", format!("integrity-{mode}"));
    command
}
