#!/usr/bin/env bash
# Tests the fio engine on an image: engine.sh ENGINE IRONMAP. As root, the kernel also mounts the image and reads the written data. A fault
# ends the script with an error.
source "$(dirname "$0")/../../../tests/lib.sh"
ENGINE=$(realpath "$1") ironmap=$(realpath "$2")
jobs=$PWD/crates/ironmap-fio/jobs
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
image=$scratch/image mounted=$scratch/mounted
mkdir "$mounted"
export ENGINE VOLUME=$image FILE=/dir/file KERNEL=$mounted/dir/file SIZE=8m

clean_up() {
    umount -l "$mounted" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT
# The directory for the state files of fio's verification.
cd "$scratch"

fail() { echo "engine.sh: $*" >&2; [ ! -s "$scratch/log" ] || cat "$scratch/log" >&2; exit 1; }
step() { echo "== $*"; }

# Runs fio, and shows its output only if it fails.
quietly() { fio --minimal "$@" >"$scratch/log" 2>&1; }
# Runs fio on the image (on_image), and on one file of the image (job).
on_image() { quietly --name=job --ioengine="external:$ENGINE" --volume="$image" --size=4m --thread "$@"; }
job() { on_image --filename=/job "$@"; }
# Runs fio, which must fail. The engine must print exactly one line, and this line must contain the given text.
refused() {
    local what=$1
    shift
    if "$@"; then fail "nothing was refused: $what"; fi
    [ "$(grep -c '^ironmap: ' "$scratch/log")" = 1 ] || fail "not one line: $what"
    grep '^ironmap: ' "$scratch/log" | grep -q "$what" || fail "another line than: $what"
}

make_image() {
    rm -f "$image"
    truncate -s 128M "$image"
    mke2fs -qF -t ext4 "$@" "$image"
}

check() { e2fsck -fn "$image" >"$scratch/log" 2>&1 || fail "e2fsck finds errors"; }

# Lets the kernel mount the same image and verify its files.
verify_by_kernel() {
    if [ "$(id -u)" != 0 ]; then
        skip "fio engine, verified by the kernel: needs root"
        return
    fi
    mount -o loop,ro "$image" "$mounted"
    quietly --section=kernel "$jobs/verify.fio" || fail "the kernel does not give back what was written"
    umount "$mounted"
}

step "random writes of 512 bytes to 64 KiB by four threads, verified"
for block in 4096 1024; do
    make_image -b $block
    quietly --section=ironmap "$jobs/verify.fio" || fail "verify, blocks of $block"
    check
    verify_by_kernel
done

step "one at a time, registered buffers, unaligned requests and memory, holes, synced writes, a file that grows"
job --rw=randwrite --verify=crc32c --bs=4k || fail "one at a time"
job --rw=randwrite --verify=crc32c --bs=4k --fixedbufs=1 --iodepth=8 --engine=io_uring --iodepth_batch=4 || fail "fixedbufs"
job --rw=randwrite --verify=crc32c --bsrange=1k-9k --bs_unaligned=1 --iodepth=4 || fail "unaligned requests"
job --rw=randwrite --verify=crc32c --bs=4k --iodepth=4 --iomem_align=8 || fail "unaligned memory"
job --rw=randwrite --verify=crc32c --bs=4k --direct=1 --sync=dsync --io_size=1m --fsync=7 --end_fsync=1 || fail "synced writes"
job --rw=randtrimwrite --bs=8k --direct=1 --iodepth=4 --numjobs=2 || fail "trims"
on_image --filename=/grown --rw=write --verify=crc32c --bs=64k --fallocate=none --end_fsync=1 || fail "a file that grows"
on_image --rw=randrw --bs=4k --nrfiles=4 --filename_format="many/f.\$filenum" --numjobs=3 || fail "many files"
on_image --filename=/laid/out --rw=randread --bs=4k --unlink=1 || fail "a file that is laid out, read and removed"
! grep '^ironmap: ' "$scratch/log" || fail "a file that is removed is reported"
on_image --rw=randread --bs=4k --create_serialize=0 --numjobs=3 --filename_format="own/f.\$jobnum" || fail "jobs that lay out their own"
! grep '^ironmap: ' "$scratch/log" || fail "jobs that lay out their own are reported"
check
[ "$(debugfs -R 'ls -p /laid' "$image" 2>/dev/null | grep -c out)" = 0 ] || fail "the file was not removed"

step "an integrity device beneath"
truncate -s 128M "$scratch/data"
truncate -s 16M "$scratch/tags"
mke2fs -qF -t ext4 -b 1024 "$scratch/data"
beneath=integrity:$scratch/data,$scratch/tags
"$ironmap" integrity format "$beneath" >"$scratch/log" 2>&1 || fail "integrity format"
for way in zero-copy bounce lazy owned; do
    quietly --name=job --ioengine="external:$ENGINE" --volume="$beneath" --integrity=$way --filename=/job --size=4m --thread --numjobs=2 \
        --offset_increment=4m --rw=randwrite --bsrange=512-64k --blockalign=512 --verify=crc32c --iodepth=8 ||
        fail "integrity, $way"
done
"$ironmap" integrity check "$beneath" >"$scratch/log" 2>&1 || fail "integrity check"
e2fsck -fn "$scratch/data" >"$scratch/log" 2>&1 || fail "e2fsck finds errors"

# Raw reads of a mounted file system: files that the kernel wrote, and files that the engine creates.
host_files() {
    local fs=$1 make=$2 engine what
    rm -f "$scratch/host"
    truncate -s 512M "$scratch/host"
    $make "$scratch/host"
    mount -o loop "$scratch/host" "$mounted"
    quietly --name=job --filename="$mounted/f" --size=4m --rw=randwrite --bs=4k --verify=crc32c --do_verify=0 --direct=1 --end_fsync=1 ||
        fail "$fs: the kernel writes"
    for engine in auto psync io_uring; do
        for what in "--filename=$mounted/f --verify=crc32c --iodepth=8 --thread" "--filename=$mounted/f --verify=crc32c --bs=4k" \
            "--filename=$mounted/laid/out --numjobs=2 --bs=1k-64k --iodepth=4 --unlink=1"; do
            # shellcheck disable=SC2086
            quietly --name=job --ioengine="external:$ENGINE" --host --engine="$engine" --size=4m --rw=randread --bs=4k $what ||
                fail "$fs, $engine: $what"
            ! grep '^ironmap: ' "$scratch/log" || fail "$fs, $engine: something is reported: $what"
        done
    done
    [ ! -e "$mounted/laid/out" ] || fail "$fs: the file was not removed"
    umount "$mounted"
}

step "host files"
if [ "$(id -u)" = 0 ]; then
    host_files ext4 "mke2fs -qF -t ext4 -b 4096"
    if command -v mkfs.xfs >/dev/null; then
        host_files XFS "mkfs.xfs -qf -m reflink=0"
    else
        skip "fio engine, host files of XFS: needs mkfs.xfs"
    fi
else
    skip "fio engine, host files: needs root"
fi
head -c 1M /dev/zero >"$scratch/plain"
host() { quietly --name=job --ioengine="external:$ENGINE" --host --filename="$scratch/plain" --size=1m --rw=randread "$@"; }
# The kernel serves the reads of a file that is still open for writing, on any file system, with or without root.
exec 9>>"$scratch/plain"
host --bs=4k || fail "a host file that is being written"
grep -q '^ironmap: .*plain: the kernel serves the reads of this file: ' "$scratch/log" || fail "who serves the file is not told"
exec 9>&-

step "requests that are carried out at once take time, and so do syncs"
latency() { jq -e ".jobs[0].$1.mean > $2" "$scratch/json" >/dev/null || fail "$1 below $2 ns: $3"; }
if command -v jq >/dev/null; then
    for depth in 1 4; do
        job --rw=randwrite --overwrite=1 --bs=64k --iodepth=$depth --engine=psync --fsync=1 --output-format=json --output="$scratch/json" ||
            fail "latencies"
        latency write.clat_ns 2000 "depth $depth"
        latency sync.lat_ns 20000 "depth $depth"
    done
else
    skip "fio engine, latencies: needs jq"
fi

step "an error of the close is the job's"
if command -v prlimit >/dev/null; then
    # After the last request, no part of the image beyond 1 MiB can be written, so the close can store neither journal blocks nor
    # timestamps.
    # shellcheck disable=SC2016
    no_more='prlimit --pid $PPID --fsize=1048576'
    closes() { (trap '' XFSZ && job --rw=write --overwrite=1 --bs=64k --exec_postrun="$no_more"); }
    refused "close" closes
    # The fifth field of fio's terse line is the error number: EFBIG is 27.
    grep -q ';job;0;27;' "$scratch/log" || fail "fio does not know of it"
    make_image
else
    skip "fio engine, an error of the close: needs prlimit"
fi

step "what is refused, is refused in one line"
refused "volume= is missing" quietly --name=job --ioengine="external:$ENGINE" --filename=/f --size=4m --rw=read
refused "host files can be read but not written" host --rw=randrw
refused "cannot be combined" host --volume="$image"
refused "not a regular file" quietly --name=job --ioengine="external:$ENGINE" --host --filename="$scratch" --size=4m --rw=read
refused "no such file" quietly --name=job --ioengine="external:$ENGINE" --host --filename="$scratch/none" --size=4m --rw=read \
    --allow_file_create=0
refused "No such file" quietly --name=job --ioengine="external:$ENGINE" --volume="$scratch/none" --filename=/f --size=4m --rw=read --numjobs=4
refused "no such file" on_image --filename=/none --rw=read --allow_file_create=0
refused "no such file" on_image --filename=/none --rw=read --allow_file_create=0 --create_serialize=0
refused "is not an engine" job --rw=read --engine=steam
refused "the values are zero-copy" job --rw=read --integrity=most
refused "need --thread" quietly --name=job --ioengine="external:$ENGINE" --volume="$image" --filename=/job --size=4m --rw=write \
    --numjobs=2 --time_based --runtime=1
refused "multiples of 512" job --rw=randread --direct=1 --bs=1000 --iodepth=2
check

step "another fio than it was built for is refused"
if command -v cc >/dev/null; then
    cat >"$scratch/other.c" <<'C'
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
const char fio_version_string[] = "fio-2.99";
void log_err(const char *format, ...) { va_list args; va_start(args, format); vfprintf(stderr, format, args); va_end(args); }
void fill_io_buffer(void) {}
void get_start_offset(void) {}
void fio_gettime(void) {}
int main(int argc, char **argv)
{
	void *ops = NULL, *engine = dlopen(argv[1], RTLD_LAZY);
	void (*get)(void **) = engine ? dlsym(engine, "get_ioengine") : NULL;
	if (!get)
		return puts(dlerror()), 2;
	get(&ops);
	return ops == NULL;
}
C
    cc -rdynamic -o "$scratch/other" "$scratch/other.c" -ldl
    other() { "$scratch/other" "$ENGINE" >"$scratch/log" 2>&1; }
    refused "fio-2.99" other
else
    skip "fio engine, another version: needs cc"
fi
echo "engine.sh: all passed"
