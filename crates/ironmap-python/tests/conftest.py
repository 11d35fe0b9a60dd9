"""Images for the tests. `mke2fs` and `qemu-img` make them; nothing is mounted."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import ironmap

SEED = int(os.environ.get("IRONMAP_SEED", "1"))
BIG = bytes(range(256)) * 4096 + b"tail"  # 1 MiB and 4 bytes


def run(*command):
    """Runs a program, and returns its output."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def need(*programs):
    for program in programs:
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            pytest.skip(f"needs {program}")


def make_image(path, tree=None, size="64M"):
    need("mke2fs")
    source = ["-d", tree] if tree is not None else []
    run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", *source, path, size)
    return str(path)


def make_tree(root):
    """A tree of the host with files of all kinds of sizes, links, and names that are not UTF-8."""
    root = Path(root)
    (root / "etc").mkdir(parents=True)
    (root / "etc/hosts").write_bytes(b"127.0.0.1 localhost\n")
    (root / "srv/data/deep").mkdir(parents=True)
    (root / "srv/data/big").write_bytes(BIG)
    (root / "srv/data/empty").touch()
    (root / "srv/data/deep/one").write_bytes(b"1")
    (root / "srv/link").symlink_to("data/big")
    (root / "srv/dangling").symlink_to("nowhere")
    (root / "srv/tools").symlink_to("data")
    with open(os.fsencode(root) + b"/srv/\xff\xfe", "wb") as file:
        file.write(b"bytes")
    (root / "srv/setuid").write_bytes(b"#!")
    (root / "srv/setuid").chmod(0o4755)
    return root


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def disk(tmp_path_factory, tree):
    """An image that no test changes."""
    return make_image(tmp_path_factory.mktemp("disk") / "disk.img", tree)


@pytest.fixture
def volume(disk):
    with ironmap.Volume(disk) as volume:
        yield volume


@pytest.fixture
def own_disk(tmp_path, disk):
    """A copy of the image, which the test may change. After the test, e2fsck finds no fault."""
    path = tmp_path / "own.img"
    shutil.copyfile(disk, path)
    yield str(path)
    fsck(path)


@pytest.fixture
def writable(own_disk):
    with ironmap.Volume(own_disk, write=True) as volume:
        yield volume


def fsck(path):
    need("e2fsck")
    run("e2fsck", "-fn", path)


def pytest_runtest_logreport(report):
    """Writes each skipped test to the list of the project's tests."""
    log = os.environ.get("IRONMAP_SKIP_LOG")
    if report.skipped and log and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"SKIP {report.nodeid}: {reason}\n")
