"""The file system of fsspec: fsspec's own tests, and the URLs."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from conftest import BIG, make_image
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from test_process import python

from ironmap.fs import IronmapFileSystem


class Fixtures(AbstractFixtures):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, tmp_path_factory):
        image = make_image(tmp_path_factory.mktemp("fsspec") / "image")
        fs = fsspec.filesystem("ironmap", location=image, write=True, auto_mkdir=True)
        yield fs
        assert all(finding.severity == "note" for finding in fs.volume.check())
        fs.close()

    @pytest.fixture
    def fs_path(self):
        return "/area"


class TestCopy(Fixtures, AbstractCopyTests):
    pass


class TestGet(Fixtures, AbstractGetTests):
    pass


class TestPut(Fixtures, AbstractPutTests):
    pass


class TestOpen(Fixtures, AbstractOpenTests):
    pass


class TestPipe(Fixtures, AbstractPipeTests):
    pass


@pytest.fixture
def fs(disk):
    return fsspec.filesystem("ironmap", location=disk)


@pytest.mark.parametrize("url", ["ironmap://{}::/etc/hosts", "ironmap://{}!/etc/hosts"])
def test_a_url_names_the_volume_and_the_path(disk, url):
    url = url.format(disk)
    with fsspec.open(url) as file:
        assert file.read() == b"127.0.0.1 localhost\n"
    fs, path = fsspec.core.url_to_fs(url)
    assert isinstance(fs, IronmapFileSystem)
    assert (fs.info(path)["name"], fs.cat(path)) == ("/etc/hosts", b"127.0.0.1 localhost\n")
    assert fsspec.open(fs.unstrip_protocol(path)).fs == fsspec.open(fs.unstrip_protocol(path)).fs
    with fsspec.open(fs.unstrip_protocol(path)) as file:
        assert file.read(3) == b"127"


def test_a_url_without_a_path_is_the_root(disk):
    fs, path = fsspec.core.url_to_fs(f"ironmap://{disk}")
    assert set(fs.ls(path, detail=False)) == set(fs.ls("/", detail=False)) == {"/lost+found", "/etc", "/srv"}


def test_patterns_and_lists_of_urls(disk):
    files = fsspec.open_files(f"ironmap://{disk}::/srv/data/*")
    assert sorted(file.path for file in files) == ["/srv/data/big", "/srv/data/empty"]
    files = fsspec.open_files([f"ironmap://{disk}!/etc/hosts", f"ironmap://{disk}!/srv/data/big"])
    assert [file.open().read(5) for file in files] == [b"127.0", BIG[:5]]


def test_options_name_the_format_and_the_partition(disk, tmp_path):
    fs = IronmapFileSystem
    with pytest.raises(OSError) as found:
        fs(location=disk, partition=3)
    assert found.value.filename == f"{disk}@p3"
    with pytest.raises(OSError) as found:
        fs(location=disk, format="qcow2")
    assert found.value.filename == f"qcow2:{disk}"
    with pytest.raises(ValueError):
        fs()


def test_the_tree_is_listed(fs, tree):
    names = [path for path in tree.rglob("*") if path.is_symlink() or path.is_file()]
    assert fs.find("/") == sorted(f"/{path.relative_to(tree)}" for path in names)
    assert fs.isdir("/srv/tools") and sorted(fs.ls("/srv/tools", detail=False)) == ["/srv/tools/big", "/srv/tools/deep", "/srv/tools/empty"]
    info = fs.info("/srv/link")
    assert (info["type"], info["islink"], info["destination"], info["size"]) == ("file", True, "data/big", len(BIG))
    assert fs.info("/srv/dangling")["type"] == "link" and not fs.exists("/srv/none") and fs.lexists("/srv/dangling")
    assert fs.isdir("/srv") and fs.isfile("/etc/hosts") and fs.du("/etc") == 20
    assert fs.modified("/etc/hosts").timestamp() == pytest.approx((tree / "etc/hosts").stat().st_mtime, abs=1)


def test_threads_seek_and_read_one_file(fs):
    """The rule: a read comes from where its thread has sought, although another thread moves the position between the two calls."""
    file = fs.open("/srv/data/big", block_size=512)

    def read(index):
        for step in range(300):
            at = (index * 104729 + step * 7919) % len(BIG)
            file.seek(at)
            calls = [file.read, file.read1, lambda size: file.peek(size)[:size], lambda size: bytes(into(size))]
            data = calls[step % 4](100)
            assert data == BIG[at : at + len(data)] and data

    def into(size):
        page = bytearray(size)
        return page[: file.readinto(page)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(8)))


def test_one_thread_reads_on_where_it_has_stopped(fs):
    with fs.open("/srv/data/big") as file:
        file.seek(7)
        assert (file.read(3), file.read(3), file.tell()) == (BIG[7:10], BIG[10:13], 13)
        # Another thread reads on at the same position.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(file.read, 3).result() == BIG[13:16]
        assert file.read(3) == BIG[16:19]
        file.seek(0)
        assert file.readline() == BIG[:11] and file.read(1) == BIG[11:12]


def test_ranges_are_read(fs):
    assert fs.cat_file("/srv/data/big", 5, 10) == BIG[5:10] and fs.cat_file("/srv/data/big", -4) == b"tail"
    paths = ["/srv/data/big", "/etc/hosts", "/srv/data/big", "/srv/none"]
    ranges = fs.cat_ranges(paths, [0, 10, len(BIG) - 4, 0], [4, 19, None, 1])
    assert ranges[:3] == [BIG[:4], b"localhost", b"tail"] and isinstance(ranges[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 1, on_error="raise")


def test_file_systems_of_a_volume_share_it(own_disk):
    one = IronmapFileSystem(location=own_disk, write=True, skip_instance_cache=True)
    two = IronmapFileSystem(location=own_disk, write=True, auto_mkdir=True, skip_instance_cache=True)
    two.pipe_file("/x/y", b"z")
    assert one.cat("/x/y") == b"z"
    one.sync()
    one.rm("/srv", recursive=True)
    assert not two.exists("/srv")
    one.mv("/x/y", "/etc")
    assert two.cat("/etc/y") == b"z"
    with one.open("/etc/y", "r+b") as file:
        file.seek(1)
        file.write(b"w")
    two.close()
    # The next use opens the volume again.
    assert one.cat("/etc/y") == b"zw"
    one.close()


def test_a_file_system_is_pickled(fs):
    other = pickle.loads(pickle.dumps(fs))
    assert other.cat("/etc/hosts") == fs.cat("/etc/hosts")
    with pytest.raises(NotImplementedError):
        with fs.transaction:
            fs.open("/etc/hosts", "wb")


def test_a_signal_handler_opens_a_file_system(disk):
    """The rule: a handler that runs while its thread opens a volume does not wait forever."""
    script = """
    import gc, signal, sys, ironmap.fs, fsspec
    disk = sys.argv[1]
    calls = []
    def work():
        with fsspec.filesystem("ironmap", location=disk, skip_instance_cache=True).open("/etc/hosts") as file:
            return file.read(3)
    signal.signal(signal.SIGUSR1, lambda *_: calls.append(work()))
    opened = ironmap.fs.Volume
    def open_with_signal(*arguments, **options):
        if not calls:
            calls.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return opened(*arguments, **options)
    ironmap.fs.Volume = open_with_signal
    print(work(), calls)
    """
    assert python(script, disk) == (0, "b'127' [None, b'127']\n", "")
