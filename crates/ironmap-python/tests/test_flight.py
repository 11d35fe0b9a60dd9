"""Calls in flight, which a server of the test holds back. The server is a part of this process, so it needs the GIL to answer."""

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BIG
from nbd import Server
from test_process import in_child

import ironmap

CALLS = {
    "readinto_at": lambda file, page: file.readinto_at(page, 4096),
    "readinto": lambda file, page: file.readinto(page),
    "read": lambda file, page: len(file.read(8192)),
    "readall": lambda file, page: min(len(file.readall()), 8192),
    "pread": lambda file, page: len(file.pread(8192, 4096)),
    "read_ranges_into": lambda file, page: sum(file.read_ranges_into([(4096, page)])),
}


@pytest.fixture
def server(disk, tmp_path):
    server = Server(disk, tmp_path / "socket")
    yield server
    server.close()


@pytest.fixture
def file(server):
    with ironmap.Volume(server.url) as volume:
        yield volume.open("/srv/data/big")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def start(server, pool, call, *arguments):
    """Starts a call in another thread, and returns when its request is in flight."""
    server.hold()
    running = pool.submit(call, *arguments)
    server.wait_for_read()
    return running


@pytest.mark.parametrize("call", CALLS)
def test_a_call_releases_the_gil(server, file, pool, call):
    """The rule: this thread runs while the call is in flight."""
    running = start(server, pool, CALLS[call], file, bytearray(8192))
    assert not running.done()
    server.release()
    assert running.result() == 8192


@pytest.mark.parametrize("call", ["readinto_at", "readinto", "read_ranges_into"])
def test_the_memory_of_a_call_stays(server, file, pool, call):
    """The rule: memory in flight cannot be resized, and is not freed if its object is forgotten."""
    page = bytearray(8192)
    running = start(server, pool, CALLS[call], file, page)
    for resize in (lambda: page.append(0), page.clear, lambda: page.extend(b"x"), lambda: page.__delitem__(0)):
        with pytest.raises(BufferError):
            resize()
    del page
    server.release()
    assert running.result() == 8192


def test_a_released_memoryview_stays_valid_in_flight(server, file, pool):
    page = memoryview(bytearray(8192))
    running = start(server, pool, file.readinto_at, page, 4096)
    with pytest.raises(BufferError):
        page.release()
    server.release()
    assert running.result() == 8192 and page == BIG[4096:12288]


def test_a_file_is_closed_during_a_call(server, file, pool):
    """The rule: the call completes, and later calls fail."""
    page = bytearray(8192)
    running = start(server, pool, file.readinto_at, page, 4096)
    file.close()
    with pytest.raises(ValueError):
        file.readinto_at(bytearray(1), 0)
    server.release()
    assert running.result() == 8192 and page == BIG[4096:12288]


def test_the_close_of_a_volume_waits_for_calls(server, disk, pool):
    volume = ironmap.Volume(server.url)
    file, page = volume.open("/srv/data/big"), bytearray(8192)
    # The thread of the call has a queue. Without one, the call could begin after the close, and would fail.
    pool.submit(file.pread, 1, 0).result()
    running = start(server, pool, file.readinto_at, page, 4096)
    closing = pool.submit(volume.close)
    while not volume.closed:
        pass  # The other thread marks the volume as closed before it waits.
    with pytest.raises(ValueError):
        file.read()
    assert not closing.done()
    server.release()
    assert running.result() == 8192 and page == BIG[4096:12288]
    closing.result()


def test_handles_are_forgotten_during_a_call(server, pool):
    def read():
        return ironmap.Volume(server.url).open("/srv/data/big").pread(8192, 4096)

    volume = ironmap.Volume(server.url)
    file = volume.open("/srv/data/big")
    running = start(server, pool, file.pread, 8192, 4096)
    del file, volume
    server.release()
    assert running.result() == read() == BIG[4096:12288]


def test_a_fork_during_a_call(server, file, pool):
    """The rule: the child has its own connection, and the parent's call completes."""
    page = bytearray(8192)
    running = start(server, pool, file.readinto_at, page, 4096)
    # The child waits for an answer of its parent.
    thread = threading.Timer(0.5, server.release)
    thread.start()
    in_child(lambda: read_in_child(file))
    thread.join()
    assert running.result() == 8192 and page == BIG[4096:12288]


def read_in_child(file):
    assert file.pread(100, 4096) == BIG[4096:4196]


@pytest.mark.parametrize("call", ["file.pread(8192, 4096)", "file.read_ranges_into([(4096, bytearray(8192))])"])
def test_the_interpreter_ends_during_a_call(server, call):
    """The rule: the end of the interpreter waits for the call of a daemon thread, and nothing crashes."""
    script = f"""
    import sys, threading, ironmap
    file = ironmap.Volume(sys.argv[1]).open("/srv/data/big")
    file.pread(1, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=lambda: {call}, daemon=True).start()
    sys.stdin.readline()
    print("ends", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), server.url]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, text=True, **pipes) as program:
        assert program.stdout.readline() == "ready\n"
        server.hold()
        print(file=program.stdin, flush=True)
        server.wait_for_read()
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "ends\n"
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.5)
        server.release()
        assert program.wait(30) == 0 and program.stderr.read() == ""


def test_an_interrupt_arrives_after_the_call(server, file, pool):
    """The rule: an exception of a signal handler is raised when the call has completed, and the memory is free."""
    import signal

    class Interrupt(Exception):
        pass

    def handler(*_):
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    page = bytearray(8192)
    server.hold()

    def interrupt():
        server.wait_for_read()
        os.kill(os.getpid(), signal.SIGUSR1)
        server.release()

    try:
        helper = pool.submit(interrupt)
        with pytest.raises(Interrupt):
            file.readinto_at(page, 4096)
            for _ in range(1_000_000):
                pass
        helper.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    page.clear()
