#!/bin/busybox sh
# shellcheck shell=dash disable=SC1091,SC2154  # devices.sh is there in the guest
# Makes arrays of Linux MD, and stores their members on the eighth disk, as files of an ext4 volume. Each line of /files/list describes an
# array: its name, a state, the sizes of its devices in bytes, and options of mdadm. Each array gets the first bytes of /files/pattern, and is
# assembled and compared again. The output has a line for each array: `lab: md NAME SIZE RESULT`.
. /devices.sh
for module in /modules/libcrc32c /modules/xor /modules/raid6_pq /modules/async_tx /modules/async_memcpy /modules/async_xor /modules/async_pq \
    /modules/async_raid6_recov /modules/md-mod /modules/linear /modules/raid0 /modules/raid1 /modules/raid10 /modules/raid456 /modules/loop; do
    [ ! -e $module.ko ] || insmod $module.ko || exit 1
done
[ -e /proc/mdstat ] || { echo "this kernel has no MD" && exit 77; }
mkdir -p /run/mdadm
export MDADM_NO_UDEV=1
/bin/mke2fs -q -F -t ext4 "$block7" && mount -t ext4 "$block7" /mnt || exit 1
md=/sys/block/md0/md

# attach SIZE...: makes a file for each device, and a loop device for each file.
attach() {
    loops="" count=0
    for size in "$@"; do
        truncate -s "$size" "/mnt/$name.$count" && losetup "/dev/loop$count" "/mnt/$name.$count" || return
        loops="$loops /dev/loop$count" count=$((count + 1))
    done
}

# detach: detaches the loop devices. The process of mdadm that watches a reshape can still have a device open; the kernel detaches the device
# when the process closes it.
detach() {
    local tries=0
    for loop in $loops; do losetup -d "$loop"; done
    for loop in $loops; do
        while [ -e "/sys/block/${loop#/dev/}/loop/backing_file" ] && [ $tries -lt 300 ]; do sleep 0.1 && tries=$((tries + 1)); done
    done
}

# same: whether the array has the first bytes of the pattern.
same() {
    head -c "$bytes" /files/pattern | cmp - /dev/md0
}

# write FILE: writes the first bytes of a file to the array.
write() {
    head -c "$bytes" "$1" | dd of=/dev/md0 bs=64k conv=fsync iflag=fullblock 2>/dev/null
}

idle() {
    while [ -e $md/sync_action ] && [ "$(cat $md/sync_action)" != idle ]; do sleep 0.1; done
}

# slow COMMAND...: begins a copy or a reshape by a command, and waits until it has made progress.
slow() {
    echo 100 >$md/sync_speed_max && echo 50 >$md/sync_speed_min && "$@" >/tmp/log 2>&1 || return
    while [ "$(cat $md/sync_action)" = idle ] || [ "$(cat $md/sync_completed)" = none ] || [ "$(cut -d' ' -f1 $md/sync_completed)" = 0 ]; do sleep 0.1; done
}

# stopped: stops the array.
stopped() {
    mdadm --stop /dev/md0 >/tmp/log 2>&1
}

# again: assembles the array, compares it, and stops it.
again() {
    # shellcheck disable=SC2086  # devices
    mdadm --assemble --readonly --run /dev/md0 $loops >/tmp/log 2>&1 && same && stopped
}

# state: brings the array to the state of the list. The last device is the one that is replaced or lost.
state() {
    last=/dev/loop$((count - 1))
    case $1 in
        clean) stopped && again ;;
        # The members differ in their events: the second one fails before the array gets the pattern.
        stale)
            write /files/other && mdadm --fail /dev/md0 /dev/loop1 >/tmp/log 2>&1 && write /files/pattern && stopped && again
            ;;
        # The last device is being made a member, and only the beginning is in sync.
        recovering)
            mdadm --fail /dev/md0 /dev/loop1 >/tmp/log 2>&1 && mdadm --remove /dev/md0 /dev/loop1 >/tmp/log 2>&1 &&
                slow mdadm --add /dev/md0 "$last" && echo frozen >$md/sync_action && stopped
            ;;
        replacing)
            mdadm --add-spare /dev/md0 "$last" >/tmp/log 2>&1 && slow mdadm --replace /dev/md0 /dev/loop0 && echo frozen >$md/sync_action && stopped
            ;;
        reshaping)
            mdadm --add /dev/md0 "$last" >/tmp/log 2>&1 && slow mdadm --grow /dev/md0 --raid-devices=4 --backup-file=/tmp/backup
            stopped
            ;;
        # Two members have bad blocks, each at another position, and lose their content there. The units are sectors of the device. The kernel
        # writes the logs only together with the superblocks, so a write makes the array dirty.
        bad)
            local first=$(($(cat $md/dev-loop0/offset) + 40)) second=$(($(cat $md/dev-loop1/offset) + 400))
            echo "$first 16" >$md/dev-loop0/bad_blocks && echo "$second 100" >$md/dev-loop1/bad_blocks &&
                dd if=/files/pattern of=/dev/md0 bs=4k count=1 conv=fsync 2>/dev/null && stopped &&
                mdadm --examine-badblocks /dev/loop0 | grep -q " $first for 16 " && mdadm --examine-badblocks /dev/loop1 | grep -q " $second for 100 " &&
                dd if=/dev/zero of=/dev/loop0 bs=512 seek="$first" count=16 2>/dev/null &&
                dd if=/dev/zero of=/dev/loop1 bs=512 seek="$second" count=100 2>/dev/null && again
            ;;
        # The members are copied while the array is dirty, as after a power cut. mdadm must refuse the copies if parity is needed.
        dirty)
            echo 1000 >$md/safe_mode_delay && write /files/pattern && sync || return
            for file in /mnt/"$name".*; do cp "$file" "$file.copy" || return; done
            stopped && for file in /mnt/"$name".*.copy; do mv "$file" "${file%.copy}" || return; done
            # shellcheck disable=SC2046  # sizes
            detach && attach $(echo "$sizes" | tr , ' ') || return
            case $name in
                *ppl) ;;
                raid[456]*)
                    # shellcheck disable=SC2046,SC2086  # devices
                    ! mdadm --assemble --run /dev/md0 $(echo $loops | cut -d' ' -f1,3-) >/tmp/log 2>&1
                    ;;
            esac
            ;;
        # The superblock does not name the layout.
        unknown)
            # shellcheck disable=SC2086  # devices
            stopped && { mdadm --assemble --update=layout-unspecified /dev/md0 $loops >/tmp/log 2>&1 || stopped || true; }
            ;;
    esac
}

# array STATE SIZES EXTRA OPTION...: makes an array. Not all devices belong to it at first: EXTRA is the number of the others.
array() {
    local state=$1 sizes=$2 extra=$3
    shift 3
    # shellcheck disable=SC2046  # sizes
    attach $(echo "$sizes" | tr , ' ') || return
    # shellcheck disable=SC2046,SC2086  # devices
    mdadm --create /dev/md0 --run --homehost=lab --name="$name" "$@" $(echo $loops | cut -d' ' -f1-$((count - extra))) >/tmp/log 2>&1 || return
    idle
    bytes=$(($(cat /sys/block/md0/size) * 512))
    write /files/pattern && same && idle && state "$state"
}

while read -r name state sizes extra options; do
    bytes=0 result=FAILED
    # shellcheck disable=SC2086  # options
    if array "$state" "$sizes" "$extra" $options; then
        result=made
    else
        cat /tmp/log
        stopped
        # A kernel can lack this level.
        case $options in *linear*) grep -qF '[linear]' /proc/mdstat || result=missing ;; esac
    fi
    detach
    echo "lab: md $name $bytes $result"
done </files/list
umount /mnt
