# shellcheck shell=bash
# Helpers of the project's scripts. After a script has sourced this file, its directory is the root of the repository.
set -euo pipefail
# With CDPATH set, cd would search other directories first and print the result.
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

# shellcheck disable=SC2034  # for the scripts
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# The workspace with every feature. Pre-shared keys link OpenSSL, so no crate has them by default.
# shellcheck disable=SC2034  # for the scripts
workspace=(--workspace --features "ironmap/lvm,ironmap/md,ironmap/psk,ironmap-cli/disk,ironmap-async/tokio,ironmap-object-store/object_store_0_13")

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
# timed NAME COMMAND...: runs a step, and appends its duration in seconds to the file that IRONMAP_STEPS names, if it is set.
timed() {
    local begin=$SECONDS status=0
    "${@:2}" || status=$?
    printf '%6d s  %s\n' $((SECONDS - begin)) "$1" >>"${IRONMAP_STEPS:-/dev/null}"
    return "$status"
}
# has PROGRAM...: whether all of these programs are installed.
has() {
    local program
    for program in "$@"; do command -v "$program" >/dev/null || return; done
}
# succeeds LINE: whether a line of shell succeeds. Its output is discarded.
succeeds() { bash -c "$1" </dev/null >/dev/null 2>&1; }

# skip NAME: REASON... reports a step or a test that cannot run here. The line is also written for ./x test, which counts such lines.
skip() { echo "SKIP $*" | tee -a "${IRONMAP_SKIP_LOG:-/dev/null}"; }

# or_install NAME READY INSTALL: whether a tool is ready, if necessary after an installation. READY and INSTALL are lines of shell.
or_install() {
    succeeds "$2" && return
    echo "to be installed: $1"
    succeeds "$3" && succeeds "$2"
}

# has_rust VERSION: whether this version of Rust is ready, if necessary after an installation.
has_rust() { or_install "Rust $1" "cargo +$1 --version" "rustup toolchain install $1 --profile minimal"; }

# workspace_value NAME: a value from Cargo.toml that all crates share, for example version or rust-version.
workspace_value() { sed -n "s/^$1 = \"\(.*\)\"$/\1/p" Cargo.toml; }

# Sets $ironmap to the program that IRONMAP_BIN names, or builds a release and sets $ironmap to it.
find_ironmap() {
    # shellcheck disable=SC2034  # for the scripts
    ironmap=${IRONMAP_BIN:-$target/release/ironmap}
    # Packed relocations make the program 200 KB smaller. It then needs glibc 2.36. Rust links x86-64 with LLD, which can also merge functions
    # with the same code.
    local flags=-z,pack-relative-relocs
    [ "$(uname -m)" != x86_64 ] || flags+=,--icf=all
    [ -n "${IRONMAP_BIN:-}" ] || cargo rustc --quiet --locked --release -p ironmap-cli --bin ironmap --features psk -- -C "link-arg=-Wl,$flags"
}
