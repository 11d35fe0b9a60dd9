#!/usr/bin/env bash
# Builds the Debian packages, checks them with lintian, installs them in a small system of this Debian release, uses them there, and checks
# that the removal leaves no file.
#
# The system is made once, in target/debian-root. The C library and the Python package have the profiles that other tests build.
source "$(dirname "$0")/../tests/lib.sh"
needs="dh_install, dh_python3, lintian, mmdebstrap, chroot, mount, unshare"
# shellcheck disable=SC2086  # a list of words
if ! is_root || ! has ${needs//,/}; then
    skip "debian packages: need root, $needs"
    exit
fi

# The dependencies of the packages, and programs that the test calls. Recommended packages are left out.
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
system=$target/debian-root/$release
if [ ! -d "$system" ]; then
    mkdir -p "$target/debian-root"
    rm -rf "$system.part"
    timed "deb: system of the test" mmdebstrap --quiet --variant=apt --include=gcc,libc6-dev,mount,pkgconf,python3 "$release" "$system.part" ||
        { skip "debian packages: mmdebstrap cannot make a system" && exit; }
    mv "$system.part" "$system"
fi

out=$target/tmp/debian-$$
mkdir -p "$out/layer"
trap 'rm -rf "$out"' EXIT
IRONMAP_C_PROFILE=${IRONMAP_C_PROFILE:-demo} IRONMAP_PYTHON_PROFILE=${IRONMAP_PYTHON_PROFILE:-checked} debian/build.sh "$out/packages" -Zgzip -z1
# symbols LIST: compares the functions of the library with a list, as the build does, and prints the difference.
symbols() { (cd "$target/deb" && dpkg-gensymbols -plibironmap0 -I"$1" -Pdebian/libironmap0 -c4 -O/dev/null 2>/dev/null); }
# The comparison fails if the list lacks a function. It also finds each function that the library lacks: this list has one beside each line.
grep -v ' ironmap_open@' debian/libironmap0.symbols >"$out/unlisted"
if symbols "$out/unlisted" >/dev/null; then die "the build accepts a function that debian/libironmap0.symbols lacks"; fi
sed -n 'p; s/^ \(ironmap_[a-z_]*\)@/ \1_absent@/p' debian/libironmap0.symbols >"$out/absent"
if symbols "$out/absent" >"$out/difference"; then die "the build accepts a library without listed functions"; fi
[ "$(grep -c '^+#MISSING' "$out/difference")" = "$(grep -c '_absent@' "$out/absent")" ] || die "the build does not find each missing function"

# The maintainer has no public address. The static library of a build for tests would take minutes, so libironmap-dev is left out.
checked=("$out"/packages/{ironmap,libironmap0,python3-ironmap}_*.deb)
timed "deb: lintian" lintian --allow-root --fail-on error \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact "${checked[@]}"
size=$(dpkg-deb --fsys-tarfile "$out"/packages/ironmap_*.deb | tar -xO ./usr/bin/ironmap | wc -c)
# The maximum size of the program in bytes.
[ "$size" -le 10485760 ] || die "the packaged program has $size bytes, more than 10 MiB"

# The end of the mount namespace removes all mounts, even after a failure.
timed "deb: installation" unshare --mount debian/installed.sh "$system" "$out" "$(workspace_value version)"
