#!/usr/bin/env bash
# Prints the directory of volumes that other authors made and damaged. It is the value of IRONMAP_FOREIGN_IMAGES, or a directory with the
# images of e2fsprogs' tests. Each image has the name of its test. The exit code is 77 if the images are not available.
source "$(dirname "$0")/../lib.sh"

if [ -n "${IRONMAP_FOREIGN_IMAGES:-}" ]; then
    echo "$IRONMAP_FOREIGN_IMAGES"
    exit
fi
status=0
source=$(lab/source.sh e2fsprogs "$PWD/tests/foreign/unpack.sh") || status=$?
[ "$status" != 77 ] || skip "foreign images: $source" >&2
[ "$status" = 0 ] || exit "$status"
echo "$source/images"
