# shellcheck shell=bash
# The commands of a skilled rescuer, for each tool and each image of images.sh. A function TOOL_IMAGE runs in an empty directory, and copies all that
# comes back into $out. $image is the image without its suffix. The image must stay as it is, so a recipe that repairs works on a copy.
# shellcheck disable=SC2154  # run.sh sets image, out, ironmap

copy() { cp --sparse=always "$image.img" copy.img; }

# The offset of the logical volume: the partition begins at 1 MiB, and the first extent of LVM at 1 MiB in the partition.
lv_offset=2097152
# A raw image of the disk with its full length, so that all positions of the volume exist. The lost end reads as zeros.
raw_disk() { qemu-img convert -O raw "$image.qcow2" disk.img && truncate -s 1G disk.img; }
raw_volume() { raw_disk && dd if=disk.img of=volume.img bs=1M skip=$((lv_offset >> 20)) conv=sparse status=none; }

# ironmap: one command for all damage. The report is no file of the volume.
rescued() { "$ironmap" "${@:2}" salvage "$1" "$out"; rm -f "$out/report.jsonl"; }
ironmap_superblock() { rescued "$image.img" --superblock 32768; }
ironmap_blocks() { rescued "$image.img"; }
ironmap_deleted() { rescued "$image.img"; }
ironmap_xfs() { rescued "$image.img"; }
ironmap_cut() { rescued "qcow2:$image.qcow2@vg/root"; }

# guestfish: Linux in a virtual machine, and its e2fsck and xfs_repair. sb counts KiB.
guestfish_superblock() { guestfish --ro -a "$image.img" run : mount-options ro,noload,sb=131072 /dev/sda / : copy-out / "$out"; }
guestfish_blocks() { copy && guestfish -a copy.img run : e2fsck /dev/sda forceall:true : mount-ro /dev/sda / : copy-out / "$out"; }
# The Sleuth Kit in the virtual machine lists deleted inodes. Linux has no command that reads them.
guestfish_deleted() {
    guestfish --ro -a "$image.img" run : filesystem-walk /dev/sda >walk
    awk '$1 == "tsk_inode:" { inode = $2 } $1 == "tsk_type:" { type = $2 }
        $1 == "tsk_flags:" && $2 == 2 && type != "d" { print "-download-inode /dev/sda " inode " inode-" inode }' walk >commands
    (echo run && cat commands) | guestfish --ro -a "$image.img"
    mv inode-* "$out"
}
guestfish_xfs() {
    copy
    guestfish -a copy.img <<COMMANDS
run
xfs-repair /dev/sda
mount-ro /dev/sda /
copy-out / $out
COMMANDS
}
# An overlay gives the disk its full length again. It needs no space for a copy.
guestfish_cut() {
    qemu-img create -q -f qcow2 -b "$image.qcow2" -F qcow2 overlay.qcow2 1G
    guestfish -a overlay.qcow2 run : part-expand-gpt /dev/sda : vg-activate-all true : mount-options ro,noload /dev/vg/root / : copy-out / "$out"
}

# debugfs, with e2fsck, which is from the same package. -c reads no bitmaps.
debugfs_superblock() { debugfs -c -b 4096 -s 32768 -R "rdump / $out" "$image.img"; }
debugfs_blocks() { copy && e2fsck -fy copy.img; debugfs -R "rdump / $out" copy.img; }
debugfs_deleted() {
    debugfs -R lsdel "$image.img" | awk -v out="$out" '$1 ~ /^[0-9]+$/ && NF > 5 { print "dump <" $1 "> " out "/inode-" $1 }' >commands
    debugfs -f commands "$image.img"
}
debugfs_xfs() { echo "debugfs does not read XFS"; }
debugfs_cut() { raw_disk && debugfs -c -R "rdump / $out" "disk.img?offset=$lv_offset"; }

# TestDisk copies files that have names. PhotoRec, from the same package, finds files by their content.
testdisk_list() { (cd "$out" && testdisk /cmd "$1" partition_none,advanced,list,recursive,fullpathname,filecopy); }
photorec_all() { photorec /d "$out/photorec" /cmd "$1" "partition_none,options,paranoid,fileopt,everything,enable,${2:-}search"; }
# TestDisk finds the backups of a superblock, and tells the user to run this e2fsck.
testdisk_superblock() { copy && e2fsck -fy -b 32768 -B 4096 copy.img; testdisk_list "$PWD/copy.img"; }
testdisk_blocks() { testdisk_list "$image.img"; photorec_all "$image.img"; }
testdisk_deleted() { photorec_all "$image.img" freespace,; }
testdisk_xfs() { photorec_all "$image.img"; }
testdisk_cut() { raw_volume && testdisk_list "$PWD/volume.img"; photorec_all "$PWD/volume.img"; }

# extundelete restores deleted files only.
extundelete_superblock() { cd "$out" && extundelete -b 32768 -B 4096 --restore-all "$image.img"; }
extundelete_blocks() { cd "$out" && extundelete --restore-all "$image.img"; }
extundelete_deleted() { cd "$out" && extundelete --restore-all "$image.img"; }
extundelete_xfs() { echo "extundelete does not read XFS"; }
extundelete_cut() { raw_volume && volume=$PWD/volume.img && cd "$out" && extundelete --restore-all "$volume"; }
