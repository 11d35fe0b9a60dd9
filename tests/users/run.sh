#!/usr/bin/env bash
# Four users, each played by a script that uses only commands from README, docs and examples: tests/users/run.sh [PROGRAMS]. PROGRAMS is a
# directory with the built programs.
#
# Without PROGRAMS, the last commit is first cloned and built, so that the test begins with a fresh checkout.
source "$(dirname "$0")/../lib.sh"
users=(database images rescue administrator)
needs_root=" database administrator "
scripts=$PWD/tests/users

scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Runs cargo in the clone, with the clone's target directory.
build() { (cd "$scratch/clone" && env -u CARGO_TARGET_DIR cargo build --profile demo "$@"); }

if [ $# = 0 ]; then
    say "git clone to $scratch/clone"
    git clone --quiet . "$scratch/clone"
    SECONDS=0
    build --package ironmap-cli
    echo "the program is built: $SECONDS s"
    SECONDS=0
    build --quiet --example host_reader
    echo "the example is built: $SECONDS s more"
fi
programs=$(realpath "${1:-$scratch/clone/target/demo}")

say users
failed=()
for user in "${users[@]}"; do
    # Each script runs in an empty directory and a separate mount namespace, with root permissions in it.
    namespace=(unshare --mount)
    if ! is_root; then
        [[ $needs_root != *" $user "* ]] || { skip "user $user: needs root" && continue; }
        namespace=()
    fi
    mkdir "$scratch/$user"
    begin=$(date +%s%N) status=0
    (cd "$scratch/$user" && PATH=$programs:$programs/examples:/usr/sbin:/sbin:/usr/bin:/bin "${namespace[@]}" sh "$scripts/$user.sh") \
        >"$scratch/said" 2>&1 || status=$?
    tenths=$((($(date +%s%N) - begin) / 100000000))
    if [ "$status" = 0 ]; then
        echo "$user: right after $((tenths / 10)).$((tenths % 10)) s"
    else
        echo "$user: exit status $status"
        cat "$scratch/said"
        failed+=("$user")
    fi
done
[ ${#failed[@]} = 0 ] || die "users failed: ${failed[*]}"
