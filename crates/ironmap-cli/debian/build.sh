#!/usr/bin/env bash
# Builds the program for release, and by cargo-deb the Debian package of it, whose files crates/ironmap-cli/Cargo.toml lists: build.sh [ARGUMENT...]
#
# The package is target/debian/ironmap_VERSION_ARCH.deb, if the arguments for cargo-deb name no other path.
source "$(dirname "$0")/../../../tests/lib.sh"

say "debian package"
# The package contains the program of the target directory.
unset IRONMAP_BIN
find_ironmap
made=$target/release/deb
rm -rf "$made"
mkdir -p "$made/man"
"$ironmap" man "$made/man"
# cargo-deb compresses no file of cargo's target directory.
gzip -9nr "$made/man"
for shell in bash zsh fish; do
    "$ironmap" completions "$shell" >"$made/$shell"
done
# xz(1) compresses: the tool's own code is built without optimization.
cargo deb --quiet --locked --no-build --strip --compress-system -p ironmap-cli "$@"
