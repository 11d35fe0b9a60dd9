"""Open files that follow the protocol of the module io."""

import io
import os
from collections.abc import Iterable

from . import _native

# The bits of `_native.FileCore.open`.
READ, WRITE, APPEND, CREATE, CREATE_NEW, TRUNCATE, ASSUME_NO_DEDUPE = (1 << bit for bit in range(7))

_MODES = {"r": READ, "w": WRITE | CREATE | TRUNCATE, "x": WRITE | CREATE | CREATE_NEW, "a": APPEND | CREATE}


def flags_of(mode: str) -> int:
    """The flags for a mode of `open`.

    >>> flags_of("rb") == READ
    True
    >>> flags_of("rt")
    Traceback (most recent call last):
    ValueError: 'rt' is not a mode of a binary file: for text, use io.TextIOWrapper(io.BufferedReader(file))
    """
    rest = mode.replace("b", "", 1).replace("+", "", 1)
    if rest not in _MODES:
        what = "for text, use io.TextIOWrapper(io.BufferedReader(file))"
        raise ValueError(f"{mode!r} is not a mode of a binary file: {what}")
    return _MODES[rest] | (READ | WRITE if "+" in mode else 0)


def mode_of(flags: int) -> str:
    """The mode that reopens an existing file with these flags without changing its content."""
    plus = "+" if flags & READ and flags & (WRITE | APPEND) else ""
    if flags & APPEND:
        return "ab" + plus
    return "rb" + plus if flags & READ else "wb"


class File(io.RawIOBase):
    """A file of a volume or of the host. Each read and write is one request to the device, without a buffer.

    `File` is an `io.RawIOBase`: `io.BufferedReader`, `io.BufferedWriter` and `io.TextIOWrapper` accept it. Reads and writes can have any
    position, length and address. Calls release the GIL during the I/O. All threads can use one file. The calls that move the position
    exclude each other; `pread`, `pwrite`, `readinto_at` and `read_ranges_into` use no position, and run at the same time.

    A closed file raises `ValueError`. Other errors are subclasses of `OSError` with `errno`, `strerror` and `filename`.

    >>> import io
    >>> file = ironmap.Volume(disk).open("/etc/hosts")
    >>> isinstance(file, io.RawIOBase)
    True
    >>> io.TextIOWrapper(io.BufferedReader(file)).readline()
    '127.0.0.1 localhost\\n'
    """

    def __init__(self, core: _native.FileCore, volume: object, name: str, flags: int):
        super().__init__()
        self._core = core
        self._volume = volume
        self.name = name
        self._flags = flags & ~(CREATE | CREATE_NEW | TRUNCATE)
        self.mode = mode_of(flags)
        if type(self) is File:
            # These are the same methods, but without a Python frame.
            for method in ("pread", "readinto_at", "read_ranges_into"):
                self.__dict__[method] = getattr(core, method)

    def __del__(self) -> None:
        # The file is closed together with `_core`, because a call of one of these methods may still be in flight.
        pass

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<ironmap.File {self.name!r} mode={self.mode!r}{state}>"

    def __reduce__(self):
        return _reopen, (self._volume, self.name, self._flags, self.tell())

    @property
    def closed(self) -> bool:
        """Whether the file or its volume has been closed."""
        return self._core.closed

    def close(self) -> None:
        """Closes the file. Calls of other threads that are in flight complete."""
        self._core.close()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._core.size()

    @property
    def raw(self) -> bool:
        """Whether reads bypass the kernel and go to the device. When a program writes to a host file, its reads go through the kernel for some time."""
        report = self._core.report()
        return report is None or report[0]

    @property
    def why(self) -> str | None:
        """The reason why the kernel serves a host file; `None` while the file is read from the device."""
        report = self._core.report()
        return None if report is None else report[1]

    def readable(self) -> bool:
        """Whether the file is open for reading."""
        return self._core.readable()

    def writable(self) -> bool:
        """Whether the file is open for writing."""
        return self._core.writable()

    def seekable(self) -> bool:
        """True: all files are seekable."""
        self._core.tell()
        return True

    def tell(self) -> int:
        """The position."""
        return self._core.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position, and returns it."""
        return self._core.seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most `size` bytes from the position, or all bytes to the end of the file."""
        return self._core.read(size)

    def readall(self) -> bytes:
        """Reads all bytes from the position to the end of the file."""
        return self._core.readall()

    def readinto(self, buffer, /) -> int:
        """Reads from the position into a writable object (bytearray, memoryview, array) like `readinto_at`."""
        return self._core.readinto(buffer)

    def write(self, buffer, /) -> int:
        """Writes at the position, or at the end in the mode "a". Returns the number of bytes written, which is smaller only for lack of space."""
        return self._core.write(buffer)

    def truncate(self, size: int | None = None, /) -> int:
        """Sets the size, by default to the position. A new part reads as zeros."""
        return self._core.truncate(size)

    def flush(self) -> None:
        """Does nothing, because a file has no buffer. `sync` makes data durable."""
        if self.closed:
            raise ValueError("I/O operation on closed file or volume")

    def sync(self, data_only: bool = False) -> None:
        """Makes all completed writes and all metadata durable (`fsync`); with `data_only`, only the metadata that a read needs (`fdatasync`)."""
        self._core.sync(data_only)

    def pread(self, size: int, position: int, /) -> bytes:
        """Reads at most `size` bytes from a position.

        >>> ironmap.Volume(disk).open("/etc/hosts").pread(9, 10)
        b'localhost'
        """
        return self._core.pread(size, position)

    def pwrite(self, buffer, position: int, /) -> int:
        """Writes at a position, and returns the number of bytes."""
        return self._core.pwrite(buffer, position)

    def readinto_at(self, buffer, position: int, /) -> int:
        """Reads from a position into a writable object, without a copy, and returns the number of bytes. The number is smaller than the
        length of the object only at the end of the file; then the device may have changed the bytes after them.

        >>> page = bytearray(4096)
        >>> ironmap.Volume(disk).open("/etc/hosts").readinto_at(page, 10)
        10
        """
        return self._core.readinto_at(buffer, position)

    def read_ranges_into(self, ranges: Iterable[tuple[int, object]], /) -> list[int]:
        """Reads several ranges `(position, buffer)`, up to 64 of them in flight together, and returns the numbers of bytes. The buffers must
        not share memory.

        >>> first, second = bytearray(3), bytearray(9)
        >>> ironmap.Volume(disk).open("/etc/hosts").read_ranges_into([(0, first), (10, second)])
        [3, 9]
        >>> first, second
        (bytearray(b'127'), bytearray(b'localhost'))
        """
        return self._core.read_ranges_into(ranges)


def _reopen(volume, name: str, flags: int, position: int) -> File:
    """Opens a pickled file."""
    file = volume._open(name, flags, 0)
    file.seek(position)
    return file
