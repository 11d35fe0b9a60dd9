# shellcheck shell=dash
# Sets variables with the names of the guest's devices. The jobs source this file.

# The kernel names the namespaces in the order in which it finds them, so their IDs are read.
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

# scsi_disk OPTION...: replaces /dev/sda by a disk of 64 MiB with these options of scsi_debug.
scsi_disk() {
    if [ -e /sys/module/scsi_debug ]; then
        rmmod scsi_debug || return
    else
        insmod /modules/scsi_common.ko && insmod /modules/scsi_mod.ko && insmod /modules/sd_mod.ko || return
    fi
    insmod /modules/scsi_debug.ko dev_size_mb=64 delay=0 "$@" || return
    # The kernel scans the disk asynchronously.
    while ! dd if=/dev/sda of=/dev/null bs=512 count=1 2>/dev/null; do :; done
}

# volume DEVICE FILE [SIZE]: makes an ext4 volume with a copy of FILE and a file to write to. The volume does not use the end of the device.
# The path of mke2fs is needed, because the shell has its own mke2fs.
volume() {
    /bin/mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$1" "${3:-192M}" &&
        mount -t ext4 "$1" /mnt && cp "$2" /mnt/data && dd if="$2" of=/mnt/written bs=1M count=1 2>/dev/null && umount /mnt
}
