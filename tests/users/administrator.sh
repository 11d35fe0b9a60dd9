#!/bin/sh
# A system administrator: a volume in daily use, and back to the kernel at any moment.
# From docs/MOUNT.md and `ironmap tune --help`.
set -eu
ironmap mkfs -q disk.img 256M
mkdir mnt kernel
ironmap mount disk.img mnt
cp -a /usr/share/doc/bash mnt/
ironmap sync mnt
df mnt
ironmap umount mnt
ironmap tune -L archive disk.img
e2fsck -fn disk.img
mount -o loop,ro disk.img kernel
diff -r /usr/share/doc/bash kernel/bash
[ "$(blkid -o value -s LABEL disk.img)" = archive ]
umount kernel
