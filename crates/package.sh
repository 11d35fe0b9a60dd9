#!/usr/bin/env bash
# Packs the crates of the program, builds each crate only from its package, and checks the size of the package. The program is built with
# the packed library, so the library need not be in a registry. Only the upload itself is not tested.
source "$(dirname "$0")/../tests/lib.sh"
# In the order of publication.
packages=(ironmap ironmap-async ironmap-image ironmap-object-store ironmap-load ironmap-cli)
# The maximum size of each compressed package in KiB.
declare -A kib=([ironmap]=1152 [ironmap-async]=32 [ironmap-object-store]=64 [ironmap-image]=256 [ironmap-load]=64 [ironmap-cli]=512)
version=$(workspace_value version)

say "house rules, the lists of files among them"
cargo run --quiet -p house
say "cargo package"
# Cargo reuses the unpacked library of an earlier run if its version is the same, so the unpacked crates are removed.
for package in "${packages[@]}"; do
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$package-$version"
done
cargo package --locked --allow-dirty "${packages[@]/#/--package=}"
for package in "${packages[@]}"; do
    file=$target/package/$package-$version.crate
    size=$((($(stat -c %s "$file") + 1023) / 1024))
    echo "$file: $size KiB"
    [ "$size" -le "${kib[$package]}" ] || die "the package of $package is larger than ${kib[$package]} KiB"
done
