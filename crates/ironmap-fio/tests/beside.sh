#!/usr/bin/env bash
# Compares fio and ironmap bench on the same devices: beside.sh ENGINE IRONMAP [ROUNDS [SECONDS]]. Needs root. Each load is measured on the
# raw device, on a file through the kernel's ext4, and on the same file through ironmap. The table goes to standard output.
source "$(dirname "$0")/../../../tests/lib.sh"
ENGINE=$1 ironmap=$2 rounds=${3:-7} seconds=${4:-1}
is_root || { skip "fio beside bench: needs root" && exit; }
jobs=$PWD/crates/ironmap-fio/jobs
scratch=$(mktemp -d "/dev/shm/ironmap-test-$$-XXXXXX")
mounted=$scratch/mounted marks=/run/ironmap-bench-zram zrams=() loops=()
mkdir "$mounted"

clean_up() {
    local device
    umount -l "$mounted" 2>/dev/null || true
    for device in "${loops[@]}"; do losetup --detach "$device"; done
    for device in "${zrams[@]}"; do
        # A fio that was interrupted together with this script may still be ending.
        for _ in {1..50}; do
            echo 1 2>/dev/null >"/sys/block/zram$device/reset" && break
            sleep 0.1
        done
        echo "$device" >/sys/class/zram-control/hot_remove
        rm -f "$marks/zram$device"
    done
    rm -rf "$scratch"
}
trap clean_up EXIT

fail() { echo "beside.sh: $*" >&2; [ ! -s "$scratch/log" ] || cat "$scratch/log" >&2; exit 1; }

readonly megabytes=96
# Makes a device of a kind, and stores its name in $made.
make_device() {
    case $1 in
        zram)
            made=$(cat /sys/class/zram-control/hot_add)
            mkdir -p "$marks"
            echo $$ >"$marks/zram$made" # for ./x clean-up
            zrams+=("$made")
            echo 256M >"/sys/block/zram$made/disksize"
            made=/dev/zram$made
            ;;
        loop)
            truncate -s 256M "$scratch/image${#loops[@]}"
            made=$(losetup --find --show --direct-io=off "$scratch/image${#loops[@]}")
            loops+=("$made")
            ;;
    esac
}

# Makes two equal volumes: one for ironmap and for raw requests, and one that is mounted.
prepare() {
    umount "$mounted" 2>/dev/null || true
    make_device "$1" && VOLUME=$made
    make_device "$1" && twin=$made
    for device in "$VOLUME" "$twin"; do
        mke2fs -qF -t ext4 -b 4096 "$device"
        "$ironmap" cp "$scratch/content" "$device:/file"
    done
    mount -o noatime "$twin" "$mounted"
    OFFSET=$(($(debugfs -R "bmap /file 0" "$VOLUME" 2>/dev/null) * 4096))
    # The file is one extent, so that the raw device's requests use the same blocks.
    [ "$(filefrag "$mounted/file" | awk '{ print $(NF-2) }')" = 1 ] || fail "the file is not in one piece"
    export ENGINE VOLUME OFFSET RAW=$VOLUME FILE=/file KERNEL=$mounted/file SIZE=${megabytes}m
}

readonly sides=(raw kernel ironmap)

# The CPU time of a section's request in nanoseconds, which the other programs of a busy machine affect little. In fio's terse output, field
# 8 is the IOPS of reads, and field 49 the IOPS of writes. Fields 88 and 89 are the user and system time in percent of the run time.
cost() {
    RW=$1 fio --minimal --terse-version=3 --runtime="$seconds" --section="$2" "$jobs/simple.fio" 2>"$scratch/log" |
        awk -F';' '/^3;/ && $5 == 0 { printf "%.0f\n", ($88 + $89) / 100 * 1e9 / ($8 + $49) }'
}

# Measures the costs of a load with fio and with the bench, for each target.
measure() {
    local rw=$1 depth=$2 engine=$3 suffix='' copied=() side round value
    # At depth 1, fio's own memory is used for a write. This memory is copied if the device computes checksums over the data.
    [ "$rw $depth" != "randwrite 1" ] || copied=(--integrity lazy)
    [ "$depth" = 1 ] || suffix=-$depth
    for ((round = 0; round < rounds; round++)); do
        for side in "${sides[@]}"; do
            value=$(cost "$rw" "$side$suffix")
            [ "${value:-0}" -gt 0 ] || fail "fio: $side, $rw"
            printf 'fio %s %s\n' "$side" "$value"
        done
    done
    "$ironmap" bench "raw:$VOLUME@$OFFSET" "kernel:$mounted/file" "vol:$VOLUME:/file" --size ${megabytes}m --rw "$rw" --destroy "${copied[@]}" \
        --engine "$engine" --iodepth "$depth" --cpus 0 --rounds "$rounds" --runtime "$seconds" 2>"$scratch/log" |
        awk -F'|' '$8 + 0 > 0 { split($2, name, " "); print "bench", name[1] == "vol" ? "ironmap" : name[1], $12 + 0 }'
}

# Prints a row: the medians of fio's rounds and of the bench's rounds, and the difference to the cost of a request on the raw device.
row() {
    sort -k1,2 -k3n | awk -v load="$1" '
        { seen[$1, $2, ++count[$1, $2]] = $3 }
        function median(tool, side) { return seen[tool, side, int((count[tool, side] + 1) / 2)] }
        function above(tool, side) { return median(tool, side) - median(tool, "raw") }
        END {
            printf "| %s | %d | %d | %d | %d | %d | %d | %+d | %+d | %+d | %+d |\n", load,
                median("fio", "raw"), median("fio", "kernel"), median("fio", "ironmap"),
                median("bench", "raw"), median("bench", "kernel"), median("bench", "ironmap"),
                above("fio", "kernel"), above("bench", "kernel"), above("fio", "ironmap"), above("bench", "ironmap")
        }'
}

head -c $((megabytes << 20)) /dev/zero | tr '\0' . >"$scratch/content"
echo "| load, CPU ns a request | fio: raw | kernel | ironmap | bench: raw | kernel | ironmap | kernel above raw: fio | bench | ironmap above raw: fio | bench |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
prepare zram
measure randread 1 psync | row "zram, psync, random read"
measure randwrite 1 psync | row "zram, psync, random overwrite"
prepare loop
measure randread 64 io_uring | row "loop, io_uring, depth 64, random read"
measure randread 256 io_uring | row "loop, io_uring, depth 256, random read"
measure randwrite 64 io_uring | row "loop, io_uring, depth 64, random overwrite"
