#!/usr/bin/env bash
# The fio engine, built against the source of the installed fio or of FIO_SRC:
#
#   run.sh build            builds the engine for use, and prints fio's option for the engine
#   run.sh test             tests the engine
#   run.sh beside [ARG...]  compares the engine with ironmap bench, with the arguments of tests/beside.sh
source "$(dirname "$0")/../../tests/lib.sh"
part=$1
shift
profile=release
[ "$part" != test ] || profile=dev

# Prints the directory of fio's source, or the reason why there is none.
fio_source() {
    if [ -n "${FIO_SRC:-}" ]; then
        echo "$FIO_SRC"
    elif has fio; then
        # Prepared as Debian does, but without code that is specific to the processor of this machine.
        lab/source.sh fio sh -ec "./configure --disable-native; make FIO-VERSION-FILE"
    else
        echo "fio is not installed"
        return 77
    fi
}

[ "$part" != test ] || say "fio engine"
status=0
found=$(fio_source) || status=$?
case $status in
    0) ;;
    77)
        skip "fio engine: $found: name fio's source by FIO_SRC"
        # Without fio's source, only `build` fails.
        [ "$part" = build ] || exit 0
        exit 1
        ;;
    *) die "fio's source: $found" ;;
esac
FIO_SRC=$found cargo build --quiet -p ironmap-fio --profile "$profile"
engine=$target/${profile/dev/debug}/libironmap_fio.so
case $part in
    build) echo "ioengine=external:$engine" ;;
    test)
        find_ironmap
        crates/ironmap-fio/tests/engine.sh "$engine" "$ironmap"
        ;;
    beside)
        find_ironmap
        crates/ironmap-fio/tests/beside.sh "$engine" "$ironmap" "$@"
        ;;
    *) die "there is no part $part" ;;
esac
