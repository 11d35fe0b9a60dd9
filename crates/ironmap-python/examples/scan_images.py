"""Lists the installed packages and the set-user-ID files of all images in a directory: `scan_images.py DIRECTORY`.

Several processes read the images, which are not mounted. The script prints one JSON object for each file system.
"""

import json
import multiprocessing
import os
import sqlite3
import stat
import struct
import sys

import ironmap

PREFIXES = {".qcow2": "qcow2:", ".vmdk": "vmdk:", ".vhdx": "vhdx:"}


def paragraphs(text, name, version):
    """The packages in a status file of dpkg or apk: paragraphs of lines `KEY: VALUE` or `KEY:VALUE`."""
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(":", 1) for line in paragraph.splitlines() if ":" in line and line[0] != " ")
        if name in fields and "deinstall" not in fields.get("Status", ""):
            yield f"{fields[name].strip()} {fields.get(version, '').strip()}"


def rpm_packages(database):
    """The packages in rpmdb.sqlite. A header has an index of tags; 1000 to 1002 are name, version and release."""
    connection = sqlite3.connect(":memory:")
    connection.deserialize(database)
    for (blob,) in connection.execute("SELECT blob FROM Packages"):
        (count,) = struct.unpack_from(">I", blob)
        entries = (struct.unpack_from(">IIII", blob, 8 + 16 * index) for index in range(count))
        start = {tag: 8 + 16 * count + offset for tag, _, offset, _ in entries}
        words = [blob[start[tag] :].split(b"\0", 1)[0].decode() for tag in (1000, 1001, 1002) if tag in start]
        if words:
            yield f"{words[0]} {'-'.join(words[1:])}"


DATABASES = {
    "/var/lib/dpkg/status": lambda data: paragraphs(data.decode(errors="replace"), "Package", "Version"),
    "/lib/apk/db/installed": lambda data: paragraphs(data.decode(errors="replace"), "P", "V"),
    "/usr/lib/sysimage/rpm/rpmdb.sqlite": rpm_packages,
    "/var/lib/rpm/rpmdb.sqlite": rpm_packages,
}


def volumes(path):
    """The volumes of an image: the image as a whole, or its partitions."""
    image = PREFIXES.get(os.path.splitext(path)[1], "") + path
    for location in [image, *(f"{image}@p{number}" for number in range(1, 17))]:
        try:
            yield ironmap.Volume(location)
        except OSError:
            continue  # no such partition, or no file system that ironmap knows


def scan(path):
    found = []
    for volume in volumes(path):
        with volume:
            packages = set()
            for database, read in DATABASES.items():
                try:
                    with volume.open(database) as file:
                        packages.update(read(file.read()))
                except (OSError, sqlite3.DatabaseError):
                    continue
            set_uid = [
                os.path.join(directory, name)
                for directory, _, names in volume.walk("/")
                for name in names
                if (mode := volume.lstat(os.path.join(directory, name)).st_mode) & stat.S_ISUID and stat.S_ISREG(mode)
            ]
            found.append({"volume": volume.location, "packages": sorted(packages), "set_uid": sorted(set_uid)})
    return found


def main():
    images = sorted(entry.path for entry in os.scandir(sys.argv[1]) if entry.is_file())
    with multiprocessing.Pool() as pool:
        for found in pool.imap(scan, images):
            for volume in found:
                print(json.dumps(volume))


if __name__ == "__main__":
    main()
