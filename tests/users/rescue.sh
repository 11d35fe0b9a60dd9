#!/bin/sh
# A user recovers files after the loss of the superblock, and then of half of the disk. From docs/RESCUE.md.
set -eu
mkdir -p tree/letters && date > tree/letters/first && head -c 2M /dev/urandom > tree/photo
ironmap mkfs -q -b 4K -d tree disk.img 512M
dd if=/dev/zero of=disk.img bs=1k seek=1 count=1 conv=notrunc status=none
if ironmap ls disk.img 2> refusal; then exit 1; fi
cat refusal
backup=$(grep -o -e '--superblock [0-9]*' refusal | cut -d' ' -f2)
ironmap --superblock "$backup" cp -r disk.img:/ out
rmdir out/lost+found && diff -r tree out
truncate -s 200M disk.img
ironmap --superblock "$backup" --truncated cat disk.img:/photo | cmp - tree/photo
# The same on XFS, whose copy of the superblock is found without an option.
command -v mkfs.xfs > /dev/null || exit 0
printf '/\n0 0\nd--755 0 0\nphoto ---644 0 0 tree/photo\n$\n' > files
truncate -s 400M xfs.img && mkfs.xfs -q -p files xfs.img
dd if=/dev/zero of=xfs.img bs=512 count=1 conv=notrunc status=none
ironmap cat xfs.img:/photo | cmp - tree/photo
ironmap --superblock 2 cat xfs.img:/photo | cmp - tree/photo
ironmap undelete xfs.img
truncate -s 180M xfs.img
ironmap --superblock 1 --truncated --noload cat xfs.img:/photo | cmp - tree/photo
