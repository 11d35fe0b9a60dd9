#!/usr/bin/env bash
# DataFusion over ironmap's object store:
#
#   run.sh test                           compares results over ironmap's stores with those over LocalFileSystem; needs no root
#   run.sh measure [ROUNDS [FORMAT...]]   compares their speed on ext4 and XFS, and writes results.json; needs root and 4 GB below TMPDIR
#
# TMPDIR must not be a tmpfs. The table is kept there for the next measurement.
source "$(dirname "$0")/../../tests/lib.sh"
crate=integrations/datafusion
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/$crate/target}
table=${TMPDIR:-/tmp}/ironmap-datafusion-table-1.parquet

clean_up() {
    local loop name
    for name in kernel directory volume; do
        ! mountpoint -q "$work/$name" || umount "$work/$name"
    done
    for loop in "${loops[@]}"; do losetup -d "$loop" || true; done
    loops=()
    rm -f "$work"/*.img
}

# make_device NAME FORMAT: makes a file system with the table in an image of its own, as for each store. Sets $loop to its loop device,
# which does not cache the image.
make_device() {
    fallocate -l 1G "$work/$1.img"
    "mkfs.$2" -q "$work/$1.img"
    loop=$(losetup --direct-io=on --find --show "$work/$1.img")
    loops+=("$loop")
    mount "$loop" "$work/$1"
    cp "$table" "$work/$1/table.parquet"
    umount "$work/$1"
}

# measure_on FORMAT ROUNDS: appends the rows of one file system to $work/rows.
measure_on() {
    local name places=()
    for name in kernel directory; do
        make_device $name "$1"
        mount "$loop" "$work/$name"
        places+=("$work/$name" "$loop")
    done
    make_device volume "$1"
    # The priority keeps other programs from disturbing the rounds.
    nice -n -10 "$program" run "$1" "$2" "${places[@]}" "$loop" | tee -a "$work/rows"
    clean_up
}

# fields ROUNDS FORMAT...: the fields of the results before the rows.
fields() {
    local crates=(ironmap-async ironmap-object-store)
    echo "  \"sources\": \"$(integrations/sources.sh "${crates[@]}")\","
    echo "  \"crates\": \"${crates[*]}\","
    echo "  \"command\": \"integrations/datafusion/run.sh measure $*\","
    echo "  \"date\": \"$(date -u +%F)\","
    echo "  \"machine\": \"$(nproc) processors ($(lscpu | sed -n 's/^Model name: *//p')), Linux $(uname -r), loop devices over a virtual disk\","
    echo "  \"load_average_before\": \"$load\","
    echo "  \"load_average_after\": \"$(cut -d' ' -f1-3 /proc/loadavg)\","
    echo "  \"profile\": \"$(sed -n '/^\[profile.measure\]/,/^$/ s/ = / /p' $crate/Cargo.toml | tr -d \" | paste -sd, | sed 's/,/, /g')\","
    echo "  \"datafusion\": \"$(cargo pkgid --manifest-path $crate/Cargo.toml datafusion | sed 's/.*@//')\","
}

# measure ROUNDS FORMAT...: measures on each format, and writes the results.
measure() {
    local format load program=$CARGO_TARGET_DIR/measure/measure
    is_root || die "needs root, for loop devices and mounts"
    cargo build --quiet --locked --profile measure --manifest-path $crate/Cargo.toml --bin measure
    work=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-datafusion.XXXXXX")
    loops=()
    trap 'clean_up; rm -rf "$work"' EXIT
    mkdir "$work"/{kernel,directory,volume}
    if [ ! -f "$table" ]; then
        "$program" make "$table.part"
        mv "$table.part" "$table"
    fi
    load=$(cut -d' ' -f1-3 /proc/loadavg)
    for format in "${@:2}"; do measure_on "$format" "$1"; done
    {
        echo '{'
        fields "$@"
        echo '  "rows": ['
        sed 's/^/    /; $!s/$/,/' "$work/rows"
        echo '  ]'
        echo '}'
    } >"$work/results"
    cp "$work/results" $crate/results.json
}

case ${1:-} in
    test) cargo test --quiet --locked --profile measure --manifest-path $crate/Cargo.toml ;;
    measure)
        set -- "${@:2}"
        formats=("${@:2}")
        [ ${#formats[@]} != 0 ] || formats=(ext4 xfs)
        measure "${1:-11}" "${formats[@]}"
        ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
