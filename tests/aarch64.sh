#!/usr/bin/env bash
# Runs the library's unit tests, or those that the names select, as a program for AArch64: aarch64.sh [NAME...]. qemu's user-mode emulator runs it on
# this kernel.
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
# The package of the linker also installs the C library for that processor.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
    cargo test --package ironmap --lib --target "$triple" -- "$@"
