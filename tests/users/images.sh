#!/bin/sh
# An image builder makes an image from a container's tar stream, without root, with the same bytes each time. From docs/IMAGES.md,
# "Recipes".
set -eu
mkdir -p tree/etc tree/srv && date > tree/etc/built && ln -s ../etc/built tree/srv/link
head -c 3M /dev/urandom > tree/srv/data
export SOURCE_DATE_EPOCH=1700000000
for image in one.img two.img; do
    tar --sort=name -C tree -c . | ironmap mkfs -q -d - "$image" 64M
done
cmp one.img two.img
e2fsck -fn one.img
debugfs -R 'dump /srv/data data' one.img && cmp data tree/srv/data
ironmap tar one.img:/ > out.tar
mkdir out && tar -C out -xf out.tar && diff -r tree out
