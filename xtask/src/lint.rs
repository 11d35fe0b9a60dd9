//! Format, clippy, docs, house rules, packages, dependencies, shell.

use crate::shell::{self, Result, command, fail, has, say, sh, skip, succeeds};
use crate::{package, tidy};

type Step = (&'static str, fn() -> Result);

const STEPS: [Step; 8] = [
    ("format", || sh("cargo fmt --all --check")),
    ("clippy", || sh("cargo clippy --quiet --workspace --all-targets -- -D warnings")),
    ("docs", docs),
    ("tidy", tidy::run),
    ("files of packages", package::lists),
    ("dependencies", audit),
    ("unused dependencies", || sh("cargo machete")),
    ("shellcheck", shellcheck),
];

/// Every step has its turn, whatever the one before came to.
pub(crate) fn run() -> Result {
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        say(name);
        if let Err(failure) = step() {
            failure.status();
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        return fail(format!("lint failed: {}", failed.join(" ")));
    }
    println!("lint: all passed");
    Ok(())
}

fn docs() -> Result {
    let mut docs = command("cargo doc --quiet --workspace --no-deps");
    shell::run(docs.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The advisory database is a git repository elsewhere: without a network the rest of the audit still runs.
fn audit() -> Result {
    let checks = "cargo deny --log-level error check bans licenses sources";
    if succeeds("timeout 60 cargo deny --log-level error fetch db") {
        return sh(&format!("{checks} advisories"));
    }
    skip("cargo deny advisories: the advisory database cannot be fetched")?;
    sh(checks)
}

fn shellcheck() -> Result {
    if !has("shellcheck") {
        return skip("shellcheck: not installed");
    }
    shell::run(command("shellcheck x setup .ci/run").args(tidy::files("sh")))
}
