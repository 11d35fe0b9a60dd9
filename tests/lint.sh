#!/usr/bin/env bash
# Checks formatting, clippy, documentation, the public interface, house rules, dependencies, and shell scripts.
source "$(dirname "$0")/lib.sh"

# The packages that users build.
packages=(--locked --package ironmap --package ironmap-cli)

# Checks these packages with the oldest version of Rust that Cargo.toml permits.
oldest_rust() {
    local version
    version=$(workspace_value rust-version)
    has_rust "$version" || { skip "check by Rust $version: it cannot be installed" && return; }
    CARGO_TARGET_DIR=$target/oldest-rust cargo "+$version" check --quiet "${packages[@]}"
}

# The dependency ring compiles C code, so the check needs a cross compiler.
aarch64() {
    local triple=aarch64-unknown-linux-gnu
    has aarch64-linux-gnu-gcc || { skip "check for AArch64: needs aarch64-linux-gnu-gcc" && return; }
    or_install "Rust's library for AArch64" "test -d \$(rustc --print target-libdir --target $triple)" "rustup target add $triple" ||
        { skip "check for AArch64: its standard library cannot be installed" && return; }
    cargo check --quiet "${packages[@]}" --target "$triple"
}

# The advisory database is a separate git repository. Without a network the other parts of the audit still run.
audit() {
    local checks=(bans licenses sources)
    if succeeds "timeout 60 cargo deny --log-level error fetch db"; then
        checks+=(advisories)
    else
        skip "cargo deny advisories: the advisory database cannot be fetched"
    fi
    cargo deny --log-level error check "${checks[@]}"
}

scripts() {
    local list scripts
    has shellcheck || { skip "shellcheck: not installed" && return; }
    list=$(git ls-files '*.sh') || return
    mapfile -t scripts <<<"$list"
    shellcheck x setup .ci/run lab/init "${scripts[@]}"
}

failed=()
# step NAME COMMAND...: runs a step. Every step runs, even if the previous step failed.
step() {
    say "$1"
    timed "lint: $1" "${@:2}" || failed+=("$1")
}
step format cargo fmt --all --check
step clippy cargo clippy --quiet "${workspace[@]}" --all-targets -- -D warnings
# Cargo omits this test from all targets, because it runs in a guest only.
step "clippy of the lab" cargo clippy --quiet "${workspace[@]}" --test lab -- -D warnings
# Checks the library without features. A check of the workspace enables all features of the library.
step "clippy without features" cargo clippy --quiet -p ironmap --lib --test nbd -- -D warnings
step "clippy of the Python package" cargo clippy --quiet --locked --manifest-path crates/ironmap-python/Cargo.toml --all-targets -- -D warnings
step "format of the Python package" cargo fmt --manifest-path crates/ironmap-python/Cargo.toml --check
step "format of the DiskANN integration" cargo fmt --manifest-path integrations/diskann/Cargo.toml --check
step "format of the DataFusion integration" cargo fmt --manifest-path integrations/datafusion/Cargo.toml --check
step "the oldest Rust" oldest_rust
step AArch64 aarch64
step docs env RUSTDOCFLAGS="-D warnings" cargo doc --quiet "${workspace[@]}" --no-deps
step "public interface" docs/public-api.sh check
step "house rules" cargo run --quiet -p house
step "results of integrations" integrations/stale.sh
step "tables of the benchmarks" cargo run --quiet -p xtask -- bench-page check
step dependencies audit
step "unused dependencies" cargo machete
step shellcheck scripts
[ ${#failed[@]} = 0 ] || die "lint failed: ${failed[*]}"
echo "lint: all passed"
