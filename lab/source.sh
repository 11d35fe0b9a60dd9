#!/usr/bin/env bash
# Unpacks the source of an installed Debian package, once: lab/source.sh PACKAGE COMMAND...
#
# COMMAND runs in the directory of the source and prepares it. Prints the path of this directory. If the source is not available, prints the
# reason, and the exit status is 77.
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
    # The output of all following commands is written to a log. The first failure ends the script.
    exec 3>&1 >../log 2>&1
    trap 'unavailable "the source of $package, $version, could not be prepared" >&3' ERR
    # Copies of the system's package lists, changed to list source packages. The lists have one line for each repository, or the deb822
    # format. The system's own lists are not changed.
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
