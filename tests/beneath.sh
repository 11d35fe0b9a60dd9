#!/usr/bin/env bash
# Runs the other suites with a layer below every volume (tests/common/beneath.rs), and tests of power cuts:
#
#   beneath.sh suites [LAYER]   the suites over this layer, or over each layer in turn
#   beneath.sh short            a few suites over each layer, for ./x test-all
#   beneath.sh crash STATES     this number of crash states for each kind of workload, without a layer and over each layer
source "$(dirname "$0")/lib.sh"
part=$1
layers=(integrity-bitmap integrity-journal nbd nbd-plain)

# The features are the same as in the build of the tests, so that the tests are not built again.
tests() { cargo test "${workspace[@]}" --no-fail-fast "$@"; }

# Runs the test programs that open devices for their volumes. Programs with devices of their own are omitted. dio and no_alloc are not run
# over an NBD export, because they count events that only the system's queues have.
suites() {
    local programs=(--test ext4 --test differential --test model)
    [[ $1 = nbd* ]] || programs+=(--test dio --test no_alloc)
    tests "${programs[@]}" -- --skip={stable,broken_orphans,damaged_reading,empty_nodes,met_errors,mkfs}::
}

short() {
    case $1 in
        nbd*) tests --test ext4 -- write_open:: crash_data:: ;;
        *) tests --test dio --test ext4 -- dio_simple:: dio_generic:: dio_async:: write_open:: crash_data:: ;;
    esac
}

# Only these suites write by ironmap. Writes of the kernel do not use ironmap's device, and so bypass the layer.
crash() {
    tests --test ext4 -- --nocapture what_ironmap_leaves what_threads quota_is_recovered what_is_durable broken_promises
}

case $part in
    suites)
        [[ " ${layers[*]} " = *" ${2:-${layers[0]}} "* ]] || die "there is no layer $2"
        [ -z "${2:-}" ] || layers=("$2")
        ;;
    short) ;;
    crash)
        export IRONMAP_CRASH_STATES=$2 RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(nproc)}
        tests --test ext4 -- --nocapture crash:: crash_data::
        ;;
    *) die "there is no part $part" ;;
esac

# Every layer is tested, even if the previous layer failed.
status=0
for layer in "${layers[@]}"; do
    say "beneath every volume: $layer"
    IRONMAP_BENEATH=$layer "$part" "$layer" || status=$?
done
[ "$status" = 0 ] || exit "$status"
