#!/usr/bin/env bash
# Installs the packages of DIRECTORY/packages in a system, uses them, and removes them: installed.sh SYSTEM DIRECTORY VERSION
#
# The caller has made a mount namespace. The system is not changed: what the test writes is in DIRECTORY/layer.
source "$(dirname "$0")/../tests/lib.sh"
system=$1 out=$2 version=$3
names=(ironmap libironmap0 libironmap-dev python3-ironmap)

mount -t tmpfs tmpfs "$out/layer"
root=$out/layer/root files=$out/layer/files
mkdir -p "$root" "$files" "$out/layer/work"
mount -t overlay -o "lowerdir=$system,upperdir=$files,workdir=$out/layer/work" overlay "$root"
cp -a /dev/null /dev/urandom "$root/dev"
[ ! -e /dev/fuse ] || cp -a /dev/fuse "$root/dev"
cp -r "$out/packages" "$root/mnt/packages"
within() { chroot "$root" env -i LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

# The files and directories, except dpkg's records, caches, and what the test and mount(8) write.
list() { (cd "$root" && find . -xdev ! -path './var/*' ! -path './mnt/*' ! -path './run/*' | sort); }
list >"$out/before"
within sh -c 'dpkg --install /mnt/packages/*.deb'

# The program runs without /proc.
for file in man/man1/ironmap{,-mount}.1.gz man/man8/mount.ironmap.8.gz bash-completion/completions/ironmap zsh/vendor-completions/_ironmap fish/vendor_completions.d/ironmap.fish; do
    [ -s "$root/usr/share/$file" ] || die "the package lacks usr/share/$file"
done
[ "$(within ironmap --version)" = "ironmap $version" ] || die "the installed program has another version"
for image in first second; do within ironmap mkfs -q "/mnt/$image.img" 16M; done
within ironmap ls /mnt/first.img:/ | grep -q lost+found || die "the installed program does not list its own volume"
# Calls the helpers as mount(8) does with -f: the program only parses the options.
for helper in mount.ironmap mount.fuse.ironmap; do within "/sbin/$helper" /mnt/first.img /usr -f -o ro; done

# Mounts volumes by both names that mount(8) looks for, and writes a file. umount(8) unmounts the first volume, and the program unmounts the
# second, because it waits until the server has ended.
mount -t proc proc "$root/proc"
mkdir "$root/mnt/mounted"
if [ -e /dev/fuse ]; then
    within mount -t fuse.ironmap /mnt/first.img /mnt/mounted -o noatime
    within umount /mnt/mounted
    within mount -t ironmap /mnt/second.img /mnt/mounted
    grep ' fuse.ironmap ' "$root/proc/mounts"
    echo written >"$root/mnt/mounted/file"
    within ironmap umount /mnt/mounted
    ! grep ' fuse.ironmap ' "$root/proc/mounts" || die "a volume is still mounted"
else
    skip "mounts of the debian package: need /dev/fuse"
    echo written | within ironmap cp - /mnt/second.img:/file
fi

# A program in C, with the shared library and with the static one.
cat >"$root/mnt/read.c" <<'TEXT'
#include <fcntl.h>
#include <ironmap.h>
#include <stdio.h>
int main(void) {
    struct ironmap_volume *volume;
    struct ironmap_queue *queue;
    struct ironmap_file *file;
    char text[64];
    if (ironmap_volume_open("/mnt/second.img", NULL, NULL, 0, &volume) || ironmap_volume_queue(volume, 0, &queue)) return 1;
    if (ironmap_open(queue, "/file", O_RDONLY, 0, &file)) return 2;
    fwrite(text, 1, ironmap_pread(file, text, sizeof text, 0), stdout);
    return ironmap_queue_free(queue) || ironmap_volume_close(volume);
}
TEXT
# shellcheck disable=SC2016  # the shell in the system expands the lines
within sh -exc '
    cd /mnt
    cc -Wall -Werror -o shared read.c $(pkg-config --cflags --libs ironmap)
    cc -Wall -Werror -o static read.c $(pkg-config --cflags ironmap) -l:libironmap.a $(pkg-config --static --libs ironmap | sed s/-lironmap//)
    if ldd static | grep ironmap; then exit 1; fi'
for program in shared static; do
    [ "$(within "/mnt/$program")" = written ] || die "the C program with the $program library does not read the file"
done

# The Python module, and the file system that fsspec finds by the entry point.
cat >"$root/mnt/read.py" <<'TEXT'
import importlib.metadata
import ironmap

with ironmap.Volume("/mnt/second.img") as volume, volume.open("/file") as file:
    assert file.read() == b"written\n"
assert [entry.name for entry in importlib.metadata.entry_points(group="fsspec.specs")] == ["ironmap"]
print(importlib.metadata.version("ironmap"))
TEXT
[ "$(within python3 /mnt/read.py)" = "$version" ] || die "the Python package has another version"

installed=$(list | comm -13 "$out/before" - | wc -l)
[ "$installed" -ge 100 ] || die "the packages have $installed files and directories"
within dpkg --purge "${names[@]}"
list | diff "$out/before" - || die "the removal leaves or removes the files above"
if within dpkg --status "${names[@]}" >/dev/null 2>&1; then die "dpkg has records of removed packages"; fi
echo "debian packages: installed, used, mounted and removed, $installed files and directories"
