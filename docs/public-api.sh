#!/usr/bin/env bash
# The library's public interface as a list, docs/public-api.txt: a change of the interface is a change of this file.
#
#   public-api.sh check   compares the list with the code
#   public-api.sh write   writes it again
source "$(dirname "$0")/../tests/lib.sh"
action=$1
list=docs/public-api.txt
# The version of Rust that makes the list: others name items of the standard library by other paths.
toolchain=1.95.0

unavailable() {
    [ "$action" = check ] || die "needs Rust $toolchain and cargo-public-api"
    skip "public interface: needs Rust $toolchain and cargo-public-api"
    exit
}

# The modules that a file declares below `#[doc(hidden)]`, as NAME:: of the parent.
hidden_modules() { grep -A 1 '^#\[doc(hidden)\]' "$1" | sed -n "s/^pub mod \(.*\);$/$2\1/p"; }

if ! has_rust "$toolchain" || ! succeeds "cargo public-api --version"; then unavailable; fi
# The options are unstable, and so is their form: it is that of one version. The tool must see hidden items too, since another module may show them.
RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$target/api cargo "+$toolchain" rustdoc --quiet --lib --package ironmap \
    -- -Z unstable-options --document-hidden-items --output-format json
all=$(cargo public-api -sss --rustdoc-json "$target/api/doc/ironmap.json")
# Modules that users do not see; the prelude repeats what it exports.
hidden=$(hidden_modules src/lib.rs ironmap:: && hidden_modules src/fs/mod.rs ironmap::fs:: && echo ironmap::prelude)

# Of each line the path that it declares, or implements something for, decides.
now=$(LC_ALL=C sort -u <<<"$all" | awk -v hidden="^(${hidden//$'\n'/|})(::|\$)" '{
    path = $0
    sub(/.* for /, "", path)
    if (match(path, /ironmap::[A-Za-z0-9_:]*/)) path = substr(path, RSTART, RLENGTH)
    if (path ~ /^ironmap/ && path !~ hidden) print
}')
if [ "$action" = write ]; then
    echo "$now" >"$list"
elif ! diff --old-line-format='- %L' --new-line-format='+ %L' --unchanged-line-format= "$list" - <<<"$now"; then
    die "the public interface is not that of $list: if it should change, ./x api writes the list"
fi
