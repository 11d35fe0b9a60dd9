#!/usr/bin/env bash
# Runs databases on a mounted volume, and kills the daemon of the mount under load: killed.sh IRONMAP short|long. Afterwards, all committed
# data exist, and the databases' own checks succeed. A fault ends the script with an error.
set -euo pipefail
ironmap=$1 how=$2
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
image=$scratch/image dir=$scratch/mounted daemon='' postmaster=''
mkdir "$dir"
chmod 755 "$scratch"

has() { command -v "$1" >/dev/null; }
skip() { echo "SKIP $*"; }
step() { echo "== $*"; }
fail() { echo "killed.sh: $*" >&2; exit 1; }
runs() { readlink "/proc/$1/exe" >/dev/null; }

clean_up() {
    [ -z "$postmaster" ] || kill -QUIT "$postmaster" 2>/dev/null || true
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    umount -l "$dir" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT

start() {
    rm -f "$scratch/told"
    "$ironmap" mount -f --tell -o "$1" "$image" "$dir" >"$scratch/told" &
    daemon=$!
    until [ -s "$scratch/told" ]; do runs "$daemon" || fail "it is not mounted"; done
}

# The unmount is retried, because the mount is briefly in use when another process looks for the users of a mount, or copies the mounts into
# a new namespace.
end() {
    local tries
    for ((tries = 0; tries < 500; tries++)); do
        umount "$dir" 2>"$scratch/umount" && break
    done
    ! mountpoint -q "$dir" || { cat "$scratch/umount"; fail "it stays mounted"; }
    wait "$daemon"
    daemon=
    e2fsck -fn "$image" >"$scratch/e2fsck" 2>&1 || { cat "$scratch/e2fsck"; fail "e2fsck finds errors"; }
}

# Kills the daemon under load. Programs that use the volume then get errors.
kill_daemon() {
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null || true
    daemon=
}

make() {
    rm -f "$image"
    truncate -s "$2" "$image"
    mke2fs -qF -t ext4 -b "$1" "$image"
}

# Waits until a file has this number of lines. Fails if the process that writes them ends before.
lines() {
    until [ "$(wc -l <"$1")" -ge "$2" ]; do runs "$3" || fail "the load ended before its time"; done
}

# Kills the daemon while sqlite3 inserts rows. Each row is printed after its commit, so all printed rows must exist.
sqlite_killed() {
    step "sqlite3, blocks of $1, -o $2"
    local rows=200 writer acked
    [ "$how" = short ] || rows=5000
    make "$1" 512M
    start "$2"
    sqlite3 "$dir/db" "PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB);" >/dev/null
    : >"$scratch/acked"
    {
        echo "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=100;"
        local i
        for ((i = 1; i < 1000000; i++)); do
            echo "INSERT INTO t VALUES ($i, randomblob($((i % 5000 + 1)))); SELECT $i;"
        done
    } 2>/dev/null | stdbuf -oL sqlite3 -bail "$dir/db" >"$scratch/acked" 2>/dev/null &
    writer=$!
    lines "$scratch/acked" "$rows" "$writer"
    kill_daemon
    wait "$writer" || true
    umount -l "$dir"
    start "$2"
    acked=$(tail -n1 "$scratch/acked")
    [ "$(sqlite3 "$dir/db" 'PRAGMA integrity_check')" = ok ] || fail "integrity_check"
    local found
    found=$(sqlite3 "$dir/db" "SELECT count(*) FROM t WHERE a <= $acked AND length(b) = a % 5000 + 1")
    [ "$found" = "$acked" ] || fail "sqlite3: $acked rows were committed, $found are there"
    end
}

postgres_killed() {
    step "PostgreSQL, blocks of $1, -o $2"
    local transactions=300 data=$dir/data load logged counts
    [ "$how" = short ] || transactions=5000
    local as=(setpriv --reuid=postgres --regid=postgres --init-groups env -C / LC_ALL=C)
    local options=(-c "unix_socket_directories=$scratch/socket" -c listen_addresses= -c shared_buffers=16MB -c max_wal_size=64MB)
    local sql=("${as[@]}" "$postgres/psql" -h "$scratch/socket" -qAt -d postgres)
    # The server is a child of this script, so that the script can wait for its end. PostgreSQL refuses a second server while the process in
    # its lock file runs.
    start_postgres() {
        "${as[@]}" "$postgres/postgres" -D "$data" "${options[@]}" >>"$scratch/socket/log" 2>&1 &
        postmaster=$!
        until "${as[@]}" "$postgres/pg_isready" -q -h "$scratch/socket"; do
            runs "$postmaster" || { tail "$scratch/socket/log"; fail "PostgreSQL does not start"; }
        done
    }
    make "$1" 1G
    rm -rf "$scratch/socket"
    install -d -o postgres "$scratch/socket" "$scratch/socket/logged"
    start "allow_other,$2"
    install -d -o postgres -m 700 "$data"
    "${as[@]}" "$postgres/initdb" -D "$data" >/dev/null
    start_postgres
    "${as[@]}" "$postgres/pgbench" -h "$scratch/socket" -i -q -s 2 postgres 2>/dev/null
    "${as[@]}" env -C "$scratch/socket/logged" "$postgres/pgbench" -h "$scratch/socket" -n -c 4 -T 600 -l postgres >/dev/null 2>&1 &
    load=$!
    until [ "$("${sql[@]}" -c 'SELECT count(*) FROM pgbench_history')" -ge "$transactions" ]; do
        runs "$load" || fail "pgbench ended before its time"
    done
    kill_daemon
    wait "$load" || true
    kill -QUIT "$postmaster" 2>/dev/null || true
    wait "$postmaster" || true
    postmaster=
    umount -l "$dir"
    start "allow_other,$2"
    start_postgres
    # pgbench logs a transaction after its commit, so at least the logged number of transactions must exist.
    logged=$(cat "$scratch"/socket/logged/pgbench_log.* | wc -l)
    counts=$("${sql[@]}" -c 'SELECT count(*) FROM pgbench_history')
    if [ "$counts" -lt "$transactions" ] || [ "$counts" -lt "$logged" ]; then
        fail "PostgreSQL: $logged transactions were logged, $counts are there"
    fi
    # The database can be used again: another load completes.
    "${as[@]}" "$postgres/pgbench" -h "$scratch/socket" -n -c 4 -t "$((transactions / 4))" postgres >"$scratch/socket/again" 2>&1 ||
        { cat "$scratch/socket/again"; fail "pgbench"; }
    grep -q 'failed transactions: 0 ' "$scratch/socket/again" || fail "PostgreSQL: transactions failed"
    [ "$("${sql[@]}" -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)')" = t ] ||
        fail "PostgreSQL: the sums differ"
    "${as[@]}" "$postgres/pg_amcheck" -h "$scratch/socket" --install-missing --heapallindexed -d postgres ||
        fail "pg_amcheck finds errors"
    kill -INT "$postmaster"
    wait "$postmaster"
    postmaster=
    end
}

postgres=$(dirname "$(find /usr/lib/postgresql -name initdb 2>/dev/null | sort -V | tail -n1)")
for block in 4096 1024; do
    for options in rw writeback_cache; do
        if has sqlite3; then sqlite_killed "$block" "$options"; else skip "sqlite3: not installed"; fi
        if [ -x "$postgres/pgbench" ]; then postgres_killed "$block" "$options"; else skip "PostgreSQL: not installed"; fi
        [ "$how" = long ] || break
    done
done
