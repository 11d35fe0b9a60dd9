"""Open files: the io protocol, memory, errors."""

import array
import ctypes
import errno
import io
import mmap
import os

import pytest
from conftest import BIG, need, run

import ironmap


@pytest.fixture
def big(volume):
    return volume.open("/srv/data/big")


def test_a_file_is_a_raw_file_of_the_module_io(big):
    assert isinstance(big, io.RawIOBase)
    assert (big.readable(), big.writable(), big.seekable(), big.isatty()) == (True, False, True, False)
    assert (big.name, big.mode, big.size, big.raw, big.why) == ("/srv/data/big", "rb", len(BIG), True, None)
    with pytest.raises(io.UnsupportedOperation):
        big.fileno()


def test_reads_move_the_position(big):
    assert big.read(5) == BIG[:5] and big.tell() == 5
    assert big.seek(-4, os.SEEK_END) == len(BIG) - 4
    assert big.read() == b"tail" and big.read() == b"" and big.read(7) == b""
    assert big.seek(-8, os.SEEK_CUR) == len(BIG) - 8
    assert big.readall() == BIG[-8:]
    big.seek(0)
    assert big.read() == BIG
    big.seek(1)
    page = bytearray(3)
    assert big.readinto(page) == 3 and page == BIG[1:4] and big.tell() == 4
    assert big.read(None) == BIG[4:]


def test_a_position_past_the_end_reads_nothing(big):
    assert big.pread(10, len(BIG) + 1000) == b""
    assert big.readinto_at(bytearray(10), 1 << 62) == 0
    big.seek(1 << 40)
    assert (big.read(10), big.read()) == (b"", b"")


def test_impossible_positions_are_errors(big):
    with pytest.raises(ValueError):
        big.pread(1, -1)
    with pytest.raises(OSError):
        big.seek(-1)
    with pytest.raises(ValueError):
        big.seek(0, 3)
    with pytest.raises(OverflowError):
        big.pread(1, 1 << 64)
    with pytest.raises(OSError):
        big.seek(1 << 62)
        big.seek((1 << 63) - 1, os.SEEK_CUR)


def test_buffered_and_text_files_are_built_on_it(volume):
    with io.BufferedReader(volume.open("/srv/data/big"), 100) as buffered:
        assert buffered.read(300) == BIG[:300]
        assert buffered.peek(1)[:1] == BIG[300:301]
        assert buffered.seek(-2, os.SEEK_END) == len(BIG) - 2 and buffered.read() == b"il"
    with io.TextIOWrapper(io.BufferedReader(volume.open("/etc/hosts"))) as text:
        assert list(text) == ["127.0.0.1 localhost\n"]
    assert volume.open("/etc/hosts").readlines() == [b"127.0.0.1 localhost\n"]


@pytest.mark.parametrize("offset", [0, 1, 511, 512, 4095])
def test_data_arrive_in_the_memory_of_any_object(big, offset):
    """The rule: the caller's memory is filled, without a change of the bytes around it, at any address."""
    whole = bytearray(b"\xaa" * 20_000)
    for memory in (memoryview(whole), memoryview(mmap.mmap(-1, 20_000)), memoryview(array.array("B", whole))):
        memory[:] = b"\xaa" * 20_000
        part = memory[offset : offset + 8192]
        assert big.readinto_at(part, 4096) == 8192
        assert part == BIG[4096:12288]
        assert set(memory[:offset]) | set(memory[offset + 8192 :]) == {0xAA}


def test_arrays_of_other_types_are_filled(big):
    numbers = array.array("d", [0.0] * 512)
    assert big.readinto_at(numbers, 8) == 4096
    assert numbers.tobytes() == BIG[8:4104]


def test_numpy_arrays_are_filled(big):
    numpy = pytest.importorskip("numpy")
    numbers = numpy.zeros((16, 64), dtype=numpy.uint32)
    assert big.readinto_at(numbers, 4096) == 4096
    assert numbers.tobytes() == BIG[4096:8192]
    with pytest.raises((BufferError, ValueError)):
        big.readinto_at(numbers[:, ::2], 0)  # not contiguous
    numbers.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        big.readinto_at(numbers, 0)


def test_memory_that_cannot_be_written_is_refused(big):
    for wrong in (b"bytes", memoryview(bytearray(8))[::2], memoryview(b"x")):
        with pytest.raises(BufferError):
            big.readinto_at(wrong, 0)
    for wrong in (None, 7, "text", []):
        with pytest.raises(TypeError):
            big.readinto_at(wrong, 0)
    assert big.readinto_at(bytearray(), 0) == 0


def test_many_ranges_are_read_together(big):
    positions = [(7919 * index) % len(BIG) for index in range(200)]
    buffers = [bytearray(index * 37 % 5000) for index in range(200)]
    counts = big.read_ranges_into(list(zip(positions, buffers)))
    for position, buffer, count in zip(positions, buffers, counts, strict=True):
        wanted = BIG[position : position + len(buffer)]
        assert (count, buffer[:count]) == (len(wanted), wanted)


def test_ranges_are_any_iterable_of_pairs(big):
    memory = bytearray(8192)
    view = memoryview(memory)
    assert big.read_ranges_into((at, view[at : at + 4096]) for at in (4096, 0)) == [4096, 4096]
    assert memory == BIG[:8192]
    assert big.read_ranges_into([]) == []


def test_wrong_ranges_are_refused(big):
    memory = memoryview(bytearray(8192))
    for overlapping in ([memory, memory], [memory[:4097], memory[4096:]], [memory[1:2], memory[:2]]):
        with pytest.raises(ValueError, match="share memory"):
            big.read_ranges_into([(0, part) for part in overlapping])
    for wrong in (7, [7], [(1, 2, 3)], [(0, b"bytes")], [("0", memory)], [(-1, memory)], [(0,)]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            big.read_ranges_into(wrong)
    # The memory is free again after each error.
    memory.release()


def test_memory_is_held_during_a_call_only(big):
    """The rule: a buffer can be resized after the call, also after a failed one."""
    page = bytearray(4096)
    big.readinto_at(page, 0)
    with pytest.raises(ValueError):
        big.readinto_at(page, -1)
    with pytest.raises(ValueError):
        big.read_ranges_into([(0, page), (0, page)])
    page.append(0)


def test_an_error_has_the_errno_and_the_name(volume):
    with pytest.raises(FileNotFoundError) as found:
        volume.open("/no/file")
    assert (found.value.errno, found.value.filename) == (errno.ENOENT, "/no/file")
    assert found.value.strerror and "/no/file" not in found.value.strerror
    with pytest.raises(IsADirectoryError):
        volume.open("/etc")
    with pytest.raises(NotADirectoryError):
        volume.stat("/etc/hosts/x")
    with pytest.raises(OSError) as found:
        volume.open("/etc/new", "wb")
    assert found.value.errno == errno.EROFS
    with pytest.raises(OSError) as found:
        ironmap.Volume("/proc/self/exe")
    assert found.value.filename == "/proc/self/exe"


@pytest.mark.parametrize("mode", ["", "t", "rt", "rw", "rbb", "w++", "q"])
def test_wrong_modes_are_refused(volume, mode):
    with pytest.raises(ValueError):
        volume.open("/etc/hosts", mode)


def test_modes_are_those_of_the_built_in_open(writable):
    with writable.open("/new", "xb") as file:
        assert file.write(b"0123456789") == 10
        with pytest.raises(io.UnsupportedOperation):
            file.read()
    with pytest.raises(FileExistsError):
        writable.open("/new", "xb")
    with writable.open("/new", "ab") as file:
        file.seek(0)
        assert file.write(b"ab") == 2 and file.tell() == 12
    with writable.open("/new", "r+b") as file:
        file.seek(4)
        assert file.write(memoryview(b"----")[::1]) == 4
        assert file.pwrite(b"++", 0) == 2
        assert file.pread(100, 0) == b"++23----89ab"
        assert file.truncate(6) == 6 and file.size == 6 and file.tell() == 8
        assert file.truncate() == 8
        assert file.pread(100, 0) == b"++23--\0\0"
        file.sync()
        file.sync(data_only=True)
    with writable.open("/new", "w") as file:
        assert file.size == 0


def test_a_file_larger_than_the_memory_is_an_error(writable):
    with writable.open("/sparse", "w+b") as file:
        file.truncate(1 << 43)
        for call in (file.read, file.readall, lambda: file.read(1 << 43), lambda: file.pread(1 << 43, 0)):
            with pytest.raises(MemoryError):
                call()
        assert file.pread(1 << 60, (1 << 43) - 5) == bytes(5) and file.tell() == 0


def test_a_buffered_writer_is_built_on_it(writable):
    with io.BufferedWriter(writable.open("/etc/text", "wb")) as file:
        for number in range(10_000):
            file.write(b"%d\n" % number)
    with io.BufferedRandom(writable.open("/etc/text", "r+b")) as file:
        file.seek(2)
        file.write(b"X")
        assert file.readline() == b"\n" and file.readline() == b"2\n"
    with writable.open("/etc/text") as file:
        assert file.read() == b"0\nX\n" + b"".join(b"%d\n" % number for number in range(2, 10_000))


def test_a_closed_file_refuses_every_call(volume):
    file = volume.open("/etc/hosts")
    file.close()
    file.close()
    page = bytearray(10)
    calls = [
        lambda: file.read(), lambda: file.read(1), lambda: file.readall(), lambda: file.readinto(page),
        lambda: file.pread(1, 0), lambda: file.readinto_at(page, 0), lambda: file.read_ranges_into([(0, page)]),
        lambda: file.write(b"x"), lambda: file.pwrite(b"x", 0), lambda: file.seek(0), lambda: file.tell(),
        lambda: file.truncate(), lambda: file.sync(), lambda: file.size, lambda: file.raw, lambda: file.why,
        lambda: file.readable(), lambda: file.writable(), lambda: file.seekable(), lambda: file.flush(),
        lambda: file.readline(), lambda: next(file), lambda: file.__enter__(),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError):
            call()
    assert file.closed and "closed" in repr(file)


def test_a_closed_volume_closes_its_files(own_disk):
    volume = ironmap.Volume(own_disk)
    files = [volume.open("/etc/hosts") for _ in range(100)]
    buffered = io.BufferedReader(files[0])
    volume.close()
    volume.close()
    for call in (files[7].read, buffered.read, volume.listdir, volume.check, volume.sync, volume.__enter__):
        with pytest.raises(ValueError):
            call()
    assert all(file.closed for file in files) and volume.closed
    # The device is free: it can be opened for writing.
    ironmap.Volume(own_disk, write=True).close()


def test_files_keep_their_volume_open(disk):
    file = ironmap.Volume(disk).open("/etc/hosts")
    assert file.read(3) == b"127"


@pytest.mark.parametrize("call", ["pread", "readinto_at", "read_ranges_into", "read"])
def test_a_call_keeps_its_file_open(disk, call):
    """The rule: a file without a name is open until the call on it returns."""
    arguments = {"pread": (3, 0), "readinto_at": (bytearray(3), 0), "read_ranges_into": ([(0, bytearray(3))],), "read": (3,)}
    result = getattr(ironmap.Volume(disk).open("/etc/hosts"), call)(*arguments[call])
    assert result in (b"127", 3, [3])


def test_a_file_that_is_forgotten_is_closed(own_disk):
    volume = ironmap.Volume(own_disk, write=True)
    for _ in range(3):
        volume.open("/etc/hosts", "r+b").read()
    descriptors = len(os.listdir("/proc/self/fd"))
    del volume
    assert len(os.listdir("/proc/self/fd")) < descriptors


def test_a_host_file_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(BIG)
    with ironmap.open(path) as file:
        assert file.raw == (file.why is None)
        assert (file.read(), file.size) == (BIG, len(BIG))
        assert file.pread(4, len(BIG) - 4) == b"tail"
        buffers = [bytearray(5000) for _ in range(70)]
        assert file.read_ranges_into([(4000 * at, page) for at, page in enumerate(buffers)]) == [5000] * 70
        assert all(page == BIG[4000 * at :][:5000] for at, page in enumerate(buffers))
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        # A writer takes the file from the device, and the reader sees its bytes.
        with open(path, "r+b") as other:
            other.write(b"changed")
            other.flush()
            assert file.pread(7, 0) == b"changed"
            assert not file.raw and file.why
    with pytest.raises(FileNotFoundError):
        ironmap.open(tmp_path / "no")
    with pytest.raises(IsADirectoryError):
        ironmap.open(tmp_path)


def test_a_file_without_a_size_is_read_to_its_end():
    """The kernel reports size 0 for the files of /proc."""
    with ironmap.open("/proc/self/status") as file:
        assert b"Pid:" in file.read()
        assert b"Name:" in file.pread(1000, 0)


def test_the_formats_of_virtual_machines_are_locations(disk, tmp_path):
    need("qemu-img")
    path = tmp_path / "disk.qcow2"
    run("qemu-img", "convert", "-O", "qcow2", disk, path)
    with ironmap.Volume(f"qcow2:{path}") as volume:
        assert volume.open("/srv/data/big").read() == BIG


def test_a_part_of_an_image_is_a_location(disk, tmp_path):
    path = tmp_path / "shifted.img"
    with open(path, "wb") as file, open(disk, "rb") as whole:
        file.seek(1 << 20)
        file.write(whole.read())
    with ironmap.Volume(f"{path}@1M") as volume:
        assert volume.open("/etc/hosts").size == 20


@pytest.mark.parametrize("engine", ["psync", "io_uring", "dax"])
def test_engines_read_the_same_bytes(disk, engine):
    try:
        volume = ironmap.Volume(disk, engine=engine)
    except OSError as error:
        pytest.skip(f"{engine}: {error}")
    with volume:
        assert volume.open("/srv/data/big").read() == BIG


def test_unknown_engines_are_refused(disk):
    for wrong in ({"engine": "tape"}, {"commit": -1.0}, {"commit": float("nan")}):
        with pytest.raises(ValueError):
            ironmap.Volume(disk, **wrong)


def test_references_to_objects_are_not_overwritten(big):
    """The rule: bytes of a file never replace references, because Python would crash. Arrays of times, and fields named O, are filled."""
    numpy = pytest.importorskip("numpy")
    named = numpy.zeros(3, dtype=[("O", "u1")])
    for array in (numpy.array([None, 1]), numpy.zeros(2, dtype=[("a", "u1"), ("b", "O")]), (ctypes.py_object * 2)()):
        for call in (lambda: big.readinto_at(array, 0), lambda: big.read_ranges_into([(0, array)]), lambda: big.readinto(array)):
            with pytest.raises(BufferError):
                call()
    for array in (named, numpy.zeros(3, "M8[s]")):
        assert big.readinto_at(array, 5) == array.nbytes and array.tobytes() == BIG[5 : 5 + array.nbytes]
