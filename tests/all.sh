#!/usr/bin/env bash
# Every test, and the summary of what passed, failed and was skipped: tests/all.sh [ARGUMENT OF CARGO TEST...]
source "$(dirname "$0")/lib.sh"

# The summary is made of the output of tests, and of the lines of skipped ones.
log=$target/test.log
export IRONMAP_SKIP_LOG=$target/skipped.log
mkdir -p "$target"
: >"$log"
: >"$IRONMAP_SKIP_LOG"
# Tests wait for mounts and devices more than they compute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

# A part of the unit tests that takes seconds in the emulator: system calls and memory, locks, maps, checksums, the decoding of names and
# structures.
aarch64=(sys:: open_file:: protection::guard:: dio:: iomap:: location:: partition:: fs::ext4::checksum:: fs::ext4::hash:: fs::ext4::casefold::)

failed=() status=0
# step NAME COMMAND...: every step has its turn, whatever the one before came to.
step() { timed "test: $1" "${@:2}" || { status=$? && failed+=("$1"); }; }
logged() { "$@" 2>&1 | tee -a "$log"; }

# path_from VARIABLE SCRIPT: exports the path that a script prints. One that ends with 77 has said why there is none; then tests are skipped.
path_from() {
    local path ended=0
    path=$("$2") || ended=$?
    case $ended in
        0) export "$1=$path" ;;
        77) ;;
        *) exit "$ended" ;;
    esac
}

# Benches measure a release build. It has minutes for one processor, and so has the build of the tests, in a directory of its own. Errors of
# that one are shown when the tests are run.
say "cargo build --release, and the tests"
unset IRONMAP_BIN
timed "test: build of the tests" cargo test "${workspace[@]}" --no-run "$@" >/dev/null 2>&1 &
# It does not outlive a build that fails or is interrupted.
trap 'kill %1 2>/dev/null || true' EXIT
timed "test: build for release" find_ironmap || status=$?
wait
trap - EXIT
[ "$status" = 0 ] || exit "$status"
export IRONMAP_BIN=$ironmap
path_from IRONMAP_FOREIGN_IMAGES tests/foreign/images.sh
path_from IRONMAP_XFSPROGS lab/xfsprogs.sh

say "cargo test"
step "cargo test" logged cargo test "${workspace[@]}" --no-fail-fast "$@"
[ $# -gt 0 ] || step "layers beneath" logged tests/beneath.sh short
step users tests/users/run.sh "$target/debug"
step miri tests/miri.sh
step aarch64 logged tests/aarch64.sh "${aarch64[@]}"
step lab logged lab/run.sh
step ceph tests/ceph/run.sh
step "fio engine" crates/ironmap-fio/run.sh test
step "debian package" crates/ironmap-cli/debian/test.sh

cargo run --quiet -p xtask -- summary "$log" "$IRONMAP_SKIP_LOG"
if [ ${#failed[@]} -gt 0 ]; then
    printf -v names '%s, ' "${failed[@]}"
    echo "failed steps: ${names%, }"
fi
[ "$status" = 0 ] || exit "$status"
