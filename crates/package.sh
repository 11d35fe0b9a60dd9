#!/usr/bin/env bash
# Packs the crates of the program, checks that each compiles from its package alone, and checks the size of each package. The packed crates
# depend on each other, so none need be in a registry. Only the upload itself is not tested.
source "$(dirname "$0")/../tests/lib.sh"
# In the order of publication.
packages=(ironmap ironmap-async ironmap-image ironmap-object-store ironmap-load ironmap-cli)
# The maximum size of each compressed package in KiB.
declare -A kib=([ironmap]=1280 [ironmap-async]=32 [ironmap-object-store]=64 [ironmap-image]=256 [ironmap-load]=64 [ironmap-cli]=512)
version=$(workspace_value version)

say "house rules, the lists of files among them"
cargo run --quiet -p house
say "cargo package"
cargo package --quiet --locked --allow-dirty --no-verify "${packages[@]/#/--package=}"

say "cargo check of the packages"
unpacked=$target/package/unpacked
rm -rf "$unpacked"
mkdir -p "$unpacked"
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*-%s"]\n\n[patch.crates-io]\n' "$version"
    for package in "${packages[@]}"; do echo "$package = { path = \"$package-$version\" }"; done
} >"$unpacked/Cargo.toml"
cp Cargo.lock "$unpacked"
for package in "${packages[@]}"; do
    tar -xzf "$target/package/$package-$version.crate" -C "$unpacked"
    rm -f "$unpacked/$package-$version/Cargo.lock"
done
CARGO_TARGET_DIR=$target/package/target cargo check --quiet --manifest-path "$unpacked/Cargo.toml" --workspace

for package in "${packages[@]}"; do
    file=$target/package/$package-$version.crate
    size=$((($(stat -c %s "$file") + 1023) / 1024))
    echo "$file: $size KiB"
    [ "$size" -le "${kib[$package]}" ] || die "the package of $package is larger than ${kib[$package]} KiB"
done
