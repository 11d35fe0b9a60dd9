"""The names of a volume, compared with the tree of the host from which mke2fs made the image."""

import errno
import os
import stat
import subprocess
import sys
import textwrap

import pytest
from conftest import BIG, make_image, run

import ironmap


def names(walk, root):
    return {
        (os.path.relpath(directory, root), frozenset(names), frozenset(others)) for directory, names, others in walk
    }


@pytest.mark.parametrize("topdown", [True, False])
@pytest.mark.parametrize("followlinks", [True, False])
def test_a_walk_visits_the_tree_of_the_host(volume, tree, topdown, followlinks):
    ours = names(volume.walk("/", topdown, followlinks=followlinks), "/")
    theirs = names(os.walk(tree, topdown, followlinks=followlinks), tree)
    lost = {entry for entry in ours if entry[0] == "lost+found"}
    root = next(entry for entry in theirs if entry[0] == ".")
    theirs = theirs - {root} | {(".", root[1] | {"lost+found"}, root[2])}
    assert ours - lost == theirs


def test_a_walk_descends_only_into_the_names_that_are_left(volume):
    visited = []
    for directory, below, _ in volume.walk("/"):
        visited.append(directory)
        below[:] = [name for name in below if name == "srv"]
    assert visited == ["/", "/srv"]


def test_a_walk_reports_errors(volume):
    errors = []
    assert list(volume.walk("/nowhere", onerror=errors.append)) == []
    assert [error.errno for error in errors] == [errno.ENOENT]


def test_a_listing_without_all_names_ends_with_an_error(tmp_path):
    (tmp_path / "tree/many").mkdir(parents=True)
    names = [f"{'x' * 200}{number}" for number in range(40)]
    for name in names:
        (tmp_path / "tree/many" / name).touch()
    image = make_image(tmp_path / "damaged.img", tmp_path / "tree")
    block = int(run("debugfs", "-R", "bmap many 1", image))
    with open(image, "r+b") as file:
        file.seek(block * 4096)
        file.write(bytes(4096))
    with ironmap.Volume(image) as volume:
        entries, found = volume.scandir("/many"), []
        with pytest.raises(OSError) as failed:
            for entry in entries:
                found.append(entry.name)
        assert failed.value.errno == errno.EUCLEAN
        assert found and set(found) < set(names)
        with pytest.raises(OSError):
            volume.listdir("/many")
        failures = []
        walked = {directory: names for directory, _, names in volume.walk("/", onerror=failures.append)}
        assert walked["/many"] == found
        assert [failure.errno for failure in failures] == [errno.EUCLEAN]


def test_attributes_are_those_of_the_host(volume, tree):
    for path in ("etc", "etc/hosts", "srv/data/big", "srv/link", "srv/dangling", "srv/setuid"):
        ours, theirs = volume.lstat(path), os.lstat(tree / path)
        for field in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime"):
            assert int(getattr(ours, field)) == int(getattr(theirs, field)) or (
                field == "st_size" and stat.S_ISDIR(ours.st_mode)
            ), (path, field)
    assert volume.stat("/srv/link").st_size == len(BIG)
    assert volume.stat("/srv/link").st_mtime_ns // 10**9 == int(os.stat(tree / "srv/link").st_mtime)
    assert isinstance(volume.stat("/"), os.stat_result) and volume.stat("/").st_blksize == 4096


def test_entries_have_the_interface_of_scandir(volume, tree):
    with volume.scandir("/srv") as ours, os.scandir(tree / "srv") as theirs:
        ours, theirs = {entry.name: entry for entry in ours}, {entry.name: entry for entry in theirs}
    assert ours.keys() == theirs.keys() == set(volume.listdir(b"/srv"))
    for name, entry in ours.items():
        for follow in (True, False):
            for ask in ("is_dir", "is_file"):
                call, other = getattr(entry, ask), getattr(theirs[name], ask)
                assert call(follow_symlinks=follow) == other(follow_symlinks=follow), (name, ask)
        assert entry.is_symlink() == theirs[name].is_symlink()
        assert entry.inode() == entry.stat(follow_symlinks=False).st_ino
        assert entry.path == f"/srv/{name}"


def test_names_that_are_no_text_are_read(volume):
    name = os.fsdecode(b"/srv/\xff\xfe")
    assert volume.open(name).read() == volume.open(b"/srv/\xff\xfe").read() == b"bytes"
    with pytest.raises(FileNotFoundError) as found:
        volume.open(name + "no")
    assert found.value.filename == name + "no"


def test_links_are_read(volume):
    assert (volume.readlink("/srv/link"), volume.readlink("srv/dangling")) == ("data/big", "nowhere")
    with pytest.raises(OSError) as found:
        volume.readlink("/etc/hosts")
    assert found.value.errno == errno.EINVAL
    assert volume.exists("/srv/link") and not volume.exists("/srv/dangling") and not volume.exists("/etc/hosts/x")


def test_names_are_changed(writable, own_disk):
    writable.mkdir("/dir", 0o700)
    assert stat.S_IMODE(writable.stat("/dir").st_mode) == 0o700
    writable.makedirs("/a/b/c")
    writable.makedirs("/a/b/c", exist_ok=True)
    for call in (lambda: writable.mkdir("/dir"), lambda: writable.makedirs("/a/b/c")):
        with pytest.raises(FileExistsError):
            call()
    with writable.open("/dir/file", "wb", 0o4711) as file:
        file.write(b"content")
    assert stat.S_IMODE(writable.stat("/dir/file").st_mode) == 0o711  # a write removes the bit
    writable.chmod("/dir/file", 0o640)
    writable.link("/dir/file", "/dir/second")
    assert writable.stat("/dir/second").st_nlink == 2
    writable.symlink("file", "/dir/link")
    assert writable.open("/dir/link").read() == b"content"
    writable.rename("/dir/second", "/etc/hosts")
    assert writable.open("/etc/hosts").read() == b"content"
    with pytest.raises(OSError) as found:
        writable.rmdir("/dir")
    assert found.value.errno == errno.ENOTEMPTY
    for name in ("file", "link"):
        writable.unlink(f"/dir/{name}")
    writable.rmdir("/dir")
    with pytest.raises(FileNotFoundError):
        writable.unlink("/dir/file")
    with pytest.raises(IsADirectoryError):
        writable.unlink("/a")
    writable.sync()
    writable.close()
    assert "content" in run("debugfs", "-R", "cat /etc/hosts", own_disk)


def test_an_unlinked_file_stays_open(writable):
    file = writable.open("/gone", "w+b")
    file.write(b"still here")
    writable.unlink("/gone")
    assert file.pread(100, 0) == b"still here" and not writable.exists("/gone")


def test_attributes_are_listed_set_and_removed(writable):
    assert writable.listxattr("/etc/hosts") == []
    writable.setxattr("/etc/hosts", "user.colour", b"red\0", os.XATTR_CREATE)
    writable.setxattr("/etc/hosts", b"user.big", b"x" * 2000)
    assert sorted(writable.listxattr("/etc/hosts")) == ["user.big", "user.colour"]
    assert writable.getxattr("/etc/hosts", "user.colour") == b"red\0"
    for call, wanted in (
        (lambda: writable.setxattr("/etc/hosts", "user.colour", b"", os.XATTR_CREATE), errno.EEXIST),
        (lambda: writable.setxattr("/etc/hosts", "user.other", b"", os.XATTR_REPLACE), errno.ENODATA),
        (lambda: writable.getxattr("/etc/hosts", "user.other"), errno.ENODATA),
        (lambda: writable.setxattr("/etc/hosts", "wrong.prefix", b""), errno.EOPNOTSUPP),
    ):
        with pytest.raises(OSError) as found:
            call()
        assert found.value.errno == wanted
    writable.removexattr("/etc/hosts", "user.colour")
    assert writable.listxattr("/etc/hosts") == ["user.big"]
    with pytest.raises(ValueError):
        writable.setxattr("/etc/hosts", "user.x", b"", 4)


def test_a_check_names_the_fault(own_disk, tmp_path):
    with ironmap.Volume(own_disk) as volume:
        assert all(finding.severity == "note" for finding in volume.check())
        inode = volume.stat("/etc/hosts").st_ino
    damaged = tmp_path / "damaged.img"
    damaged.write_bytes(open(own_disk, "rb").read())
    run("debugfs", "-w", "-R", f"sif <{inode}> links_count 7", damaged)
    with ironmap.Volume(damaged) as volume:
        findings = [finding for finding in volume.check() if finding.inode == inode]
    assert [(finding.kind, finding.severity) for finding in findings] == [("link_count", "repairable")]


def test_changes_of_a_volume_for_reading_are_refused(volume):
    for call in (
        lambda: volume.mkdir("/x"), lambda: volume.unlink("/etc/hosts"), lambda: volume.rename("/etc", "/x"),
        lambda: volume.symlink("x", "/x"), lambda: volume.setxattr("/etc", "user.x", b""), lambda: volume.rmdir("/etc"),
        lambda: volume.chmod("/etc", 0), lambda: volume.open("/etc/hosts", "r+b"),
    ):  # fmt: skip
        with pytest.raises(OSError) as found:
            call()
        assert found.value.errno == errno.EROFS


def test_a_volume_in_use_is_busy(own_disk):
    with ironmap.Volume(own_disk, write=True):
        with pytest.raises(OSError) as found:
            ironmap.Volume(own_disk)
        assert found.value.errno == errno.EBUSY
    with ironmap.Volume(own_disk), ironmap.Volume(own_disk):
        pass


def test_names_have_the_encoding_of_python(tmp_path):
    """The rule: with each encoding of the locale, a name that is listed can be opened."""
    image = tmp_path / "names.img"
    ironmap.build_image(image, inject={"/\u00e9/\u4e2d": b"1", b"/\xff": b"2"}, size=8 << 20)
    script = """
    import os, sys, ironmap
    volume = ironmap.Volume(sys.argv[1])
    for top, _, names in volume.walk("/"):
        for name in names:
            print(volume.open(os.path.join(top, name)).read().decode())
    """
    for mode in ("0", "1"):
        environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": mode, "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-c", textwrap.dedent(script), str(image)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (sorted(result.stdout.split()), result.stderr) == (["1", "2"], "")
