#!/usr/bin/env bash
# Tests the Go package with the C library in the prefix IRONMAP_C_PREFIX (an absolute path), or with one that is built and installed in
# the directory of the build.
#
# IRONMAP_SEED sets the seed of the random tests.
source "$(dirname "$0")/../../../tests/lib.sh"
export PATH=$PATH:/usr/local/go/bin
module=crates/ironmap-capi/go
# Go uses the installed version, and downloads nothing.
export GOTOOLCHAIN=local GOPROXY=off
has go cc pkg-config || { skip "Go package: needs go, cc and pkg-config" && exit; }
succeeds "cd $module && go list -m" || { skip "Go package: needs the version of Go in go.mod" && exit; }

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
prefix=${IRONMAP_C_PREFIX:-$target/go-prefix}
[ -n "${IRONMAP_C_PREFIX:-}" ] || PROFILE=dev timed "go: C library" crates/ironmap-capi/install.sh "$prefix"
# Go keeps compiled packages, and does not notice another C library. It compares the flags.
build=$(echo "$prefix" | cat - "$prefix/include/ironmap.h" | cksum)
export CGO_CFLAGS="-O2 -g -DIRONMAP_BUILD=${build%% *}"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib

cd $module
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || die "gofmt would change: $unformatted"
timed "go: vet" go vet ./...
# The tests write the names of those that cannot run here into this file.
export IRONMAP_GO_SKIPS=$temporary/skips
: >"$IRONMAP_GO_SKIPS"
timed "go: tests" go test -count=1 -race ./...
sort -u "$IRONMAP_GO_SKIPS" | while read -r line; do skip "$line"; done
