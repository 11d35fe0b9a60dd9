#!/usr/bin/env bash
# Runs every fuzz target, or only the named targets, each for some seconds: fuzz/run.sh [SECONDS [TARGET...]]
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
    # The code that reads the volumes is safe Rust, so the address sanitizer is not needed. Without it, several times as many volumes are
    # tried. A volume that takes ten seconds counts as a hang. For these small volumes the crate allocates far less than its limits.
    cargo +nightly fuzz run --sanitizer none "$name" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -max_len=256
done
