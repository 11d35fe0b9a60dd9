#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Makes logical volumes of the types that combine other volumes, on the namespaces 7 to 11, and fills them from /files/pattern. Each logical
# volume that the kernel can read at the end has a line in the output: `lab: lvm NAME BYTES SHA256`.
. /devices.sh
for module in libcrc32c dm-mod dm-log dm-region-hash dm-mirror dm-bufio dm-snapshot dm-bio-prison dm-persistent-data dm-thin-pool xor raid6_pq async_tx \
    async_memcpy async_xor async_pq async_raid6_recov md-mod raid0 raid1 raid10 raid456 dm-raid; do
    [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko || exit 1
done
dmsetup targets | grep -q thin-pool || { echo "this kernel has no thin pools" && exit 77; }
mkdir -p /etc/lvm /run/lvm /run/lock/lvm
cat >/etc/lvm/lvm.conf <<CONF
devices { use_devicesfile = 0 scan_lvs = 0 }
activation { udev_sync = 0 udev_rules = 0 monitoring = 0 verify_udev_operations = 1 }
global { thin_check_executable = "/bin/thin_check" locking_dir = "/run/lock/lvm" event_activation = 0 use_lvmpolld = 0 }
backup { backup = 0 archive = 0 }
CONF
export LVM_SUPPRESS_FD_WARNINGS=1

# quiet COMMAND...: runs a command. Its output is shown only if it fails.
quiet() {
    "$@" >/tmp/log 2>&1 || { echo "failed: $*" && cat /tmp/log && false; }
}

# create NAME OPTION...: makes a logical volume.
create() {
    local name=$1
    shift
    quiet lvm lvcreate -y -n "$name" "$@"
}

# write NAME BLOCK COUNT FROM: writes blocks of 64 KiB at a block of a logical volume. The data begin at a block of the pattern.
write() {
    dd if=/files/pattern of="/dev/vg/$1" bs=64k seek="$2" count="$3" skip="$4" conv=fsync,notrunc 2>/dev/null || { echo "failed: write $*" && false; }
}

# synced NAME: waits until all legs of a logical volume are equal.
synced() {
    while [ "$(lvm lvs --noheadings -o sync_percent "vg/$1" 2>/dev/null | tr -d ' ')" != 100.00 ]; do sleep 0.2; done
}

# without DEVICE COMMAND...: runs a command of LVM that does not see one of the devices.
without() {
    local device=$1
    shift
    quiet lvm "$@" --config "devices { filter = [ \"r|^$device\$|\", \"a|.*|\" ] }"
}

# stale NAME DEVICE: writes while a device is missing, so the leg on this device is old.
stale() {
    write "$1" 0 128 0 && synced "$1" && quiet lvm lvchange -an "vg/$1" && without "$2" lvchange -ay --activationmode degraded "vg/$1" &&
        write "$1" 16 64 200 && without "$2" lvchange -an "vg/$1"
}

raids() {
    create raid1 --type raid1 -m 1 -L 8M vg "$block7" "$block8" && write raid1 0 128 0 && synced raid1 || return
    create stale1 --type raid1 -m 1 -L 8M vg "$block9" "$block10" && stale stale1 "$block10" || return
    create stale0 --type raid1 -m 1 -L 8M vg "$block9" "$block10" && stale stale0 "$block9" || return
    create three --type raid1 -m 2 -L 8M vg "$block7" "$block8" "$block10" && write three 0 128 30 && synced three || return
    create raid0 --type raid0 -i 3 -I 64k -L 9M vg && write raid0 0 144 10 || return
    create raid0meta --type raid0_meta -i 2 -I 16k -L 8M vg && write raid0meta 0 128 20 || return
    create raid10 --type raid10 -i 2 -I 64k -L 8M vg && write raid10 0 128 40 && synced raid10 || return
    create raid4 --type raid4 -i 2 -I 64k -L 8M vg && write raid4 0 128 50 && synced raid4 || return
    create raid5 --type raid5 -i 3 -I 64k -L 9M vg && write raid5 0 144 60 && synced raid5 || return
    create raid6 --type raid6 -i 3 -I 64k -L 9M vg && write raid6 0 144 70 && synced raid6 || return
    for layout in nr nc ls_6; do
        create raid6$layout --type raid6_$layout -i 3 -I 64k -L 9M vg && write raid6$layout 0 144 70 && synced raid6$layout || return
    done
}

mirrors() {
    create mirror --type mirror -m 1 --mirrorlog disk -L 8M vg "$block7" "$block8" "$block9" && write mirror 0 128 80 && synced mirror || return
    create core --type mirror -m 1 --mirrorlog core -L 8M vg "$block8" "$block10" && write core 0 128 90 && synced core
}

# A thin volume, a snapshot of it, and a snapshot of the snapshot. Each of them is written after the next one is made. Random writes make a
# tree of several levels.
thins() {
    create pool --type thin-pool -c 64k -L 48M --poolmetadatasize 2M vg && create thin -V 64M --thinpool vg/pool vg || return
    write thin 0 100 0 && write thin 900 124 100 || return
    local block=0
    while [ $block -lt 300 ]; do
        write thin $((100 + block * 2)) 1 $((block % 250)) || return
        block=$((block + 1))
    done
    quiet lvm lvcreate -y -s -n snap -kn -ay vg/thin && write thin 50 10 7 && write snap 10 10 77 || return
    quiet lvm lvcreate -y -s -n snapsnap -kn -ay vg/snap && write snap 15 10 99 && write snapsnap 40 20 111 && write snapsnap 1000 4 3 || return
    blkdiscard -o $((64 * 65536)) -l $((20 * 65536)) /dev/vg/thin && blkdiscard -o $((200 * 65536)) -l $((300 * 65536)) /dev/vg/snapsnap || return
    create empty -V 16M --thinpool vg/pool vg && create odd -V 5M --thinpool vg/pool vg && write odd 79 1 5 || return
    # The origin of a thin volume outside of the pool.
    create base -L 6M vg && write base 0 96 130 && quiet lvm lvchange -an vg/base && quiet lvm lvchange -pr vg/base &&
        quiet lvm lvcreate -y -s -n external -kn -ay --thinpool vg/pool vg/base && write external 3 5 0 && quiet lvm lvextend -y -L 8M vg/external || return
    # A pool whose data are a raid1 volume. Its chunks have a size that is not a power of two.
    create mirrored --type raid1 -m 1 -L 12M vg "$block7" "$block9" && synced mirrored &&
        quiet lvm lvconvert -y --type thin-pool -c 192k --poolmetadatasize 2M vg/mirrored && create on-raid -V 10M --thinpool vg/mirrored vg &&
        write on-raid 5 90 33
}

# A pool with a metadata snapshot, a pool whose metadata need a check, and a pool whose transaction the metadata of LVM do not know.
pools() {
    create held --type thin-pool -c 64k -L 8M --poolmetadatasize 2M vg && create on-held -V 8M --thinpool vg/held vg && write on-held 0 20 0 || return
    quiet dmsetup message vg-held-tpool 0 reserve_metadata_snap && write on-held 10 20 40 || return
    create ahead --type thin-pool -c 64k -L 4M --poolmetadatasize 2M vg && create on-ahead -V 4M --thinpool vg/ahead vg && write on-ahead 0 20 0 || return
    local transaction
    transaction=$(dmsetup status vg-ahead-tpool | cut -d' ' -f4)
    quiet dmsetup message vg-ahead-tpool 0 "set_transaction_id $transaction $((transaction + 3))"
}

others() {
    create striped -i 2 -I 64k -L 8M vg && write striped 0 128 12
}

# shellcheck disable=SC2086  # devices
quiet lvm pvcreate -y $block7 $block8 $block9 $block10 $block11 && quiet lvm vgcreate -y -s 1M vg $block7 $block8 $block9 $block10 $block11 || exit 1
for part in others raids mirrors thins pools; do
    $part || exit 1
done
sync
# The hashes are of volumes that were activated again, as after a restart. A stale leg is only read while it is missing.
quiet lvm vgchange -an vg || true
for name in striped raid1 three raid0 raid0meta raid10 raid4 raid5 raid6 raid6nr raid6nc raid6ls_6 mirror core thin snap snapsnap empty odd external on-raid on-held; do
    quiet lvm lvchange -ay -K "vg/$name" && hash=$(sha256sum "/dev/vg/$name" | cut -d' ' -f1) || exit 1
    echo "lab: lvm $name $(blockdev --getsize64 "/dev/vg/$name") $hash"
    quiet lvm lvchange -an "vg/$name" || exit 1
done
for pair in "stale1 $block10" "stale0 $block9"; do
    name=${pair% *} device=${pair#* }
    without "$device" lvchange -ay --activationmode degraded "vg/$name" && hash=$(sha256sum "/dev/vg/$name" | cut -d' ' -f1) || exit 1
    echo "lab: lvm $name $(blockdev --getsize64 "/dev/vg/$name") $hash"
    without "$device" lvchange -an "vg/$name" || exit 1
done
lvm vgchange -an vg >/dev/null 2>&1
