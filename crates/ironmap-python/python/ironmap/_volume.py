"""Volumes, their directories, and the files of the host."""

import os
import stat as _stat
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import _native
from ._file import ASSUME_NO_DEDUPE, READ, File, flags_of

Path = str | bytes | os.PathLike


class Finding(NamedTuple):
    """A finding of `Volume.check`."""

    severity: str
    """`note` (no fault), `repairable`, `data loss` or `fatal`."""
    kind: str
    """The machine-readable name of the kind of fault, such as `checksum`."""
    place: str
    """The structure on disk."""
    text: str
    """The description of the fault."""
    inode: int | None
    """The inode, if the finding concerns one."""
    block: int | None
    """The block, if the finding concerns one."""


def _result(fields: tuple) -> os.stat_result:
    mode, ino, nlink, uid, gid, size, accessed, modified, changed, blocks, block_size, device = fields
    times = {"st_atime": accessed, "st_mtime": modified, "st_ctime": changed}
    more = {name: time / 10**9 for name, time in times.items()}
    more |= {name + "_ns": time for name, time in times.items()}
    more |= {"st_blocks": blocks, "st_blksize": block_size, "st_rdev": device}
    seconds = (time // 10**9 for time in times.values())
    return os.stat_result((mode, ino, 0, nlink, uid, gid, size, *seconds), more)


class DirEntry:
    """An entry of a directory, with the interface of `os.DirEntry`."""

    def __init__(self, volume: "Volume", directory: str, name: str, inode: int, kind: int):
        self._volume = volume
        self.name = name
        """The name in the directory."""
        self.path = os.path.join(directory, name)
        """The path in the volume."""
        self._inode = inode
        self._kind = kind

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        """The inode number."""
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes of the file."""
        return self._volume.stat(self.path, follow_symlinks=follow_symlinks)

    def _is(self, kind: int, follow_symlinks: bool) -> bool:
        own = self._kind
        if not own or (follow_symlinks and own == _stat.S_IFLNK):
            try:
                own = _stat.S_IFMT(self.stat(follow_symlinks=follow_symlinks).st_mode)
            except FileNotFoundError:
                return False
        return own == kind

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the entry is a directory, or a symbolic link to one."""
        return self._is(_stat.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the entry is a regular file, or a symbolic link to one."""
        return self._is(_stat.S_IFREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether the entry is a symbolic link."""
        return self._is(_stat.S_IFLNK, False)


class _Entries:
    """The result of `Volume.scandir`: an iterator and a context manager."""

    def __init__(self, entries: Iterator[DirEntry]):
        self._entries = entries

    def __iter__(self) -> Iterator[DirEntry]:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class Volume:
    """An unmounted file system, opened exclusively.

    `location` is a device or an image, `IMAGE@pN` for a partition, `IMAGE@VG/LV` for a logical volume of LVM, `IMAGE@OFFSET`,
    `qcow2:IMAGE`, `vmdk:IMAGE`, `vhdx:IMAGE`, the URL of an NBD export, `integrity:DATA,TAGS`, or one of these after `noload:`. Each path in the volume begins at its root.

    With `write`, an ext4 volume can be changed, and existing data of XFS files can be overwritten. `close` then writes all changes home. At
    the end of the program, open volumes are closed. `engine` names the way of requests to the device (`auto`, `psync`, `io_uring`, `dax`,
    `null`, ...). Changes are committed after `commit` seconds, or by `sync`.

    A volume can be pickled. After a fork, the child opens the volume again when it first uses it. A volume that is open for writing is
    open in one process only, so there the child gets `OSError` with `EBUSY`.

    >>> volume = ironmap.Volume(disk)
    >>> volume.format, volume.closed
    ('ext4', False)
    >>> volume.close()
    >>> volume.listdir("/")
    Traceback (most recent call last):
    ValueError: I/O operation on closed file or volume
    """

    def __init__(self, location: Path, write: bool = False, *, engine: str = "auto", commit: float = 5.0):
        self._arguments = (os.fspath(location), bool(write), engine, commit)
        self._store = _native.Store.volume_at(os.fsencode(location), bool(write), engine, commit)
        if write:
            _writable.add(self)

    @property
    def location(self) -> str | bytes:
        """The location, as it was given."""
        return self._arguments[0]

    @property
    def writable(self) -> bool:
        """Whether the volume was opened for writing."""
        return self._arguments[1]

    @property
    def format(self) -> str:
        """The name of the format: `ext4` (which includes ext2 and ext3) or `xfs`."""
        return self._store.format()

    @property
    def notices(self) -> list[str]:
        """The settings that could not be applied, and the faults of the device that were ignored."""
        return self._store.notices()

    @property
    def closed(self) -> bool:
        """Whether the volume has been closed."""
        return self._store.closed

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<ironmap.Volume {self.location!r} write={self.writable}{state}>"

    def __reduce__(self):
        return _volume_again, self._arguments

    def __enter__(self) -> "Volume":
        if self.closed:
            raise ValueError("I/O operation on closed file or volume")
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Closes all files of the volume, writes all changes home, and closes the volume. Waits for the calls of other threads."""
        self._store.close()

    def sync(self) -> None:
        """Makes all completed changes durable."""
        self._store.sync()

    def open(self, path: Path, mode: str = "rb", permissions: int = 0o644) -> File:
        """Opens a regular file. The modes are those of the built-in `open` for binary files; `permissions` are those of a new file.

        >>> ironmap.Volume(disk).open("/etc/passwd")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] no such entry: '/etc/passwd'
        """
        return self._open(path, flags_of(mode), permissions)

    def _open(self, path: Path, flags: int, permissions: int) -> File:
        core = _native.FileCore.open(self._store, os.fsencode(path), flags, permissions)
        return File(core, self, os.fsdecode(path), flags)

    def listdir(self, path: Path = "/") -> list[str]:
        """The names in a directory, without `.` and `..`, in the directory's order."""
        entries, error = self._store.list(os.fsencode(path))
        if error is not None:
            raise error
        return [name for name, _, _ in entries]

    def scandir(self, path: Path = "/") -> _Entries:
        """The entries of a directory. If a part of the directory cannot be read, an `OSError` follows the other entries.

        >>> with ironmap.Volume(disk) as volume:
        ...     [entry.path for entry in volume.scandir("/etc") if entry.is_file()]
        ['/etc/hosts']
        """
        directory = os.fsdecode(path)
        entries, error = self._store.list(os.fsencode(path))

        def read() -> Iterator[DirEntry]:
            for entry in entries:
                yield DirEntry(self, directory, *entry)
            if error is not None:
                raise error

        return _Entries(read())

    def walk(
        self,
        top: Path = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Walks a tree, like `os.walk`: yields each directory, its subdirectories, and its other names.

        If a part of a directory cannot be read, `onerror` is called, and the names that were read are yielded.

        >>> [directory for directory, _, names in ironmap.Volume(disk).walk("/") if "hosts" in names]
        ['/etc']
        """
        top = os.fsdecode(top)
        # This function uses its own stack, because a tree may be deeper than Python's. A tuple is a directory whose contents were visited.
        stack: list[str | tuple[str, list[str], list[str]]] = [top]
        while stack:
            directory = stack.pop()
            if isinstance(directory, tuple):
                yield directory
                continue
            entries: list[DirEntry] = []
            try:
                for entry in self.scandir(directory):
                    entries.append(entry)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                if not entries:
                    continue
            names: list[str] = []
            others: list[str] = []
            links = set()
            for entry in entries:
                try:
                    is_directory = entry.is_dir()
                except OSError:
                    is_directory = False  # As in os.walk, this is a circular link or a damaged inode.
                (names if is_directory else others).append(entry.name)
                if entry.is_symlink():
                    links.add(entry.name)
            here = directory, names, others
            if topdown:
                yield here
            else:
                stack.append(here)
            # The caller may have changed the list of names.
            into = [name for name in names if followlinks or name not in links]
            stack.extend(os.path.join(directory, name) for name in reversed(into))

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes of a file. `st_dev` is 0.

        >>> ironmap.Volume(disk).stat("/etc/hosts").st_size
        20
        """
        return _result(self._store.stat(os.fsencode(path), follow_symlinks))

    def lstat(self, path: Path) -> os.stat_result:
        """The attributes of a file or of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: Path) -> bool:
        """Whether a path refers to a file."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def readlink(self, path: Path) -> str:
        """The target of a symbolic link."""
        return self._store.readlink(os.fsencode(path))

    def mkdir(self, path: Path, mode: int = 0o755) -> None:
        """Creates a directory that belongs to user 0 and group 0."""
        self._store.mkdir(os.fsencode(path), mode)

    def makedirs(self, path: Path, mode: int = 0o755, exist_ok: bool = False) -> None:
        """Creates a directory and all missing parents."""
        parent = os.path.dirname(os.fsdecode(path).rstrip("/"))
        if parent.strip("/") and not self.exists(parent):
            self.makedirs(parent, mode, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok or not _stat.S_ISDIR(self.stat(path).st_mode):
                raise

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file atomically. An existing file with the new name is replaced."""
        self._store.rename(os.fsencode(old), os.fsencode(new))

    def unlink(self, path: Path) -> None:
        """Removes a name of a file that is not a directory."""
        self._store.unlink(os.fsencode(path))

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        self._store.rmdir(os.fsencode(path))

    def symlink(self, target: Path, path: Path) -> None:
        """Creates a symbolic link to `target`."""
        self._store.symlink(os.fsencode(target), os.fsencode(path))

    def link(self, original: Path, path: Path) -> None:
        """Adds a name to a file."""
        self._store.link(os.fsencode(original), os.fsencode(path))

    def chmod(self, path: Path, mode: int) -> None:
        """Sets the permissions of a file."""
        self._store.chmod(os.fsencode(path), mode)

    def listxattr(self, path: Path, *, follow_symlinks: bool = True) -> list[str]:
        """The names of the extended attributes, with their prefixes."""
        return self._store.listxattr(os.fsencode(path), follow_symlinks)

    def getxattr(self, path: Path, name: Path, *, follow_symlinks: bool = True) -> bytes:
        """The value of an extended attribute."""
        return self._store.getxattr(os.fsencode(path), os.fsencode(name), follow_symlinks)

    def setxattr(self, path: Path, name: Path, value: bytes, flags: int = 0, *, follow_symlinks: bool = True) -> None:
        """Sets an extended attribute. `flags` is 0, `os.XATTR_CREATE` or `os.XATTR_REPLACE`."""
        self._store.setxattr(os.fsencode(path), os.fsencode(name), bytes(value), flags, follow_symlinks)

    def removexattr(self, path: Path, name: Path, *, follow_symlinks: bool = True) -> None:
        """Removes an extended attribute."""
        self._store.removexattr(os.fsencode(path), os.fsencode(name), follow_symlinks)

    def check(self) -> list[Finding]:
        """Checks all metadata, and writes nothing. A volume without faults has no findings, or only notes.

        >>> [finding for finding in ironmap.Volume(disk).check() if finding.severity != "note"]
        []
        """
        return [Finding(*fields) for fields in self._store.check()]


# The volumes that are open for writing.
_writable: weakref.WeakSet[Volume] = weakref.WeakSet()


def _close_all() -> None:
    """Closes all volumes that are open for writing, at the end of the program."""
    for volume in list(_writable):
        try:
            volume.close()
        except OSError as error:
            print(f"ironmap: {volume.location!r}: {error}", file=sys.stderr)


def _volume_again(location, write: bool, engine: str, commit: float) -> Volume:
    return Volume(location, write, engine=engine, commit=commit)


class _Host:
    """The files of the mounted file systems. A process has one for each engine."""

    def __init__(self, engine: str):
        self._engine = engine
        self._store = _native.Store.host(engine)

    def __reduce__(self):
        return _host, (self._engine,)

    def _open(self, path: Path, flags: int, _permissions: int) -> File:
        core = _native.FileCore.open(self._store, os.fsencode(path), flags, 0)
        return File(core, self, os.fsdecode(path), flags)


_hosts: dict[str, _Host] = {}


def _host(engine: str) -> _Host:
    host = _hosts.get(engine)
    # Two threads may create a host at the same time. One of the two hosts is then dropped.
    return host if host is not None else _hosts.setdefault(engine, _Host(engine))


def open(path: Path, *, engine: str = "auto", assume_no_dedupe: bool = False) -> File:
    """Opens a file of a mounted file system for reading.

    The file is read from its block device, around the kernel, while a lease keeps writers out. If that is not possible, the kernel serves
    the file: the bytes are the same, `File.raw` is false, and `File.why` gives the reason. A file on XFS with reflink is read from the
    device only if it is immutable, or if `assume_no_dedupe` promises that no program dedupes it.

    >>> with ironmap.open("/proc/self/exe") as file:
    ...     file.read(4), file.raw == (file.why is None)
    (b'\\x7fELF', True)
    """
    flags = READ | (ASSUME_NO_DEDUPE if assume_no_dedupe else 0)
    return _host(engine)._open(os.fspath(path), flags, 0)
