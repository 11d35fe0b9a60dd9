#!/usr/bin/env bash
# DiskANN's searches by its own reader and by ironmap. Needs root, 3 GiB in the temporary directory, and about 30 minutes for `measure`.
#
#   run.sh test      compares the answers on a small index
#   run.sh measure   compares the answers and the speed on an index of 300,000 vectors, and writes results.json
#
# IRONMAP_DISKANN_CACHE is the directory that keeps the index between runs.
source "$(dirname "$0")/../../tests/lib.sh"
here=integrations/diskann
export CARGO_TARGET_DIR=$target

build() { cargo build --quiet --locked --release --manifest-path $here/Cargo.toml; }

# fields: the fields of the results before the rows.
fields() {
    echo "  \"sources\": \"$(integrations/sources.sh)\","
    echo '  "crates": "",'
    echo "  \"date\": \"$(date -u +%F)\","
    echo "  \"machine\": \"$(sed -n 's/^model name\t*: //p' /proc/cpuinfo | uniq), $(nproc) CPUs, Linux $(uname -r)\","
    echo "  \"diskann\": \"$(sed -n 's/^diskann-disk = "\(.*\)"/\1/p' $here/Cargo.toml)\","
}

measure() {
    is_root || die "the devices need root"
    local cache=${IRONMAP_DISKANN_CACHE:-${TMPDIR:-/tmp}/ironmap-diskann} program=$target/release/ironmap-diskann index
    build
    index=$("$program" build "$cache")
    work=$(mktemp -d)
    trap '$here/devices.sh down "$work/devices"; rm -r "$work"' EXIT
    $here/devices.sh up "$work/devices" "$index"
    "$program" measure "$cache" "$work/devices" >"$work/rows"
    { echo '{' && fields && cat "$work/rows" && echo '}'; } >$here/results.json
}

case ${1:-} in
    test) cargo test --quiet --locked --release --manifest-path $here/Cargo.toml -- --nocapture ;;
    measure) measure ;;
    *) die "the arguments are: test, or measure" ;;
esac
