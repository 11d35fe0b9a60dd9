#!/usr/bin/env bash
# Runs the tests for all foreign images, or for the images whose names contain NAME: tests/foreign/run.sh [NAME]
source "$(dirname "$0")/../lib.sh"
status=0
images=$(tests/foreign/images.sh) || status=$?
[ "$status" != 77 ] || exit 0
[ "$status" = 0 ] || exit "$status"
IRONMAP_FOREIGN_IMAGES=$images IRONMAP_FOREIGN=${1:-} cargo test --test foreign -- --nocapture
