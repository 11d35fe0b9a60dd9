"""The files of a volume as a file system of fsspec, for pandas, pyarrow, DuckDB and others. Needs the package fsspec.

The protocol is `ironmap`. A URL names the volume and the path:

- `ironmap://disk.img::/srv/table.parquet`
- `ironmap://disk.img!/srv/table.parquet` has the same meaning. fsspec splits the first form at `::` and shows the path to no other file. So
  a list of several URLs needs this second form.

>>> import fsspec
>>> with fsspec.open(f"ironmap://{disk}::/etc/hosts") as file:
...     file.read()
b'127.0.0.1 localhost\\n'
>>> fs = fsspec.filesystem("ironmap", location=disk)
>>> fs.ls("/etc", detail=False)
['/etc/hosts']
"""

import io
import os
import shutil
import stat
import threading
import weakref
from datetime import datetime, timezone

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]

from ._volume import Volume

_PREFIX = "ironmap://"
# The volumes in use. All file systems of a volume share it, because a volume that is open for writing can be opened only once.
_volumes: weakref.WeakValueDictionary[tuple, Volume] = weakref.WeakValueDictionary()
# A signal handler or a destructor may use a file system while its thread holds this lock.
_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


def _volume(*arguments) -> Volume:
    location, write, engine = arguments
    with _opening:
        volume = _volumes.get(arguments)
        if volume is None or volume.closed:
            volume = _volumes[arguments] = Volume(location, write, engine=engine)
        return volume


def _split(url: str) -> tuple[str, str | None]:
    """The location and the path of a URL without its protocol."""
    for separator in ("::", "!/"):
        location, found, path = url.partition(separator)
        if found:
            return location, "/" + path.lstrip("/")
    return url.removesuffix("!"), None


class _Reader(io.BufferedReader):
    """A buffered reader in which each thread reads from the position to which it has sought.

    Some programs (DuckDB) use one file in several threads, and each thread seeks and then reads. Another thread may move the position between
    the two calls. So a call that follows a seek of its thread moves the position back first.
    """

    def __init__(self, raw, size):
        super().__init__(raw, size)
        self._moving = threading.RLock()
        self._sought = threading.local()

    def seek(self, offset, whence=os.SEEK_SET, /):
        with self._moving:
            self._sought.at = super().seek(offset, whence)
            return self._sought.at

    def _return(self):
        at = self._sought.__dict__.pop("at", None)
        if at is not None and at != self.tell():
            super().seek(at)

    def read(self, size=-1, /):
        with self._moving:
            self._return()
            return super().read(size)

    def read1(self, size=-1, /):
        with self._moving:
            self._return()
            return super().read1(size)

    def readinto(self, buffer, /):
        with self._moving:
            self._return()
            return super().readinto(buffer)

    def readinto1(self, buffer, /):
        with self._moving:
            self._return()
            return super().readinto1(buffer)

    def readline(self, size=-1, /):
        with self._moving:
            self._return()
            return super().readline(size)

    def peek(self, size=0, /):
        with self._moving:
            self._return()
            return super().peek(size)


class IronmapFileSystem(AbstractFileSystem):
    """The files of a volume.

    `location` is the location of the volume, as for `ironmap.Volume`. `format` is a prefix of the location (`qcow2`, `vmdk`, `vhdx`), and
    `partition` a number of a partition. With `write` the volume is open for writing. `engine` names the way of requests to the device. With
    `auto_mkdir`, a file that is opened for writing gets the missing parents of its path.
    """

    protocol = "ironmap"
    root_marker = "/"

    def __init__(
        self,
        location=None,
        fo=None,
        write=False,
        format=None,
        partition=None,
        engine="auto",
        auto_mkdir=False,
        target_protocol=None,
        target_options=None,
        **options,
    ):
        super().__init__(**options)
        if location is None:
            raise ValueError("the location of the volume is missing: ironmap://LOCATION::/PATH, or the option location")
        # This argument is the second half of a URL with "::". The first half is then the path of all calls.
        self._named = f"{location}!"
        self._path = "/" if fo is None else self._normal(fo)
        self._strip_protocol = self._strip
        self.auto_mkdir = auto_mkdir
        location = os.fspath(location)
        if format is not None:
            location = f"{format}:{location}"
        if partition is not None:
            location = f"{location}@p{partition}"
        self._volume_arguments = (location, bool(write), engine)
        self._open_volume = _volume(*self._volume_arguments)

    @property
    def volume(self) -> Volume:
        """The volume."""
        if self._open_volume.closed:
            self._open_volume = _volume(*self._volume_arguments)
        return self._open_volume

    @staticmethod
    def _normal(path) -> str:
        return "/" + os.fspath(path).strip("/")

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if not path.startswith(_PREFIX):
            return cls._normal(path) if not path.endswith("!") else path
        location, inner = _split(path.removeprefix(_PREFIX))
        # Without a path, the result names the volume, because the file system already has the path.
        return f"{location}!" if inner is None else cls._normal(inner)

    def _strip(self, path):
        if isinstance(path, list):
            return [self._strip(one) for one in path]
        path = type(self)._strip_protocol(path)
        return self._path if path == self._named else self._normal(path)

    @staticmethod
    def _get_kwargs_from_urls(path):
        return {"location": _split(path.removeprefix(_PREFIX))[0]} if path.startswith(_PREFIX) else {}

    def unstrip_protocol(self, name):
        """The URL of a path."""
        return f"{_PREFIX}{self._named}{self._strip_protocol(name)}"

    @property
    def fsid(self):
        """The name of this file system."""
        return f"ironmap-{self._volume_arguments[0]}"

    def _info(self, path, into_links=True):
        attributes = self.volume.lstat(path)
        info = {"name": path, "islink": stat.S_ISLNK(attributes.st_mode)}
        if info["islink"]:
            info["destination"] = self.volume.readlink(path)
            try:
                target = self.volume.stat(path)
            except OSError:
                target = attributes  # The link is broken.
            # In a listing, a link to a directory does not count as a directory, because a walk could follow circular links.
            if into_links or not stat.S_ISDIR(target.st_mode):
                attributes = target
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
        return info | {
            "size": attributes.st_size,
            "type": kinds.get(stat.S_IFMT(attributes.st_mode), "other"),
            "created": attributes.st_ctime,
            "mtime": attributes.st_mtime,
            "mode": attributes.st_mode,
            "uid": attributes.st_uid,
            "gid": attributes.st_gid,
            "ino": attributes.st_ino,
            "nlink": attributes.st_nlink,
        }

    def info(self, path, **kwargs):
        """The attributes of a file."""
        return self._info(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        """Whether a name exists, even if it is a broken link."""
        try:
            self.volume.lstat(self._strip_protocol(path))
        except OSError:
            return False
        return True

    def ls(self, path, detail=True, **kwargs):
        """The entries of a directory, or the attributes of a file."""
        path = self._strip_protocol(path)
        info = self._info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        paths = [entry.path for entry in self.volume.scandir(path)]
        return [self._info(path, into_links=False) for path in paths] if detail else paths

    def created(self, path):
        """The time of the last change of the inode."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        """The time of the last change of the content."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def mkdir(self, path, create_parents=True, **kwargs):
        """Creates a directory."""
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(path)
        (self.volume.makedirs if create_parents else self.volume.mkdir)(path)

    def makedirs(self, path, exist_ok=False):
        """Creates a directory and its parents."""
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        """Removes an empty directory."""
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        """Removes a file."""
        self.volume.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        """Removes files, and with `recursive` directories with their contents."""
        for path in [path] if isinstance(path, str) else path:
            path = self._strip_protocol(path)
            if not recursive or not stat.S_ISDIR(self.volume.lstat(path).st_mode):
                self.volume.unlink(path)
                continue
            for directory, names, others in self.volume.walk(path, topdown=False):
                for name in others:
                    self.volume.unlink(f"{directory}/{name}")
                for name in names:
                    below = f"{directory}/{name}"
                    is_link = stat.S_ISLNK(self.volume.lstat(below).st_mode)
                    (self.volume.unlink if is_link else self.volume.rmdir)(below)
            self.volume.rmdir(path)

    def mv(self, path1, path2, recursive=None, maxdepth=None, **kwargs):
        """Renames a file or a directory. A file that is moved to a directory keeps its name."""
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if str(path2).endswith("/") or self.isdir(new):
            new = f"{new.rstrip('/')}/{os.path.basename(old)}"
        self.volume.rename(old, new)

    def cp_file(self, path1, path2, **kwargs):
        """Copies a file, or creates a directory for a source that is a directory."""
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(old):
            self.makedirs(new, exist_ok=True)
            return
        self.makedirs(self._parent(new), exist_ok=True)
        with self.volume.open(old) as source, self.volume.open(new, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def touch(self, path, truncate=True, **kwargs):
        """Creates an empty file, and truncates an existing one."""
        with self.open(path, "wb" if truncate else "ab"):
            pass

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        if not autocommit:
            raise NotImplementedError("a volume has no transactions of several files")
        path = self._strip_protocol(path)
        if self.auto_mkdir and "r" not in mode:
            self.makedirs(self._parent(path), exist_ok=True)
        raw = self.volume.open(path, mode)
        size = 1 << 16 if block_size in (None, "default") else block_size
        if "+" in mode:
            return io.BufferedRandom(raw, size)
        return _Reader(raw, size) if "r" in mode else io.BufferedWriter(raw, size)

    def cat_file(self, path, start=None, end=None, **kwargs):
        """The content of a file, or a range of it."""
        with self.volume.open(self._strip_protocol(path)) as file:
            start, stop, _ = slice(start, end).indices(file.size)
            return file.pread(max(stop - start, 0), start)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Returns ranges of files. The ranges of one file are in flight together."""
        count = len(paths)
        starts = starts if isinstance(starts, list) else [starts] * count
        ends = ends if isinstance(ends, list) else [ends] * count
        if not count == len(starts) == len(ends):
            raise ValueError("the lists of paths, starts and ends have different lengths")
        of_path = {}
        for index, path in enumerate(paths):
            of_path.setdefault(self._strip_protocol(path), []).append(index)
        out = [None] * count
        for path, indexes in of_path.items():
            try:
                with self.volume.open(path) as file:
                    ranges = [slice(starts[index], ends[index]).indices(file.size)[:2] for index in indexes]
                    buffers = [bytearray(max(stop - start, 0)) for start, stop in ranges]
                    firsts = (start for start, _ in ranges)
                    counts = file.read_ranges_into(list(zip(firsts, buffers)))
                for index, buffer, read in zip(indexes, buffers, counts):
                    out[index] = bytes(memoryview(buffer)[:read])
            except OSError as error:
                if on_error == "raise":
                    raise
                for index in indexes:
                    out[index] = error
        return out

    def sync(self):
        """Makes all completed changes durable."""
        self.volume.sync()

    def close(self):
        """Closes the volume, including for other file systems that share it. The next use opens it again."""
        self._open_volume.close()
