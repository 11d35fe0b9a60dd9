#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Runs the tests of tests/lab on devices that are made for these tests.
. /devices.sh
dd if=/dev/urandom of=/tmp/data bs=1M count=32 2>/dev/null
scsi_disk dif=1 dix=1 || exit 1
null_blk nullb0 1
for device in "$block1" "$block2" /dev/nullb0; do
    volume "$device" /tmp/data || exit 1
done
for device in "$block5" "$block6" /dev/sda; do
    volume "$device" /tmp/data 48M || exit 1
done
export LAB_DATA=/tmp/data LAB_NULL=/dev/nullb0
export LAB_BLOCK5="$block5" LAB_BLOCK6="$block6" LAB_CHAR5="$char5" LAB_CHAR6="$char6" LAB_SCSI=/dev/sda
export LAB_BLOCK1="$block1" LAB_BLOCK2="$block2" LAB_CHAR1="$char1" LAB_CHAR2="$char2" LAB_CHAR3="$char3"
lab-tests --test-threads=1 --skip atomic_
status=$?
# A disk of scsi_debug has no tuples for atomic writes.
scsi_disk atomic_wr=1 && volume /dev/sda /tmp/data 48M && lab-tests --test-threads=1 atomic_ || status=1
exit "$status"
