#!/usr/bin/env bash
# Builds the release version of the program, and its Debian package with cargo-deb: build.sh [ARGUMENT...]. crates/ironmap-cli/Cargo.toml
# lists the files of the package.
#
# The arguments are passed to cargo-deb. If they name no other path, the package is target/debian/ironmap_VERSION_ARCH.deb.
source "$(dirname "$0")/../../../tests/lib.sh"

say "debian package"
# The package must contain the program of the target directory, not the program that IRONMAP_BIN names.
unset IRONMAP_BIN
find_ironmap
made=$target/release/deb
rm -rf "$made"
mkdir -p "$made/man"
"$ironmap" man "$made/man"
# cargo-deb does not compress files of cargo's target directory.
gzip -9nr "$made/man"
for shell in bash zsh fish; do
    "$ironmap" completions "$shell" >"$made/$shell"
done
# xz(1) compresses the package, because cargo-deb's own compression code is built without optimisation.
cargo deb --quiet --locked --no-build --strip --compress-system -p ironmap-cli "$@"
