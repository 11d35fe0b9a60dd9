#!/usr/bin/env bash
# Packs the crates of the program, builds each from its package alone, and checks its size. The program is built with the packed library, so this
# needs no registry that has the library; only the upload itself remains untried.
source "$(dirname "$0")/../tests/lib.sh"
# In the order of publication.
packages=(ironmap ironmap-image ironmap-load ironmap-cli)
# The greatest size of a compressed package.
declare -A kib=([ironmap]=1024 [ironmap-image]=256 [ironmap-load]=64 [ironmap-cli]=512)
version=$(workspace_value version)

say "house rules, the lists of files among them"
cargo run --quiet -p house
say "cargo package"
# Cargo takes an unpacked library of an earlier run again as long as its version is the same, and would build the program with an old one.
for package in "${packages[@]}"; do
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$package-$version"
done
# Cargo packs no crate that needs an unpublished one, and ironmap-image is not published yet: a copy of the tree without that line is packed.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents --no-dereference -t "$copy"
sed -i '/^publish = false$/d' "$copy/crates/ironmap-image/Cargo.toml"
(cd "$copy" && CARGO_TARGET_DIR=$target cargo package --locked --allow-dirty "${packages[@]/#/--package=}")
for package in "${packages[@]}"; do
    file=$target/package/$package-$version.crate
    size=$((($(stat -c %s "$file") + 1023) / 1024))
    echo "$file: $size KiB"
    [ "$size" -le "${kib[$package]}" ] || die "the package of $package is larger than ${kib[$package]} KiB"
done
