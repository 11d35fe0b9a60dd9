"""Whole disks, and hash trees of dm-verity."""

import os
import uuid as _uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import _native
from ._image import Path, Progress, _shower


class DiskPartInfo(NamedTuple):
    """A partition of a new disk."""

    type: _uuid.UUID
    """The GUID of the type."""
    guid: _uuid.UUID
    """The GUID of the partition."""
    start: int
    """The first byte on the disk."""
    size: int
    """The size in bytes."""
    label: str
    """The name in the table."""
    content: str
    """The content: "ext4", "FAT", "swap", "verity" or ""."""
    root_hash: str | None
    """The root hash in hexadecimal digits, if the partition has a hash tree of dm-verity in another partition."""


class DiskInfo(NamedTuple):
    """A new disk."""

    size: int
    """The size in bytes."""
    sector_size: int
    """The sector size in bytes."""
    guid: _uuid.UUID
    """The GUID of the disk."""
    parts: list[DiskPartInfo]
    """The partitions. The first partition has number 1."""


class VerityInfo(NamedTuple):
    """A hash tree of dm-verity."""

    root_hash: str
    """The root hash in hexadecimal digits."""
    offset: int
    """The position of the superblock on the device of the tree, in bytes."""
    size: int
    """The length of the superblock and the tree in bytes."""
    data_blocks: int
    """The number of data blocks."""
    data_block_size: int
    """The size of a data block in bytes."""
    hash_block_size: int
    """The size of a hash block in bytes."""
    salt: bytes
    """The salt."""
    uuid: _uuid.UUID
    """The UUID."""


def _bytes_of(uuid: _uuid.UUID | str | None) -> bytes | None:
    return None if uuid is None else (_uuid.UUID(uuid) if isinstance(uuid, str) else uuid).bytes


def build_disk(
    disk: Path,
    parts: str | Iterable[str],
    *,
    size: int | None = None,
    sector_size: int | None = None,
    guid: _uuid.UUID | str | None = None,
    seed: str | None = None,
    source_date_epoch: int | None = None,
    force: bool = False,
    progress: Callable[[Progress], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> DiskInfo:
    """Makes a disk (a GPT, partitions, and their content) in an image file or on a device.

    A partition is a text `TYPE:SIZE[:KEY=VALUE,...]`. TYPE is a name of the Discoverable Partitions Specification, such as `esp` or `root`,
    or a GUID. SIZE is a number of bytes with an optional K, M, G or T; `rest`, the remaining space; or `min`, the smallest size of the
    content. The keys are those of `ironmap disk`: `fs`, `files`, `label`, `fs-label`, `guid`, `fs-uuid`, `attrs`, `owner`.

    Without `size`, an image is as large as its partitions need; a device keeps its size. Without `seed`, GUIDs, UUIDs and salts are random,
    or derived from `source_date_epoch`. `force` overwrites known content. An image file is made under a temporary name. `progress`,
    `on_message`, signals and exceptions have the same meaning as for `build_image`.

    >>> path = disk + ".whole"
    >>> made = ironmap.build_disk(path, ["esp:16M", "root:32M:fs=ext4,label=root"])
    >>> [(part.content, part.size) for part in made.parts]
    [('FAT', 16777216), ('ext4', 33554432)]
    >>> with ironmap.Volume(path + "@p2") as volume:
    ...     volume.listdir("/")
    ['lost+found']
    >>> os.remove(path)
    """
    description = {
        "parts": [parts] if isinstance(parts, str) else list(parts),
        "size": size,
        "sector_size": sector_size,
        "guid": _bytes_of(guid),
        "seed": seed,
        "source_date_epoch": source_date_epoch,
        "force": force,
    }
    made = _native.build_disk(os.fsencode(disk), description, _shower(progress), on_message)
    length, sector, identity, found = made
    return DiskInfo(length, sector, _uuid.UUID(bytes=bytes(identity)), [_part(*part) for part in found])


def _part(kind, guid, start: int, size: int, label: str, content: str, root) -> DiskPartInfo:
    kind, guid = _uuid.UUID(bytes=bytes(kind)), _uuid.UUID(bytes=bytes(guid))
    return DiskPartInfo(kind, guid, start, size, label, content, None if root is None else bytes(root).hex())


def _tree(root: str, offset: int, salt, uuid, blocks: int, data: int, hashes: int, size: int) -> VerityInfo:
    return VerityInfo(root, offset, size, blocks, data, hashes, bytes(salt), _uuid.UUID(bytes=bytes(uuid)))


def make_verity(
    data: Path,
    hash: Path | None = None,
    *,
    salt: bytes | None = None,
    uuid: _uuid.UUID | str | None = None,
    data_block_size: int = 4096,
    hash_block_size: int = 4096,
    source_date_epoch: int | None = None,
    force: bool = False,
) -> VerityInfo:
    """Makes the hash tree with which dm-verity verifies the data of a device, an image or a partition. The format is that of veritysetup.

    The tree is written to `hash`, which is made if it does not exist; `force` overwrites known content there. Without `hash`, the tree is
    appended to the image file `data`. The data must not change afterwards. The salt and the UUID are random by default, or derived from
    `source_date_epoch`.

    >>> path = disk + ".hashes"
    >>> made = ironmap.make_verity(disk, path)
    >>> ironmap.check_verity(disk, made.root_hash, path)
    >>> os.remove(path)
    """
    description = {
        "salt": None if salt is None else bytes(salt),
        "uuid": _bytes_of(uuid),
        "data_block_size": data_block_size,
        "hash_block_size": hash_block_size,
        "source_date_epoch": source_date_epoch,
        "force": force,
    }
    place = None if hash is None else os.fsencode(hash)
    root, offset, fields = _native.make_verity(os.fsencode(data), place, description)
    return _tree(bytes(root).hex(), offset, *fields)


def check_verity(data: Path, root_hash: str, hash: Path | None = None) -> None:
    """Verifies each block of the data with the hash tree and the root hash, in hexadecimal digits.

    Without `hash`, the tree is at the end of the data. If a block does not match, an `OSError` with the errno `EUCLEAN` names it.
    """
    root = bytes.fromhex(root_hash)
    if len(root) != 32:
        raise ValueError("the root hash must have 64 hexadecimal digits")
    _native.check_verity(os.fsencode(data), None if hash is None else os.fsencode(hash), root)
