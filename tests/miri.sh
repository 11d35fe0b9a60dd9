#!/usr/bin/env bash
# Runs unsafe code under Miri. Miri supports no system calls, so code and tests that need them are not built for Miri.
source "$(dirname "$0")/lib.sh"

if ! or_install "Rust nightly with miri and rust-src" "cargo +nightly miri setup" \
    "rustup toolchain install nightly --profile minimal -c miri -c rust-src"; then
    skip "miri: nightly's components miri and rust-src are needed, and could not be installed"
    exit
fi
say miri
# The build for Miri has a separate directory. Ring entries contain addresses as integers, as the kernel requires, so Miri must permit casts
# from integers to pointers.
CARGO_TARGET_DIR=$target/miri MIRIFLAGS=-Zmiri-permissive-provenance \
    cargo +nightly miri test --package ironmap --lib -- sys:: open_file::content_lock
