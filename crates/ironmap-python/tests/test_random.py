"""Random calls, compared with the same calls to a file system of the kernel. IRONMAP_SEED names the seed, IRONMAP_ROUNDS the length."""

import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import SEED, fsck, make_image
from test_process import in_child

import ironmap

ROUNDS = int(os.environ.get("IRONMAP_ROUNDS", "400"))
LARGEST = 300_000


def content(rng, largest=20_000):
    size = rng.choice([0, 1, 511, 512, 513, 4095, 4096, 8192, rng.randrange(largest)])
    return rng.randbytes(size)


def spot(rng):
    return rng.choice([0, 512, 4096, rng.randrange(LARGEST), rng.randrange(LARGEST) & ~4095])


class Kernel:
    """A file of the kernel with the calls of `ironmap.File`."""

    def __init__(self, path):
        self.file = open(path, "w+b", buffering=0)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def pread(self, size, position):
        return os.pread(self.file.fileno(), size, position)

    def pwrite(self, data, position):
        return os.pwrite(self.file.fileno(), data, position)

    def readinto_at(self, page, position):
        return os.preadv(self.file.fileno(), [page], position)

    def read_ranges_into(self, ranges):
        return [self.readinto_at(page, position) for position, page in ranges]

    @property
    def size(self):
        return os.fstat(self.file.fileno()).st_size


def file_call(rng):
    """A random call: a function of a file, whose result is compared."""
    kind, data, at = rng.randrange(12), content(rng), spot(rng)
    fill = rng.randrange(256)
    sizes = [(spot(rng), rng.randrange(9000)) for _ in range(rng.randrange(1, 80))]

    def into(file):
        page = bytearray([fill]) * len(data)
        count = file.readinto_at(page, at)
        return count, page[:count]

    def ranges(file):
        pages = [(position, bytearray([fill]) * size) for position, size in sizes]
        counts = file.read_ranges_into(pages)
        return counts, [page[:count] for count, (_, page) in zip(counts, pages, strict=True)]

    calls = [
        lambda file: file.pwrite(data, at), lambda file: file.write(data), lambda file: file.seek(at),
        lambda file: file.seek(-min(at, file.size), os.SEEK_END), lambda file: file.read(len(data)),
        lambda file: file.pread(len(data), at), into, ranges, lambda file: file.truncate(at),
        lambda file: file.truncate(), lambda file: file.read(), lambda file: (file.tell(), file.size),
    ]  # fmt: skip
    return kind, calls[kind]


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_a_file_behaves_like_one_of_the_kernel(seed, tmp_path):
    rng = random.Random(seed)
    image = make_image(tmp_path / "image")
    theirs = Kernel(tmp_path / "model")
    with ironmap.Volume(image, write=True) as volume:
        ours = volume.open("/file", "w+b")
        for step in range(ROUNDS):
            kind, call = file_call(rng)
            assert call(ours) == call(theirs), f"seed {seed}, step {step}, call {kind}"
            if rng.randrange(50) == 0:
                ours.sync()
            if rng.randrange(80) == 0:
                position = ours.tell()
                volume.close()
                volume = ironmap.Volume(image, write=True)
                ours = volume.open("/file", "r+b")
                ours.seek(position)
        volume.close()
    with ironmap.Volume(image) as volume:
        assert volume.open("/file").read() == theirs.pread(1 << 30, 0)
    fsck(image)


class Host:
    """A directory of the kernel with the calls of `ironmap.Volume`."""

    def __init__(self, root):
        self.root = str(root)

    def at(self, path):
        return self.root + path

    def listdir(self, path):
        return os.listdir(self.at(path))

    def read(self, path):
        with open(self.at(path), "rb") as file:
            return file.read()

    def write(self, path, mode, data):
        with open(self.at(path), mode + "b") as file:
            file.write(data)

    def symlink(self, target, path):
        os.symlink(target, self.at(path))

    def readlink(self, path):
        return os.readlink(self.at(path))

    def rename(self, old, new):
        os.rename(self.at(old), self.at(new))

    def link(self, old, new):
        os.link(self.at(old), self.at(new), follow_symlinks=False)

    def mkdir(self, path):
        os.mkdir(self.at(path))

    def unlink(self, path):
        os.unlink(self.at(path))

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def walk(self):
        for directory, names, others in os.walk(self.root):
            yield directory[len(self.root) :] or "/", names, others


def read(volume, path):
    if isinstance(volume, Host):
        return volume.read(path)
    with volume.open(path) as file:
        return file.read()


def write(volume, path, mode, data):
    if isinstance(volume, Host):
        return volume.write(path, mode, data)
    with volume.open(path, mode) as file:
        file.write(data)


def tree_call(rng):
    def path():
        return "/" + "/".join(rng.choice("abcd") for _ in range(rng.choice([1, 1, 2, 2, 3])))

    one, two, data, mode = path(), path(), content(rng), rng.choice("wxa")
    calls = [
        lambda volume: volume.mkdir(one), lambda volume: volume.mkdir(two), lambda volume: volume.rmdir(one),
        lambda volume: volume.unlink(one), lambda volume: volume.rename(one, two), lambda volume: volume.link(one, two),
        lambda volume: volume.symlink(two.lstrip("/"), one), lambda volume: volume.readlink(one),
        lambda volume: sorted(name for name in volume.listdir(one)), lambda volume: read(volume, one),
        lambda volume: write(volume, one, mode, data), lambda volume: write(volume, two, mode, data),
    ]  # fmt: skip
    kind = rng.randrange(len(calls))
    return f"{kind} {one} {two} {mode}", calls[kind]


def result(call, volume):
    try:
        return call(volume)
    except OSError as error:
        return type(error), error.errno


def whole(volume, walk):
    found = {}
    for directory, names, others in walk:
        for name in names + others:
            path = f"{directory.rstrip('/')}/{name}"
            found[path] = [result(call, volume) for call in (lambda v, p=path: v.readlink(p), lambda v, p=path: read(v, p))]
    found.pop("/lost+found", None)
    return found


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_names_behave_like_those_of_the_kernel(seed, tmp_path):
    """The rule: each call has the result, or the errno, that the kernel gives."""
    rng = random.Random(seed)
    image = make_image(tmp_path / "image")
    (tmp_path / "model").mkdir()
    theirs = Host(tmp_path / "model")
    with ironmap.Volume(image, write=True) as ours:
        for step in range(ROUNDS):
            name, call = tree_call(rng)
            assert result(call, ours) == result(call, theirs), f"seed {seed}, step {step}, call {name}"
        assert whole(ours, ours.walk()) == whole(theirs, theirs.walk())
    with ironmap.Volume(image) as ours:
        assert whole(ours, ours.walk()) == whole(theirs, theirs.walk())
    fsck(image)


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_threads_write_parts_of_one_file(seed, tmp_path):
    """The rule: threads that change separate ranges of a file do not disturb each other. The model is a dict of ranges."""
    image = make_image(tmp_path / "image")
    size, threads = 60_000, 6
    with ironmap.Volume(image, write=True) as volume:
        file = volume.open("/file", "w+b")
        file.truncate(size * threads)

        def work(index):
            rng, model = random.Random(seed * 100 + index), bytearray(size)
            for _ in range(ROUNDS // 4):
                at = rng.randrange(size)
                data = content(rng)[: size - at]
                if rng.randrange(2):
                    assert file.pwrite(data, index * size + at) == len(data)
                    model[at : at + len(data)] = data
                else:
                    assert file.pread(len(data), index * size + at) == model[at : at + len(data)]
                if rng.randrange(40) == 0:
                    file.sync()
            return model

        with ThreadPoolExecutor(threads) as pool:
            models = list(pool.map(work, range(threads)))
        assert file.pread(size * threads, 0) == b"".join(models)
    with ironmap.Volume(image) as volume:
        assert volume.open("/file").read() == b"".join(models)
    fsck(image)


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_readers_in_threads_and_forks(seed, tmp_path):
    """The rule: whatever is forked, closed and opened between, each read has the bytes of the model."""
    rng = random.Random(seed)
    models = {f"/{name}": rng.randbytes(rng.randrange(1, LARGEST)) for name in "abcd"}
    (tmp_path / "tree").mkdir()
    for path, data in models.items():
        (tmp_path / f"tree{path}").write_bytes(data)
    image = make_image(tmp_path / "image", tmp_path / "tree")
    volume = ironmap.Volume(image)
    files = []

    def opened():
        path = rng.choice(list(models))
        file = ironmap.open(f"{tmp_path}/tree{path}") if rng.randrange(2) else volume.open(path)
        return file, models[path]

    def compare(seed):
        own = random.Random(seed)
        for _ in range(20):
            file, model = own.choice(files)
            _, call = 0, [(spot(own), own.randrange(9000)) for _ in range(own.randrange(1, 70))]
            pages = [(at, bytearray(length)) for at, length in call]
            counts = file.read_ranges_into(pages)
            for (at, page), count in zip(pages, counts, strict=True):
                assert page[:count] == model[at : at + len(page)] and count == len(model[at : at + len(page)])

    files.extend(opened() for _ in range(6))
    with ThreadPoolExecutor(3) as pool:
        for _ in range(ROUNDS // 20):
            seeds = [rng.random() for _ in range(3)]
            running = [pool.submit(compare, seed) for seed in seeds]
            if rng.randrange(2):
                in_child(lambda: [compare(seed) for seed in seeds])
            [thread.result() for thread in running]
            place = rng.randrange(len(files))
            files[place][0].close()
            files[place] = opened()
            if rng.randrange(5) == 0:
                volume.close()
                volume = ironmap.Volume(image)
                files = [opened() for _ in range(6)]
    volume.close()
    shutil.rmtree(tmp_path / "tree")
