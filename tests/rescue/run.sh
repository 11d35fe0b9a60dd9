#!/usr/bin/env bash
# Compares ironmap with guestfish, debugfs, TestDisk and extundelete on five broken images: tests/rescue/run.sh [write]
#
# images.sh makes the images, recipes.sh has what a rescuer types for each tool and image, count.py compares the files that came back with
# the originals. The script prints a table. With "write", it also replaces the rows of docs/bench/rescue.json and the table in
# docs/RESCUE.md. A missing tool is an error: a comparison without it says nothing.
source "$(dirname "$0")/../lib.sh"
mode=${1:-print}
images=(superblock blocks deleted xfs cut)
tools=(ironmap guestfish debugfs testdisk extundelete)

needed=(guestfish debugfs testdisk photorec extundelete e2fsck dumpe2fs mkfs.xfs xfs_db sgdisk qemu-img python3)
for tool in "${needed[@]}"; do has "$tool" || die "$tool is missing: ./setup rescue installs it"; done
find_ironmap

scratch=$(mktemp -d "${TMPDIR:-/tmp}/ironmap-test-$$-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# guestfish starts a virtual machine with this machine's kernel. The second setting is for machines whose KVM does not work.
export LIBGUESTFS_BACKEND=direct LIBGUESTFS_CACHEDIR=$scratch
if ! succeeds "guestfish --ro -a /dev/null run"; then
    export LIBGUESTFS_BACKEND_SETTINGS=force_tcg
    guestfish --ro -a /dev/null run || die "guestfish cannot start its virtual machine"
fi
begin=${EPOCHREALTIME/./}
guestfish --ro -a /dev/null run
machine=$((${EPOCHREALTIME/./} - begin))

say "five images"
tests/rescue/images.sh "$scratch"
# shellcheck source=/dev/null
source tests/rescue/recipes.sh

# wanted IMAGE: the part of the tree that a rescuer looks for.
wanted() { if [ "$1" = deleted ]; then echo include; else echo .; fi; }

# rescue TOOL IMAGE: runs a recipe in an empty directory, with the name of the image in $image, and adds a line to the results. Each tool may
# fail, which is a result too.
rescue() {
    local begin end out=$scratch/out image=$scratch/$2
    rm -rf "$out" "$scratch/work" && mkdir "$out" "$scratch/work"
    # The writes of the previous recipe do not count, and no tool finds the image in the page cache.
    sync --file-system "$scratch"
    dd if="$(echo "$image".*)" iflag=nocache count=0 status=none
    begin=${EPOCHREALTIME/./}
    (cd "$scratch/work" && set +e && "$1_$2") >"$scratch/said" 2>&1 </dev/null || true
    end=${EPOCHREALTIME/./}
    printf '["%s", "%s", %.1f, %s]\n' "$2" "$1" "$(((end - begin) / 100000))e-1" \
        "$(python3 tests/rescue/count.py "$scratch/tree" "$out" "$(wanted "$2")")" | tee -a "$scratch/rows"
    [ -z "${IRONMAP_RESCUE_SAID:-}" ] || { echo "-- $1 $2" && tail -n 12 "$scratch/said"; } >&2
}

say "image, tool, seconds, files: whole path, name, content, part, lost; wrong files"
for image in "${images[@]}"; do
    for tool in "${tools[@]}"; do rescue "$tool" "$image"; done
done
echo "guestfish's virtual machine alone: $((machine / 1000)) ms${LIBGUESTFS_BACKEND_SETTINGS:+, emulated}"

[ "$mode" = write ] || exit 0
python3 - "$scratch/rows" <<'PYTHON'
import json, pathlib, re, sys
table = pathlib.Path("docs/bench/rescue.json")
rows = ",\n".join("    " + line for line in pathlib.Path(sys.argv[1]).read_text().splitlines())
text, count = re.subn(r'(?s)("rows": \[\n).*?(\n  \])', lambda found: found[1] + rows + found[2], table.read_text())
assert count == 1 and json.loads(text)
table.write_text(text)
PYTHON
cargo run --quiet -p xtask -- bench-page
