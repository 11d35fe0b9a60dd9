#!/usr/bin/env bash
# Unpacks the source of an installed Debian package, once: lab/source.sh PACKAGE COMMAND...
#
# COMMAND prepares the source, in its directory. Prints the path of that directory. Without one it prints the reason, and ends with 77.
source "$(dirname "$0")/../tests/lib.sh"
package=$1
shift
unavailable() { echo "$*" && exit 77; }

# shellcheck disable=SC2016  # a variable of dpkg-query
version=$(dpkg-query -W -f '${source:Version}' "$package" 2>/dev/null) || version=
if [ -z "$version" ] || ! has apt-get dpkg-source; then unavailable "no source packages here"; fi
cache=$target/$package/$version
if [ ! -d "$cache/source" ]; then
    rm -rf "$cache/unfinished"
    mkdir -p "$cache/lists/partial" "$cache/lists.d"
    cd "$cache"
    # The output of all that follows goes to a log. The first failure ends it, and is the reason.
    exec 3>&1 >../log 2>&1
    trap 'unavailable "the source of $package, $version, could not be prepared" >&3' ERR
    # The system's lists, of source packages: of one line for each, or in deb822's form. They are of our own: the system's stay as they are.
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
        [ ! -e "$list" ] || sed -e 's/^deb /deb-src /' -e 's/^Types:.*/Types: deb-src/' "$list" >"lists.d/${list##*/}"
    done
    apt_get=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$cache/lists.d" -o "Dir::State::lists=$cache/lists"
        -o "Dir::Cache=$cache" -o APT::Sandbox::User=)
    "${apt_get[@]}" update
    "${apt_get[@]}" source --download-only "$package=$version"
    dpkg-source --no-check -x ./*.dsc unfinished
    cd unfinished
    "$@"
    mv "$cache/unfinished" "$cache/source"
    exec >&3
fi
echo "$cache/source"
