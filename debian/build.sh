#!/usr/bin/env bash
# Builds the program, the C library and the Python package for release, and their Debian packages: build.sh [DIRECTORY [OPTION...]]
#
# The packages are put into DIRECTORY, target/debian by default. The options are passed to dpkg-deb. IRONMAP_BIN names a program that is
# built already. IRONMAP_C_PROFILE and IRONMAP_PYTHON_PROFILE name other profiles of Cargo for the C library and the Python package.
#
# The C library's functions are listed in debian/libironmap0.symbols. If a function disappears or is not listed, the build fails and prints
# the difference.
source "$(dirname "$0")/../tests/lib.sh"
has dh_install dh_python3 || die "needs debhelper and dh-python: ./setup test"

say "debian packages"
packages=$(realpath -m "${1:-$target/debian}")
work=$target/deb
python_profile=${IRONMAP_PYTHON_PROFILE:-release}
# debhelper takes files from its working directory, and from debian/tmp, which has the paths of an installed system.
tmp=$work/debian/tmp
rm -rf "$work"
mkdir -p "$tmp" "$packages"
cp debian/* "$work/debian"
cp ./*.md "$work"
ln -s "$PWD"/{docs,crates} "$work"
[ ! -d crates/ironmap-capi/examples ] || echo 'crates/ironmap-capi/examples/*' >"$work/debian/libironmap-dev.examples"

find_ironmap
install -D "$ironmap" "$tmp/usr/bin/ironmap"
share=$tmp/usr/share
mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$ironmap" man "$share/man/man1"
"$ironmap" completions bash >"$share/bash-completion/completions/ironmap"
"$ironmap" completions zsh >"$share/zsh/vendor-completions/_ironmap"
"$ironmap" completions fish >"$share/fish/vendor_completions.d/ironmap.fish"

# The architecture, which dh_python3 takes from variables too.
eval "$(dpkg-architecture -s)"
timed "deb: C library" env PROFILE="${IRONMAP_C_PROFILE:-release}" DESTDIR="$tmp" \
    crates/ironmap-capi/install.sh /usr "/usr/lib/$DEB_HOST_MULTIARCH"

# The wheel also contains the metadata, with the entry point for fsspec. dpkg has its own list of files and the licences, and the SBOM names
# paths of this machine.
crates/ironmap-python/test.sh wheel "$python_profile"
modules=$tmp/usr/lib/python3/dist-packages
python3 -m zipfile -e "$target/python/$python_profile"/*.whl "$modules"
rm -r "$modules"/*.dist-info/{RECORD,licenses,sboms}

# The time of the last commit, for packages that do not depend on the time of the build.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
cat >"$work/debian/changelog" <<TEXT
ironmap ($(workspace_value version)) unstable; urgency=medium

  * The package ironmap contains a list of the changes:
    /usr/share/doc/ironmap/CHANGELOG.md

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
TEXT

cd "$work"
dh_install
dh_missing --fail-missing
dh_installdocs
# The changelog is the one in debian/; CHANGELOG.md is a page.
dh_installchangelogs -XCHANGELOG.md
dh_installexamples
dh_python3
dh_link
# Links of pages lead to names without .gz.
dh_compress -X.md -X.json
dh_fixperms
dh_strip --no-automatic-dbgsym
# With -c4 the list of symbols must be exact.
dh_makeshlibs -- -c4
dh_shlibdeps
dh_installdeb
dh_gencontrol
dh_md5sums
dh_builddeb --destdir="$packages" -- "${@:2}"
