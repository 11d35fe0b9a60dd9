# shellcheck shell=dash
# Names the guest's devices; read by the jobs.

# Which namespace gets which name is a matter of the order in which the kernel finds them.
for namespace in /sys/block/nvme*n*; do
    name=${namespace##*/}
    export "block$(cat "$namespace/nsid")=/dev/$name" "char$(cat "$namespace/nsid")=/dev/ng${name#nvme}"
done

# null_blk NAME MEMORY_BACKED: a device of 512 MiB that completes at once, with a poll queue.
null_blk() {
    [ -d /sys/kernel/config/nullb ] || {
        insmod /modules/null_blk.ko nr_devices=0 && mount -t configfs none /sys/kernel/config
    } || return
    mkdir "/sys/kernel/config/nullb/$1"
    for setting in queue_mode=2 irqmode=0 completion_nsec=0 memory_backed="$2" size=512 blocksize=4096 \
        submit_queues=1 poll_queues=1 power=1; do
        echo "${setting#*=}" >"/sys/kernel/config/nullb/$1/${setting%=*}"
    done
}

# volume DEVICE FILE: makes an ext4 volume of one file, which leaves the device's last part alone. The shell would take its own mke2fs.
volume() {
    /bin/mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$1" 192M &&
        mount -t ext4 "$1" /mnt && cp "$2" /mnt/data && umount /mnt
}
