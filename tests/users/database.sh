#!/bin/sh
# A database engineer wants to know whether a table is read from the device, and whether the bytes are right. From README, "A mounted file
# system, as root", and examples/host_reader.rs.
set -eu
truncate -s 256M disk.img && mkfs.ext4 -q disk.img
mkdir mnt && mount disk.img mnt
head -c 1M /dev/urandom > mnt/table && sync
ironmap host mnt/table
host_reader mnt/table > shown
cat shown
grep -q 'read from the device' shown
sum=$(od -An -v -w1 -tu1 mnt/table | awk '{sum += $1} END {print sum}')
grep -qx "sum of all bytes: $sum" shown
umount mnt
