#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Counts the instructions of random reads of 4 KiB, for each path to a device.
. /devices.sh
dd if=/dev/urandom of=/tmp/data bs=1M count=64 2>/dev/null
failed=0

# ways TARGET ENGINE...
ways() {
    target=$1
    shift
    for engine in "$@"; do
        for depth in 0 1 128; do
            for buffers in plain fixed; do
                case "$engine $depth $buffers" in
                psync\ [1-9]* | *\ 0\ fixed) ;;
                *) reads "$engine" "$target" "$depth" "$buffers" 2000 || failed=1 ;;
                esac
            done
        done
    done
}

# The volume is made first, because the kernel has other work in the first seconds after boot.
volume "$block1" /tmp/data || exit 1
ways "$block4" psync io_uring io_uring_poll
ways "$char4" io_uring io_uring_poll
# The slow device is not polled, because polling would add instructions for the time that the device needs.
ways "$block1:/data" psync io_uring
ways "$char1:/data" io_uring

# The mounted volume: reads through the kernel's file system, and reads that bypass it. Reads of the raw block device cost more here,
# because the kernel has cached the file system's metadata.
mount -t ext4 "$block1" /mnt
ways "$block1" psync io_uring
ways kernel:/mnt/data psync io_uring
ways host:/mnt/data psync io_uring
umount /mnt

null_blk nullb0 1
# The device is written first, because reads of blocks that were never written cost less.
cat /tmp/data >/dev/nullb0
volume /dev/nullb0 /tmp/data || exit 1
ways /dev/nullb0 psync io_uring io_uring_poll
ways /dev/nullb0:/data psync io_uring io_uring_poll
exit "$failed"
