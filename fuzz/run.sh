#!/usr/bin/env bash
# Runs every fuzz target, or those named, for some seconds each: fuzz/run.sh [SECONDS [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${targets[@]}"; do
    printf '\n== fuzz %s\n' "$target"
    # The volumes are read by safe code: without the address sanitizer several times as many are tried.
    # A volume that takes ten seconds hangs. What these small volumes can make the crate allocate lies far below its limits.
    cargo +nightly fuzz run --sanitizer none "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -max_len=256
done
