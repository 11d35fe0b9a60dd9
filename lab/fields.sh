#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Tests which changed superblocks of XFS volumes this kernel mounts for reading. In each superblock, one field is changed. Each line of
# /files/list contains a volume's name, the namespace of the volume, and the namespace of its realtime device or -. /files/NAME contains the
# superblocks, 512 bytes each.
. /devices.sh
for module in crc32c_generic libcrc32c exportfs xfs; do
    [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko
done
if ! grep -qw xfs /proc/filesystems; then
    echo "this kernel has no XFS"
    exit 77
fi

# mounts DEVICE OPTIONS: whether the kernel mounts the device and lists its root directory.
mounts() {
    local status=0
    mount -t xfs -o "$2" "$1" /mnt 2>/dev/null || return
    ls -a /mnt >/dev/null 2>&1 || status=1
    umount /mnt && return "$status"
}

while read -r name disk realtime; do
    eval "device=\$block$disk"
    options=ro
    [ "$realtime" = - ] || eval "options=ro,rtdev=\$block$realtime"
    # A mount cannot change a device that is read-only.
    blockdev --setro "$device"
    if ! mounts "$device" "$options"; then
        echo "lab: fields $name not mounted"
        continue
    fi
    number=0 count=$(($(stat -c %s "/files/$name") / 512))
    while [ "$number" -lt "$count" ]; do
        blockdev --setrw "$device"
        dd if="/files/$name" of="$device" bs=512 skip="$number" count=1 conv=notrunc,fsync 2>/dev/null || exit
        blockdev --setro "$device"
        mounts "$device" "$options" && verdict=mounted || verdict=refused
        echo "lab: fields $name $number $verdict"
        number=$((number + 1))
    done
done </files/list
