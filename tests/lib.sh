# shellcheck shell=bash
# Helpers of the project's scripts. After a script has sourced this file, its directory is the root of the repository.
set -euo pipefail
# Otherwise cd would search the directories of CDPATH first, and print the result.
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

# shellcheck disable=SC2034  # for the scripts
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# The workspace with every feature. Pre-shared keys link OpenSSL, so no crate has them by default.
# shellcheck disable=SC2034  # for the scripts
workspace=(--workspace --features ironmap/psk)

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
# timed NAME COMMAND...: runs a step, and adds its seconds to the list of .ci/run, if there is one.
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
# Whether a line of shell succeeds. Its output is discarded.
succeeds() { bash -c "$1" </dev/null >/dev/null 2>&1; }

# skip NAME: REASON... reports a step or a test that cannot run here, also to ./x test, which counts such lines.
skip() { echo "SKIP $*" | tee -a "${IRONMAP_SKIP_LOG:-/dev/null}"; }

# or_install NAME READY INSTALL: whether a tool is ready, after an installation if necessary. READY and INSTALL are lines of shell.
or_install() {
    succeeds "$2" && return
    echo "to be installed: $1"
    succeeds "$3" && succeeds "$2"
}

# Installs a version of Rust if it is missing, as or_install does.
has_rust() { or_install "Rust $1" "cargo +$1 --version" "rustup toolchain install $1 --profile minimal"; }

# A value that the workspace gives to its crates: version, rust-version.
workspace_value() { sed -n "s/^$1 = \"\(.*\)\"$/\1/p" Cargo.toml; }

# Sets $ironmap to the program that IRONMAP_BIN names, or builds one for release.
find_ironmap() {
    # shellcheck disable=SC2034  # for the scripts
    ironmap=${IRONMAP_BIN:-$target/release/ironmap}
    [ -n "${IRONMAP_BIN:-}" ] || cargo build --quiet --locked --release -p ironmap-cli --features psk
}
