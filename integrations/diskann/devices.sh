#!/usr/bin/env bash
# Makes and removes three devices with a copy of an index each. Needs root.
#
#   devices.sh up DIR INDEX [KIND]   makes DIR, with DIR/ext4/index and DIR/xfs/index on mounted file systems, and /index on the
#                                    unmounted ext4 volume DIR/volume (a link to its device)
#   devices.sh down DIR              removes the devices and DIR
#
# KIND loop (the default) makes loop devices over files in DIR with direct I/O, so a read of a device is a read of the disk of DIR.
# KIND zram makes RAM disks, which have no latency.
set -euo pipefail

# device NAME SIZE: makes a device of SIZE bytes, with the link DIR/NAME.dev.
device() {
    local number
    mkdir "$dir/$1"
    case $kind in
        loop)
            fallocate --length "$2" "$dir/$1.img"
            ln -s "$(losetup --find --show --direct-io=on "$dir/$1.img")" "$dir/$1.dev"
            ;;
        zram)
            number=$(cat /sys/class/zram-control/hot_add)
            ln -s "/dev/zram$number" "$dir/$1.dev"
            echo "$2" >"/sys/block/zram$number/disksize"
            ;;
    esac
}

# fill NAME: copies the index to the device. A later mount has no cached pages of it.
fill() {
    mount "$dir/$1.dev" "$dir/$1"
    cp "$index" "$dir/$1/index"
    umount "$dir/$1"
}

up() {
    local size name
    mkdir "$dir"
    # The smallest XFS has 300 MiB.
    size=$((384 * 1024 * 1024 + $(stat --format %s "$index") / 4096 * 4096))
    for name in ext4 xfs volume; do device "$name" "$size"; done
    mkfs.ext4 -q "$dir/ext4.dev"
    mkfs.ext4 -q "$dir/volume.dev"
    mkfs.xfs -q -m reflink=0 "$dir/xfs.dev"
    for name in ext4 xfs volume; do fill "$name"; done
    mount "$dir/ext4.dev" "$dir/ext4"
    mount "$dir/xfs.dev" "$dir/xfs"
    rmdir "$dir/volume"
    ln -s volume.dev "$dir/volume"
}

down() {
    local name device
    for name in ext4 xfs volume; do
        if mountpoint --quiet "$dir/$name"; then umount "$dir/$name"; fi
        [ -L "$dir/$name.dev" ] || continue
        device=$(readlink "$dir/$name.dev")
        case $device in
            /dev/loop*) losetup --detach "$device" ;;
            /dev/zram*)
                echo 1 >"/sys/block/${device#/dev/}/reset"
                echo "${device#/dev/zram}" >/sys/class/zram-control/hot_remove
                ;;
        esac
    done
    rm -rf --one-file-system "$dir"
}

[ $# -ge 2 ] || { sed -n '2,9s/^# *//p' "$0" >&2; exit 1; }
dir=$2 index=${3:-} kind=${4:-loop}
"$1"
