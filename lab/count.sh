#!/bin/busybox sh
# Counts the instructions of random reads of 4 KiB, through each way to a device.
. /devices.sh
dd if=/dev/urandom of=/tmp/data bs=1M count=64 2>/dev/null
failed=0

# ways DEVICE ENGINE...: reads of the device, and of a volume's file on it.
ways() {
    device=$1
    shift
    for target in "$device" "$device:/data"; do
        for engine in "$@"; do
            case $engine in
            psync) reads psync "$target" 0 plain 1500 || failed=1 ;;
            *)
                for depth in 0 1 128; do
                    for buffers in plain fixed; do
                        [ "$depth $buffers" = "0 fixed" ] || reads "$engine" "$target" "$depth" "$buffers" 2000 || failed=1
                    done
                done
                ;;
            esac
        done
    done
}

volume "$block1" /tmp/data || exit 1
ways "$block1" psync io_uring io_uring_poll
ways "$char1" psync io_uring io_uring_poll
null_blk nullb0 1
volume /dev/nullb0 /tmp/data || exit 1
ways /dev/nullb0 psync io_uring io_uring_poll
exit "$failed"
