"""Makes, fills, reads and resizes images of ext4 volumes."""

import os
import uuid as _uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from . import _native

Path = str | bytes | os.PathLike


class Progress(NamedTuple):
    """The progress of a job on an image."""

    name: str
    """The file that is being copied. It is empty before the first file."""
    files: int
    """The number of copied files, without directories."""
    bytes: int
    """The number of copied bytes of their content."""
    total_files: int | None
    """The total number of files; `None` if it is not known."""
    total_bytes: int | None
    """The total number of bytes of their content; `None` if it is not known."""


class ImageInfo(NamedTuple):
    """A new volume."""

    size: int
    """The size in bytes."""
    block_size: int
    """The block size in bytes."""
    inodes: int
    """The number of inodes, used and free."""
    uuid: _uuid.UUID
    """The UUID."""
    label: str
    """The label."""


class Content:
    """A source of files for `build_image`. A path alone is the same as `Content.path`, and a file object the same as `Content.tar`."""

    def __init__(self, kind: str, value: object, *texts: bytes | None):
        self._fields = (kind, value, *texts)

    def __repr__(self) -> str:
        return f"<ironmap.Content {self._fields[0]} {self._fields[1]!r}>"

    @classmethod
    def path(cls, path: Path) -> "Content":
        """A directory, or a tar archive, which may be compressed by gzip or zstd."""
        return cls("path", os.fsencode(path), None, None)

    @classmethod
    def oci(cls, path: Path, *, image: str | None = None, platform: str | None = None) -> "Content":
        """An OCI image layout, the output of `docker save` or `podman save`, or one layer of an image: a directory or an archive.

        If a layout has several images, `image` chooses one by its name or digest, and `platform` by its platform, such as `linux/arm64`.
        Files `.wh.NAME` and `.wh..wh..opq` of a layer hide files of lower layers.
        """
        return cls("oci", os.fsencode(path), _encoded(image), _encoded(platform))

    @classmethod
    def tar(cls, archive, name: str | None = None) -> "Content":
        """A tar archive that the method `read` of a file object returns. It may be compressed by gzip or zstd. `name` is its name in messages.

        The archive is stored in an unnamed temporary file beside the image before the volume is made.
        """
        return cls._stream("tar", archive, name)

    @classmethod
    def layer(cls, archive, name: str | None = None) -> "Content":
        """A layer of an image, otherwise like `tar`. Its files `.wh.NAME` and `.wh..wh..opq` hide files of earlier sources."""
        return cls._stream("layer", archive, name)

    @classmethod
    def _stream(cls, kind: str, archive, name: str | None) -> "Content":
        if not callable(getattr(archive, "read", None)):
            raise TypeError(f"a source is a path, a Content or a file object, not {type(archive).__name__}")
        if name is None and isinstance(named := getattr(archive, "name", None), str):
            name = named
        return cls(kind, archive, _encoded(name), None)

    @classmethod
    def volume(cls, location: Path, path: Path = "/") -> "Content":
        """The entries of a directory of another volume. The locations are those of `Volume`."""
        return cls("volume", os.fsencode(location), b"/" + os.fsencode(path).lstrip(b"/"), None)

    @classmethod
    def _of(cls, source) -> "Content":
        if isinstance(source, Content):
            return source
        return cls.path(source) if isinstance(source, (str, bytes, os.PathLike)) else cls.tar(source)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _sources(add) -> list[tuple]:
    # A single source is not iterated: iteration would yield the letters of a path, or the lines of a file object.
    alone = isinstance(add, (str, bytes, os.PathLike, Content)) or hasattr(add, "read")
    return [Content._of(source)._fields for source in ([add] if alone else add)]


def _node(path: Path, content, mode: int = 0o644, owner: tuple[int, int] = (0, 0)) -> tuple:
    return os.fsencode(path), bytes(memoryview(content)), mode, *owner


def _nodes(inject: Mapping) -> list[tuple]:
    return [_node(path, *(value if isinstance(value, tuple) else (value,))) for path, value in inject.items()]


def _shower(progress: Callable[[Progress], object] | None):
    return None if progress is None else lambda *fields: progress(Progress(*fields))


def build_image(
    image: Path,
    *,
    add: object = (),
    inject: Mapping | None = None,
    size: int | None = None,
    shrink: bool = False,
    label: str | None = None,
    uuid: _uuid.UUID | str | None = None,
    source_date_epoch: int | None = None,
    owner: tuple[int, int] | None = None,
    owners: Path | None = None,
    device_table: Path | None = None,
    block_size: int | None = None,
    inodes: int | None = None,
    compress: str | None = None,
    force: bool = False,
    skip_failed: bool = False,
    progress: Callable[[Progress], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> ImageInfo:
    """Makes an ext4 volume, and fills it. Nothing is mounted, and no privilege is needed.

    `image` is a path of a file or a block device, or a location of `Volume`. Files keep owners, modes, times, hard links, devices, holes,
    extended attributes and access control lists.

    - `add`: one source or several. A source is a path of a directory or of a tar archive, a file object from which an archive is read, or a
      `Content`. A later source replaces files of earlier sources.
    - `inject`: files to make after the sources are copied. Each path leads to the content, or to `(content, mode)` or
      `(content, mode, (uid, gid))`; the defaults are 0o644 and `(0, 0)`. Missing directories are made.
    - `size`: the size in bytes. Without it, a new image file gets space for its content and a tenth more, or with `shrink` hardly more than
      its content needs; a device or an existing image keeps its size.
    - `label`, `uuid`, `block_size`, `inodes`: the label (at most 16 bytes), the UUID, the block size in bytes, the number of inodes.
    - `source_date_epoch`: the time of a reproducible build, in seconds since 1970. The same sources and options then give the same bytes.
    - `owner`: the user and group of all files of all sources. `owners` is a file with lines `FROM-UID:FROM-GID TO-UID:TO-GID`.
    - `device_table`: a file in the format of genext2fs, for devices, directories, owners and modes.
    - `compress`: "deflate" or "zstd" makes a new image `qcow2:FILE` with compressed clusters.
    - `force`: overwrites a device or an image with known content, except for a member of an MD array or of an LVM volume group.
    - `skip_failed`: a file that cannot be copied is reported to `on_message`, and the build goes on.
    - `progress`: called with a `Progress`, at the first file, about every 0.1 seconds, and at the end.
    - `on_message`: called with each warning and note.

    All functions and file objects are called in the calling thread; other threads of Python run during the build. A signal, or an exception
    of a function or file object, ends the build and is raised. After an exception, a new image file is removed; only a signal that arrives as
    the build ends can be raised with the image complete.

    >>> path = disk + ".new"
    >>> made = ironmap.build_image(path, inject={"/etc/hostname": b"box\\n", "/run/key": (b"", 0o600)}, label="root", size=16 << 20)
    >>> made.size, made.label
    (16777216, 'root')
    >>> ironmap.Volume(path).open("/etc/hostname").read()
    b'box\\n'
    >>> ironmap.build_image(path)
    Traceback (most recent call last):
    FileExistsError: [Errno 17] contains an ext2, ext3 or ext4 file system: '...'
    >>> os.remove(path)
    """
    if size is not None and shrink:
        raise ValueError("size and shrink exclude each other")
    if size is not None and size < 0:
        raise ValueError("the size is negative")
    if uuid is not None and not isinstance(uuid, _uuid.UUID):
        uuid = _uuid.UUID(uuid)
    description = {
        "sources": _sources(add),
        "inject": _nodes(inject or {}),
        "size": size,
        "shrink": shrink,
        "label": None if label is None else label.encode(),
        "uuid": None if uuid is None else uuid.bytes,
        "source_date_epoch": source_date_epoch,
        "owner": owner,
        "owners": None if owners is None else os.fsencode(owners),
        "device_table": None if device_table is None else os.fsencode(device_table),
        "block_size": block_size,
        "inodes": inodes,
        "compress": compress,
        "force": force,
        "skip_failed": skip_failed,
    }
    made = _native.build_image(os.fsencode(image), description, _shower(progress), on_message)
    length, block, count, identity, name = made
    return ImageInfo(length, block, count, _uuid.UUID(bytes=bytes(identity)), bytes(name).decode(errors="replace"))


def extract_image(
    image: Path,
    path: Path,
    dest: Path,
    *,
    progress: Callable[[Progress], object] | None = None,
) -> None:
    """Copies a file of an image and, if it is a directory, everything below it, to the path `dest` of the host.

    The attributes that the host can store are kept. Only root can set the owners of the copies, and can copy device nodes. A file that cannot
    be copied is skipped, and the first such failure is raised at the end. `progress`, signals and exceptions have the same meaning as for
    `build_image`, but the files that were copied stay.

    >>> ironmap.extract_image(disk, "/etc/hosts", disk + ".hosts")
    >>> open(disk + ".hosts").read()
    '127.0.0.1 localhost\\n'
    >>> os.remove(disk + ".hosts")
    """
    _native.extract_image(os.fsencode(image), os.fsencode(path), os.fsencode(dest), _shower(progress))


def resize_image(image: Path, size: int | None) -> int:
    """Makes an ext4 volume larger or smaller, and returns its new size in bytes, which is a multiple of the block size.

    An image file is extended or truncated to the new size. With `None`, the volume gets the smallest size that is large enough for its data.
    After an error, the volume and the image file keep their sizes.

    >>> path = disk + ".new"
    >>> _ = ironmap.build_image(path, size=16 << 20)
    >>> ironmap.resize_image(path, 64 << 20)
    67108864
    >>> os.remove(path)
    """
    return _native.resize_image(os.fsencode(image), size)
