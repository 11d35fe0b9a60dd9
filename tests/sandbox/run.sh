#!/usr/bin/env bash
# Shows that the program needs no root, FUSE, loop devices, kernel modules or io_uring: tests/sandbox/run.sh [PROGRAM]
#
# An unprivileged user runs inside.sh in a sandbox of bubblewrap, which is like a container: new namespaces without a network, no
# capabilities, no /sys, a /dev with only the devices of every container, and a filter that refuses io_uring as container runtimes do.
source "$(dirname "$0")/../lib.sh"
for tool in bwrap setpriv python3 mke2fs debugfs e2fsck; do has "$tool" || { skip "sandbox: needs $tool" && exit; }; done
[ $# = 0 ] || IRONMAP_BIN=$1
find_ironmap

scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
user=()
! is_root || user=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)

mkdir "$scratch/work"
cp tests/sandbox/inside.sh "$scratch"
cp "$ironmap" "$scratch/ironmap"
python3 tests/sandbox/make.py filter "$scratch/filter"
# The tree has files of all sizes around a block, a hole, deep directories, a link.
(
    cd "$scratch/work"
    mkdir -p tree/a/b/c/d/e
    cp -r "$OLDPWD/docs" tree
    for size in 1 4095 4096 4097 1000000; do head -c "$size" /dev/urandom >"tree/a/b/$size"; done
    truncate -s 3M tree/hole && printf x >>tree/hole
    ln -s ../hole tree/a/link
    ln tree/a/b/4097 tree/a/b/c/d/e/second-name
    mke2fs -q -t ext4 -b 4096 -d tree linux.img 200M
    python3 "$OLDPWD/tests/sandbox/make.py" lvm linux.img lvm.img
    python3 "$OLDPWD/tests/sandbox/make.py" md linux.img a.img b.img
)
! is_root || chown -R 65534:65534 "$scratch"
chmod 755 "$scratch"

in_sandbox() { "${user[@]}" bwrap --unshare-all --die-with-parent --cap-drop ALL --uid 1000 --gid 1000 --seccomp 9 \
    --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
    --ro-bind /etc /etc --proc /proc --dev /dev --tmpfs /tmp --bind "$scratch/work" /work --chdir /work \
    --ro-bind "$scratch/ironmap" /opt/ironmap --ro-bind "$scratch/inside.sh" /opt/inside.sh \
    --setenv PATH /opt:/usr/sbin:/usr/bin --setenv SOURCE_DATE_EPOCH 1700000000 sh -x /opt/inside.sh 9<"$scratch/filter"; }
in_sandbox >"$scratch/said" 2>&1 || { tail -n 40 "$scratch/said" && die "the sandbox failed"; }
echo "sandbox: all commands are right"
