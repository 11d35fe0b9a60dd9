#!/usr/bin/env python3
"""Counts what a rescue brought back: count.py TREE OUTPUT [PART]

TREE has the right files, each with a different content. OUTPUT has the files of the rescue. PART is a directory of TREE: only its files are
wanted. The output is a line of six numbers:

path     wanted files whose content is whole, below their whole path
name     wanted files whose content is whole, with the right name in a wrong directory
content  wanted files whose content is whole, without their name
part     other wanted files of which OUTPUT has the beginning: at least 4096 equal bytes, or a whole small file and bytes after it
lost     all other wanted files
wrong    files of OUTPUT that are neither whole nor such a part, so a user must find and remove them
"""

import hashlib
import pathlib
import sys

BEGIN = 4096


def files(directory):
    """The path and content of each regular file below a directory."""
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(directory), path.read_bytes()




def main(tree, output, part="."):
    right = {hashlib.sha256(content).digest(): path for path, content in files(tree)}
    wanted = {path for path in right.values() if part == "." or path.is_relative_to(part)}
    begins = {}
    small = {}
    for path, content in files(tree):
        if len(content) >= BEGIN:
            begins.setdefault(content[:BEGIN], set()).add(path)
        else:
            small.setdefault(content[:64], []).append((content, path))
    best, wrong, parts = {}, 0, set()
    for path, content in files(output):
        found = right.get(hashlib.sha256(content).digest())
        if found is not None:
            tail = path.parts[-len(found.parts) :]
            kind = 0 if tail == found.parts else 1 if path.name == found.name else 2
            best[found] = min(kind, best.get(found, kind))
            continue
        like = set(begins.get(content[:BEGIN], ()))
        like.update(p for whole, p in small.get(content[:64], ()) if content.startswith(whole))
        parts |= like
        wrong += not like
    kinds = [sum(best.get(path) == kind for path in wanted) for kind in range(3)]
    partly = len((parts & wanted) - best.keys())
    lost = len(wanted) - sum(kinds) - partly
    print(*kinds, partly, lost, wrong, sep=", ")


main(*sys.argv[1:])
