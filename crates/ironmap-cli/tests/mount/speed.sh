#!/usr/bin/env bash
# Compares the speed of a volume that is mounted by ironmap, by fuse2fs or by the kernel: speed.sh IRONMAP [ROUNDS [FILES]]. The images are
# in memory (/dev/shm). In each round, the three mounts are measured one after the other. Prints a table of the medians.
set -euo pipefail
ironmap=$1 rounds=${2:-5} files=${3:-100000}
scratch=$(mktemp -d "/dev/shm/ironmap-test-$$-XXXXXX")
image=$scratch/image dir=$scratch/mounted daemon=''
mkdir "$dir"

clean_up() {
    umount -l "$dir" 2>/dev/null || true
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT

fail() { echo "speed.sh: $*" >&2; exit 1; }
runs() { readlink "/proc/$1/exe" >/dev/null; }

start() {
    case $1 in
        ironmap)
            rm -f "$scratch/told"
            "$ironmap" mount -f --tell -o noatime "$image" "$dir" >"$scratch/told" &
            daemon=$!
            until [ -s "$scratch/told" ]; do runs "$daemon" || fail "it is not mounted"; done
            ;;
        fuse2fs)
            fuse2fs -f -o fakeroot "$image" "$dir" >/dev/null 2>&1 &
            daemon=$!
            until mountpoint -q "$dir"; do runs "$daemon" || fail "fuse2fs does not mount it"; done
            ;;
        kernel) mount -o loop,noatime "$image" "$dir" ;;
    esac
}

end() {
    umount "$dir"
    [ -z "$daemon" ] || wait "$daemon"
    daemon=''
}

# The work of a load per second, from fio's terse output: the sum of a field for reads and the same field for writes.
measure() {
    local side=$1 row=$2 field=$3
    shift 3
    local value
    value=$(fio --minimal --terse-version=3 --directory="$dir" --group_reporting --allow_file_create=1 "$@" |
        awk -F';' -v a="$field" '{ print $a + $(a + 41) }')
    printf '%s\t%s\t%s\n' "$row" "$side" "$value" >>"$scratch/values"
}

# Fields of fio's terse output, version 3: field 7 is the bandwidth in KiB/s, and field 8 the IOPS. The number of the same field for writes
# is larger by 41.
readonly bandwidth=7 iops=8

# The number of files that a command processes per second.
timed() {
    local side=$1 row=$2 begin=$EPOCHREALTIME
    shift 2
    "$@" >/dev/null
    awk -v r="$row" -v s="$side" -v f="$files" -v b="$begin" -v e="$EPOCHREALTIME" \
        'BEGIN { printf "%s\t%s\t%s\n", r, s, f / (e - b) }' >>"$scratch/values"
}

# The shell makes the files, because fio takes longer for each file if there are many.
create() {
    local name
    while read -r name; do : >"$name"; done <"$scratch/names"
}

loads() {
    local side=$1 content=(--filename=content --size=256m --ioengine=psync --direct=1 --runtime=3 --time_based)
    fio --minimal --directory="$dir" --name=fill --filename=content --size=256m --rw=write --bs=1m --end_fsync=1 >/dev/null
    measure "$side" "1 4K random read, direct (IOPS)" $iops "${content[@]}" --name=r --rw=randread --bs=4k
    measure "$side" "2 4K random write, direct (IOPS)" $iops "${content[@]}" --name=w --rw=randwrite --bs=4k
    measure "$side" "3 4K random read, direct, 4 jobs (IOPS)" $iops "${content[@]}" --name=r --rw=randread --bs=4k --numjobs=4
    measure "$side" "4 4K random write, direct, 4 jobs (IOPS)" $iops "${content[@]}" --name=w --rw=randwrite --bs=4k --numjobs=4
    measure "$side" "5 1M sequential read, direct (KiB/s)" $bandwidth "${content[@]}" --name=s --rw=read --bs=1m
    measure "$side" "6 1M sequential write, direct (KiB/s)" $bandwidth "${content[@]}" --name=s --rw=write --bs=1m
    mkdir "$dir/many"
    seq -f "$dir/many/%.0f" "$files" >"$scratch/names"
    timed "$side" "7 create (files/s)" create
    timed "$side" "8 stat (files/s)" xargs -a "$scratch/names" stat -c ''
    timed "$side" "9 list with attributes (files/s)" find "$dir/many" -printf "%s %T@ %p\n"
    timed "$side" "A unlink (files/s)" find "$dir/many" -delete
}

for ((round = 0; round < rounds; round++)); do
    for side in ironmap fuse2fs kernel; do
        truncate -s 0 "$image"
        truncate -s 1G "$image"
        mke2fs -qF -t ext4 -N $((files + 1000)) "$image"
        start "$side"
        loads "$side"
        end
    done
done

printf '| load | ironmap mount | fuse2fs | kernel, loop | ironmap : fuse2fs | ironmap : kernel |\n|---|--:|--:|--:|--:|--:|\n'
sort -t$'\t' -k1,1 -k2,2 -k3,3g "$scratch/values" | awk -F'\t' '
    { key = $1 SUBSEP $2; values[key, ++count[key]] = $3; if (!($1 in seen)) { seen[$1]; rows[++n] = $1 } }
    function median(row, side,   key) { key = row SUBSEP side; return values[key, int((count[key] + 1) / 2)] }
    END {
        for (i = 1; i <= n; i++) {
            a = median(rows[i], "ironmap"); b = median(rows[i], "fuse2fs"); c = median(rows[i], "kernel")
            printf "| %s | %.0f | %.0f | %.0f | %.2f | %.2f |\n", substr(rows[i], 3), a, b, c, a / b, a / c
        }
    }'
