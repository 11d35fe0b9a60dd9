"""Compares `check` with e2fsck and xfs_repair, and `cp -r` with debugfs: `bench_check.py PROGRAM DIRECTORY [ROUNDS]`.

PROGRAM is `ironmap`. In DIRECTORY, the script makes a tree of 200,000 files (0 to 16 KiB, in 4,000 directories), and an ext4 image and an XFS
image with this tree. They need 9 GiB, and stay for the next run. XFS needs root, because the kernel fills the image. The copies go to /dev/shm
(3 GiB). A round runs both sides, in alternating order. A row has ROUNDS (by default 5) rounds. Each figure is the median of all rounds, in
seconds: elapsed time, and time of the processor; the last two are the medians of the ratios. In rows with `cold`, the page cache contains
nothing of the image when a program starts; in the other rows it contains all of it.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import time

SEED = 12
COPY = "/dev/shm/ironmap-bench-copy"


def fill(root):
    random.seed(SEED)
    content = random.randbytes(1 << 20)
    for number in range(4000):
        directory = f"{root}/part{number // 100:02}/directory{number % 100:03}"
        os.makedirs(directory)
        for index in range(50):
            size = random.randrange(16385)
            begin = random.randrange(len(content) - size)
            with open(f"{directory}/file-{index:04}-{random.randrange(1 << 30):x}.txt", "wb") as file:
                file.write(content[begin : begin + size])


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_ext4(tree, image):
    run("mke2fs", "-q", "-F", "-t", "ext4", "-N", "250000", "-d", tree, image, "3G")


def make_xfs(tree, image):
    with open(image, "wb") as file:
        file.truncate(4 << 30)
    mount = f"{image}.mount"
    os.mkdir(mount)
    run("mkfs.xfs", "-q", image)
    run("mount", "-o", "loop", image, mount)
    try:
        run("cp", "-a", f"{tree}/.", mount)
    finally:
        run("umount", mount)
        os.rmdir(mount)


def cached(image, is_cached):
    """Fills the page cache with the image, or removes the image from it."""
    with open(image, "rb", buffering=0) as file:
        if is_cached:
            while file.read(1 << 20):
                pass
        else:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(command):
    shutil.rmtree(COPY, ignore_errors=True)
    os.mkdir(COPY)
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    elapsed = time.monotonic() - begin
    assert status == 0, command
    return elapsed, usage.ru_utime + usage.ru_stime


def row(name, image, sides, rounds):
    results = [[], []]
    for is_cold in (False, True):
        for number in range(rounds):
            for side in (number % 2, 1 - number % 2):
                cached(image, not is_cold)
                results[side].append(timed(sides[side]))
        cells = [f"{statistics.median(column):.2f}" for side in results for column in zip(*side)]
        for column in (0, 1):
            ratios = [ours[column] / theirs[column] for ours, theirs in zip(*results)]
            cells.append(f"{statistics.median(ratios):.2f}")
        print("|", " | ".join([f"{name}, cold" if is_cold else name, *cells]), "|", flush=True)
        results = [[], []]


def main():
    program, directory, *rounds = sys.argv[1:]
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    rounds = int(rounds[0]) if rounds else 5
    ext4, xfs = (os.path.join(directory, name) for name in ("check.ext4", "check.xfs"))
    makers = {ext4: make_ext4, xfs: make_xfs} if os.geteuid() == 0 else {ext4: make_ext4}
    missing = {image: make for image, make in makers.items() if not os.path.exists(image)}
    if missing:
        tree = os.path.join(directory, "check.tree")
        os.mkdir(tree)
        fill(tree)
        for image, make in missing.items():
            make(tree, f"{image}.new")
            os.rename(f"{image}.new", image)
        shutil.rmtree(tree)
    sides = (f"{side}, s | processor, s" for side in ("ironmap", "other"))
    print("| row |", " | ".join(sides), "| ironmap / other | processor |", flush=True)
    print("|---" * 7 + "|", flush=True)
    try:
        row("check, e2fsck -fn", ext4, ([program, "check", ext4], ["e2fsck", "-fn", ext4]), rounds)
        if xfs in makers:
            row("check, xfs_repair -n", xfs, ([program, "check", xfs], ["xfs_repair", "-n", xfs]), rounds)
        ours, theirs = [program, "cp", "-r", f"{ext4}:/", COPY], ["debugfs", "-R", f"rdump / {COPY}", ext4]
        row("cp -r, debugfs rdump", ext4, (ours, theirs), rounds)
    finally:
        shutil.rmtree(COPY, ignore_errors=True)


if __name__ == "__main__":
    main()
