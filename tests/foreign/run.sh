#!/usr/bin/env bash
# The tests of all foreign images, or of those whose names contain NAME: tests/foreign/run.sh [NAME]
source "$(dirname "$0")/../lib.sh"
images=$(tests/foreign/images.sh) || { [ $? = 77 ] && exit; }
IRONMAP_FOREIGN_IMAGES=$images IRONMAP_FOREIGN=${1:-} cargo test --test foreign -- --nocapture
