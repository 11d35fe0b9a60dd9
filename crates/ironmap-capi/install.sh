#!/usr/bin/env bash
# Builds the C library, and installs it with its header, its manual pages and a file for pkg-config:
#
#   install.sh PREFIX [LIBDIR]   for example /usr/local; LIBDIR is PREFIX/lib by default
#
# DESTDIR is put before all paths, as packages need it. PROFILE is the profile of the build, release by default. IRONMAP_C_STATIC is a static
# library that was built already.
source "$(dirname "$0")/../../tests/lib.sh"
crate=crates/ironmap-capi
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
prefix=$1 libdir=${2:-$1/lib}
profile=${PROFILE:-release}
version=$(workspace_value version)
# The interface of a version 0.x is that of all versions 0.x.y.
soname=libironmap.so.${version%%.*}

# The system's libraries that the static library needs.
libs=(-lutil -lrt -lpthread -lm -ldl -lc)

static=${IRONMAP_C_STATIC:-$target/${profile/#dev/debug}/libironmap_capi.a}
[ -n "${IRONMAP_C_STATIC:-}" ] || cargo build --quiet --locked --profile "$profile" -p ironmap-capi

# A shared library that cargo links has no versions of symbols, so it is linked here, from the static one.
link() {
    ${CC:-cc} -shared -o "$1" -Wl,-soname,"$soname" -Wl,--version-script=$crate/ironmap.map -Wl,-z,nodelete,-z,relro,-z,now,-z,defs \
        -Wl,--gc-sections -Wl,--whole-archive "$static" -Wl,--no-whole-archive "${libs[@]}"
}

to=${DESTDIR:-}$libdir
man=${DESTDIR:-}$prefix/share/man/man3
install -d "$to/pkgconfig" "${DESTDIR:-}$prefix/include" "$man"
link "$to/libironmap.so.$version"
[ "$profile" = dev ] || strip --strip-debug "$to/libironmap.so.$version"
ln -sf "libironmap.so.$version" "$to/$soname"
ln -sf "$soname" "$to/libironmap.so"
install -m 644 "$static" "$to/libironmap.a"
[ "$profile" = dev ] || strip --strip-debug "$to/libironmap.a"
install -m 644 $crate/include/ironmap.h "${DESTDIR:-}$prefix/include/ironmap.h"
for page in "$crate"/man/*.3; do
    install -m 644 "$page" "$man"
    # Each name in the section NAME is a page that includes this one.
    read -ra names < <(sed -n '/^\.SH NAME/{n;s/ \\- .*//;s/,//g;p}' "$page")
    for name in "${names[@]}"; do
        [ "$name.3" = "${page##*/}" ] || echo ".so man3/${page##*/}" >"$man/$name.3"
    done
done
cat >"$to/pkgconfig/ironmap.pc" <<TEXT
prefix=$prefix
includedir=\${prefix}/include
libdir=$libdir

Name: ironmap
Description: Direct I/O on the files of ext4 and XFS from user space
Version: $version
Libs: -L\${libdir} -lironmap
Libs.private: ${libs[*]}
Cflags: -I\${includedir}
TEXT
