#!/usr/bin/env bash
# Runs the tests, and prints the numbers of passed, failed and skipped tests:
#
#   all.sh suites [ARGUMENT OF CARGO TEST...]   every suite, with few cases
#   all.sh long                                 the suites whose images stay in memory otherwise, on the disk, with all values
#   all.sh rest                                 the longer tests: layers below volumes, users, other processors and machines, fuzzing, packages
source "$(dirname "$0")/lib.sh"
part=$1

# The summary is computed from the output of the tests and the list of skipped tests.
log=$target/test.log
export IRONMAP_SKIP_LOG=$target/skipped.log
mkdir -p "$target"
: >"$log"
: >"$IRONMAP_SKIP_LOG"
# Twice as many tests as processors run at a time, because tests mostly wait for mounts and devices.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

failed=() status=0
# step NAME COMMAND...: runs a step. Every step runs, even if the previous step failed.
step() { timed "test: $1" "${@:2}" || { status=$? && failed+=("$1"); }; }
logged() { "$@" 2>&1 | tee -a "$log"; }

# path_from VARIABLE SCRIPT: exports the path that a script prints. Exit code 77 means that there is no path. The script has then printed
# the reason, and tests that need the path are skipped.
path_from() {
    local path ended=0
    path=$("$2") || ended=$?
    case $ended in
        0) export "$1=$path" ;;
        77) ;;
        *) exit "$ended" ;;
    esac
}

# The release program, in a directory of its own. One processor links it for minutes.
release_build() { timed "test: build for release" find_ironmap; }

# Waits for the release build that runs at the same time. Later steps use its program.
release_program() {
    wait "$release" || return
    export IRONMAP_BIN=$target/release/ironmap
}

# beside COMMAND...: begins a command that uses one processor. Its output is printed by `joined`.
beside() {
    "$@" >"$target/beside.log" 2>&1 &
    beside=$!
}

# Waits for the command that runs beside, and prints its output.
joined() {
    local ended=0
    wait "$beside" || ended=$?
    cat "$target/beside.log"
    return "$ended"
}

# The counts of instructions, in the release program.
counts() { cargo test "${workspace[@]}" --test cli -- measuring::; }

# Runs every suite, and the examples of the documentation. A variable whose name contains the target tells cargo to run the test programs by
# in_memory.sh. The examples run without this script. With it, rustdoc would run them in threads of one process, and they change the working
# directory of this process. Suites that the user names run without the script too.
cargo_test() {
    [ $# = 0 ] || { cargo test "${workspace[@]}" --no-fail-fast "$@"; return; }
    local host status=0
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    env "CARGO_TARGET_${host}_RUNNER=$PWD/tests/in_memory.sh" cargo test "${workspace[@]}" --no-fail-fast --tests || status=$?
    cargo test "${workspace[@]}" --no-fail-fast --doc || status=$?
    return $status
}

suites() {
    path_from IRONMAP_FOREIGN_IMAGES tests/foreign/images.sh
    path_from IRONMAP_XFSPROGS lab/xfsprogs.sh
    say "cargo test"
    step "cargo test" logged cargo_test "$@"
}

# The unit tests that take only seconds in the emulator: system calls, memory, locks, maps, checksums, and the decoding of names and
# structures.
aarch64=(sys:: open_file:: protection::guard:: dio:: iomap:: location:: partition:: fs::ext4::checksum:: fs::ext4::hash:: fs::ext4::casefold::)

# Runs on the disk the suites whose images ./x test keeps in memory. Suites that otherwise try a sample of values try all values.
long() {
    IRONMAP_FIELDS=all IRONMAP_HOSTILE_CASES=1500 cargo test "${workspace[@]}" --no-fail-fast \
        --test cli --test ext4 --test hostile --test hostile_xfs
}

# The first minutes of a new user. The documentation promises three minutes on a machine with two idle processors.
demo() {
    local begin=$SECONDS
    ./x demo
    [ $((SECONDS - begin)) -le 600 ] || { echo "./x demo took $((SECONDS - begin)) s"; return 1; }
}

# Installs the C library for the tests of C, C++, Go and the packages. The build uses the profile of the tests, in which most crates are
# already built. The workspace's features are off, because they link OpenSSL, and the C library of users does not link it.
c_library() {
    cargo build --quiet --profile test --package ironmap-capi --lib
    PROFILE=dev crates/ironmap-capi/install.sh "$target/c"
}

rest() {
    # The steps before the step "release program" use one processor, or wait, or use a build of the tests.
    release_build &
    release=$!
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    export IRONMAP_C_STATIC=$target/debug/libironmap_capi.a IRONMAP_C_PREFIX=$target/c
    step "installation of the C library" c_library
    path_from IRONMAP_XFSPROGS lab/xfsprogs.sh
    step "layers beneath" logged tests/beneath.sh short
    step users tests/users/run.sh "$target/debug"
    step sandbox tests/sandbox/run.sh "$target/debug/ironmap"
    step miri tests/miri.sh
    step aarch64 logged tests/aarch64.sh "${aarch64[@]}"
    step "release program" release_program
    step "counts of instructions" logged counts
    # An emulated machine uses one processor. The steps beside it wait for servers and downloads, or use one processor too.
    beside logged lab/run.sh md
    step ceph tests/ceph/run.sh
    step "fio engine" crates/ironmap-fio/run.sh test
    step "lab, arrays" joined
    beside logged lab/run.sh
    step "python package" crates/ironmap-python/test.sh quick
    step lab joined
    step "c library" crates/ironmap-capi/test.sh quick
    step "go package" crates/ironmap-capi/go/test.sh
    step "debian packages" debian/test.sh
    step fuzz fuzz/run.sh 5
    step shuttle ./x shuttle 2000
    step package crates/package.sh
    step demo demo
}

say "build of the tests"
unset IRONMAP_BIN
timed "test: build of the tests" cargo test --quiet "${workspace[@]}" --no-run "${@:2}"
case $part in
    suites) suites "${@:2}" ;;
    long) step "long suites" logged long ;;
    rest) rest ;;
    *) die "there is no part $part" ;;
esac

cargo run --quiet -p xtask -- summary "$log" "$IRONMAP_SKIP_LOG"
if [ ${#failed[@]} -gt 0 ]; then
    printf -v names '%s, ' "${failed[@]}"
    echo "failed steps: ${names%, }"
fi
[ "$status" = 0 ] || exit "$status"
