#!/usr/bin/env bash
# Makes five broken images in DIR from a tree of this machine: tests/rescue/images.sh DIR
#
# DIR/tree is the tree, without links, empty files and files with equal content. So each content has one right place. mke2fs, mkfs.xfs, lvm
# and Linux make and fill the volumes, and ironmap has no part in it. The positions of the damage follow from the structure of the volumes,
# not from random numbers. Linux runs in guestfish's virtual machine, so the script needs neither root nor mounts.
source "$(dirname "$0")/../lib.sh"
dir=$(realpath "$1")
uuid=5eed0000-0000-4000-8000-00000000000

# A tree of three kinds of files: documents (compressed and plain), headers in deep directories, programs.
make_tree() {
    mkdir "$dir/tree"
    {
        find /usr/share/doc -type f -size -600k | LC_ALL=C sort | sed -n 1,2600p
        find /usr/include/linux /usr/include/c++ -type f | LC_ALL=C sort | sed -n 1,1700p
        find /usr/bin -type f -size +100k -size -1500k | LC_ALL=C sort | sed -n 1,60p
    } >"$dir/files"
    python3 - "$dir" <<'PYTHON'
import hashlib, pathlib, sys
root, seen = pathlib.Path(sys.argv[1]), set()
for line in (root / "files").read_text().splitlines():
    content = pathlib.Path(line).read_bytes()
    digest = hashlib.sha256(content).digest()
    if content and digest not in seen:
        seen.add(digest)
        copy = root / "tree" / line.removeprefix("/usr/").removeprefix("share/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
PYTHON
    [ "$(find "$dir/tree" -type f | wc -l)" -ge 2000 ] || die "the tree of this machine has fewer than 2000 files"
    tar --create --sort=name --mtime=@1700000000 --owner=0 --group=0 --directory "$dir/tree" --file "$dir/tree.tar" .
}

# ext4 IMAGE LAST-DIGIT-OF-UUID [ARGUMENTS]: a volume of 1 GiB with blocks of 4 KiB in eight groups.
ext4() { mke2fs -q -t ext4 -b 4096 -U "$uuid$2" -E "hash_seed=$uuid$2,lazy_itable_init=0" "${@:3}" "$dir/$1" 1G; }

# damage IMAGE BLOCK [COUNT]: overwrites blocks of 4 KiB with one byte value that is no valid structure.
damage() {
    head -c $((4096 * ${3:-1})) /dev/zero | tr '\0' '\245' |
        dd of="$dir/$1" bs=4096 seek="$2" conv=notrunc status=none
}

ask() { debugfs -R "$2" "$dir/$1" 2>/dev/null; }

# The first superblock and the group descriptors are zeros, as after a wipe of the beginning.
superblock() {
    ext4 superblock.img 1 -d "$dir/tree"
    dd if=/dev/zero of="$dir/superblock.img" bs=4096 count=2 conv=notrunc status=none
}

# The second block of a large directory, and the block of the inode table that contains the inode of a directory with a large subtree.
blocks() {
    local directory table
    ext4 blocks.img 2 -d "$dir/tree"
    directory=$(ask blocks.img 'bmap /doc 1')
    table=$(ask blocks.img 'imap /include/c++' | sed -n 's/.*located at block \([0-9]*\),.*/\1/p')
    [[ $directory =~ ^[0-9]+$ && $table =~ ^[0-9]+$ ]] || die "debugfs does not find the blocks to damage"
    damage blocks.img "$directory"
    damage blocks.img "$table"
}

# Linux fills the volumes, so their journals contain the writes. It removes the subtree in a later mount. The features are those of older
# volumes, because extundelete reads no journal with checksums.
by_linux() {
    ext4 deleted.img 3 -O ^metadata_csum,^64bit
    truncate -s 1G "$dir/xfs.img"
    mkfs.xfs -q -m uuid="${uuid}4" -d agcount=4 "$dir/xfs.img"
    truncate -s 1G "$dir/disk.img"
    sgdisk --disk-guid="${uuid}5" --new=1:2048:0 --typecode=1:8e00 --partition-guid=1:"${uuid}6" "$dir/disk.img" >/dev/null
    guestfish -a "$dir/deleted.img" --format=raw -a "$dir/xfs.img" --format=raw -a "$dir/disk.img" <<COMMANDS
run
mount /dev/sda /
tar-in $dir/tree.tar /
umount /
mount /dev/sda /
rm-rf /include
umount /
mount /dev/sdb /
tar-in $dir/tree.tar /
umount /
pvcreate /dev/sdc1
vgcreate vg /dev/sdc1
lvcreate root vg 1000
mke2fs /dev/vg/root fstype:ext4 blocksize:4096
mount /dev/vg/root /
tar-in $dir/tree.tar /
umount /
vg-activate-all false
COMMANDS
}

# The first superblock, and the root of the inode B-tree of the group that contains most files.
xfs() {
    local agblocks group root
    agblocks=$(xfs_db -r -c 'sb 0' -c 'print agblocks' "$dir/xfs.img" | sed 's/.* //')
    group=$(for group in 0 1 2 3; do
        echo "$(xfs_db -r -c "agi $group" -c 'print count' "$dir/xfs.img" | sed 's/.* //') $group"
    done | sort -n | tail -1 | cut -d' ' -f2)
    root=$(xfs_db -r -c "agi $group" -c 'print root' "$dir/xfs.img" | sed 's/.* //')
    damage xfs.img $((group * agblocks + root))
    dd if=/dev/zero of="$dir/xfs.img" bs=512 count=1 conv=notrunc status=none
}

# A copy of the disk that ends where 60 % of the files begin, in qcow2 with zstd. The second GPT, at the end of the disk, is lost too.
cut_disk() {
    local end volume=$((2 << 20))
    (cd "$dir/tree" && find . -type f -printf 'blocks /%P\n') >"$dir/asked"
    # debugfs prints the blocks of each file in a line, after the line with the command.
    end=$(debugfs -f "$dir/asked" "$dir/disk.img?offset=$volume" 2>/dev/null | grep -v '^debugfs:' | awk '{ print $1 }' | sort -n |
        awk '{ first[NR] = $1 } END { print first[int(NR * 0.6)] }')
    truncate -s $((volume + end * 4096)) "$dir/disk.img"
    qemu-img convert -f raw -O qcow2 -c -o compression_type=zstd "$dir/disk.img" "$dir/cut.qcow2"
    rm "$dir/disk.img" "$dir/asked"
}

make_tree
superblock
blocks
by_linux
xfs
cut_disk
rm "$dir/tree.tar" "$dir/files"
