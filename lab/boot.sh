#!/usr/bin/env bash
# Runs a job in a virtual machine with Debian's packaged kernel: lab/boot.sh [-c COUNTS] JOB [PROGRAM...]
#
# JOB is a script of lab/ that the guest runs as root (see lab/init); each PROGRAM, with the libraries that it needs, stands in
# the guest's /bin. Ends with the job's exit status, with 1 where the guest did not come to an end, and with 77 where a guest
# cannot be had here; its last line says why. -c counts the guest's instructions between markers (lab/marker.c) into a file.
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$lab/../target}/lab
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PATH=$PATH:/usr/sbin:/sbin

unavailable() { echo "$*"; exit 77; }

plugin=() pin=()
if [ "${1:-}" = -c ]; then
    # On one processor the emulated devices work while the guest waits, and not beside it: it waits the same each time.
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

# The newest packaged kernel for virtual machines: as of 6.1 it has all that the jobs need built in, but for a few modules.
kernel=$out/kernel
if [ ! -d "$kernel" ]; then
    newest() { apt-cache search --names-only '^linux-image-[0-9.]+[^ ]*-cloud-amd64(-unsigned)?$' | cut -d' ' -f1 | sort -V | tail -n1; }
    command -v apt-get >/dev/null || unavailable "needs apt-get for a kernel package"
    package=$(newest)
    [ -n "$package" ] || unavailable "no package linux-image-*-cloud-amd64 is known to apt-get"
    rm -rf "$out/package" && mkdir "$out/package"
    (cd "$out/package" && apt-get download -qq "$package" 2>"$out/download.log") ||
        unavailable "$package cannot be downloaded"
    dpkg-deb -x "$out"/package/*.deb "$out/package/kernel"
    mv "$out/package/kernel" "$kernel"
    rm -r "$out/package"
fi
modules=$(echo "$kernel"/{usr/,}lib/modules/*/kernel | tr ' ' '\n' | grep -v '\*' | head -n1)

# The guest's whole file system, unpacked into its memory.
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.cpio"' EXIT
mkdir -p "$root"/{bin,modules,proc,sys,dev,mnt,tmp,etc}
install -m 755 "$lab/init" "$root/init"
install -m 755 "$lab/$job" "$root/job"
install -m 644 "$lab/devices.sh" "$root/devices.sh"
cp "$(command -v busybox)" "$root/bin/busybox"
cp /etc/mke2fs.conf "$root/etc/"
for program in "$(command -v mke2fs)" "$@"; do
    cp "$program" "$root/bin/"
    { ldd "$program" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$root$library"
    done
done
for module in fs/configfs/configfs drivers/block/null_blk/null_blk; do
    [ ! -e "$modules/$module.ko.xz" ] || xz -dc "$modules/$module.ko.xz" >"$root/modules/${module##*/}.ko"
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$root.cpio"

# Namespaces of one controller: sectors of 512 bytes, of 4096, with metadata; their content is lost at the end. The fourth gives
# zeros without delay.
disks=(-device "nvme,id=nvme,serial=lab,mdts=5")
namespace() {
    truncate -s "$2" "$root/disk$1"
    disks+=(-drive "if=none,id=disk$1,file=$root/disk$1,format=raw,cache=unsafe" -device "nvme-ns,bus=nvme,nsid=$1,drive=disk$1,$3")
}
namespace 1 256M logical_block_size=512
namespace 2 256M logical_block_size=4096,physical_block_size=4096
namespace 3 16M logical_block_size=512,ms=8,mset=0
disks+=(-drive "if=none,id=disk4,driver=null-co,size=268435456,read-zeroes=on" -device "nvme-ns,bus=nvme,nsid=4,drive=disk4")

# One emulated processor whose clock is its count of instructions: the same job counts the same twice.
console=$out/${job%.sh}.txt
"${pin[@]}" timeout "${LAB_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=single -icount shift=0,sleep=off "${plugin[@]}" \
    -machine q35,hpet=off -cpu max,rdrand=off,rdseed=off -smp 1 -m 1024 -rtc base=2026-01-01,clock=vm \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio "${disks[@]}" \
    -kernel "$kernel"/boot/vmlinuz-* -initrd "$root.cpio" \
    -append "console=ttyS0 quiet nokaslr mitigations=off nowatchdog tsc=reliable no_timer_check panic=-1 nvme.poll_queues=1" \
    </dev/null 2>"$out/qemu.log" | tr -d '\r' | tee "$console" || cat "$out/qemu.log" >&2

status=$(sed -n 's/^lab: status //p' "$console")
[ -n "$status" ] || echo "lab: the guest did not finish; see $console" >&2
exit "${status:-1}"
