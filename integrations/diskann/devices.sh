#!/usr/bin/env bash
# Makes and removes three loop devices with a copy of an index each. Needs root.
#
#   devices.sh up DIR INDEX   makes DIR/ext4/index and DIR/xfs/index on mounted file systems, and /index on the unmounted ext4
#                             volume DIR/volume (a link to its device)
#   devices.sh down DIR       removes the devices and DIR
#
# The devices read their backing files with direct I/O, so a read of a device is a read of the disk of DIR.
set -euo pipefail

# device NAME SIZE: makes a device of SIZE bytes, with the link DIR/NAME.dev.
device() {
    fallocate --length "$2" "$dir/$1.img"
    ln -s "$(losetup --find --show --direct-io=on "$dir/$1.img")" "$dir/$1.dev"
    mkdir "$dir/$1"
}

# fill NAME: copies the index to the device. The second mount has no cached pages of it.
fill() {
    mount "$dir/$1.dev" "$dir/$1"
    cp "$index" "$dir/$1/index"
    umount "$dir/$1"
}

up() {
    mkdir "$dir"
    # The smallest XFS has 300 MiB.
    local size=$((384 * 1024 * 1024 + $(stat --format %s "$index") / 4096 * 4096)) name
    for name in ext4 xfs volume; do device "$name" "$size"; done
    mkfs.ext4 -q "$dir/ext4.dev"
    mkfs.ext4 -q "$dir/volume.dev"
    mkfs.xfs -q -m reflink=0 "$dir/xfs.dev"
    for name in ext4 xfs volume; do fill "$name"; done
    mount "$dir/ext4.dev" "$dir/ext4"
    mount "$dir/xfs.dev" "$dir/xfs"
    rmdir "$dir/volume"
    mv "$dir/volume.dev" "$dir/volume"
}

down() {
    local name device
    for name in ext4 xfs volume; do
        if mountpoint --quiet "$dir/$name"; then umount "$dir/$name"; fi
        [ -f "$dir/$name.img" ] || continue
        for device in $(losetup --noheadings --output NAME --associated "$dir/$name.img"); do losetup --detach "$device"; done
    done
    rm -rf --one-file-system "$dir"
}

[ $# -ge 2 ] || { sed -n '2,6s/^# *//p' "$0" >&2; exit 1; }
dir=$2 index=${3:-}
"$1"
