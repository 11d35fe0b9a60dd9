#!/usr/bin/env bash
# Programs that nobody here wrote, on a mounted volume: programs.sh DIR short|long [FSX]. Ends with an error where one of them finds one.
set -euo pipefail
dir=$1 how=$2 fsx=${3:-}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(git -C "$sources" rev-parse --show-toplevel 2>/dev/null || echo "$sources")
cd "$dir"

long() { [ "$how" = long ]; }
has() { command -v "$1" >/dev/null; }
skip() { echo "SKIP $*"; }
step() { echo "== $*"; }

run_fio() {
    local direct size=4m
    long && size=64m
    for direct in 0 1; do
        step "fio, direct=$direct"
        fio --name="verify$direct" --filename="fio$direct" --size=$size --rw=randwrite --bsrange=512-64k --blockalign=512 \
            --ioengine=psync --direct=$direct --verify=crc32c --randseed=7 --minimal >"$scratch/fio" 2>&1 ||
            { cat "$scratch/fio"; return 1; }
        rm "fio$direct"
    done
}

run_git() {
    step git
    local count=20
    long && count=200
    git init -q --initial-branch=main work
    git -C work config user.email test@example.org
    git -C work config user.name test
    for ((i = 0; i < count; i++)); do
        mkdir -p "work/d$((i % 7))"
        seq "$i" $((i + 500)) >"work/d$((i % 7))/f$i"
        git -C work add . && git -C work commit -qm "$i"
    done
    git clone -q work clone
    git -C clone gc -q --aggressive
    git -C clone fsck --strict --full 2>"$scratch/fsck" || { cat "$scratch/fsck"; return 1; }
    [ -z "$(git -C clone status --porcelain)" ]
    git -C work log --format=%H >"$scratch/a" && git -C clone log --format=%H | cmp - "$scratch/a"
    rm -rf work clone
}

run_sqlite() {
    step sqlite3
    local rows=300
    long && rows=20000
    sqlite3 db "PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);" >"$scratch/mode"
    grep -qx wal "$scratch/mode"
    for ((i = 0; i < rows; i += 100)); do
        sqlite3 db "WITH RECURSIVE n(i) AS (SELECT $i UNION ALL SELECT i + 1 FROM n WHERE i < $i + 99)
                    INSERT INTO t SELECT i, hex(randomblob(200)) FROM n; DELETE FROM t WHERE a % 7 = 3;"
    done
    [ "$(sqlite3 db 'PRAGMA integrity_check; PRAGMA wal_checkpoint(TRUNCATE);' | head -1)" = ok ]
    rm -f db db-*
}

# In and out with contents, owners, modes, times, extended attributes and holes.
run_tar() {
    local tree=/usr/share/perl5
    long && tree=/usr/share
    [ -d "$tree" ] || tree=/etc
    step "tar of $tree"
    # The size of a directory is the file system's affair.
    local list=(find . -type d -printf '%P %y %m %U:%G %T@\n' -o -printf '%P %y %m %U:%G %s %T@ %l\n')
    mkdir "$scratch/made" tree back
    truncate -s 3M "$scratch/made/sparse"
    echo middle | dd of="$scratch/made/sparse" bs=1 seek=1M conv=notrunc status=none
    setfattr -n user.note -v "a value" "$scratch/made/sparse"
    chmod 4711 "$scratch/made/sparse"
    tar -C "$scratch/made" --format=posix --xattrs -Scf - . | tar -C back --xattrs --same-owner -xpf -
    (cd "$scratch/made" && "${list[@]}" | grep -v '^ d' | sort) | cmp - <(cd back && "${list[@]}" | grep -v '^ d' | sort)
    [ "$(getfattr --only-values -n user.note back/sparse)" = "a value" ]
    [ "$(stat -c %b back/sparse)" -lt 200 ]
    cmp "$scratch/made/sparse" back/sparse
    tar -C "$tree" --format=posix --xattrs -cf - . | tar -C tree --xattrs --same-owner -xpf -
    (cd "$tree" && "${list[@]}" | grep -v '^ d' | sort) >"$scratch/before"
    (cd tree && "${list[@]}" | grep -v '^ d' | sort) | cmp - "$scratch/before"
    (cd "$tree" && find . -type f -print0 | sort -z | xargs -0 md5sum) >"$scratch/sums"
    (cd tree && md5sum --quiet -c "$scratch/sums")
    rm -rf tree back
}

# This project, with sources and target on the volume.
run_cargo() {
    long && [ "$(stat -f -c %S .)" = 4096 ] || return 0
    step "cargo build"
    mkdir source
    git -C "$sources" archive HEAD | tar -C source -xf -
    CARGO_TARGET_DIR=$PWD/target cargo build --quiet --manifest-path source/Cargo.toml --package ironmap
    rm -rf source target
}

# The crate has neither O_DIRECT nor ZERO, COLLAPSE and INSERT.
run_fsx() {
    [ -n "$fsx" ] || { skip "fsx: not given"; return 0; }
    step fsx
    local count=2000
    long && count=100000
    cat >"$scratch/fsx.toml" <<'TOML'
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
TOML
    "$fsx" -f "$scratch/fsx.toml" -N "$count" -S 7 fsx.data >"$scratch/fsx" 2>&1 || { tail -40 "$scratch/fsx"; return 1; }
    rm -f fsx.data*
}

if has fio; then run_fio; else skip "fio: not installed"; fi
if has git; then run_git; else skip "git: not installed"; fi
if has sqlite3; then run_sqlite; else skip "sqlite3: not installed"; fi
if has cargo && [ -d "$sources/.git" ] || [ -f "$sources/.git" ]; then run_cargo; else skip "cargo build: no repository"; fi
run_tar
run_fsx
