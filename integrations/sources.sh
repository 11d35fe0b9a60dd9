#!/usr/bin/env bash
# Prints a hash of the sources of ironmap that an integration uses. Results of measurements carry the hash:
#
#   sources.sh [CRATE...]   the library, and these crates of crates/
set -euo pipefail
cd "$(dirname "$0")/.."

roots=(src)
for crate in "$@"; do
    roots+=("crates/$crate/src")
done
find "${roots[@]}" -type f -name '*.rs' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
