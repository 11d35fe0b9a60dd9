#!/usr/bin/env bash
# Runs other programs on a mounted volume: programs.sh DIR short|long [FSX]. If a program finds an error, the script ends with an error.
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
    local engine size=4m
    long && size=64m
    for engine in "--direct=0 --ioengine=psync" "--direct=1 --ioengine=psync" "--direct=1 --ioengine=libaio --iodepth=16"; do
        step "fio $engine"
        # shellcheck disable=SC2086
        fio --name=verify --filename=fio --size=$size --rw=randwrite --bsrange=512-64k --blockalign=512 $engine \
            --verify=crc32c --randseed=7 --minimal >"$scratch/fio" 2>&1 || { cat "$scratch/fio"; return 1; }
        rm fio
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

# Writes a tree as an archive. Equal trees give equal archives, with names, types, contents, owners, modes, times, links, extended
# attributes, ACLs, and the positions of holes.
pack() {
    tar --format=posix --sort=name --numeric-owner --pax-option='exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime' \
        --xattrs --xattrs-include='*' --acls --sparse --sparse-version=0.0 -C "$1" -cf - .
}

# Makes a tree with kinds of files that are rare in /usr.
make_tree() {
    mkdir -p "$1/dir/sub"
    (
        cd "$1"
        local at name
        for at in 0 1M 7M 3000M; do
            truncate -s 3G "sparse$at"
            seq 10000 | dd of="sparse$at" bs=64K seek="$at" oflag=seek_bytes conv=notrunc status=none
        done
        truncate -s 5M hole
        fallocate -l 1M allocated
        name=$(printf '%255s' '' | tr ' ' n)
        seq 3000 >"$name"
        ln "$name" dir/linked
        ln -s "$name" link
        mkfifo fifo
        mknod device c 1 3
        printf 'x' >$'odd \n\t\xff name'
        chown 1000:70000 dir/linked
        chown -h 3:4 link
        chmod 6755 sparse0
        chmod 1777 dir
        setfattr -n user.note -v "a value" sparse0
        setfattr -n user.long -v "$(printf '%600s' '' | tr ' ' v)" dir/linked
        setfattr -n user.empty dir/linked
        setfattr -n user.note -v "of a directory" dir
        setfattr -n trusted.note -v "of a directory" dir/sub
        setfattr -h -n trusted.note -v "of a link" link
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 allocated
        setfacl -m u:1000:rw,g:7:r hole
        setfacl -d -m u:5:rwx,g::r-x,o::- dir/sub
        touch -d 1955-11-05T06:15:00Z hole
        touch -h -d 2100-01-01T00:00:00.000000001Z link
        touch -d 1999-12-31T23:59:59.999999999Z dir/sub
    )
}

# Copies a tree into the volume and out again: all of /usr if there is enough space. The archive of the copy must equal the archive of the
# original.
run_tar() {
    local tree=/usr/share/perl5 name room used
    if long; then
        tree=/usr
        read -r room < <(df --output=avail -B1M . | tail -n1)
        read -r used _ < <(du -smx /usr)
        [ "$room" -gt $((used + used / 10)) ] || tree=/usr/share
    fi
    [ -d "$tree" ] || tree=/etc
    make_tree "$scratch/made"
    for name in "$scratch/made" "$tree"; do
        step "tar of $name"
        mkdir tree
        pack "$name" | tar --xattrs --xattrs-include='*' --acls --same-owner --numeric-owner --warning=no-timestamp -C tree -xpf -
        cmp <(pack "$name") <(pack tree) || { diff -qr --no-dereference "$name" tree | head -n 20; return 1; }
        rm -rf tree
    done
    rm -rf "$scratch/made"
}

# Builds this project with sources and target directory on the volume. A second build has no work, because all times are kept.
run_cargo() {
    long || return 0
    step "cargo build"
    mkdir source
    git -C "$sources" archive HEAD | tar -C source -xf -
    local build=(env CARGO_TARGET_DIR="$PWD/target" cargo build --manifest-path source/Cargo.toml)
    "${build[@]}" --quiet
    "${build[@]}" 2>"$scratch/cargo"
    ! grep Compiling "$scratch/cargo" || return 1
    rm -rf source target
}

# This implementation of fsx does not support O_DIRECT, and no zero, collapse and insert operations of fallocate.
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
