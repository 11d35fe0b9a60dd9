# shellcheck shell=dash
# Names the guest's devices; read by the jobs.

# Which namespace gets which name is a matter of the order in which the kernel finds them.
for namespace in /sys/block/nvme*n*; do
    name=${namespace##*/}
    export "block$(cat "$namespace/nsid")=/dev/$name" "char$(cat "$namespace/nsid")=/dev/ng${name#nvme}"
done

# null_blk NAME MEMORY_BACKED SETTING=VALUE...: a device of 512 MiB that completes at once, with a poll queue.
null_blk() {
    [ -d /sys/kernel/config/nullb ] || {
        insmod /modules/null_blk.ko nr_devices=0 && mount -t configfs none /sys/kernel/config
    } || return
    local device="/sys/kernel/config/nullb/$1" memory_backed=$2
    shift 2
    mkdir "$device"
    for setting in queue_mode=2 irqmode=0 completion_nsec=0 memory_backed="$memory_backed" size=512 blocksize=4096 \
        submit_queues=1 poll_queues=1 "$@" power=1; do
        echo "${setting#*=}" >"$device/${setting%=*}" || return
    done
}

# scsi_disk OPTION...: a disk of 64 MiB with these options of scsi_debug, as /dev/sda, in the place of the one before.
scsi_disk() {
    if [ -e /sys/module/scsi_debug ]; then
        rmmod scsi_debug || return
    else
        insmod /modules/scsi_common.ko && insmod /modules/scsi_mod.ko && insmod /modules/sd_mod.ko || return
    fi
    insmod /modules/scsi_debug.ko dev_size_mb=64 delay=0 "$@" || return
    # The kernel looks at its disks at its leisure.
    while ! dd if=/dev/sda of=/dev/null bs=512 count=1 2>/dev/null; do :; done
}

# volume DEVICE FILE [SIZE]: makes an ext4 volume of a file and one to be written, which leaves the device's last part alone. The shell
# would take its own mke2fs.
volume() {
    /bin/mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$1" "${3:-192M}" &&
        mount -t ext4 "$1" /mnt && cp "$2" /mnt/data && dd if="$2" of=/mnt/written bs=1M count=1 2>/dev/null && umount /mnt
}
