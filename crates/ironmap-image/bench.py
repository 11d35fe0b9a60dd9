"""Compares images that ironmap makes with those of mke2fs, debugfs and resize2fs: `bench.py PROGRAM DIRECTORY [ROUNDS]`.

PROGRAM is `ironmap`, or the example `image` of this crate. In DIRECTORY, the script makes a tree like the root of a container (100,000
files), which stays for the next run. A file of 4 GiB and its image need 8 GiB more, and are removed. A row has ROUNDS (by default 5) rounds
after one that fills the page cache. A round runs both sides, in alternating order. Each figure is the median of all rounds, in seconds:
elapsed time, and time of the processor; the last is the median of the ratios. The times of `with sync` include a `sync` after the programs.
e2fsck checks each image of ironmap. Two builds of each source are compared.
"""

import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

SEED = 1
FILES, LARGE = 100_000, 4 << 30
OWNER = 1000
WORDS = [b"lib", b"usr", b"share", b"locale", b"python", b"module", b"return", b"\x00\x00\x00", b"\n", b" ", b"="]


def fill(root, random):
    """A tree of depth 8: sizes as in a distribution (half of the files have less than 3 KB), links of both kinds, attributes."""
    text = b"".join(random.choices(WORDS, k=1 << 20))
    directories = [root]
    for number in range(FILES // 10):
        parent = random.choice(directories[-500:])
        if parent.count("/") - root.count("/") < 8:
            directories.append(f"{parent}/{random.choice(WORDS[:7]).decode()}-{number}")
            os.mkdir(directories[-1])
    files = []
    for number in range(FILES):
        path = f"{random.choice(directories)}/{random.choice(WORDS[:7]).decode()}{number}.{random.choice('cho')}"
        kind = random.random()
        if kind < 0.06 and files:
            os.symlink(os.path.relpath(random.choice(files), os.path.dirname(path)), path)
        elif kind < 0.08 and files:
            os.link(random.choice(files), path)
        else:
            size = min(int(random.lognormvariate(8, 1.8)), 8 << 20)
            begin = random.randrange(len(text) - 1)
            with open(path, "wb") as file:
                file.write((text[begin:] + text * (size // len(text) + 1))[:size])
            os.chmod(path, random.choice([0o644, 0o755, 0o600]))
            if random.random() < 0.02:
                os.setxattr(path, "user.origin", path.encode()[-60:])
            files.append(path)


def fill_large(root, random):
    """One file without holes, which can be compressed."""
    text = b"".join(random.choices(WORDS, k=1 << 20))
    with open(f"{root}/large", "wb") as file:
        while file.tell() < LARGE:
            file.write(random.randbytes(1 << 16) + text[: (1 << 20) - (1 << 16)])
        file.truncate(LARGE)


def fill_few(root, _random):
    """A thousand small files."""
    for number in range(1000):
        with open(f"{root}/file{number}", "wb") as file:
            file.write(b"x" * (number * 7))


def timed(commands):
    """Runs some commands one after the other. The elapsed time, that time with a `sync` at the end, and the time of the processor."""
    begin, processor = time.monotonic(), 0.0
    for command, text in commands:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        child.stdin.write(text)
        child.stdin.close()
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0, (command, errors[:2000])
        processor += usage.ru_utime + usage.ru_stime
    elapsed = time.monotonic() - begin
    os.sync()
    return elapsed, time.monotonic() - begin, processor


class Bench:
    def __init__(self, program, directory):
        self.program = program
        self.image, self.base = (os.path.join(directory, name) for name in ("disk.img", "base.img"))
        self.trees = {}
        for name, make in (("root", fill), ("large", fill_large), ("few", fill_few)):
            self.trees[name] = tree = os.path.join(directory, name)
            if not os.path.exists(tree):
                shutil.rmtree(tree + ".new", ignore_errors=True)
                os.mkdir(tree + ".new")
                make(tree + ".new", random.Random(SEED))
                os.rename(tree + ".new", tree)
        os.sync()

    def ours(self, tree, *options, size):
        return [([self.program, "mkfs", "-q", "-d", self.trees[tree], *options, self.image, size], b"")]

    def theirs(self, tree, size):
        return [(["mke2fs", "-q", "-F", "-t", "ext4", "-d", self.trees[tree], self.image, size], b"")]

    def chown(self):
        """The commands of debugfs that give each file of the tree another owner."""
        lines = []
        for top, below, names in os.walk(self.trees["root"]):
            for name in (*below, *names):
                path = os.path.relpath(os.path.join(top, name), self.trees["root"])
                lines += [f"sif /{path} uid {OWNER}", f"sif /{path} gid {OWNER}"]
        return "\n".join(lines).encode()

    def inject(self):
        few = self.trees["few"]
        return "\n".join(f"write {few}/{name} {name}" for name in os.listdir(few)).encode()

    def rows(self):
        """The name of each row, a preparation, and the commands of both sides."""
        debugfs = ["debugfs", "-w", "-f", "-", self.image]
        owner = f"--owner={OWNER}:{OWNER}"
        few, copy = self.trees["few"], f"{self.image}:/"
        files = [os.path.join(few, name) for name in os.listdir(few)]
        yield "root of 100,000 files", None, self.ours("root", size="4G"), self.theirs("root", "4G")
        yield "one file of 4 GiB", None, self.ours("large", size="5G"), self.theirs("large", "5G")
        yield "root, other owner", None, self.ours("root", owner, size="4G"), [*self.theirs("root", "4G"), (debugfs, self.chown())]
        yield "1,000 files into an image", "4G", [([self.program, "cp", "-a", *files, copy], b"")], [(debugfs, self.inject())]
        resize = [([self.program, "resize", self.image, "64G"], b"")]
        # Without -f, resize2fs refuses a volume that was mounted since its last check. ironmap checks each volume itself.
        yield "4 GiB to 64 GiB, resize2fs -f", "4G", resize, [(["resize2fs", "-f", self.image, "64G"], b"")]
        check = (["e2fsck", "-fy", self.image], b"")
        yield "4 GiB to 64 GiB, e2fsck -f first", "4G", resize, [check, (["resize2fs", self.image, "64G"], b"")]

    def prepare(self, size):
        """A new image: a copy of the image of the tree, if the commands change an image."""
        if os.path.exists(self.image):
            os.remove(self.image)
        if size:
            if not os.path.exists(self.base):
                timed(self.ours("root", size=size))
                os.rename(self.image, self.base)
            subprocess.run(["cp", "--sparse=always", self.base, self.image], check=True)
            os.sync()

    def row(self, name, size, ours, theirs, rounds):
        results = {False: [], True: []}
        for number in range(rounds + 1):
            for is_ours in (number % 2 == 0, number % 2 == 1):
                self.prepare(size)
                result = timed(ours if is_ours else theirs)
                if is_ours:
                    subprocess.run(["e2fsck", "-fn", self.image], check=True, capture_output=True)
                # The first round fills the page cache.
                if number > 0:
                    results[is_ours].append(result)
        medians = [map(statistics.median, zip(*results[side])) for side in (True, False)]
        cells = [f"{value:.2f}" for side in medians for value in side]
        for column in (0, 1):
            ratios = [theirs[column] / ours[column] for ours, theirs in zip(results[True], results[False])]
            cells.append(f"{statistics.median(ratios):.2f}")
        print("|", " | ".join([name, *cells]), "|", flush=True)

    def compare(self, tree):
        """Whether two builds give the same bytes."""
        hashes = set()
        os.environ["SOURCE_DATE_EPOCH"] = "1700000000"
        for _ in range(2):
            self.prepare(None)
            timed(self.ours(tree, size="5G"))
            with open(self.image, "rb") as file:
                hashes.add(hashlib.file_digest(file, "sha256").hexdigest())
        del os.environ["SOURCE_DATE_EPOCH"]
        print(f"two builds of {tree}: {'the same bytes' if len(hashes) == 1 else 'DIFFERENT BYTES'}", flush=True)


def main():
    program, directory, *rounds = sys.argv[1:]
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    bench = Bench(os.path.abspath(program), os.path.abspath(directory))
    sides = (f"{side}, s | with sync, s | processor, s" for side in ("ironmap", "e2fsprogs"))
    print("| row |", " | ".join(sides), "| e2fsprogs / ironmap | with sync |", flush=True)
    print("|---" * 9 + "|", flush=True)
    try:
        for row in bench.rows():
            bench.row(*row, rounds=int(rounds[0]) if rounds else 5)
        bench.compare("root")
        bench.compare("large")
    finally:
        for path in (bench.image, bench.base):
            if os.path.exists(path):
                os.remove(path)
        shutil.rmtree(bench.trees["large"])


if __name__ == "__main__":
    main()
