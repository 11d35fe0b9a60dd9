"""The scripts in examples/, as a user runs them."""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_image, need, run

EXAMPLES = Path(__file__).parent.parent / "examples"


def script(name, *arguments):
    return run(sys.executable, EXAMPLES / name, *arguments)


def script_with_pyarrow(name, *arguments):
    """Runs a script that reads by threads of pyarrow.

    Such a thread can abort Python at the end of the program, after the output, whatever Python file object it has read. Three of 40 programs
    that read by the built-in `open` ended so (pyarrow 26.0.1, busy machine). Then the script is run again.
    """
    command = [sys.executable, EXAMPLES / name, *arguments]
    for _ in range(10):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if (result.returncode, result.stderr) != (-signal.SIGABRT, "terminate called without an active exception\n"):
            break
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    root = tmp_path_factory.mktemp("parquet")
    (root / "tree/data").mkdir(parents=True)
    table = pyarrow.table({"value": list(range(100_000)), "text": [f"row {row}" for row in range(100_000)]})
    parquet.write_table(table, root / "tree/data/table.parquet", row_group_size=10_000)
    return make_image(root / "disk.img", root / "tree")


@pytest.mark.parametrize("name", ["pandas", "pyarrow", "duckdb"])
def test_a_parquet_file_is_read_out_of_an_image(parquet, name):
    pytest.importorskip(name)
    words = script_with_pyarrow(f"{name}_parquet.py", parquet, "/data/table.parquet").split()
    assert list(map(int, words)) == [100_000, sum(range(100_000))]


def test_tensors_are_loaded_from_a_host_file(tmp_path):
    numpy, safetensors = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy")
    weights = numpy.arange(300_000, dtype=numpy.float32).reshape(300, 1000)
    safetensors.save_file({"weights": weights, "bias": numpy.ones(7)}, tmp_path / "model.safetensors")
    lines = script("safetensors_host.py", tmp_path / "model.safetensors").splitlines()
    assert lines[0] == "bias (7,) float64 7.0"
    assert lines[1].startswith("weights (300, 1000) float32 ")
    assert float(lines[1].split()[-1]) == pytest.approx(float(weights.sum()), rel=1e-5)


def rpm_header(*words):
    """A header with the tags 1000, 1001, ... in the layout of an rpm package, without lead and signature."""
    data, index = b"", b""
    for tag, word in enumerate(words, 1000):
        index += struct.pack(">IIII", tag, 6, len(data), 1)
        data += word.encode() + b"\0"
    return struct.pack(">II", len(words), len(data)) + index + data


def test_images_are_scanned_in_parallel(tmp_path):
    need("qemu-img", "sfdisk")
    images = tmp_path / "images"
    images.mkdir()
    debian = tmp_path / "debian"
    (debian / "var/lib/dpkg").mkdir(parents=True)
    status = "Package: {0}\nStatus: {1}\nVersion: 1.2-3\nDescription: x\n more: y\n"
    packages = [("bash", "install ok installed"), ("old", "deinstall ok config-files")]
    (debian / "var/lib/dpkg/status").write_text("\n".join(status.format(*package) for package in packages))
    (debian / "usr/bin").mkdir(parents=True)
    for name, mode in (("su", 0o4755), ("ls", 0o755)):
        (debian / "usr/bin" / name).touch()
        (debian / "usr/bin" / name).chmod(mode)
    (debian / "usr/bin/link").symlink_to("su")
    make_image(images / "a.img", debian)

    alpine = tmp_path / "alpine"
    (alpine / "lib/apk/db").mkdir(parents=True)
    (alpine / "lib/apk/db/installed").write_text("C:Q1x\nP:musl\nV:1.2.5-r0\nA:x86_64\n\nP:busybox\nV:1.37-r1\n\n")
    raw = make_image(tmp_path / "alpine.img", alpine)
    run("qemu-img", "convert", "-O", "qcow2", raw, images / "b.qcow2")

    fedora = tmp_path / "fedora"
    (fedora / "var/lib/rpm").mkdir(parents=True)
    with sqlite3.connect(fedora / "var/lib/rpm/rpmdb.sqlite") as database:
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB)")
        database.execute("INSERT INTO Packages (blob) VALUES (?)", (rpm_header("bash", "5.2", "1.fc40"),))
    database.close()
    volume = Path(make_image(tmp_path / "fedora.img", fedora)).read_bytes()
    with open(images / "c.img", "wb") as disk:
        disk.truncate((2 << 20) + len(volume))
        disk.seek(1 << 20)
        disk.write(volume)
    table = f"label: gpt\nstart=2048, size={len(volume) // 512}\n"
    environment = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    command = ["sfdisk", "-q", images / "c.img"]
    subprocess.run(command, input=table, text=True, check=True, env=environment)
    (images / "d.txt").write_text("no image")

    found = [json.loads(line) for line in script("scan_images.py", images).splitlines()]
    assert found == [
        {"volume": f"{images}/a.img", "packages": ["bash 1.2-3"], "set_uid": ["/usr/bin/su"]},
        {"volume": f"qcow2:{images}/b.qcow2", "packages": ["busybox 1.37-r1", "musl 1.2.5-r0"], "set_uid": []},
        {"volume": f"{images}/c.img@p1", "packages": ["bash 5.2-1.fc40"], "set_uid": []},
    ]
