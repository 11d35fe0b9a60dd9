#!/usr/bin/env bash
# RocksDB over ironmap:
#
#   run.sh build              builds the library, and prints its path: LD_PRELOAD=PATH db_bench --fs_uri=ironmap:// --use_direct_reads=true
#   run.sh test               compares databases on ext4 and XFS with a model and with RocksDB's file system; needs root and 1 GB below TMPDIR
#   run.sh measure [ROUNDS]   compares the speed on ext4, and writes results.json; needs root, db_bench and 4 GB below TMPDIR
#
# RocksDB is installed by: apt-get install librocksdb-dev rocksdb-tools. PROFILE is the profile of ironmap's C library, release by default.
# TMPDIR must not be a tmpfs.
source "$(dirname "$0")/../../tests/lib.sh"
here=integrations/rocksdb
built=$target/rocksdb
profile=${PROFILE:-release}

# The database of the measurement: keys of 16 bytes, values of 500.
keys=2000000
seconds=${IRONMAP_ROCKSDB_SECONDS:-5}

# compile OUTPUT ARGUMENT...: compiles and links sources.
compile() {
    # The program finds the library of this build when it is started from any directory.
    nice -n 5 "${CXX:-c++}" -std=c++17 -O2 -g -Wall -Wextra -Werror -I"$built/include" -o "$built/$1" "${@:2}" \
        -L"$built/lib" -Wl,-rpath,"$built/lib" -lironmap -lrocksdb
}

build() {
    PROFILE=$profile crates/ironmap-capi/install.sh "$built"
    compile libironmap_rocksdb.so -fPIC -shared $here/src/ironmap_fs.cc
}

# missing: prints the reason why databases on loop devices cannot be tested here.
missing() {
    if ! is_root; then
        echo "needs root, for loop devices and mounts"
    elif ! succeeds "echo '#include <rocksdb/db.h>' | ${CXX:-c++} -std=c++17 -E -x c++ -"; then
        echo "needs a C++ compiler and librocksdb-dev"
    fi
}

# prepare: makes the directory of the work, which is removed at the end.
prepare() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-rocksdb.XXXXXX")
    loop=
    mkdir "$work/mounted"
    trap 'release; rm -rf --one-file-system "$work"' EXIT
}

release() {
    ! mountpoint -q "$work/mounted" || umount "$work/mounted"
    [ -z "$loop" ] || losetup -d "$loop"
    loop=
    rm -f "$work/image"
}

# provide SIZE MKFS...: mounts a new file system on a loop device that does not cache its image.
provide() {
    fallocate -l "$1" "$work/image"
    "${@:2}" "$work/image"
    loop=$(losetup --direct-io=on --find --show "$work/image")
    mount "$loop" "$work/mounted"
}

run_test() {
    local reason
    reason=$(missing)
    if [ -n "$reason" ]; then
        skip "integrations/rocksdb: $reason"
        return
    fi
    build
    compile equal $here/src/ironmap_fs.cc $here/tests/equal.cc
    prepare
    provide 512M mkfs.ext4 -q
    "$built/equal" "$work/mounted/ext4" ironmap:// 1
    "$built/equal" "$work/mounted/ext4-psync" ironmap:// 1 forbid
    release
    provide 1G mkfs.xfs -q -m reflink=1
    "$built/equal" "$work/mounted/xfs" ironmap://assume_no_dedupe 1
    # Without the promise, ironmap asks the kernel to read tables on XFS with reflink.
    "$built/equal" "$work/mounted/xfs-shared" ironmap:// 0
}

# bench ARGUMENT...: runs db_bench on the database.
bench() {
    db_bench --db="$work/mounted/db" --num=$keys --key_size=16 --value_size=500 --compression_type=none --bloom_bits=10 "$@"
}

# one KIND SEED BENCHMARK THREADS ARGUMENT...: runs a benchmark once, and prints: ops/s, p50 and p99 in µs, µs of processor time per operation.
one() {
    local preload='' uri=() times=$work/times out=$work/out
    if [ "$1" = ironmap ]; then
        preload=$built/libironmap_rocksdb.so uri=(--fs_uri=ironmap://)
    fi
    sync
    echo 3 >/proc/sys/vm/drop_caches
    local TIMEFORMAT='%U %S'
    # The priority keeps other programs from disturbing the rounds.
    { time LD_PRELOAD=$preload bench --use_existing_db --readonly --use_direct_reads=true --cache_size=8388608 --histogram \
        --benchmarks="$3" --threads="$4" --seed="$2" --duration="$seconds" --ops_between_duration_checks=50 \
        "${uri[@]}" "${@:5}" >"$out" 2>"$out.errors"; } 2>"$times" || die "db_bench failed: $(tail -n 3 "$out" "$out.errors")"
    awk -v name="$3" '
        FNR == NR { processor = ($1 + $2) * 1e6; next }
        $1 == name && /ops\/sec/ { ops = $5; count = $9; if (match($0, /\(([0-9]+) of ([0-9]+) found/)) found = substr($0, RSTART + 1) }
        /^Percentiles:/ { p50 = $3; p99 = $7 }
        END {
            split(found, of, " ")
            if (!count || of[1] != of[3]) exit 1
            print ops, p50, p99, processor / count
        }' "$times" "$out" || die "db_bench did not find all keys: $(tail -n 20 "$out")"
}

# rounds ROUNDS: appends the result of each run to $work/rounds: BENCHMARK THREADS KIND ROUND OPS P50 P99 PROCESSOR.
rounds() {
    local round row kinds kind seed=0 arguments
    for ((round = 1; round <= $1; round++)); do
        kinds=(default ironmap)
        [ $((round % 2)) = 1 ] || kinds=(ironmap default)
        for row in {readrandom,multireadrandom,seekrandom}\ {1,4,16}; do
            arguments=()
            case $row in
                multi*) arguments=(--multiread_batched=true --batch_size=64) ;;
                seek*) arguments=(--seek_nexts=10) ;;
            esac
            for kind in "${kinds[@]}"; do
                # No two runs read the same keys, because the virtual disk may cache blocks.
                seed=$((seed + 1))
                # shellcheck disable=SC2086  # the name and the threads are two words
                echo "$row $kind $round $(one "$kind" $seed $row "${arguments[@]}")" | tee -a "$work/rounds"
            done
        done
    done
}

measure() {
    local reason before
    reason=$(missing)
    [ -z "$reason" ] || die "$reason"
    has db_bench || die "needs db_bench: apt-get install rocksdb-tools"
    build
    prepare
    provide 3G mkfs.ext4 -q
    bench --benchmarks=fillseq,compact --disable_wal=true >"$work/out" 2>&1 || die "db_bench failed: $(tail -n 3 "$work/out")"
    before=$(cut -d' ' -f1 /proc/loadavg)
    rounds "$1"
    local crates=(ironmap-capi ironmap-async)
    {
        echo '{'
        echo "  \"sources\": \"$(integrations/sources.sh "${crates[@]}")\","
        echo "  \"crates\": \"${crates[*]}\","
        echo "  \"command\": \"integrations/rocksdb/run.sh measure $1\","
        echo "  \"date\": \"$(date -u +%F)\","
        echo "  \"machine\": \"$(nproc) processors ($(lscpu | sed -n 's/^Model name: *//p')), Linux $(uname -r), ext4 on a loop device over a virtual disk\","
        echo "  \"load_average\": \"$before before the rounds, $(cut -d' ' -f1 /proc/loadavg) after them\","
        echo "  \"rocksdb\": \"$(db_bench --version | sed -n 's/.*version \([0-9.]*\).*/\1/p')\","
        echo "  \"profile\": \"$profile\","
        echo "  \"database\": \"$keys keys of 16 bytes, values of 500 bytes, not compressed; block cache of 8 MiB\","
        echo "  \"rounds\": $1,"
        echo "  \"seconds\": $seconds,"
        echo '  "rows": ['
        awk -f $here/medians.awk "$work/rounds" | sed 's/^/    /; $!s/$/,/'
        echo '  ]'
        echo '}'
    } >"$work/results"
    cp "$work/results" $here/results.json
}

case ${1:-} in
    build) build && echo "$built/libironmap_rocksdb.so" ;;
    test) run_test ;;
    measure) measure "${2:-5}" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
