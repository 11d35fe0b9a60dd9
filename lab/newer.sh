#!/usr/bin/env bash
# Unpacks programs of another release of Debian: lab/newer.sh RELEASE PACKAGE DIRECTORY PROGRAM...
#
# DIRECTORY/bin contains the programs, which run with the libraries of their own release. Nothing is installed. The directory can be copied
# to another place, and exists only when it is complete. If the package is not available on this machine, the exit status is 77, and the
# last line of the output is the reason.
set -euo pipefail
release=$1 package=$2
directory=$(realpath -m "$3")
shift 3

key=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -d "$directory" ] || exit 0
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "needs $tool" && exit 77; }
done
[ -e "$key" ] || { echo "needs $key" && exit 77; }

mkdir -p "$(dirname "$directory")" || { echo "no place for $directory" && exit 77; }
# A separate directory, because two processes can run this script at once. The first process that ends has made the final directory.
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{root,new/bin,new/lib,new/programs}
chmod 755 "$work/new"
echo "deb [signed-by=$key] http://deb.debian.org/debian $release main" >"$work/sources.list"
: >"$work/status"
# Separate package lists, and an empty list of installed packages, so that apt downloads everything that the programs need from the release.
apt() {
    apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists" \
        -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" -o "APT::Default-Release=$release" -o Dir::Etc::preferences=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User= -o APT::Update::Error-Mode=any -o Acquire::http::Timeout=30 "$@" >>"$work/log" 2>&1
}
if ! apt update || ! apt install -y --no-install-recommends --download-only "$package"; then
    tail -n 1 "$work/log"
    exit 77
fi
for archive in "$work"/cache/archives/*.deb; do
    dpkg-deb -x "$archive" "$work/root"
done
loader=$(find "$work/root/usr/lib" -path '*-linux-gnu*/ld*.so.*' -name 'ld*' | head -n 1)
[ -n "$loader" ] || { echo "no loader of programs in $release" && exit 77; }
cp -L "$loader" "$work/new/lib/ld.so"
for program in "$@"; do
    path=$(find "$work/root" -path "*bin/$program" | head -n 1)
    [ -n "$path" ] || { echo "$package has no $program" && exit 77; }
    cp "$path" "$work/new/programs/"
    "$loader" --library-path "$(dirname "$loader")" --list "$path" | grep -o "$work/[^ ]*" | xargs -I{} cp -L {} "$work/new/lib/"
    cat >"$work/new/bin/$program" <<'WRAPPER'
#!/bin/sh
self=$(readlink -f "$0")
here=${self%/*}/..
exec "$here/lib/ld.so" --library-path "$here/lib" "$here/programs/${self##*/}" "$@"
WRAPPER
    chmod +x "$work/new/bin/$program"
done
mv -T "$work/new" "$directory" 2>/dev/null || [ -d "$directory" ]
