#!/usr/bin/env bash
# Runs the unsafe code that makes no system calls under Miri, which supports none. Tests that need them are not built for Miri.
source "$(dirname "$0")/lib.sh"

if ! or_install "Rust nightly with miri and rust-src" "cargo +nightly miri setup" \
    "rustup toolchain install nightly --profile minimal -c miri -c rust-src"; then
    skip "miri: nightly's components miri and rust-src are needed, and could not be installed"
    exit
fi
say miri
# Everything is built again for Miri, in a separate directory. The integers of an entry contain addresses, as they do for the kernel.
CARGO_TARGET_DIR=$target/miri MIRIFLAGS=-Zmiri-permissive-provenance \
    cargo +nightly miri test --package ironmap --lib -- sys:: open_file::content_lock
