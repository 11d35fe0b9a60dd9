#!/usr/bin/env bash
# Runs in the source tree of e2fsprogs: unpacks the images of its tests into sparse files images/TEST.
set -euo pipefail
mkdir images
for packed in tests/*/image.{gz,bz2}; do
    program=gzip
    [[ $packed = *.gz ]] || program=bzip2
    name=$(basename "$(dirname "$packed")")
    "$program" -dc "$packed" | dd bs=64K iflag=fullblock conv=sparse of="images/$name"
done
