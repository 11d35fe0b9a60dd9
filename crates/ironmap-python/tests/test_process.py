"""Threads, forks, pickles, and the end of the interpreter. Wrong use is an exception, and never a crash."""

import errno
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BIG, need, run

import ironmap


def in_child(work):
    """Runs `work` in a forked child, and checks that it ends well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def python(script, *arguments):
    """Runs a script in a new interpreter; returns its exit code, output and errors."""
    # Python 3.12 and later warns of each fork of a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return result.returncode, result.stdout, result.stderr


def all_equal(file):
    page = bytearray(10_000)
    for position in range(0, len(BIG), 9973):
        count = file.readinto_at(page, position)
        assert page[:count] == BIG[position : position + len(page)]


def test_threads_use_one_file(volume):
    file = volume.open("/srv/data/big")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: all_equal(file), range(32)))


def test_reads_that_move_the_position_exclude_each_other(volume):
    """The rule: threads that read one file by `read` get each byte once."""
    file = volume.open("/srv/data/big")
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda _: file.read(997), range(len(BIG) // 997 + 1)))
    assert sum(map(len, parts)) == len(BIG) and file.read() == b""


def test_a_closed_volume_is_free_while_its_threads_live(own_disk):
    """The rule: `close` drops the queues of idle threads, so nothing keeps the device open."""
    with ThreadPoolExecutor(4) as pool:
        for write in (False, True, False, True):
            volume = ironmap.Volume(own_disk, write=write)
            file = volume.open("/srv/data/big")
            list(pool.map(lambda _, file=file: all_equal(file), range(16)))
            volume.close()
    assert BIG in open(own_disk, "rb").read()


def test_a_volume_that_is_forgotten_is_free_too(own_disk):
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            file = ironmap.Volume(own_disk, write=True).open("/srv/data/big")
            list(pool.map(lambda _, file=file: all_equal(file), range(16)))
            del file


def test_close_during_reads_ends_them_with_value_error(disk):
    for _ in range(20):
        volume = ironmap.Volume(disk)
        file = volume.open("/srv/data/big")
        start = threading.Barrier(5)

        def read(file=file, start=start):
            page = bytearray(4096)
            start.wait()
            try:
                for index in range(100_000):
                    file.readinto_at(page, index % 200 * 4096)
                    file.read_ranges_into([(0, page)])
            except ValueError:
                return True
            return False

        with ThreadPoolExecutor(4) as pool:
            ended = [pool.submit(read) for _ in range(4)]
            start.wait()
            volume.close()
        assert all(result.result() for result in ended)


def test_memory_cannot_be_resized_in_flight(volume):
    """The rule: during a call, a resize fails with BufferError; afterwards it works."""
    file, page, refused, stop = volume.open("/srv/data/big"), bytearray(1 << 20), [], threading.Event()

    def resize():
        while not stop.is_set():
            try:
                page.append(0)
                page.pop()
            except BufferError:
                refused.append(True)

    thread = threading.Thread(target=resize)
    thread.start()
    for _ in range(300):
        assert file.readinto_at(page, 0) in (1 << 20, (1 << 20) + 1)
    stop.set()
    thread.join()
    page.clear()


def test_a_child_reads_by_the_handles_of_its_parent(volume, tmp_path):
    path = tmp_path / "host"
    path.write_bytes(BIG)
    host, file = ironmap.open(path), volume.open("/srv/data/big")
    all_equal(file), all_equal(host)
    file.seek(77)

    def child():
        assert file.tell() == 77 and file.read(3) == BIG[77:80]
        all_equal(file), all_equal(host)
        assert volume.open("/etc/hosts").size == 20 and "srv" in volume.listdir()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(all_equal, [file, host] * 4))
        in_child(lambda: (all_equal(file), all_equal(host)))

    in_child(child)
    assert file.tell() == 77
    all_equal(file), all_equal(host)
    assert host.raw == (host.why is None)


def test_a_child_that_closes_the_handles_leaves_the_parent_alone(volume, tmp_path):
    path = tmp_path / "host"
    path.write_bytes(BIG)
    host, file = ironmap.open(path), volume.open("/srv/data/big")
    all_equal(file), all_equal(host)
    raw = host.raw

    def child():
        file.close(), host.close(), volume.close()
        for call in (file.read, host.read, volume.listdir):
            with pytest.raises(ValueError):
                call()

    in_child(child)
    in_child(lambda: None)
    all_equal(file), all_equal(host)
    assert host.raw == raw and not volume.closed


def test_a_volume_for_writing_stays_with_the_parent(writable):
    file = writable.open("/new", "w+b")
    file.write(b"parent")

    def child():
        for call in (file.read, writable.listdir, lambda: file.write(b"child")):
            with pytest.raises(OSError) as found:
                call()
            assert found.value.errno == errno.EBUSY
        writable.close()

    in_child(child)
    assert file.pread(10, 0) == b"parent"
    file.write(b" goes on")
    writable.sync()
    assert writable.open("/new").read() == b"parent goes on"


def test_forks_while_other_threads_read_and_open(disk):
    """The rule: a fork at any time gives a child that can use all handles."""
    volume = ironmap.Volume(disk)
    file, stop = volume.open("/srv/data/big"), threading.Event()

    def use():
        while not stop.is_set():
            all_equal(file)
            with ironmap.Volume(disk) as other:
                other.open("/etc/hosts").read()

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(use) for _ in range(3)]

        def child():
            all_equal(file)
            with ironmap.Volume(disk) as other:
                assert other.open("/etc/hosts").read(3) == b"127"

        try:
            for _ in range(15):
                in_child(child)
        finally:
            stop.set()
        for thread in threads:
            thread.result()


def test_handles_are_pickled(volume, tmp_path):
    path = tmp_path / "host"
    path.write_bytes(BIG)
    host, file = ironmap.open(path), volume.open("/srv/data/big")
    host.seek(5), file.seek(6)
    # The volume is pickled once: all files of one pickle share it.
    other, other_file, other_host = pickle.loads(pickle.dumps((volume, file, host)))
    assert other_file._volume is other
    assert (other_file.tell(), other_host.tell()) == (6, 5)
    assert (other_file.read(), other_host.read()) == (BIG[6:], BIG[5:])
    other.close()
    all_equal(file)
    file.close()
    with pytest.raises(ValueError):
        pickle.dumps(file)


def test_a_pickled_file_keeps_its_content(writable):
    with writable.open("/new", "w+b") as file:
        file.write(b"content")
        again, (_, name, flags, position) = file.__reduce__()
        with again(writable, name, flags, position) as other:
            assert (other.pread(10, 0), other.tell(), other.mode) == (b"content", 7, "rb+")


def read_part(argument):
    file, position = argument
    return file.pread(100, position)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_read_one_file(volume, method):
    file = volume.open("/srv/data/big")
    with multiprocessing.get_context(method).Pool(2) as pool:
        parts = pool.map(read_part, [(file, position) for position in range(0, 5000, 100)])
    assert b"".join(parts) == BIG[:5000]


@pytest.mark.parametrize("call", ["file.readinto_at(page, 0)", "file.read()", "ironmap.Volume(disk).close()", "many()"])
def test_the_interpreter_ends_with_calls_of_daemon_threads_in_flight(disk, call):
    script = f"""
    import sys, threading, ironmap
    disk = sys.argv[1]
    volume = ironmap.Volume(disk)
    file = volume.open("/srv/data/big")
    started = threading.Barrier(5)
    def many():
        file.read_ranges_into([(at * 100, bytearray(8192)) for at in range(64)])
    def loop():
        page = bytearray(1 << 20)
        started.wait()
        while True:
            try:
                {call}
            except (RuntimeError, ValueError):
                pass
    for _ in range(4):
        threading.Thread(target=loop, daemon=True).start()
    started.wait()
    """
    for _ in range(5):
        assert python(script, disk) == (0, "", "")


def test_an_open_volume_is_closed_at_the_end_of_the_program(own_disk):
    script = """
    import sys, ironmap
    volume = ironmap.Volume(sys.argv[1], write=True)
    file = volume.open("/new", "wb")
    file.write(b"kept")
    """
    assert python(script, own_disk) == (0, "", "")
    need("dumpe2fs")
    assert "needs_recovery" not in run("dumpe2fs", "-h", own_disk)
    with ironmap.Volume(own_disk) as volume:
        assert volume.open("/new").read() == b"kept"


def test_a_child_that_ends_normally_does_not_close_the_parents_volume(own_disk):
    script = """
    import os, sys, ironmap
    volume = ironmap.Volume(sys.argv[1], write=True)
    file = volume.open("/new", "wb")
    file.write(b"parent")
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        file.write(b" goes on")
        volume.sync()
    """
    assert python(script, own_disk) == (0, "", "")
    with ironmap.Volume(own_disk) as volume:
        assert volume.open("/new").read() == b"parent goes on"


def test_handles_of_ended_threads_cost_nothing(volume):
    """The rule: a queue ends with its thread. Each io_uring queue has a descriptor."""
    file = volume.open("/srv/data/big")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        thread = threading.Thread(target=file.pread, args=(10, 0))
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_subclass_may_override_methods(volume):
    class Loud(ironmap.File):
        def pread(self, size, position, /):
            return b"loud " + super().pread(size, position)

    file = volume.open("/etc/hosts")
    loud = Loud(file._core, volume, file.name, 1)
    assert loud.pread(3, 0) == b"loud 127" and io.BufferedReader(loud).read(3) == b"127"


def test_a_subinterpreter_cannot_import_the_package():
    """The rule: the end of a subinterpreter must not end the calls of the main interpreter."""
    interpreters = pytest.importorskip("_xxsubinterpreters")
    interpreter = interpreters.create(isolated=False)
    try:
        with pytest.raises(interpreters.RunFailedError, match="subinterpreter"):
            interpreters.run_string(interpreter, "import ironmap")
    finally:
        interpreters.destroy(interpreter)


def test_changes_during_the_close_of_a_volume_raise_value_error(own_disk):
    """The rule: only ValueError reports a closed volume, also if it is closed during the call."""
    for index in range(20):
        volume, start = ironmap.Volume(own_disk, write=True), threading.Barrier(4)

        def change(name, volume=volume, start=start):
            start.wait()
            with pytest.raises(ValueError):
                while True:
                    with volume.open(name, "wb") as file:
                        file.write(BIG[:100_000])
                        file.truncate(50_000)
                    volume.mkdir(name + ".directory")
                    volume.rmdir(name + ".directory")

        with ThreadPoolExecutor(3) as pool:
            changes = [pool.submit(change, f"/{index}.{thread}") for thread in range(3)]
            start.wait()
            volume.close()
            for result in changes:
                result.result()


def test_ranges_may_fork(writable):
    """The rule: a child that is forked by the iterator of the ranges does not use the handle of its parent."""
    file = writable.open("/srv/data/big")
    parent, children = os.getpid(), []

    def ranges():
        children.append(os.fork())
        yield 0, bytearray(10)

    try:
        counts = file.read_ranges_into(ranges())
    except OSError as error:
        os._exit(0 if os.getpid() != parent and error.errno == errno.EBUSY else 1)
    if os.getpid() != parent:
        os._exit(2)
    assert counts == [10] and os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
