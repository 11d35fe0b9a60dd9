#!/usr/bin/env bash
# Compares a cloud image as the kernel and as ironmap show it: tests/cloud/run.sh [PROGRAM]
#
# mmdebstrap makes a Debian system. Its root is an ext4 in two segments of a logical volume, and /var is an XFS in another logical volume. The
# physical volume is a partition of a GPT, and the disk is a qcow2 image compressed with zstd. The oracle is the kernel's mount of each file
# system, before the disk is made. The program must have the feature lvm.
source "$(dirname "$0")/../lib.sh"
needs="mmdebstrap sfdisk pvcreate lvs losetup mkfs.xfs qemu-img getfattr setfacl tar"
# shellcheck disable=SC2086  # a list of words
if ! is_root || ! has $needs; then
    skip "cloud image: needs root, $needs"
    exit
fi
[ $# = 0 ] || IRONMAP_BIN=$1
find_ironmap

scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
mounted=$scratch/mounted
loop=
clean_up() {
    ! mountpoint -q "$mounted" || umount "$mounted"
    [ -z "$loop" ] || losetup -d "$loop"
    rm -rf "$scratch"
}
trap clean_up EXIT
mkdir "$mounted"

system=$target/debian-root/cloud
mkdir -p "${system%/*}"
[ -d "$system" ] || timed "cloud: system" mmdebstrap --quiet --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$system" ||
    { rm -rf "$system" && skip "cloud image: mmdebstrap cannot make a system" && exit; }

# manifest DIR: each file's kind, mode, owner, size, time, links and target, then contents, then extended attributes with ACLs.
# The kernel shows the ACLs of XFS a second time, as trusted.SGI_ACL_FILE.
manifest() {
    (
        cd "$1"
        find . -xdev -path ./lost+found -prune -o -type d -printf '%p d %m %U %G %T@\n' -o -printf '%p %y %m %U %G %s %T@ %n %l\n' | LC_ALL=C sort
        find . -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
        find . -xdev -path ./lost+found -prune -o -print0 | LC_ALL=C sort -z | xargs -0 getfattr -h -d -m - -e hex |
            grep -v '^trusted.SGI_'
    )
}

# fill IMAGE FROM: copies a tree into a file system through the kernel, adds attributes, and writes the kernel's manifest.
fill() {
    mount -o loop "$1" "$mounted"
    cp -a "$2/." "$mounted"
    mkdir -p "$mounted/cases"
    for size in 1 4095 4096 4097 1000000; do head -c "$size" /dev/urandom >"$mounted/cases/$size"; done
    truncate -s 5M "$mounted/cases/hole"
    fallocate -l 2M "$mounted/cases/unwritten"
    ln "$mounted/cases/4096" "$mounted/cases/second"
    mknod "$mounted/cases/null" c 1 3
    mkfifo "$mounted/cases/fifo"
    setfattr -n user.ironmap -v "$(head -c 300 /dev/zero | tr '\0' x)" "$mounted/cases/1"
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 "$mounted/cases/4097"
    setfacl -m u:1234:rw,g:99:r "$mounted/cases/4095"
    manifest "$mounted" >"$1.kernel"
    umount "$mounted"
}

say "file systems"
truncate -s 1000M "$scratch/root"
mkfs.ext4 -q "$scratch/root"
fill "$scratch/root" "$system"
truncate -s 400M "$scratch/var"
mkfs.xfs -q "$scratch/var"
fill "$scratch/var" "$system/var"

say "disk"
disk=$scratch/disk
truncate -s 1600M "$disk"
printf 'label: gpt\nsize=64MiB,type=uefi\ntype=lvm\n' | sfdisk -q --no-reread "$disk"
begin=$(sfdisk -J "$disk" | python3 -c 'import json, sys; print(json.load(sys.stdin)["partitiontable"]["partitions"][1]["start"] * 512)')
size=$(sfdisk -J "$disk" | python3 -c 'import json, sys; print(json.load(sys.stdin)["partitiontable"]["partitions"][1]["size"] * 512)')
loop=$(losetup --find --show --offset "$begin" --sizelimit "$size" "$disk")
# lvm PROGRAM ARGUMENT...: a tool of LVM that sees only the partition, and does not use the device mapper.
# Its warnings are shown only if it fails.
lvm() {
    LVM_SYSTEM_DIR=$scratch LVM_SUPPRESS_FD_WARNINGS=1 "$1" --driverloaded n --config "devices { filter=[\"a|^$loop\$|\",\"r|.*|\"] use_devicesfile=0 }
        activation { udev_sync=0 udev_rules=0 monitoring=0 } global { locking_dir=\"$scratch/locks\" }" "${@:2}" 2>"$scratch/warnings" ||
        { cat "$scratch/warnings" && return 1; }
}
make() { lvm lvcreate -q -y -an -Zn -Wn "$@" vg >/dev/null; }
lvm pvcreate -q -y "$loop" >/dev/null
lvm vgcreate -q -y vg "$loop" >/dev/null
make -n root -L 600M
make -n var -L 400M
lvm lvextend -q -y -L 1000M vg/root >/dev/null
# Each segment: volume, its first byte there, its length, and its first extent on the partition.
lvm lvs --segments --noheadings --nosuffix --units b -o lv_name,seg_start,seg_size,seg_pe_ranges >"$scratch/segments"
extent=$(lvm vgs --noheadings --nosuffix --units b -o vg_extent_size vg)
first=$(lvm pvs --noheadings --nosuffix --units b -o pe_start "$loop")
losetup -d "$loop"
loop=
[ "$(wc -l <"$scratch/segments")" = 3 ] || die "root has no second segment"
while read -r name start len range; do
    range=${range##*:}
    at=$((begin + first + ${range%%-*} * extent))
    dd if="$scratch/$name" of="$disk" bs=1M skip="$start" count="$len" seek="$at" iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc,sparse status=none
done <"$scratch/segments"
qemu-img convert -O qcow2 -c -o compression_type=zstd "$disk" "$scratch/disk.qcow2"
rm "$disk"

for name in root var; do
    say "$name"
    volume=qcow2:$scratch/disk.qcow2@vg/$name
    "$ironmap" info "qcow2:$scratch/disk.qcow2" | grep -q "vg/$name" || die "info does not show vg/$name"
    "$ironmap" check "$volume"
    mkdir "$scratch/out"
    "$ironmap" tar "$volume:/" | tar -x --numeric-owner --xattrs --xattrs-include='*' -C "$scratch/out"
    manifest "$scratch/out" >"$scratch/ironmap"
    diff "$scratch/$name.kernel" "$scratch/ironmap" | head -n 20
    cmp "$scratch/$name.kernel" "$scratch/ironmap"
    echo "vg/$name: $(grep -c . "$scratch/ironmap") lines of the manifest are equal"
    rm -rf "$scratch/out"
done
