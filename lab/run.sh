#!/usr/bin/env bash
# Runs jobs in the virtual machine of lab/boot.sh:
#
#   run.sh         the tests of tests/lab, which need NVMe and polled devices
#   run.sh count   what reads cost in instructions, as a table
#   run.sh xfs     XFS volumes of kinds that the kernel of this machine may not mount
#   run.sh md      arrays of Linux MD in every level and state
#   run.sh lvm     logical volumes on RAID, mirrors and thin pools
#   run.sh fields  every field of the superblocks of XFS, with hostile values
source "$(dirname "$0")/../tests/lib.sh"
log=$target/lab.log
mkdir -p "$target/lab"

# Runs lab/boot.sh with these arguments, and returns whether the guest ran the job. The output is in $log. If there is no virtual machine,
# this is reported, and is not a failure.
boot() {
    local status=0
    lab/boot.sh "$@" >"$log" || status=$?
    case $status in
        0) ;;
        77) skip "lab: $(tail -n 1 "$log")" && return 77 ;;
        *)
            cat "$log" || true
            exit "$status"
            ;;
    esac
}

case ${1:-} in
    "")
        say "lab: tests in an emulated machine"
        # Builds with the same features as the tests of the workspace.
        built=$(cargo test "${workspace[@]}" --no-run --test lab 2>&1) || die "tests/lab does not build"$'\n'"$built"
        cp "$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' <<<"$built")" "$target/lab/lab-tests"
        [ -n "${IRONMAP_BIN:-}" ] || cargo build --quiet -p ironmap-cli
        if boot test.sh "$target/lab/lab-tests" "${IRONMAP_BIN:-$target/debug/ironmap}"; then cat "$log"; fi
        ;;
    count)
        cargo build --quiet --release -p ironmap-lab
        counts=$target/lab/counts.txt
        if boot -c "$counts" count.sh "$target/release/reads"; then lab/table.sh "$log" "$counts"; fi
        ;;
    xfs)
        find_ironmap
        newer=$(lab/xfsprogs.sh) || [ $? = 77 ]
        # The newest kernel, and the kernel of the Debian release, which can still mount volumes with case-insensitive names.
        for kernel in "" "$target/lab/kernel"; do
            export LAB_SECONDS=1800 LAB_KERNEL=$kernel LAB_NEWER=${newer:+$newer/..}
            if boot xfs.sh mkfs.xfs "$ironmap"; then cat "$log"; fi
        done
        ;;
    md)
        # Without mdadm, its package is only unpacked, because an installation would replace parts of the system.
        if ! has mdadm; then
            mdadm=$target/lab/mdadm
            if [ ! -d "$mdadm" ]; then
                mkdir -p "$mdadm.new"
                (cd "$mdadm.new" && succeeds "apt-get download mdadm" && dpkg-deb -x mdadm_*.deb . && mv "$mdadm.new" "$mdadm") ||
                    { skip "lab: mdadm is missing, and apt-get cannot download it" && exit; }
            fi
            PATH+=:$mdadm/sbin
        fi
        # The newest kernel has no level linear. LAB_KERNEL can name a kernel that has it, such as Linux 6.1.
        IRONMAP_MD_LAB=1 cargo test "${workspace[@]}" --test md kernel:: -- --nocapture
        ;;
    lvm) IRONMAP_LVM_LAB=1 cargo test "${workspace[@]}" --test lvm kernel:: -- --nocapture ;;
    fields)
        newer=$(lab/xfsprogs.sh) || [ $? = 77 ]
        export IRONMAP_FIELDS=all IRONMAP_XFSPROGS=$newer
        [ -n "$newer" ] || unset IRONMAP_XFSPROGS
        cargo test -p ironmap --features images,psk --test xfs_check in_the_lab -- --nocapture
        ;;
    *) die "there is no job $1" ;;
esac
