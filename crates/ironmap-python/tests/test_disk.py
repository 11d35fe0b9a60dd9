"""Whole disks and hash trees that Python makes, compared with the views of sgdisk, veritysetup and qemu-img. No test needs root."""

import errno
import os
import re
import uuid

import pytest
from conftest import fsck, need, run

import ironmap

EPOCH = 1_700_000_000
PARTS = ["esp:64M:label=boot", "root:32M:fs=ext4,label=root", "root-verity:1M", "swap:1M", "linux-generic:rest"]


def test_sgdisk_sees_the_partitions_of_a_disk(tmp_path, tree):
    path, messages = str(tmp_path / "disk.img"), []
    parts = [part.replace("fs=ext4", f"files={tree}") for part in PARTS]
    made = ironmap.build_disk(path, parts, size=128 << 20, guid=uuid.UUID(int=7), seed="seed", on_message=messages.append)
    assert made.size == os.path.getsize(path) == 128 << 20 and made.sector_size == 512 and made.guid == uuid.UUID(int=7)
    assert [part.content for part in made.parts] == ["FAT", "ext4", "verity", "swap", ""] and messages == []
    with ironmap.Volume(path + "@p2") as volume:
        assert volume.open("/etc/hosts").read() == (tree / "etc/hosts").read_bytes()
    ironmap.check_verity(path + "@p2", made.parts[1].root_hash, path + "@p3")
    need("sgdisk")
    assert "No problems found" in run("sgdisk", "--verify", path)
    for number, part in enumerate(made.parts, 1):
        shown = run("sgdisk", f"--info={number}", path)
        assert str(part.guid).upper() in shown and str(part.type).upper() in shown
        first, last = (int(re.search(f"{which} sector: (\\d+)", shown)[1]) for which in ("First", "Last"))
        assert (first * 512, (last + 1 - first) * 512) == (part.start, part.size)


def test_equal_descriptions_make_equal_disks(tmp_path):
    made = []
    for name in ("one.img", "two.img"):
        info = ironmap.build_disk(tmp_path / name, ["root:8M:fs=ext4", "root-verity:1M"], source_date_epoch=EPOCH)
        made.append((info, (tmp_path / name).read_bytes()))
    assert made[0] == made[1]


def test_wrong_disks_are_refused(tmp_path):
    path = tmp_path / "disk.img"
    for parts in (["root"], ["root:1M:colour=red"], ["nothing:1M"]):
        with pytest.raises(ValueError, match=parts[0]):
            ironmap.build_disk(path, parts)
    with pytest.raises(OSError) as raised:
        ironmap.build_disk(path, "root:8K:fs=ext4")
    assert raised.value.errno == errno.ENOSPC and not path.exists()
    ironmap.build_disk(path, "root:8M:fs=ext4")
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        ironmap.build_disk(path, "root:8M:fs=ext4")
    assert path.read_bytes() == before
    ironmap.build_disk(path, "home:4M:fs=ext4", force=True)
    assert len(path.read_bytes()) < len(before)


@pytest.mark.parametrize("sizes", [(4096, 4096), (512, 1024), (1024, 512)])
def test_veritysetup_has_the_same_tree(tmp_path, disk, sizes):
    hashes, salt = str(tmp_path / "hashes"), bytes(range(32))
    data_block_size, hash_block_size = sizes
    made = ironmap.make_verity(
        disk, hashes, salt=salt, uuid=uuid.UUID(int=5), data_block_size=data_block_size, hash_block_size=hash_block_size
    )
    assert (made.salt, made.uuid, made.offset, made.size) == (salt, uuid.UUID(int=5), 0, os.path.getsize(hashes))
    assert made.data_blocks * data_block_size == os.path.getsize(disk)
    ironmap.check_verity(disk, made.root_hash, hashes)
    need("veritysetup")
    run("veritysetup", "verify", disk, hashes, made.root_hash)
    theirs = str(tmp_path / "theirs")
    said = run(
        "veritysetup", "format", disk, theirs, f"--salt={salt.hex()}", f"--uuid={uuid.UUID(int=5)}",
        f"--data-block-size={data_block_size}", f"--hash-block-size={hash_block_size}",
    )  # fmt: skip
    assert made.root_hash in said
    with open(hashes, "rb") as ours, open(theirs, "rb") as other:
        assert ours.read() == other.read()


def test_a_changed_block_is_named(tmp_path):
    path = str(tmp_path / "root.img")
    ironmap.build_image(path, size=8 << 20)
    made = ironmap.make_verity(path)
    assert made.offset == 8 << 20
    ironmap.check_verity(path, made.root_hash)
    with open(path, "r+b") as file:
        file.seek(5 * 4096 + 7)
        file.write(b"x")
    with pytest.raises(OSError, match="data block 5 ") as raised:
        ironmap.check_verity(path, made.root_hash)
    assert raised.value.errno == errno.EUCLEAN
    with pytest.raises(ValueError, match="64"):
        ironmap.check_verity(path, "ab")
    with pytest.raises(OSError, match="already"):
        ironmap.make_verity(path)


@pytest.mark.parametrize("method", ["deflate", "zstd"])
def test_qemu_reads_a_compressed_image(tmp_path, tree, method):
    path, raw = str(tmp_path / "disk.qcow2"), str(tmp_path / "disk.img")
    ironmap.build_image(f"qcow2:{path}", add=tree, size=32 << 20, compress=method)
    with ironmap.Volume(f"qcow2:{path}") as volume:
        assert volume.open("/etc/hosts").read() == (tree / "etc/hosts").read_bytes()
    with pytest.raises(ValueError, match="deflate"):
        ironmap.build_image("qcow2:" + path + "2", size=32 << 20, compress="lzma")
    with pytest.raises(OSError, match="only a new image can be compressed"):
        ironmap.build_image(tmp_path / "raw.img", size=32 << 20, compress=method)
    need("qemu-img", "e2fsck")
    run("qemu-img", "check", path)
    run("qemu-img", "convert", "-O", "raw", path, raw)
    fsck(raw)
