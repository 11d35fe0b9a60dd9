"""The examples in docstrings, in README.md and in docs/INTEGRATIONS.md, and the stubs."""

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ironmap

README = Path(__file__).parent.parent / "README.md"
INTEGRATIONS = README.parent.parent.parent / "docs/INTEGRATIONS.md"


@pytest.mark.parametrize("module", ["ironmap", "ironmap._file", "ironmap._image", "ironmap._volume", "ironmap.fs"])
def test_examples_of_docstrings_run(module, disk):
    names = {"ironmap": ironmap, "disk": disk, "os": os}
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = finder.find(importlib.import_module(module), extraglobs=names)
    for test in tests:
        runner.run(test)
    assert runner.tries > 0 and runner.failures == 0, "the output above shows the failed examples"


def test_each_public_item_has_a_docstring():
    for item in map(ironmap.__dict__.get, ironmap.__all__):
        assert item.__doc__, item
        for name, member in vars(item).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert member.__doc__, f"{item.__name__}.{name}"


@pytest.mark.parametrize(("page", "count"), [(README, 4), (INTEGRATIONS, 1)])
def test_the_programs_of_the_pages_run(page, count, own_disk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(own_disk, "disk.img")
    Path("index").write_bytes(b"x" * 100_000)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= count
    for block in blocks:
        result = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{block}\n{result.stderr}"


def test_the_stubs_are_those_of_the_code(tmp_path):
    pytest.importorskip("mypy")
    allowed = tmp_path / "allowed"
    # The attributes of an instance, and modules that are not public.
    allowed.write_text("ironmap\\._.*\nironmap\\.fs\\..*\nironmap\\.(File|DirEntry)\\.(name|path|mode)\nironmap\\..*\\.__reduce__\n")
    command = [sys.executable, "-m", "mypy.stubtest", "ironmap", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_types_of_a_program_are_checked(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(
        "import io\nimport ironmap\n"
        "with ironmap.Volume('x', write=True) as volume:\n"
        "    text: io.TextIOWrapper = io.TextIOWrapper(io.BufferedReader(volume.open('a')))\n"
        "    count: int = volume.open('a').readinto_at(bytearray(3), 7)\n"
        "made: ironmap.ImageInfo = ironmap.build_image('x', add=[open('y', 'rb'), 'z'], inject={'/a': b'', '/b': (b'', 0o600)}, size=1)\n"
    )
    (tmp_path / "wrong.py").write_text("import ironmap\nironmap.open('x').pread('1', 2)\n")
    environment = os.environ | {"MYPY_CACHE_DIR": str(tmp_path / "cache")}
    for name, status in (("right", 0), ("wrong", 1)):
        command = [sys.executable, "-m", "mypy", "--strict", f"{name}.py"]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert result.returncode == status, result.stdout
