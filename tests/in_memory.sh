#!/usr/bin/env bash
# Runs a test program for cargo: in_memory.sh PROGRAM [ARGUMENT...]
#
# Programs that test the format of volumes, and not the direct I/O of a disk, keep their images in memory. They need a third less processor
# time there. ./x long runs these programs on the disk.
free=$(df --output=avail --block-size=1M /dev/shm | tail -n 1)
name=${1##*/}
case ${name%-*} in
    cli | ext4 | hostile_xfs) [ "${free:-0}" -lt 4096 ] || export TMPDIR=/dev/shm ;;
esac
exec "$@"
