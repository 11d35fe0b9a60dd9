"""Compares reads by Python with the same reads by the library: `bench.py NATIVE [DIRECTORY...]`.

NATIVE is the program of bench/native.rs (`cargo build --release --example native`). The engine null completes each request at once, so its
figures are the cost of the calls. In each DIRECTORY the script makes an image and reads it by the best engine for it. The two programs
alternate, and each figure is the smallest of all rounds. The figures of Python include its loop. `test.sh bench` runs this script.
"""

import mmap
import os
import subprocess
import sys
import tempfile
import time

import ironmap

PAGE, ROUNDS = 4096, 40


def python(location, engine, path, count):
    """The nanoseconds of one `readinto_at` of 4 KiB, and of one `read_ranges_into` of 64 pages."""
    with ironmap.Volume(location, engine=engine) as volume, volume.open(path) as file:
        pages = file.size // PAGE
        # Aligned and private memory, like the memory of the other program.
        memory = memoryview(mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        page = memory[:PAGE]
        places = [index * 7919 % pages * PAGE for index in range(count)]
        readinto_at = file.readinto_at
        readinto_at(page, 0)
        begin = time.perf_counter_ns()
        for place in places:
            readinto_at(page, place)
        one = (time.perf_counter_ns() - begin) / count

        parts = [memory[at : at + PAGE] for at in range(0, 64 * PAGE, PAGE)]
        batches = [list(zip(places[at : at + 64], parts)) for at in range(0, count - 63, 64)]
        begin = time.perf_counter_ns()
        for batch in batches:
            file.read_ranges_into(batch)
        return one, (time.perf_counter_ns() - begin) / len(batches)


def native(program, location, engine, path, count):
    command = [program, location, engine, path, str(count)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, result.stdout.split()))


def compare(program, name, location, engine, count):
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(native(program, location, engine, "/file", count))
        ours.append(python(location, engine, "/file", count))
    (one, many), (one_native, many_native) = (tuple(map(min, zip(*figures))) for figures in (ours, theirs))
    print(f"{name}: readinto_at {one:.0f} ns, read_at {one_native:.0f} ns, difference {one - one_native:.0f} ns")
    print(f"{name}: 64 ranges {many / 1000:.1f} us, read_many {many_native / 1000:.1f} us, ratio {many_native / many:.2f}")


def main():
    program, *directories = sys.argv[1:]
    for number, directory in enumerate([tempfile.gettempdir(), *directories]):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            image, tree = os.path.join(scratch, "image"), os.path.join(scratch, "tree")
            os.mkdir(tree)
            with open(os.path.join(tree, "file"), "wb") as file:
                for _ in range(64):
                    file.write(os.urandom(1 << 20))
            environment = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
            command = ["mke2fs", "-q", "-q", "-F", "-t", "ext4", "-d", tree, image, "96M"]
            subprocess.run(command, check=True, env=environment)
            if number == 0:
                compare(program, "null", image, "null", 50_000)
            else:
                compare(program, directory, image, "auto", 1_280)


if __name__ == "__main__":
    main()
