#!/bin/sh
# The commands that run in the sandbox of run.sh. linux.img is by mke2fs, from tree. All copies must equal the tree.
set -eu

# The sandbox is one: without these, the test would prove nothing.
[ "$(id -u)" != 0 ]
for absent in /sys /dev/fuse /dev/loop-control /dev/loop0 /dev/kvm; do [ ! -e "$absent" ]; done
grep -q '^CapEff:[[:space:]]*0*$' /proc/self/status
python3 -c 'import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(425, 1, 0) == -1 and ctypes.get_errno() == errno.EPERM'
if unshare --mount true 2>/dev/null; then exit 1; fi

# same DIRECTORY: whether a copy of the volume's root equals the tree.
same() { rmdir "$1/lost+found" 2>/dev/null || true; diff -r --no-dereference tree "$1"; }
# out NAME VOLUME [OPTION...]: copies a volume out, and compares.
out() { name=$1 volume=$2 && shift 2 && ironmap "$@" cp -r "$volume:/" "$name" && same "$name"; }

# Reading.
ironmap info linux.img
ironmap ls -l linux.img:/a/b
ironmap stat linux.img:/hole
ironmap cat linux.img:/a/b/1000000 | cmp - tree/a/b/1000000
ironmap check linux.img
out read linux.img
mkdir archive && ironmap tar linux.img:/ | tar -x -C archive && same archive

# Writing. e2fsck and debugfs read what the program wrote.
ironmap mkfs -q -d tree made.img 96M
e2fsck -fn made.img
out made made.img
head -c 300000 /dev/urandom > new
ironmap write made.img:/new < new
ironmap rm -r made.img:/docs
ironmap cp -r tree/docs made.img:/docs
e2fsck -fn made.img
debugfs -R 'dump /new dumped' made.img && cmp new dumped
ironmap rm made.img:/new
out changed made.img

# Disks and images of virtual machines.
ironmap disk -q disk.img --part root:96M:files=tree
out partition disk.img@p1
ironmap clone linux.img qcow2:copy.qcow2
out qcow2 qcow2:copy.qcow2
ironmap clone qcow2:copy.qcow2 back.img && cmp linux.img back.img
ironmap clone --compress zstd disk.img qcow2:disk.qcow2
out zstd qcow2:disk.qcow2@p1

# Logical volumes and arrays, without lvm2, mdadm and device mapper.
out lvm lvm.img@vg/root
out md md:a.img,b.img
out degraded md:b.img

# Rescue.
cp linux.img broken.img && dd if=/dev/zero of=broken.img bs=4096 count=2 conv=notrunc status=none
out superblock broken.img --superblock 32768
cp linux.img short.img && truncate -s 160M short.img
if ironmap ls short.img; then exit 1; fi
ironmap --truncated cat short.img:/a/b/4097 | cmp - tree/a/b/4097
cp linux.img deleted.img && debugfs -w -R 'rm /a/b/4095' deleted.img
# debugfs sets no time of deletion, so the list may be empty. The command must read the volume.
ironmap undelete deleted.img -o undeleted
if ironmap salvage --help; then
    ironmap salvage linux.img salvaged
    cmp "$(find salvaged -path '*a/b/1000000')" tree/a/b/1000000
fi
