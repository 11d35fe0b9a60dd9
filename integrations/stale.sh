#!/usr/bin/env bash
# Names the results of integrations that were measured on other sources of ironmap. This is not an error, because a measurement takes
# minutes and few changes matter to it.
set -euo pipefail
cd "$(dirname "$0")"

# field NAME FILE: the value of a text in a JSON file that has one field in each line.
field() { sed -n "s/^ *\"$1\": *\"\([^\"]*\)\".*/\1/p" "$2"; }

for results in */results.json; do
    [ -f "$results" ] || continue
    name=${results%/*}
    read -ra crates <<<"$(field crates "$results")"
    if [ "$(field sources "$results")" != "$(./sources.sh "${crates[@]}")" ]; then
        echo "note: integrations/$results was measured on other sources: integrations/$name/run.sh measure"
    fi
done
