//! Fuzzing and Miri, which need a nightly toolchain. A missing toolchain is reported, and is not a failure.

use crate::shell::{Result, command, has_rust, or_install, run, say, skip, target};

/// Every fuzz target, for so many seconds.
pub(crate) fn fuzz(seconds: &str) -> Result {
    let cargo_fuzz = "cargo install --quiet --locked --debug cargo-fuzz";
    if !has_rust("nightly") || !or_install("cargo fuzz --version", "cargo-fuzz", cargo_fuzz) {
        return skip(
            "fuzz: a nightly toolchain and cargo-fuzz are needed, and could not be installed",
        );
    }
    run(command("fuzz/run.sh").arg(seconds))
}

/// The unsafe code that makes no system calls: Miri makes none, and the tests that need them are not built for it.
pub(crate) fn miri() -> Result {
    let nightly = "rustup toolchain install nightly --profile minimal -c miri -c rust-src";
    if !or_install("cargo +nightly miri setup", "Rust nightly with miri and rust-src", nightly) {
        return skip(
            "miri: nightly's components miri and rust-src are needed, and could not be installed",
        );
    }
    say("miri");
    let mut tests = command(
        "cargo +nightly miri test --package ironmap --lib -- sys:: open_file::content_lock",
    );
    // Everything is built again for it, in a directory of its own. Addresses go through the integers of an entry, as they do to the kernel.
    tests.env("CARGO_TARGET_DIR", target("miri"));
    run(tests.env("MIRIFLAGS", "-Zmiri-permissive-provenance"))
}
