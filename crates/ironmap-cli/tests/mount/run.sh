#!/usr/bin/env bash
# Long runs on mounted volumes (docs/testing/campaigns.md), and measurements of their speed:
#
#   run.sh all             programs, databases and random
#   run.sh programs        other programs, on volumes of every kind
#   run.sh databases       databases whose daemon is killed
#   run.sh random          random operations with fsx and faults
#   run.sh speed [ARG...]  compares a mounted volume with fuse2fs and the kernel's ext4, with the arguments of speed.sh
source "$(dirname "$0")/../../../../tests/lib.sh"
part=$1
shift
here=crates/ironmap-cli/tests/mount
find_ironmap

programs() {
    local block options fsx=$target/tools/bin/fsx
    or_install "fsx, with cargo" "test -x $fsx" "cargo install --quiet --locked --debug fsx --root $target/tools --target-dir $target/tools" || fsx=
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
    trap 'umount -l "$scratch/mounted" 2>/dev/null || true; rm -rf "$scratch"' EXIT
    mkdir "$scratch/mounted"
    for block in 4096 1024; do
        for options in rw writeback_cache; do
            say "programs on blocks of $block, -o $options"
            programs_on "$scratch/image" "$scratch/mounted" "$block" "$options" "$fsx"
        done
    done
}

# programs_on IMAGE DIRECTORY BLOCK OPTIONS FSX: runs the programs on a new volume. Afterwards e2fsck and the kernel find no fault.
programs_on() {
    local image=$1 mounted=$2 usr told
    # The volume must have space for a copy of /usr, which is the largest content.
    usr=$(du -smx /usr | cut -f 1)
    rm -f "$image"
    truncate -s $((usr * 5 / 4 + 4096))M "$image"
    mke2fs -qF -t ext4 -N 400000 -b "$3" "$image"
    # The daemon reports the mount on its standard output, and must print nothing afterwards.
    exec {told}< <(exec "$ironmap" mount -f --tell -o "$4" "$image" "$mounted")
    local daemon=$!
    read -rN 1 -u "$told" || die "it is not mounted"
    "$here/programs.sh" "$mounted" long "$5"
    umount "$mounted"
    wait "$daemon"
    e2fsck -fn "$image" >/dev/null || die "e2fsck finds errors"
    mount -o loop,ro "$image" "$mounted"
    umount "$mounted"
}

databases() {
    say "databases whose daemon is killed"
    "$here/killed.sh" "$ironmap" long
}

random() {
    say "random operations, fsx, faults"
    IRONMAP_BIN=$ironmap IRONMAP_MOUNT_LONG=1 cargo test -p ironmap-cli --test mount -- --nocapture --test-threads=2 random fsx faults
}

case $part in
    all)
        programs
        databases
        random
        ;;
    programs | databases | random) "$part" ;;
    speed) "$here/speed.sh" "$ironmap" "$@" ;;
    *) die "there is no part $part" ;;
esac
