#!/usr/bin/env bash
# The library's unit tests as a program for AArch64, or those that the names select: aarch64.sh [NAME...]. qemu's emulator of programs runs it on
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
# The C library of that processor lies where the package of the linker installs it.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
    cargo test --package ironmap --lib --target "$triple" -- "$@"
