#!/usr/bin/env bash
# DataFusion over ironmap's object store:
#
#   run.sh test                           compares results over ironmap's stores with those over LocalFileSystem; needs no root
#   run.sh measure [ROUNDS [FORMAT...]]   compares their speed on ext4 and XFS, and writes results.json; needs root and 3 GB below TMPDIR
#
# TMPDIR must not be a tmpfs. The table is kept there for the next measurement.
source "$(dirname "$0")/../../tests/lib.sh"
crate=integrations/datafusion
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/$crate/target}
table=${TMPDIR:-/tmp}/ironmap-datafusion-table-1.parquet

clean_up() {
    local loop
    ! mountpoint -q "$work/mounted" || umount "$work/mounted"
    for loop in "${loops[@]}"; do losetup -d "$loop" || true; done
    loops=()
    rm -f "$work"/*.img
}

# attach IMAGE: makes a loop device that does not cache the image, and sets $loop to it.
attach() {
    loop=$(losetup --direct-io=on --find --show "$1")
    loops+=("$loop")
}

# measure_on FORMAT ROUNDS: appends the rows of one file system to $work/rows.
measure_on() {
    local first
    truncate -s 1G "$work/mounted.img"
    "mkfs.$1" -q "$work/mounted.img"
    attach "$work/mounted.img" && first=$loop
    mount "$first" "$work/mounted"
    cp "$table" "$work/mounted/table.parquet"
    umount "$work/mounted"
    cp "$work/mounted.img" "$work/volume.img"
    attach "$work/volume.img"
    mount "$first" "$work/mounted"
    "$CARGO_TARGET_DIR/release/measure" run "$1" "$work/mounted" "$first" "$loop" "$2" | tee -a "$work/rows"
    clean_up
}

# measure ROUNDS FORMAT...: measures on each format, and writes the results.
measure() {
    local format
    is_root || die "needs root, for loop devices and mounts"
    cargo build --quiet --locked --release --manifest-path $crate/Cargo.toml --bin measure
    work=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-datafusion.XXXXXX")
    loops=()
    trap 'clean_up; rm -rf "$work"' EXIT
    mkdir "$work/mounted"
    if [ ! -f "$table" ]; then
        "$CARGO_TARGET_DIR/release/measure" make "$table.part"
        mv "$table.part" "$table"
    fi
    for format in "${@:2}"; do measure_on "$format" "$1"; done
    local crates=(ironmap-async ironmap-object-store)
    {
        echo '{'
        echo "  \"sources\": \"$(integrations/sources.sh "${crates[@]}")\","
        echo "  \"crates\": \"${crates[*]}\","
        echo "  \"command\": \"integrations/datafusion/run.sh measure $*\","
        echo "  \"date\": \"$(date -u +%F)\","
        echo "  \"machine\": \"$(nproc) processors ($(lscpu | sed -n 's/^Model name: *//p')), Linux $(uname -r), loop devices over a virtual disk\","
        echo "  \"datafusion\": \"$(cargo pkgid --manifest-path $crate/Cargo.toml datafusion | sed 's/.*@//')\","
        echo '  "rows": ['
        sed 's/^/    /; $!s/$/,/' "$work/rows"
        echo '  ]'
        echo '}'
    } >"$work/results"
    cp "$work/results" $crate/results.json
}

case ${1:-} in
    test) cargo test --quiet --locked --release --manifest-path $crate/Cargo.toml ;;
    measure)
        set -- "${@:2}"
        formats=("${@:2}")
        [ ${#formats[@]} != 0 ] || formats=(ext4 xfs)
        measure "${1:-11}" "${formats[@]}"
        ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
