"""Direct I/O on the files of a Linux file system, from user space.

`Volume` opens an unmounted ext2, ext3, ext4 or XFS file system: a device, an image, a partition, a qcow2 image, an NBD export. `open` opens a
file of a mounted file system, and reads it around the kernel while a lease excludes writers. `build_image` makes an ext4 image and fills it. `build_disk`
makes a disk with partitions.

>>> import ironmap
>>> with ironmap.Volume(disk) as volume:
...     sorted(volume.listdir("/"))
...     with volume.open("/etc/hosts") as file:
...         file.read()
['etc', 'lost+found', 'srv']
b'127.0.0.1 localhost\\n'

Files and volumes can be used in all threads. They can be pickled, and used after a fork: the other process opens them again.
"""

import atexit as _atexit
import os as _os
from importlib.metadata import version as _version

from . import _native
from ._disk import DiskInfo, DiskPartInfo, VerityInfo, build_disk, check_verity, make_verity
from ._file import File
from ._image import Content, ImageInfo, Progress, build_image, extract_image, resize_image
from ._volume import DirEntry, Finding, Volume, _close_all, open

__all__ = [
    "Content",
    "DirEntry",
    "DiskInfo",
    "DiskPartInfo",
    "File",
    "Finding",
    "ImageInfo",
    "Progress",
    "VerityInfo",
    "Volume",
    "build_disk",
    "build_image",
    "check_verity",
    "extract_image",
    "make_verity",
    "open",
    "resize_image",
]
__version__ = _version("ironmap")

_native.require_main_interpreter()
_os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork,
)


@_atexit.register
def _end() -> None:
    # No call of a daemon thread may be in flight when the interpreter ends.
    _native.end()
    _close_all()
