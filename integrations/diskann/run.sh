#!/usr/bin/env bash
# DiskANN's searches by its own reader and by ironmap. `measure` needs root, zram, 3 GiB in the temporary directory and in memory, and about
# half an hour.
#
#   run.sh test      compares the answers on a small index
#   run.sh measure   compares the answers and the speed on an index of 300,000 vectors, and writes results.json
#
# IRONMAP_DISKANN_CACHE is the directory that keeps the index between runs.
source "$(dirname "$0")/../../tests/lib.sh"
here=integrations/diskann
export CARGO_TARGET_DIR=$target

# fields: the fields of the results before the rows.
fields() {
    echo "  \"sources\": \"$(integrations/sources.sh)\","
    echo '  "crates": "",'
    echo "  \"date\": \"$(date -u +%F)\","
    echo "  \"machine\": \"$(sed -n 's/^model name\t*: //p' /proc/cpuinfo | uniq), $(nproc) CPUs, Linux $(uname -r)\","
    echo "  \"load_average\": \"$(cut -d' ' -f1-3 /proc/loadavg)\","
    echo "  \"diskann\": \"$(sed -n 's/^diskann-disk = "\(.*\)"/\1/p' $here/Cargo.toml)\","
    sed -n 's/^const \(VECTORS\|ROUNDS\): usize = \([0-9_]*\);/  "\L\1\E": \2,/p' $here/src/main.rs $here/src/measure.rs | tr -d _
}

# clean_up: removes the devices, and their directory.
clean_up() {
    $here/devices.sh down "$work/devices"
    rm -r "$work"
}

# rows KIND WHAT TIMES: measures reads or searches on devices of this kind.
rows() {
    $here/devices.sh up "$work/devices" "$index" "$1"
    # The priority keeps other programs from disturbing the rounds.
    nice -n -10 "$program" "$2" "$cache" "$work/devices" "$1" "$3" >>"$work/rows"
    $here/devices.sh down "$work/devices"
}

measure() {
    is_root || die "the devices need root"
    [ -e /sys/class/zram-control ] || modprobe zram
    cache=${IRONMAP_DISKANN_CACHE:-${TMPDIR:-/tmp}/ironmap-diskann} program=$target/release/ironmap-diskann
    cargo build --quiet --locked --release --manifest-path $here/Cargo.toml
    index=$("$program" build "$cache")
    work=$(mktemp -d)
    trap clean_up EXIT
    rows zram reads 8
    rows zram search 8
    rows loop reads 1
    rows loop search 1
    {
        echo '{'
        fields
        echo '  "rows": ['
        # The last row has no comma.
        sed '$s/,$//' "$work/rows"
        echo '  ]'
        echo '}'
    } >$here/results.json
}

case ${1:-} in
    test) cargo test --quiet --locked --release --manifest-path $here/Cargo.toml -- --nocapture ;;
    measure) measure ;;
    *) die "the arguments are: test, or measure" ;;
esac
