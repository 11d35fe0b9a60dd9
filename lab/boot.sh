#!/usr/bin/env bash
# Runs a job in a virtual machine with Debian's packaged kernel: lab/boot.sh [-c COUNTS] JOB [PROGRAM...]
#
# JOB is a script of lab/ that the guest runs as root (see lab/init); each PROGRAM, with the libraries that it needs, is copied to the
# guest's /bin.
# LAB_NEWER: a directory that lab/newer.sh made, which is copied to the guest's /newer.
# LAB_FILES: a directory that is copied to the guest's /files.
# LAB_DISKS: files that become further namespaces, from 7 on. The guest can write to them.
# LAB_MODULES: names of further modules that are copied to the guest's /modules, if the kernel has them.
# LAB_CONSOLE: the log of the console.
# The exit status is the status of the job, 1 if the guest did not shut down, or 77 if no guest can run on this machine. The last line of
# the output is then the reason. -c counts the guest's instructions between markers (lab/marker.c), and writes the counts to a file.
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$lab/../target}/lab
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PATH=$PATH:/usr/sbin:/sbin

unavailable() { echo "$*"; exit 77; }

plugin=() pin=()
if [ "${1:-}" = -c ]; then
    # On one host processor, the emulated devices work only while the guest waits, not in parallel. So the guest waits equally long in each
    # run.
    pin=(taskset -c 0)
    gcc -O2 -Wall -shared -fPIC "$lab/marker.c" -o "$out/marker.so"
    plugin=(-plugin "$out/marker.so,out=$2")
    shift 2
fi
job=$1
shift

for tool in qemu-system-x86_64 busybox dpkg-deb xz mke2fs; do
    command -v "$tool" >/dev/null || unavailable "needs $tool"
done

# unpack_newest DIRECTORY [APT OPTION...]: unpacks the newest kernel package for virtual machines that apt-get knows.
unpack_newest() {
    local directory=$1 package version part
    shift
    package=$(apt-cache "$@" search --names-only '^linux-image-[0-9.]+[^ ]*-cloud-amd64(-unsigned)?$' | cut -d' ' -f1 | sort -V | tail -n1)
    [ -n "$package" ] || return
    rm -rf "$out/package" && mkdir "$out/package"
    version=${package#linux-image-}
    # Since Linux 7, the package is empty, and depends on the two other packages.
    for part in "$package" "linux-binary-$version" "linux-modules-$version"; do
        (cd "$out/package" && apt-get "$@" download -qq "$part" 2>"$out/download.log") || [ "$part" != "$package" ] || return
    done
    for part in "$out"/package/*.deb; do
        dpkg-deb -x "$part" "$out/package/kernel"
    done
    mv "$out/package/kernel" "$directory"
    rm -r "$out/package"
}

# Unpacks the kernel of Debian's backports, with a separate package list. Since Linux 6.14, a request can carry protection information.
unpack_backport() {
    local apt=$out/apt key=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$key" ] || return
    mkdir -p "$apt/lists" "$apt/cache"
    echo "deb [signed-by=$key] http://deb.debian.org/debian trixie-backports main" >"$apt/sources.list"
    local options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    timeout 120 apt-get "${options[@]}" update -qq 2>"$out/download.log" && unpack_newest "$1" "${options[@]}"
}

# Tests run on the newest available kernel. Counts of instructions use the kernel of the Debian release, so that they can be compared with
# earlier counts. Since 6.1, everything that the jobs need is built into the kernel, except for a few modules.
kernel=$out/kernel
if [ "${#plugin[@]}" = 0 ]; then
    kernel=${LAB_KERNEL:-$out/kernel-backports}
fi
if [ ! -d "$kernel" ]; then
    command -v apt-get >/dev/null || unavailable "needs apt-get for a kernel package"
    [ "$kernel" != "$out/kernel-backports" ] || unpack_backport "$kernel" || kernel=$out/kernel
    [ -d "$kernel" ] || unpack_newest "$kernel" || unavailable "no package linux-image-*-cloud-amd64 can be had from apt-get"
fi
modules=$(echo "$kernel"/{usr/,}lib/modules/*/kernel | tr ' ' '\n' | grep -v '\*' | head -n1)
image=$(echo "$kernel"/boot/vmlinuz-* "$kernel"/usr/lib/modules/*/vmlinuz | tr ' ' '\n' | grep -v '\*' | head -n1)

# The guest's root file system, which is unpacked into the guest's memory.
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.cpio"' EXIT
mkdir -p "$root"/{bin,modules,proc,sys,dev,mnt,tmp,etc}
install -m 755 "$lab/init" "$root/init"
install -m 755 "$lab/$job" "$root/job"
install -m 644 "$lab/devices.sh" "$root/devices.sh"
cp "$(command -v busybox)" "$root/bin/busybox"
cp /etc/mke2fs.conf "$root/etc/"
for program in mke2fs "$@"; do
    program=$(command -v "$program") || unavailable "a program is missing, of: $*"
    cp "$program" "$root/bin/"
    { ldd "$program" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$root$library"
    done
done
[ ! -x "${LAB_NEWER:-}/lib/ld.so" ] || cp -r "$LAB_NEWER" "$root/newer"
[ -z "${LAB_FILES:-}" ] || cp -r "$LAB_FILES" "$root/files"
for module in crypto/crc32c_generic lib/libcrc32c fs/exportfs/exportfs fs/xfs/xfs fs/configfs/configfs drivers/block/null_blk/null_blk drivers/scsi/scsi_{common,mod,debug} drivers/scsi/sd_mod; do
    [ ! -e "$modules/$module.ko.xz" ] || xz -dc "$modules/$module.ko.xz" >"$root/modules/${module##*/}.ko"
done
for module in ${LAB_MODULES:-}; do
    file=$(find "$modules" -name "$module.ko*" | head -n 1)
    case $file in
        *.xz) xz -dc "$file" >"$root/modules/$module.ko" ;;
        *.ko) cp "$file" "$root/modules/" ;;
    esac
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$root.cpio"

# The namespaces of one controller: with sectors of 512 bytes, with sectors of 4096 bytes, with metadata, and with protection information
# with guards of 16 and of 64 bits. Their content is lost at the end. Reads of the fourth namespace return zeros without delay.
disks=(-device "nvme,id=nvme,serial=lab,mdts=5")
namespace() {
    truncate -s "$2" "$root/disk$1"
    disks+=(-drive "if=none,id=disk$1,file=$root/disk$1,format=raw,cache=unsafe" -device "nvme-ns,bus=nvme,nsid=$1,drive=disk$1,$3")
}
namespace 1 256M logical_block_size=512
namespace 2 256M logical_block_size=4096,physical_block_size=4096
namespace 3 16M logical_block_size=512,ms=8,mset=0
namespace 5 64M logical_block_size=512,ms=8,mset=0,pi=1
namespace 6 64M logical_block_size=4096,physical_block_size=4096,ms=16,mset=0,pi=1,pif=2

# tuples NUMBER BLOCK FORMAT GUARD WRONG: writes to a namespace's file eight blocks of zeros at 60 MiB, and the tuples of the first five
# blocks: a correct tuple, a wrong reference tag, a wrong guard, a wrong guard with a tag that switches the check off, and a correct tuple.
# FORMAT prints guard, application tag and reference tag.
tuples() {
    local disk=$root/disk$1 block=$2 format=$3 guard=$4 wrong=$5 first=$((60 * 1048576 / $2)) size=$((67108864))
    local bytes=$(((block == 512) ? 8 : 16)) tuple
    # shellcheck disable=SC2017  # whole blocks
    local table=$((size / (block + bytes) * block))
    dd if=/dev/zero of="$disk" bs="$block" seek="$first" count=8 conv=notrunc status=none
    for tuple in "$guard 0 $first" "$guard 0 7" "$wrong 0 $((first + 2))" "$wrong 65535 $((first + 3))" "$guard 0 $((first + 4))" \
        "$guard 0 $((first + 5))" "$guard 0 $((first + 6))" "$guard 0 $((first + 7))"; do
        # shellcheck disable=SC2059,SC2086  # a format, and its three values
        printf "$(printf "$format" $tuple | sed 's/../\\x&/g')"
    done | dd of="$disk" bs="$bytes" seek="$((table / bytes + first))" conv=notrunc status=none
}
tuples 5 512 '%04x%04x%08x' 0 1
tuples 6 4096 '%016x%04x%012x' 0x6482d367eb22b64e 0x6482d367eb22b64f
disks+=(-drive "if=none,id=disk4,driver=null-co,size=268435456,read-zeroes=on" -device "nvme-ns,bus=nvme,nsid=4,drive=disk4")
number=7
for disk in ${LAB_DISKS:-}; do
    disks+=(-drive "if=none,id=disk$number,file=$disk,format=raw,cache=unsafe" -device "nvme-ns,bus=nvme,nsid=$number,drive=disk$number,logical_block_size=512")
    number=$((number + 1))
done

# The guest has one emulated processor, whose clock counts instructions. So two runs of a job have the same counts.
console=${LAB_CONSOLE:-$out/${job%.sh}.txt}
"${pin[@]}" timeout "${LAB_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=single -icount shift=0,sleep=off "${plugin[@]}" \
    -machine q35,hpet=off -cpu max,rdrand=off,rdseed=off -smp 1 -m 1024 -rtc base=2026-01-01,clock=vm \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio "${disks[@]}" \
    -kernel "$image" -initrd "$root.cpio" \
    -append "console=ttyS0 quiet nokaslr mitigations=off nowatchdog tsc=reliable no_timer_check panic=-1 nvme.poll_queues=1" \
    </dev/null 2>"$out/qemu.log" | tr -d '\r' | tee "$console" || cat "$out/qemu.log" >&2

status=$(sed -n 's/^lab: status //p' "$console")
[ -n "$status" ] || echo "lab: the guest did not finish; see $console" >&2
exit "${status:-1}"
