#!/usr/bin/env bash
# Tests the C library by programs in C:
#
#   test.sh [quick|long]   quick by default; long takes more steps of the model, and several seeds
#
# The library is built and installed in a temporary directory, or IRONMAP_C_PREFIX names the directory of an installed one. IRONMAP_C_SEED is
# the first seed. Each line of a model names its seed and steps, and the program itself takes them as arguments.
source "$(dirname "$0")/../../tests/lib.sh"
crate=$PWD/crates/ironmap-capi
length=${1:-quick}
case $length in
    quick) steps=600 slow_steps=60 rounds=1 limit=60 ;;
    long) steps=20000 slow_steps=1500 rounds=5 limit=3600 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
seed=${IRONMAP_C_SEED:-$((RANDOM * 32768 + RANDOM))}

# Only the host files of ext4 and XFS are read from their device, so the directory is not in memory.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/ironmap-c.XXXXXX")
trap 'rm -rf "$work"' EXIT
prefix=${IRONMAP_C_PREFIX:-}
if [ -z "$prefix" ]; then
    prefix=$work/prefix
    PROFILE=dev "$crate/install.sh" "$prefix"
fi
warnings=(-Wall -Wextra -Werror)
# shellcheck disable=SC2054  # the commas are those of the linker
link=(-I"$prefix/include" -L"$prefix/lib" -Wl,-rpath,"$prefix/lib" -lironmap -lpthread)
# The sources of the model are all except header.c.
sources=()
for source in "$crate"/tests/c/*.c; do
    [ "${source##*/}" = header.c ] || sources+=("$source")
done

header() {
    local compiler standard check=("${warnings[@]}" -pedantic -fsyntax-only -I"$prefix/include")
    for compiler in gcc clang aarch64-linux-gnu-gcc; do
        has "$compiler" || { skip "the header by $compiler: not installed"; continue; }
        for standard in c99 c11; do
            "$compiler" -std=$standard "${check[@]}" "$crate/tests/c/header.c"
        done
    done
    for compiler in g++ clang++ aarch64-linux-gnu-g++; do
        has "$compiler" || { skip "the header by $compiler: not installed"; continue; }
        "$compiler" -std=c++17 -x c++ "${check[@]}" "$crate/tests/c/header.c"
    done
}

# compile COMPILER NAME FLAGS...: the model as $work/NAME.
compile() {
    "$1" -g -O1 -std=c11 -D_GNU_SOURCE "${warnings[@]}" "${@:3}" "${sources[@]}" -o "$work/$2" "${link[@]}"
}

# example COMPILER DIR FLAGS...: the examples as programs in $work/DIR.
example() {
    local name
    mkdir -p "$work/$2"
    for name in epoll_read copy_out tar_to_image; do
        "$1" -g -O1 -std=c11 "${warnings[@]}" "${@:3}" "$crate/examples/$name.c" -o "$work/$2/$name" "${link[@]}"
    done
}

examples() {
    local tree=$work/tree
    mkdir -p "$tree/directory/below" "$tree/empty"
    head -c 9000000 /dev/urandom >"$tree/large"
    seq 1000 >"$tree/directory/numbers"
    : >"$tree/directory/below/nothing"
    ln -s ../large "$tree/directory/link"
    chmod 640 "$tree/large"
    mke2fs -q -t ext4 -d "$tree" "$work/tree.img" 64M
    example gcc gcc
    example gcc sanitized -fsanitize=address,undefined -fno-sanitize-recover=all
    run_examples sanitized
    if has clang; then
        example clang clang
        run_examples clang
    else
        skip "the examples by clang: not installed"
    fi
    if has valgrind; then
        # Valgrind does not know which memory the kernel fills through io_uring.
        run_examples gcc valgrind --quiet --undef-value-errors=no --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite
    else
        skip "the examples under valgrind: not installed"
        run_examples gcc
    fi
}

# run_examples DIR COMMAND...: runs the programs in $work/DIR by a command.
run_examples() {
    local arguments dir=$work/$1 tree=$work/tree
    shift
    # A library with debug assertions checks the kernel's vDSO when it asks for the size of a page, and valgrind hides the vDSO.
    local build=("$@")
    [ "${1:-}" != valgrind ] || build=()
    rm -rf "$work/copy" "$work/built.img" "$work/dumped"
    "$@" "$dir/copy_out" "$work/tree.img" / "$work/copy"
    rmdir "$work/copy/lost+found"
    diff -r --no-dereference "$tree" "$work/copy"
    [ "$(stat -c %a "$work/copy/large")" = 640 ]
    "$@" "$dir/epoll_read" /large "$work/tree.img" >"$work/of-volume"
    "$@" "$dir/epoll_read" "$tree/large" >"$work/of-host"
    diff "$work/of-volume" "$work/of-host"
    grep -q '^9000000 bytes, ' "$work/of-volume"
    # Each program reports a failure in one line.
    for arguments in "copy_out /missing / $work/none" "epoll_read /missing" "epoll_read /missing $work/tree.img"; do
        # shellcheck disable=SC2086  # the arguments
        ! "$@" "$dir"/$arguments 2>"$work/message" || die "$arguments has not failed"
        [ "$(wc -l <"$work/message")" = 1 ] || die "$arguments: $(cat "$work/message")"
    done

    tar -C "$tree" -c . | "${build[@]}" "$dir/tar_to_image" "$work/built.img" examples
    e2fsck -fn "$work/built.img" >"$work/fsck" 2>&1 || die "e2fsck: $(cat "$work/fsck")"
    mkdir "$work/dumped"
    debugfs -R "rdump / $work/dumped" "$work/built.img" 2>"$work/debugfs"
    rm -rf "$work/dumped/lost+found"
    diff -r --no-dereference "$tree" "$work/dumped"
    ! head -c 3000 "$tree/large" | "${build[@]}" "$dir/tar_to_image" "$work/none.img" 2>"$work/message" || die "random bytes are a tar archive"
    [ ! -e "$work/none.img" ]
}

# The parts of the model that run; none stands for all.
parts=()
# model NAME STEPS COMMAND...: a run with a new image, in which e2fsck finds no fault.
model() {
    local image=$work/model.img
    rm -f "$image"
    mke2fs -q -t ext4 "$image" 64M
    echo "$1:"
    timeout --kill-after=5 "$limit" "${@:3}" "$image" "$work/host" "$seed" "$2" "${parts[@]}" || die "$1: seed $seed, $2 steps: it has failed"
    e2fsck -fn "$image" >"$work/fsck" 2>&1 || die "$1: seed $seed, $2 steps: e2fsck: $(cat "$work/fsck")"
}

models() {
    local round end=$((seed + rounds))
    # Byte i of this file is i * 7 + i / 4096, as in tests/c/support.c.
    perl -e 'print pack "C*", map { ($_ * 7 + int($_ / 4096)) & 255 } 0 .. 99999' >"$work/host"
    compile gcc model
    compile gcc model.sanitized -fsanitize=address,undefined -fno-sanitize-recover=all
    if has clang; then compile clang model.clang; else skip "the model by clang: not installed"; fi
    for ((round = seed; round < end; round++)); do
        seed=$round
        parts=()
        model gcc "$steps" "$work/model"
        [ ! -x "$work/model.clang" ] || model clang "$slow_steps" "$work/model.clang"
        # A child of several threads may wait for ever for a lock of AddressSanitizer's allocator. Valgrind does not know that a child lacks
        # the mappings that are not inherited, and fails an assertion of its own.
        skip "the model's forks under ASan and valgrind: neither supports these children"
        parts=(wrong names files buffers threads signals)
        # The model asks for more memory than there is, so the allocator returns NULL.
        model "gcc, ASan and UBSan" "$steps" env ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 "$work/model.sanitized"
        has valgrind || { skip "the model under valgrind: not installed"; continue; }
        model valgrind "$slow_steps" valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite "$work/model"
    done
}

say "header"
header
has mke2fs e2fsck debugfs || { skip "the C library: needs e2fsprogs"; exit 0; }
has gcc || { skip "the C library: needs gcc"; exit 0; }
say "examples"
examples
say "model from seed $seed"
models
