"""Images that Python makes, compared with their sources and with the views of e2fsprogs. No test needs root."""

import errno
import io
import os
import signal
import stat
import tarfile
import threading
import uuid

import pytest
from conftest import BIG, fsck, make_image, need, run
from test_process import in_child, python

import ironmap

EPOCH = 1_700_000_000


@pytest.fixture
def image(tmp_path):
    """The path of a new image. After the test, e2fsck finds no fault in it."""
    need("e2fsck", "debugfs")
    path = str(tmp_path / "disk.img")
    yield path
    if os.path.exists(path):
        fsck(path)


@pytest.fixture
def fifo(tmp_path):
    """A source from which nothing can be read before a writer opens it."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def debugfs(image, command):
    return run("debugfs", "-R", command, image)


def archive(files):
    """A tar archive in memory."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid, info.gid = len(content), 0o640, 5, 6
            tar.addfile(info, io.BytesIO(content))
    memory.seek(0)
    return memory


class Stopped(Exception):
    pass


def stops(*_):
    raise Stopped


def test_all_kinds_of_sources_are_in_the_image(image, tree, tmp_path):
    other = make_image(tmp_path / "other.img", tree, "16M")
    (tmp_path / "plain.tar").write_bytes(archive({"srv/of-the-archive": b"plain"}).read())
    made = ironmap.build_image(
        image,
        add=[
            tree,
            str(tmp_path / "plain.tar"),
            archive({"etc/hosts": b"replaced"}),
            ironmap.Content.layer(archive({"srv/.wh.dangling": b"", "srv/of-the-layer": b"layer"})),
            ironmap.Content.volume(other, "srv/data"),
        ],
        owner=(7, 8),
        label="root",
        uuid="01234567-89ab-4def-8123-456789abcdef",
    )
    assert (made.label, made.uuid) == ("root", uuid.UUID("01234567-89ab-4def-8123-456789abcdef"))
    assert made.size == os.path.getsize(image) and made.block_size == 4096
    header = run("dumpe2fs", "-h", image)
    assert str(made.uuid) in header and f"Inode count:              {made.inodes}" in header
    contents = {"/srv/of-the-archive": b"plain", "/etc/hosts": b"replaced", "/srv/of-the-layer": b"layer", "/big": BIG}
    with ironmap.Volume(image) as volume:
        for path, content in contents.items():
            assert volume.open(path).read() == content, path
        assert not os.path.lexists(image + "/srv/dangling") and "dangling" not in volume.listdir("/srv")
        assert stat.S_IMODE(volume.stat("/srv/setuid").st_mode) == 0o4755
    assert "User:     7   Group:     8" in debugfs(image, "stat /etc/hosts")


def test_files_are_injected(image):
    ironmap.build_image(
        image,
        inject={"/etc/hostname": b"box\n", b"run/key": (bytearray(b"k"), 0o600), "/a b": (b"", 0o4711, (1, 2))},
        size=16 << 20,
    )
    assert debugfs(image, "cat /etc/hostname") == "box\n"
    for path, facts in (
        ("/etc/hostname", "Mode:  0644"), ("/run/key", "Mode:  0600"), ('"/a b"', "Mode:  04711"), ("/run/key", "User:     0   Group:     0"),
        ('"/a b"', "User:     1   Group:     2"), ("/run/key", "Size: 1"),
    ):  # fmt: skip
        assert facts in debugfs(image, f"stat {path}"), path


@pytest.mark.parametrize("size", [{}, {"shrink": True}, {"size": 24 << 20}])
def test_the_same_sources_give_the_same_bytes(image, tree, size):
    made = []
    for _ in range(2):
        ironmap.build_image(image, add=tree, source_date_epoch=EPOCH, **size)
        fsck(image)
        with open(image, "rb") as file:
            made.append(file.read())
        os.remove(image)
    assert made[0] == made[1]


def test_an_image_fits_its_content(image, tree, tmp_path):
    fits = ironmap.build_image(image, add=tree).size
    small = ironmap.build_image(tmp_path / "small.img", add=tree, shrink=True).size
    fsck(tmp_path / "small.img")
    assert len(BIG) < small < fits
    with pytest.raises(ValueError):
        ironmap.build_image(tmp_path / "none.img", size=1 << 20, shrink=True)


def test_options_of_the_file_system_are_used(image):
    made = ironmap.build_image(image, size=16 << 20, block_size=1024, inodes=128)
    header = run("dumpe2fs", "-h", image)
    assert made.block_size == 1024 and "Block size:               1024" in header and made.inodes >= 128


def test_owners_are_mapped_and_devices_are_made(image, tmp_path):
    (tmp_path / "map").write_text("5:6 105:106\n")
    (tmp_path / "table").write_text("/dev d 755 0 0\n/dev/null c 666 0 0 1 3\n")
    source = archive({"file": b"1"})
    ironmap.build_image(image, add=source, owners=tmp_path / "map", device_table=tmp_path / "table")
    assert "User:   105   Group:   106" in debugfs(image, "stat /file")
    assert "Device major/minor number: 01:03" in debugfs(image, "stat /dev/null")


@pytest.mark.parametrize(
    ("arguments", "number", "name"),
    [
        ({"add": "missing"}, errno.ENOENT, "missing"),
        ({"add": io.BytesIO(b"no archive")}, None, None),
        ({"label": "x" * 17, "size": 16 << 20}, errno.EINVAL, "disk.img"),
        ({"size": 16 << 20, "inject": {"/big": bytes(32 << 20)}}, errno.ENOSPC, None),
        ({"owners": "missing", "size": 16 << 20}, errno.ENOENT, "missing"),
    ],
)
def test_a_failure_names_its_file_and_leaves_no_image(tmp_path, monkeypatch, arguments, number, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError) as found:
        ironmap.build_image("disk.img", **arguments)
    assert number is None or found.value.errno == number
    assert name is None or found.value.filename == name
    assert os.listdir() == []


def test_an_image_with_content_is_overwritten_only_by_force(own_disk):
    before = open(own_disk, "rb").read()
    with pytest.raises(FileExistsError) as found:
        ironmap.build_image(own_disk, inject={"/x": b""})
    assert found.value.filename == own_disk and open(own_disk, "rb").read() == before
    ironmap.build_image(own_disk, inject={"/x": b""}, force=True)
    assert set(ironmap.Volume(own_disk).listdir("/")) == {"lost+found", "x"}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"add": 7}, TypeError),
        ({"add": [io.StringIO("text")]}, TypeError),
        ({"inject": {"/x": "text"}}, TypeError),
        ({"inject": {"/x": (b"", 0o644, (0, 0), 1)}}, TypeError),
        ({"uuid": "no uuid"}, ValueError),
        ({"size": -1}, ValueError),
        ({"add": ironmap.Content.oci("x", platform="linux")}, ValueError),
    ],
)
def test_wrong_arguments_are_exceptions(tmp_path, arguments, wanted):
    with pytest.raises(wanted):
        ironmap.build_image(tmp_path / "disk.img", **arguments)
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_copied_is_skipped_on_request(image, tree, tmp_path):
    """The rule: with `skip_failed`, a failure is a message, and the other files are copied."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_bytes(b"1")
    # With blocks of 1 KiB, a file has at most 4 TiB.
    try:
        with open(source / "named", "wb") as file:
            file.truncate(5 << 40)
    except OSError:
        pytest.skip("the host's file system has no files of 5 TiB")
    messages = []
    options = {"add": source, "size": 16 << 20, "block_size": 1024}
    ironmap.build_image(image, skip_failed=True, on_message=messages.append, **options)
    assert any("named" in message for message in messages), messages
    assert ironmap.Volume(image).open("/deep/file").read() == b"1"


def test_the_progress_is_shown(image, tree):
    """The rule: `progress` is called in the calling thread, and the last call has the totals."""
    shown, threads = [], set()

    def progress(state):
        shown.append(state)
        threads.add(threading.get_ident())

    ironmap.build_image(image, add=tree, progress=progress)
    files = sum(len(names) for _, _, names in os.walk(tree))
    links = sum(os.path.islink(os.path.join(top, name)) for top, below, _ in os.walk(tree) for name in below)
    last = shown[-1]
    assert threads == {threading.get_ident()}
    assert (last.files, last.total_files) == (files + links, files + links)
    assert last.bytes == last.total_bytes >= len(BIG)
    assert all(one.files <= two.files and one.bytes <= two.bytes for one, two in zip(shown, shown[1:]))


@pytest.mark.parametrize("size", [{}, {"shrink": True}, {"size": 24 << 20}])
@pytest.mark.parametrize("last", [False, True])
def test_an_exception_of_the_progress_ends_the_build(tmp_path, tree, size, last):
    """The rule: also an exception of the last call leaves no image. The last call is that with all files."""
    calls = []

    def progress(state):
        calls.append(state)
        if not last or state.files == files:
            raise Stopped

    files = sum(len(names) for _, _, names in os.walk(tree))
    files += sum(os.path.islink(os.path.join(top, name)) for top, below, _ in os.walk(tree) for name in below)
    with pytest.raises(Stopped):
        ironmap.build_image(tmp_path / "disk.img", add=tree, progress=progress, **size)
    assert os.listdir(tmp_path) == [] and (last or len(calls) == 1)


def test_a_signal_ends_the_build(tmp_path, tree, fifo):
    """The rule: KeyboardInterrupt ends the build, during a call of `progress` and while the build waits for a source."""
    with pytest.raises(KeyboardInterrupt):
        ironmap.build_image(tmp_path / "disk.img", add=tree, progress=lambda _: signal.raise_signal(signal.SIGINT))
    previous = signal.signal(signal.SIGALRM, stops)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stopped):
            ironmap.build_image(tmp_path / "disk.img", add=fifo)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert os.listdir(tmp_path) == ["fifo"]


class Source:
    """A file object whose reads end in this way."""

    def __init__(self, read):
        self.read = read


@pytest.mark.parametrize(
    ("read", "wanted"), [(stops, Stopped), (lambda size: b"x" * (size + 1), ValueError), (lambda size: None, TypeError)]
)
def test_an_exception_of_a_file_object_ends_the_build(tmp_path, read, wanted):
    with pytest.raises(wanted):
        ironmap.build_image(tmp_path / "disk.img", add=[Source(read)])
    assert os.listdir(tmp_path) == []


def test_other_threads_run_during_a_build(image, fifo):
    """The rule: a build waits for a source without the GIL. The writer of the source is a thread of Python."""
    content = archive({"file": b"from a thread"}).read()

    def write():
        with open(fifo, "wb") as file:
            file.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    ironmap.build_image(image, add=fifo)
    writer.join()
    assert debugfs(image, "cat /file") == "from a thread"


def test_python_forks_during_a_build(image, tree):
    """The rule: a fork does not wait for the end of the build. The build goes on in the parent only."""
    children = []

    def progress(_):
        if not children:
            child = os.fork()
            children.append(child)

    in_build = os.getpid()
    try:
        ironmap.build_image(image, add=tree, progress=progress)
    except RuntimeError:
        os._exit(0 if os.getpid() != in_build else 1)
    if os.getpid() != in_build:
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    in_child(lambda: ironmap.Volume(image).listdir("/"))


def test_the_interpreter_ends_during_a_build(tmp_path, fifo):
    """The rule: at the end of the program, a build in a daemon thread ends, and leaves no image. The build waits for the second source."""
    script = """
        import io, sys, tarfile, threading, ironmap
        memory, building = io.BytesIO(), threading.Event()
        tarfile.open(fileobj=memory, mode="w").close()
        memory.seek(0)
        class Source:
            def read(self, size):
                building.set()
                return memory.read(size)
        options = {"add": [Source(), sys.argv[2]]}
        threading.Thread(target=ironmap.build_image, args=[sys.argv[1]], kwargs=options, daemon=True).start()
        building.wait()
    """
    status, _, errors = python(script, tmp_path / "disk.img", fifo)
    assert status == 0 and os.listdir(tmp_path) == ["fifo"], errors


def test_a_tree_is_extracted(disk, tree, tmp_path):
    need("diff")
    shown = []
    ironmap.extract_image(disk, "/srv", tmp_path / "copy", progress=shown.append)
    run("diff", "--recursive", "--no-dereference", tree / "srv", tmp_path / "copy")
    assert stat.S_IMODE(os.stat(tmp_path / "copy/setuid").st_mode) & 0o777 == 0o755
    assert shown[-1].files == sum(len(names) for _, _, names in os.walk(tree / "srv")) + 1  # and a link to a directory
    with pytest.raises(FileNotFoundError) as found:
        ironmap.extract_image(disk, "/missing", tmp_path / "other")
    assert found.value.filename == f"{disk}:/missing"
    with pytest.raises(FileNotFoundError):
        ironmap.extract_image(tmp_path / "no.img", "/", tmp_path / "other")
    with pytest.raises(Stopped):
        ironmap.extract_image(disk, "/", tmp_path / "stopped", progress=stops)


def test_an_image_is_resized(image, tree):
    ironmap.build_image(image, add=tree, size=32 << 20, block_size=4096)
    assert ironmap.resize_image(image, 200 << 20) == os.path.getsize(image) == 200 << 20
    fsck(image)
    assert "Block count:              51200" in run("dumpe2fs", "-h", image)
    small = ironmap.resize_image(image, None)
    assert small == os.path.getsize(image) < 32 << 20
    fsck(image)
    assert ironmap.Volume(image).open("/srv/data/big").read() == BIG
    with pytest.raises(OSError) as found:
        ironmap.resize_image(image, 4096)
    assert os.path.getsize(image) == small and found.value.filename == image


@pytest.mark.parametrize("options", [{}, {"shrink": True}, {"force": True}])
def test_an_image_fits_injected_files(image, options):
    """The rule: without a size, a new image gets space for its content, also if no source gives the content."""
    content = BIG * 20
    made = ironmap.build_image(image, inject={"/deep/file": content}, **options)
    assert len(content) < made.size == os.path.getsize(image) < 3 * len(content)
    assert ironmap.Volume(image).open("/deep/file").read() == content
