#!/usr/bin/env bash
# Runs the library's unit tests, compiled for AArch64: aarch64.sh [NAME...]. Names select tests. qemu's user-mode emulator runs the program
# on this kernel.
source "$(dirname "$0")/lib.sh"

say AArch64
triple=aarch64-unknown-linux-gnu
for program in qemu-aarch64 aarch64-linux-gnu-gcc; do
    has "$program" || { skip "tests for AArch64: need the program $program" && exit; }
done
if ! succeeds "rustup target add $triple"; then
    skip "tests for AArch64: its standard library cannot be installed"
    exit
fi
# The linker's package also installs the C library for AArch64.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
    cargo test --package ironmap --lib --target "$triple" -- "$@"
