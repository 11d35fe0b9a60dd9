#!/usr/bin/env python3
"""Makes the files for the sandbox that need root or a kernel module otherwise.

make.py filter FILE      a seccomp filter: the three calls of io_uring fail with EPERM, as in containers
make.py lvm VOLUME DISK  a physical volume of LVM with the logical volume vg/root, whose content is VOLUME
make.py md VOLUME A B    an MD array of level 1 with two members, whose content is VOLUME
"""

import pathlib
import struct
import sys
import zlib

IO_URING = range(425, 428)
MIB = 1 << 20
EXTENT = 4 * MIB


def filter_of(file):
    """Five instructions of classic BPF: load the number of the call; from the first to the last number of io_uring return EPERM."""
    load, at_least, above, answer = 0x20, 0x35, 0x25, 0x06
    errno, allow = 0x00050001, 0x7FFF0000
    code = [(load, 0, 0, 0), (at_least, 0, 2, IO_URING[0]), (above, 1, 0, IO_URING[-1]), (answer, 0, 0, errno), (answer, 0, 0, allow)]
    pathlib.Path(file).write_bytes(b"".join(struct.pack("<HBBI", *one) for one in code))


def write_content(out, volume):
    """Copies a volume to offset 1 MiB of a disk, and leaves holes for zeros."""
    content = pathlib.Path(volume).read_bytes()
    for at in range(0, len(content), MIB):
        if any(piece := content[at : at + MIB]):
            out.seek(MIB + at)
            out.write(piece)


def lvm_crc(data):
    return zlib.crc32(data, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


def lvm(volume, disk):
    count = -(-pathlib.Path(volume).stat().st_size // EXTENT)
    size = MIB + count * EXTENT
    dashed = lambda text: "-".join((text[:6], *(text[at : at + 4] for at in range(6, 26, 4)), text[26:]))
    text = f"""vg {{
id = "{dashed("v" * 32)}"
seqno = 1
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = {EXTENT // 512}
max_lv = 0
max_pv = 0
metadata_copies = 0
physical_volumes {{
pv0 {{
id = "{dashed("p" * 32)}"
device = "/dev/none"
status = ["ALLOCATABLE"]
flags = []
dev_size = {size // 512}
pe_start = {MIB // 512}
pe_count = {count}
}}
}}
logical_volumes {{
root {{
id = "{dashed("l" * 32)}"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {{
start_extent = 0
extent_count = {count}
type = "striped"
stripe_count = 1
stripes = ["pv0", 0]
}}
}}
}}
}}
contents = "Text Format Volume Group"
version = 1
description = ""
creation_host = "none"
creation_time = 1700000000
""".encode() + b"\0"
    header = struct.pack("<16sIQQ", b" LVM2 x[5A%r0N*>", 1, 4096, MIB - 4096)
    header += struct.pack("<QQII", 512, len(text), lvm_crc(text), 0)
    header = header.ljust(508, b"\0")
    volume_header = struct.pack("<32sQ8Q", b"p" * 32, size, MIB, 0, 0, 0, 4096, MIB - 4096, 0, 0)
    label = (struct.pack("<I8s", 32, b"LVM2 001") + volume_header).ljust(492, b"\0")
    label = struct.pack("<8sQI", b"LABELONE", 1, lvm_crc(label)) + label
    with open(disk, "wb") as out:
        out.write(bytes(512) + label)
        out.seek(4096)
        out.write(struct.pack("<I", lvm_crc(header)) + header + text)
        write_content(out, volume)
        out.truncate(size)


def md(volume, *members):
    sectors = pathlib.Path(volume).stat().st_size // 512
    for number, member in enumerate(members):
        block = struct.pack("<4I16s32sQiIQIII", 0xA92B4EFC, 1, 0, 0, b"sandbox array 01", b"none:0", 0, 1, 0, sectors, 0, len(members), 0)
        block = block.ljust(128, b"\0") + struct.pack("<4Q2I16s", MIB // 512, sectors, 8, 0, number, 0, b"member %08d." % number)
        block = block.ljust(192, b"\0") + struct.pack("<3Q2I", 0, 1, 2**64 - 1, 0, len(members))
        block = block.ljust(256, b"\0") + struct.pack(f"<{len(members)}H", *range(len(members)))
        total = sum(struct.unpack(f"<{len(block) // 4}I", block))
        folded = (total & 0xFFFFFFFF) + (total >> 32)
        block = block[:216] + struct.pack("<I", folded & 0xFFFFFFFF) + block[220:]
        with open(member, "wb") as out:
            out.seek(4096)
            out.write(block)
            write_content(out, volume)
            out.truncate(MIB + sectors * 512)


{"filter": filter_of, "lvm": lvm, "md": md}[sys.argv[1]](*sys.argv[2:])
