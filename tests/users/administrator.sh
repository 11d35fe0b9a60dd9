#!/bin/sh
# A system administrator uses a volume daily, and can always mount it with the kernel again. From docs/MOUNT.md and `ironmap tune --help`.
set -eu
ironmap mkfs -q disk.img 256M
mkdir -p mnt kernel reports/2026
for day in 1 2 3; do seq 100000 > reports/2026/$day; done
ln -s 2026/3 reports/last
ironmap mount disk.img mnt
cp -a reports mnt/
ironmap sync mnt
df mnt
ironmap umount mnt
ironmap tune -L archive disk.img
e2fsck -fn disk.img
mount -o loop,ro disk.img kernel
diff -r reports kernel/reports
[ "$(blkid -o value -s LABEL disk.img)" = archive ]
umount kernel
