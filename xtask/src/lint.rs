//! Format, clippy, docs, public interface, house rules, dependencies, shell.

use crate::api;
use crate::shell::{
    self, Result, WORKSPACE, command, fail, has, has_rust, or_install, say, sh, skip, succeeds,
    target,
};

type Step = (&'static str, fn() -> Result);

const STEPS: [Step; 11] = [
    ("format", || sh("cargo fmt --all --check")),
    ("clippy", || sh(&format!("cargo clippy --quiet {WORKSPACE} --all-targets -- -D warnings"))),
    // The workspace has all features of the library.
    ("clippy without features", || {
        sh("cargo clippy --quiet -p ironmap --lib --test nbd -- -D warnings")
    }),
    ("the oldest Rust", oldest_rust),
    ("AArch64", aarch64),
    ("docs", docs),
    ("public interface", api::check),
    ("house rules", || sh("cargo run --quiet -p house")),
    ("dependencies", audit),
    ("unused dependencies", || sh("cargo machete")),
    ("shellcheck", shellcheck),
];

const USERS_PACKAGES: &str = "--locked --package ironmap --package ironmap-cli";

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
    let mut docs = command(&format!("cargo doc --quiet {WORKSPACE} --no-deps"));
    shell::run(docs.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The packages that users build, by the version of Rust that Cargo.toml promises.
fn oldest_rust() -> Result {
    let version = env!("CARGO_PKG_RUST_VERSION");
    if !has_rust(version) {
        return skip(&format!("check by Rust {version}: it cannot be installed"));
    }
    let mut check = command(&format!("cargo +{version} check --quiet {USERS_PACKAGES}"));
    shell::run(check.env("CARGO_TARGET_DIR", target("oldest-rust")))
}

/// One dependency (ring) compiles C code, so a check needs a cross compiler.
fn aarch64() -> Result {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    if !has("aarch64-linux-gnu-gcc") {
        return skip("check for AArch64: needs aarch64-linux-gnu-gcc");
    }
    let ready = format!("test -d $(rustc --print target-libdir --target {TARGET})");
    let install = format!("rustup target add {TARGET}");
    if !or_install(&ready, "Rust's library for AArch64", &install) {
        return skip("check for AArch64: its standard library cannot be installed");
    }
    sh(&format!("cargo check --quiet {USERS_PACKAGES} --target {TARGET}"))
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
    shell::run(command("sh -c").arg("shellcheck x setup .ci/run $(git ls-files '*.sh')"))
}
