#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Tests XFS volumes of kinds that few kernels mount (version 4, case-insensitive names, quota, realtime files, zones). The kernel fills a
# volume, and ironmap must copy the same tree that the kernel shows. ironmap also copies the tree from a copy of the device that was made
# during the mount, with a log to recover. The check must find no errors.
. /devices.sh
for module in crc32c_generic libcrc32c exportfs xfs; do
    [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko
done
if ! grep -qw xfs /proc/filesystems; then
    echo "this kernel has no XFS"
    exit 77
fi
scsi_disk dev_size_mb=160 || exit 1

# Makes files of every kind: leaf and node directories, links, devices, files with holes, long names and long link targets.
fill() {
    mkdir -p "$1/leaf" "$1/node" "$1/deep/a/b/c" || return
    (cd "$1/leaf" && seq -w 150 | sed 's/^/name-/' | xargs touch) || return
    (cd "$1/node" && seq -w 1500 | sed 's/^/a-rather-long-name-of-a-file-/' | xargs touch) || return
    head -c 300000 /dev/urandom >"$1/data" && head -c 70 "$1/data" >"$1/short" || return
    dd if="$1/data" of="$1/holes" bs=4096 seek=300 count=10 2>/dev/null
    dd if="$1/data" of="$1/holes" bs=4096 seek=90 count=3 conv=notrunc 2>/dev/null
    ln "$1/data" "$1/deep/a/link" && ln -s data "$1/symlink" && ln -s "$(head -c 700 /dev/zero | tr '\0' t)" "$1/long" || return
    mkfifo "$1/fifo" && mknod "$1/null" c 1 3 && mknod "$1/block" b 259 70000 || return
    if [ -n "$clones" ]; then
        for at in 0 64k 128k; do
            /newer/bin/xfs_io -f -c "reflink $1/data $at 128k 96k" "$1/cloned" >/dev/null && /newer/bin/xfs_io -c "pwrite -q -b 4k $at 8k" "$1/data" || return
        done
    fi
    touch "$1/$(head -c 255 /dev/zero | tr '\0' n)" && chown 70000:80000 "$1/short" && chmod 4755 "$1/data" || return
    touch -d '1970-01-02 03:04:05' "$1/short" && touch -d '2037-12-31 23:59:59' "$1/leaf" "$1/fifo"
}

# Prints the tree as the kernel shows it.
tree() {
    (cd "$1" && find . ! -path ./lost+found -exec stat -c '%n %f %h %u %g %Y %t %T' {} + | sort &&
        find . -type f -exec md5sum {} + | sort -k 2 && find . -type l -exec readlink {} \; | sort)
}

# found ROOT COMMAND...: prints which names the command finds below ROOT, if their letters have another case.
found() {
    local root=$1
    shift
    for name in data DATA LeaF/NAME-001 deep/A/link node/A-Rather-long-name-of-a-file-0100 no-name; do
        "$@" "$root$name" >/dev/null 2>&1 && echo "$name"
    done
    return 0
}

# Whether the kernel and ironmap find the same names.
found_alike() {
    found "$1:/" ironmap stat >/tmp/by_ironmap && diff /tmp/by_kernel /tmp/by_ironmap
}

# copied DEVICE: copies with ironmap the tree of a device to /tmp/out.
copied() {
    rm -rf /tmp/out && mkdir /tmp/out || return
    # shellcheck disable=SC2086  # an option, or none
    ironmap $realtime cp -a "$1:/." /tmp/out 2>/tmp/found && return
    tail -n 5 /tmp/found
    return 1
}

# checked DEVICE: whether the check finds no errors.
checked() {
    ironmap check "$1" >/tmp/found 2>&1 && return
    tail -n 5 /tmp/found
    return 1
}

# same: whether the copy is equal to the tree that the kernel shows.
same() {
    tree /mnt >/tmp/kernel && tree /tmp/out >/tmp/ours || return
    diff /tmp/kernel /tmp/ours >/tmp/diff && return
    head -n 20 /tmp/diff
    return 1
}

# variant MOUNT-OPTIONS MKFS MKFS-OPTION...: tests one kind of volume with these mount options. If there is a realtime device, $realtime
# names it for ironmap, and $always for mount.
variant() {
    local options=$1 mkfs=$2
    shift 2
    "$mkfs" --unsupported -q -f -d size=60m "$@" "$block1" >/tmp/found 2>&1 || { cat /tmp/found && return 1; }
    mount -t xfs -o "$options" "$block1" /mnt 2>/dev/null || return 77
    fill /mnt && sync || return
    # After these changes, the log of the mounted volume is not empty.
    touch /mnt/last && mv /mnt/last /mnt/moved && rm /mnt/node/*-0007 && sync || return
    dd if="$block1" of=/dev/sda bs=1M count=150 2>/dev/null && umount /mnt || return
    copied "$block1" && mount -t xfs -o "ro$always" "$block1" /mnt && same && found /mnt/ test -e >/tmp/by_kernel && umount /mnt || return
    found_alike "$block1" && checked "$block1" || return
    ironmap info /dev/sda | grep -q 'State:  *not unmounted cleanly' || return
    # ironmap recovers the log first, then the kernel. The kernel's quota does not account for inodes that it removes during the recovery. A
    # mount without quota makes the next mount with quota count all inodes again.
    copied /dev/sda && mount -t xfs -o "$options" /dev/sda /mnt && same && umount /mnt || return
    mount -t xfs -o "rw$always" /dev/sda /mnt && umount /mnt && mount -t xfs -o "$options" /dev/sda /mnt && umount /mnt && checked /dev/sda
}

status=0 kinds=0
# kind MKFS MKFS-OPTION...: tests one kind of volume with each set of mount options.
kind() {
    local realtime="" always="" clones="" all="attr2 usrquota,grpquota" options device
    case "$*" in *rtdev=*)
        device=$(echo "$*" | sed 's/.*rtdev=\([^ ,]*\).*/\1/')
        realtime="--realtime $device" always=",rtdev=$device" all="rtdev=$device"
        ;;
    *zoned=1*) all=noatime ;;
    esac
    case "$*" in *metadir=1,reflink=1*) clones=1 ;; esac
    for options in $all; do
        variant "$options" "$@"
        case $? in
            0) echo "lab: xfs $*, $options: same" && kinds=$((kinds + 1)) ;;
            77) echo "lab: xfs $*, $options: this kernel does not mount it" ;;
            *) echo "lab: xfs $*, $options: FAILED" && umount /mnt 2>/dev/null && status=1 || status=1 ;;
        esac
    done
}

# All files are on the realtime device, which has extents of one block or of four blocks.
there="-d rtinherit=1 -r rtdev=$block2"
files_there="-s size=4096 -m reflink=0,rmapbt=0 $there"
for mkfs in "-m crc=0" "-m crc=0 -n ftype=0,size=8192 -b size=2048 -i size=512" "-m crc=0 -l version=1 -i attr=1" "-m rmapbt=1" "-n version=ci" \
    "$files_there,extsize=4096" "$files_there,extsize=16384" "-m crc=0 $files_there"; do
    # shellcheck disable=SC2086  # options of mkfs
    kind /bin/mkfs.xfs $mkfs
done
# Realtime groups, and zones. The zones are on a separate device, after the data on the same device, or on a device whose zones have gaps
# between them.
if [ -x /newer/bin/mkfs.xfs ]; then
    null_blk zones 1 zoned=1 zone_size=8 zone_capacity=6 zone_nr_conv=0 size=256 || echo "lab: no zoned device"
    sectors="-s size=4096"
    for mkfs in "-m metadir=1,reflink=0,rmapbt=0 $there,rgsize=16m" "-m metadir=1,reflink=1,rmapbt=1 $there,rgsize=16m" "-m metadir=1,reflink=0,rmapbt=1 $there,rgsize=16m,extsize=16384" \
        "$there,zoned=1,rgsize=4m" "-r zoned=1,rgsize=4m,size=80m -d rtinherit=1" "-d rtinherit=1 -r rtdev=/dev/zones"; do
        # shellcheck disable=SC2086  # options of mkfs
        kind /newer/bin/mkfs.xfs $sectors $mkfs
    done
else
    echo "lab: xfs groups and zones of realtime files: left out, no newer mkfs.xfs"
fi
[ "$kinds" -gt 0 ] || status=1
exit "$status"
