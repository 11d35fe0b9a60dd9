#!/usr/bin/env bash
# Builds the Debian package, installs the package into an empty root directory, uses the program there, and checks that the removal leaves
# no file.
source "$(dirname "$0")/../../../tests/lib.sh"
needs="dpkg, dpkg-shlibdeps, strip, gzip, xz, chroot, ldd, mount, umount, unshare"
# shellcheck disable=SC2086  # a list of words
if ! is_root || ! has cargo-deb ${needs//,/}; then
    skip "debian package: needs root, cargo-deb, $needs"
    exit
fi

# A root that contains only dpkg's database, the package, the libraries that the program loads, mount(8), and a few devices.
out=$target/tmp/debian-$$
root=$out/chroot
mkdir -p "$root"/{var/lib/dpkg/{info,updates},dev,proc,mnt,tmp,usr/{bin,sbin,lib,lib64}}
trap 'rm -rf "$out"' EXIT
ln -s usr/{bin,sbin,lib,lib64} "$root"
touch "$root/var/lib/dpkg/status"
mknod "$root/dev/null" c 1 3
mknod "$root/dev/urandom" c 1 9
mknod "$root/dev/fuse" c 10 229

# In this root, no package contains the libraries, so dpkg must ignore missing dependencies.
own_dpkg() { dpkg --force-depends --log=/dev/null --root "$root" "$@"; }
within() { chroot "$root" "$@"; }
# Copies the libraries that a program loads to the same paths in the root.
copy_libraries() {
    local library
    ldd "$root/$1" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$root$library"; done
}

crates/ironmap-cli/debian/build.sh --fast --output "$out/ironmap.deb"
own_dpkg --install "$out/ironmap.deb"
for file in man/man1/ironmap{,-mount}.1.gz bash-completion/completions/ironmap zsh/vendor-completions/_ironmap fish/vendor_completions.d/ironmap.fish; do
    [ -s "$root/usr/share/$file" ] || die "the package lacks usr/share/$file"
done
size=$(stat -c %s "$root/usr/bin/ironmap")
# The maximum size of the program in bytes.
[ "$size" -le 10000000 ] || die "the installed program has $size bytes, more than 10000000"
cp /usr/bin/mount /usr/bin/umount "$root/usr/bin/"
for program in mount umount ironmap; do copy_libraries "usr/bin/$program"; done

[ "$(within /usr/bin/ironmap --version)" = "ironmap $(workspace_value version)" ] || die "the installed program has another version"
for image in first second; do
    within /usr/bin/ironmap mkfs -q "/$image.img" 16M
done
within /usr/bin/ironmap ls first.img:/ | grep -q lost+found || die "the installed program does not list its own volume"
# Calls the helpers as mount(8) does with -f: the program only parses the options. mount(8) looks for these names below /sbin.
for helper in mount.ironmap mount.fuse.ironmap; do
    within "/usr/sbin/$helper" /first.img /usr -f -o ro
done

# Mounts volumes by both names that mount(8) looks for, and writes a file. umount(8) unmounts the first volume, and the program unmounts the
# second, because it waits until the server has ended. The end of the mount namespace removes all mounts, even after a failure.
if [ -e /dev/fuse ]; then
    (cd "$root" && unshare --mount sh -exc "
        mount -t proc proc proc
        chroot . /usr/bin/mount -t fuse.ironmap /first.img /mnt -o noatime
        grep ' fuse.ironmap ' proc/mounts
        chroot . /usr/bin/umount /mnt
        chroot . /usr/bin/mount -t ironmap /second.img /mnt
        echo written > mnt/file
        chroot . /usr/bin/ironmap umount /mnt
        if grep ' fuse.ironmap ' proc/mounts; then exit 1; fi")
    [ "$(within /usr/bin/ironmap cat second.img:/file)" = written ] || die "a file that was written through the mount is not there"
else
    skip "mounts of the debian package: need /dev/fuse"
fi

files=()
for file in $(own_dpkg --listfiles ironmap); do
    [ -d "$root$file" ] || files+=("$root$file")
done
[ ${#files[@]} -ge 10 ] || die "the package has ${#files[@]} files"
own_dpkg --purge ironmap
for file in "${files[@]}" "$root/usr/share/doc/ironmap"; do
    if [ -e "$file" ] || [ -L "$file" ]; then die "$file stays after the package is removed"; fi
done
echo "debian package: installed, used, mounted and removed, ${#files[@]} files"
