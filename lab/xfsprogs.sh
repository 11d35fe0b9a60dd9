#!/usr/bin/env bash
# Prints the directory of an xfsprogs that supports all features of the tests. This is the directory in IRONMAP_XFSPROGS, or the system's
# xfsprogs if it is new enough, or the xfsprogs of a later release of Debian, which is unpacked once. If there is none, the exit status is
# 77.
source "$(dirname "$0")/../tests/lib.sh"
release=forky
# The first version that supports all features of the tests.
first="mkfs.xfs version 6.15"

is_new() {
    local version
    version=$("$1/mkfs.xfs" -V) && printf '%s\n' "$first" "$version" | sort -C -V
}

directory=$target/xfsprogs/$release
if [ -n "${IRONMAP_XFSPROGS:-}" ]; then
    echo "$IRONMAP_XFSPROGS"
elif is_new /usr/sbin 2>/dev/null; then
    echo /usr/sbin
elif said=$(lab/newer.sh "$release" xfsprogs "$directory" mkfs.xfs xfs_db xfs_io xfs_mdrestore xfs_repair 2>&1) &&
    said=$(is_new "$directory/bin" 2>&1); then
    echo "$directory/bin"
else
    why=${said##*$'\n'}
    skip "newer xfsprogs: ${why:-they do not run here}" >&2
    exit 77
fi
