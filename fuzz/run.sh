#!/usr/bin/env bash
# Runs every fuzz target, or those named, for some seconds each: fuzz/run.sh [SECONDS [TARGET...]]
source "$(dirname "$0")/../tests/lib.sh"
cd fuzz
seconds=${1:-30}
if ! has_rust nightly || ! or_install cargo-fuzz "cargo fuzz --version" "cargo install --quiet --locked --debug cargo-fuzz"; then
    skip "fuzz: a nightly toolchain and cargo-fuzz are needed, and could not be installed"
    exit
fi
names=("${@:2}")
if [ ${#names[@]} = 0 ]; then
    list=$(cargo +nightly fuzz list)
    mapfile -t names <<<"$list"
fi
for name in "${names[@]}"; do
    say "fuzz $name"
    # The volumes are read by safe code: without the address sanitizer several times as many are tried.
    # A volume that takes ten seconds hangs. What these small volumes can make the crate allocate lies far below its limits.
    cargo +nightly fuzz run --sanitizer none "$name" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -max_len=256
done
