#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Runs the tests of tests/lab on devices made for them.
. /devices.sh
dd if=/dev/urandom of=/tmp/data bs=1M count=32 2>/dev/null
null_blk nullb0 1
for device in "$block1" "$block2" /dev/nullb0; do
    volume "$device" /tmp/data || exit 1
done
export LAB_DATA=/tmp/data LAB_NULL=/dev/nullb0
export LAB_BLOCK1="$block1" LAB_BLOCK2="$block2" LAB_CHAR1="$char1" LAB_CHAR2="$char2" LAB_CHAR3="$char3"
exec lab-tests --test-threads=1
