//! The table of formats that have a magic number: the formats that `blkid -k` lists, and image formats. docs/PROVENANCE.md names the source
//! of each position and number: a published description or a kernel header.

/// A position on a device.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// The position is this number of bytes after the start.
    Start(u64),
    /// The position is `back` bytes before the end. The size of the device is first rounded down to whole units.
    End { unit: u64, back: u64 },
    /// The position is this number of bytes before the end of the first page. The code tries every possible page size.
    EndOfPage(u64),
}

use At::{EndOfPage, Start};

/// Returns the position that is `back` sectors of 512 bytes before the end.
const fn sectors(back: u64) -> At {
    At::End { unit: 512, back: back * 512 }
}

const fn units(unit: u64, back: u64) -> At {
    At::End { unit, back: back * unit }
}

/// A format that is recognised by its magic numbers.
pub(super) struct Magic {
    pub(super) name: &'static str,
    pub(super) places: &'static [At],
    /// The magic numbers. A match of one of them is sufficient.
    pub(super) bytes: &'static [&'static [u8]],
}

const fn magic(
    name: &'static str,
    places: &'static [At],
    bytes: &'static [&'static [u8]],
) -> Magic {
    Magic { name, places, bytes }
}

const FIRST: &[At] = &[Start(0)];
const SECOND_KIB: &[At] = &[Start(1024)];
#[cfg(feature = "md")]
pub(super) const RAID: &str =
    "a member of a Linux RAID array: name all members, as in md:DISK,DISK";
#[cfg(not(feature = "md"))]
pub(super) const RAID: &str = "a member of a Linux RAID array: name the array's device (for an image, run losetup -Pf, then mdadm --assemble --scan)";
const BIOS_RAID: &str =
    "a member of a RAID array of the machine's firmware: name the array's device";
#[cfg(feature = "lvm")]
pub(super) const LVM: &str =
    "an LVM physical volume: name a logical volume of the disk, as in @VG/LV";
#[cfg(not(feature = "lvm"))]
pub(super) const LVM: &str = "an LVM physical volume: name a logical volume below /dev/mapper (for an image, run losetup -Pf, then vgchange -ay)";
const LVM1: &str = "a physical volume of LVM 1: not supported";
const LUKS: &str = "a LUKS container: unlock it first, and name the device below /dev/mapper";
const SWAP: &str = "a Linux swap area, not a file system";
pub(super) const FAT: &str = "a FAT file system: not supported";

/// The positions where the metadata of Promise's firmware RAID may be, in sectors before the end of the device.
const PROMISE: &[At] = &[
    sectors(63),
    sectors(255),
    sectors(256),
    sectors(16),
    sectors(399),
    sectors(591),
    sectors(675),
    sectors(735),
    sectors(911),
    sectors(974),
    sectors(991),
    sectors(951),
    sectors(3087),
];

/// The positions where the second header of LUKS 2 may be. The second header follows the first header and its JSON area, which together
/// have one of these lengths.
const LUKS_SECOND: &[At] = &[
    Start(16 << 10),
    Start(32 << 10),
    Start(64 << 10),
    Start(128 << 10),
    Start(256 << 10),
    Start(512 << 10),
    Start(1 << 20),
    Start(2 << 20),
    Start(4 << 20),
];

/// The formats, most reliable first. Long magic numbers at unusual positions come first. Short magic numbers, which may occur by chance,
/// come last.
pub(super) const MAGICS: &[Magic] = &[
    // Containers. Sources: LUKS On-Disk Format Specification 1 and 2; Linux's Documentation/admin-guide/device-mapper and md.rst; man
    // lvm(8).
    magic(LUKS, FIRST, &[b"LUKS\xBA\xBE"]),
    magic(LUKS, LUKS_SECOND, &[b"SKUL\xBA\xBE"]),
    magic(LVM, &[Start(0), Start(512), Start(1024), Start(1536)], &[b"LABELONE"]),
    magic(LVM1, FIRST, &[b"HM\x01\0", b"HM\x02\0"]),
    magic(
        RAID,
        &[Start(0), Start(4096), units(64 << 10, 1), units(4096, 2)],
        &[&[0xFC, 0x4E, 0x2B, 0xA9]],
    ),
    magic(RAID, &[units(64 << 10, 1)], &[&[0xA9, 0x2B, 0x4E, 0xFC]]),
    magic("a snapshot of the device mapper: not a file system", FIRST, &[b"SnAp"]),
    magic("hashes of dm-verity: not a file system", FIRST, &[b"verity\0\0"]),
    magic("a dm-integrity device: name the device below /dev/mapper", FIRST, &[b"integrt\0"]),
    magic("a VDO volume: name the device below /dev/mapper", FIRST, &[b"dmvdo001"]),
    magic(
        "a Stratis block device: name a file system of its pool",
        &[Start(512 + 4), Start(9 * 512 + 4)],
        &[b"!Stra0tis\x86\xFF\x02^\x41rh"],
    ),
    magic("a BitLocker volume: not supported", &[Start(3)], &[b"-FVE-FS-"]),
    magic(
        "a BitLocker volume: not supported",
        &[Start(424)],
        &[b"\x3B\xD6\x67\x49\x29\x2E\xD8\x4A\x83\x99\xF6\xA3\x39\xE3\xD0\x01"],
    ),
    magic("a FileVault volume: not supported", &[Start(88)], &[b"CS\x01\0"]),
    magic("a Ceph BlueStore device: not a file system", FIRST, &[b"bluestore block device"]),
    magic(
        "a DRBD device: name the device /dev/drbdN of its resource",
        &[At::End { unit: 4096, back: 4096 - 60 }],
        &[&[0x83, 0x74, 0x02, 0x6B], &[0x83, 0x74, 0x02, 0x6C], &[0x83, 0x74, 0x02, 0x6D]],
    ),
    magic("a control volume of drbdmanage: not a file system", FIRST, &[b"$DRBDmgr=q"]),
    magic("a log of the DRBD proxy: not a file system", &[Start(16)], &[b"DRBDdlh*"]),
    magic(
        "a bcache device: name the device /dev/bcacheN",
        &[Start(4096 + 24)],
        &[b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81"],
    ),
    magic(
        "a bcachefs file system: not supported",
        &[Start(4096 + 24)],
        &[b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF"],
    ),
    // Partition tables that are neither GPT nor MBR. Sources: Apple's Inside Macintosh: Devices, chapter 3; IRIX's dvh(4). wipefs(8) names
    // the same positions.
    magic("an Apple partition table: not supported", &[Start(512)], &[b"PM\0\0"]),
    magic("an SGI partition table: not supported", FIRST, &[&[0x0B, 0xE5, 0xA9, 0x41]]),
    magic("an AIX boot record: not supported", FIRST, &[&[0xC9, 0xC2, 0xD4, 0xC1]]),
    magic("an mpool device: not a file system", FIRST, &[b"mpoolDev"]),
    magic("an Oracle ASM disk: not a file system", &[Start(32)], &[b"ORCLDISK"]),
    // Firmware RAID. Sources: the SNIA's DDF specification; the descriptions of dmraid(8) and of the vendors' BIOS.
    magic(BIOS_RAID, &[sectors(1), sectors(257)], &[&[0xDE, 0x11, 0xDE, 0x11]]),
    magic(BIOS_RAID, &[sectors(2)], &[b"Intel Raid ISM Cfg Sig. ", b"NVIDIA  "]),
    magic(BIOS_RAID, &[sectors(1)], &[b"$XIDE$"]),
    magic(BIOS_RAID, PROMISE, &[b"Promise Technology, Inc."]),
    magic(BIOS_RAID, &[sectors(11)], &[&[0xF3, 0x16, 0x78, 0x5A], &[0xFD, 0x16, 0x78, 0x5A]]),
    magic(
        BIOS_RAID,
        &[Start(9 * 512 + 32)],
        &[&[0xF0, 0x16, 0x78, 0x5A], &[0xFD, 0x16, 0x78, 0x5A]],
    ),
    magic(BIOS_RAID, &[At::End { unit: 512, back: 256 }], &[b"DPTM"]),
    // File systems. Sources: Linux's Documentation/filesystems and include/uapi/linux/magic.h; ECMA-119 and ECMA-167; Microsoft's and
    // Apple's descriptions.
    magic("a btrfs file system: not supported", &[Start(65536 + 64)], &[b"_BHRfS_M"]),
    magic(
        "a ReiserFS file system: not supported",
        &[Start(8192 + 52), Start(65536 + 52)],
        &[b"ReIsErFs", b"ReIsEr2Fs", b"ReIsEr3Fs"],
    ),
    magic("a ReiserFS file system: not supported", &[Start(8192 + 20)], &[b"ReIsErFs"]),
    magic("a Reiser4 file system: not supported", &[Start(65536)], &[b"ReIsEr4"]),
    magic("a JFS file system: not supported", &[Start(32768)], &[b"JFS1"]),
    magic(
        "an ISO 9660 file system: not supported",
        &[Start(32768 + 1), Start(32768 + 9)],
        &[b"CD001", b"CDROM"],
    ),
    magic(
        "a UDF file system: not supported",
        &[Start(32768 + 1)],
        &[b"BEA01", b"BOOT2", b"CDW02", b"NSR02", b"NSR03", b"TEA01"],
    ),
    magic("an NTFS file system: not supported", &[Start(3)], &[b"NTFS    "]),
    magic("an exFAT file system: not supported", &[Start(3)], &[b"EXFAT   "]),
    magic("a ReFS file system: not supported", FIRST, &[b"\0\0\0ReFS\0"]),
    magic(FAT, &[Start(54)], &[b"FAT12   ", b"FAT16   ", b"FAT     ", b"MSDOS"]),
    magic(FAT, &[Start(82)], &[b"FAT32   ", b"MSWIN"]),
    magic("a ROMFS file system: not supported", FIRST, &[b"-rom1fs-"]),
    magic("an OCFS file system: not supported", &[Start(8)], &[b"OracleCFS"]),
    magic(
        "an OCFS2 file system: not supported",
        &[Start(1024), Start(2048), Start(4096), Start(8192)],
        &[b"OCFSV2"],
    ),
    magic(
        "a NILFS2 file system: not supported",
        &[Start(1024), units(4096, 1)],
        &[b"\x02\0\0\0\0\0\x34\x34"],
    ),
    magic("an APFS container: not supported", &[Start(32)], &[b"NXSB"]),
    magic("an F2FS file system: not supported", SECOND_KIB, &[&[0x10, 0x20, 0xF5, 0xF2]]),
    magic("an EROFS file system: not supported", SECOND_KIB, &[&[0xE2, 0xE1, 0xF5, 0xE0]]),
    magic("a SquashFS file system: not supported", FIRST, &[b"hsqs", b"sqsh", b"hsqt", b"qshs"]),
    magic(
        "a CramFS file system: not supported",
        &[Start(0), Start(512)],
        &[&[0x45, 0x3D, 0xCD, 0x28], &[0x28, 0xCD, 0x3D, 0x45]],
    ),
    magic("a UBI device: not a file system", FIRST, &[b"UBI#"]),
    magic("a UBIFS file system: not supported", FIRST, &[&[0x31, 0x18, 0x10, 0x06]]),
    magic("a zonefs file system: not supported", FIRST, &[b"SFOZ"]),
    magic(
        "a member of a VMFS volume: not supported",
        &[Start(1 << 20)],
        &[&[0x0D, 0xD0, 0x01, 0xC0]],
    ),
    magic("a VMFS file system: not supported", &[Start(2 << 20)], &[&[0x5E, 0xF1, 0xAB, 0x2F]]),
    magic(
        "a GFS or GFS2 file system: not supported",
        &[Start(65536)],
        &[&[0x01, 0x16, 0x19, 0x70]],
    ),
    magic("an HPFS file system: not supported", &[Start(8192)], &[&[0x49, 0xE8, 0x95, 0xF9]]),
    magic("an NSS file system: not supported", &[Start(4096)], &[b"SPB5"]),
    magic(
        "a VxFS file system: not supported",
        &[Start(1024), Start(8192)],
        &[&[0xF5, 0xFC, 0x01, 0xA5], &[0xA5, 0x01, 0xFC, 0xF5]],
    ),
    magic("a BFS file system: not supported", FIRST, &[&[0xCE, 0xFA, 0xAD, 0x1B]]),
    magic("a BeFS file system: not supported", &[Start(32), Start(512 + 32)], &[b"1SFB", b"BFS1"]),
    magic("an EXFS file system: not supported", FIRST, &[b"EXFS"]),
    magic(
        "a UFS file system: not supported",
        &[
            Start(1372),
            Start((8 << 10) + 1372),
            Start((64 << 10) + 1372),
            Start((256 << 10) + 1372),
        ],
        &[
            &[0x54, 0x19, 0x01, 0x00],
            &[0x00, 0x01, 0x19, 0x54],
            &[0x19, 0x01, 0x54, 0x19],
            &[0x19, 0x54, 0x01, 0x19],
            &[0x08, 0x04, 0x96, 0x19],
            &[0x19, 0x96, 0x04, 0x08],
            &[0x14, 0x50, 0x09, 0x00],
            &[0x00, 0x09, 0x50, 0x14],
            &[0x12, 0x56, 0x19, 0x00],
            &[0x00, 0x19, 0x56, 0x12],
            &[0x95, 0x21, 0x61, 0x00],
            &[0x00, 0x61, 0x21, 0x95],
            &[0x94, 0x19, 0x23, 0x05],
            &[0x05, 0x23, 0x19, 0x94],
        ],
    ),
    magic(
        "a System V file system: not supported",
        &[
            Start(512 + 504),
            Start((9 << 10) + 512 + 504),
            Start((15 << 10) + 512 + 504),
            Start((18 << 10) + 512 + 504),
        ],
        &[&[0x20, 0x7E, 0x18, 0xFD], &[0xFD, 0x18, 0x7E, 0x20]],
    ),
    magic(
        "a Xenix file system: not supported",
        &[Start(1024 + 0x3F8), Start(1024 + 0x400)],
        &[&[0x44, 0x55, 0x2B], &[0x2B, 0x55, 0x44]],
    ),
    magic("an HFS+ file system: not supported", SECOND_KIB, &[b"H+\0\x04", b"HX\0\x05"]),
    // Swap and hibernation. Sources: Linux's include/linux/swap.h and kernel/power; man mkswap(8).
    magic(SWAP, &[EndOfPage(10)], &[b"SWAPSPACE2", b"SWAP-SPACE"]),
    magic(
        "a swap area with a hibernated system: resume this system first",
        &[EndOfPage(10)],
        &[
            b"S1SUSPEND",
            b"S2SUSPEND",
            b"ULSUSPEND",
            b"LINHIB0001",
            b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C",
        ],
    ),
    // Images. Sources: the vendors' descriptions; docs/interop of QEMU; AOSP's sparse_format.h.
    magic("a qcow2 image: name its format, as in qcow2:FILE", FIRST, &[b"QFI\xFB"]),
    magic("a VMDK image: name its format, as in vmdk:FILE", FIRST, &[b"KDMV", b"# Disk Descripto"]),
    magic("a VHDX image: name its format, as in vhdx:FILE", FIRST, &[b"vhdxfile"]),
    magic(
        "a VDI image: serve the image with qemu-nbd, and name the export, as in nbd+unix:///?socket=PATH",
        &[Start(64)],
        &[&[0x7F, 0x10, 0xDA, 0xBE]],
    ),
    magic(
        "a VHD image: serve the image with qemu-nbd, and name the export, as in nbd+unix:///?socket=PATH",
        &[Start(0), sectors(1)],
        &[b"conectix"],
    ),
    magic(
        "a Parallels image: serve the image with qemu-nbd, and name the export, as in nbd+unix:///?socket=PATH",
        FIRST,
        &[b"WithoutFreeSpace", b"WithouFreSpacExt"],
    ),
    magic(
        "a QED image: serve the image with qemu-nbd, and name the export, as in nbd+unix:///?socket=PATH",
        FIRST,
        &[b"QED\0"],
    ),
    magic(
        "an Apple disk image: serve the image with qemu-nbd, and name the export, as in nbd+unix:///?socket=PATH",
        &[sectors(1)],
        &[b"koly"],
    ),
    magic(
        "an Android sparse image: convert it to a raw image with simg2img",
        FIRST,
        &[&[0x3A, 0xFF, 0x26, 0xED]],
    ),
    // Compressed data. Sources: the descriptions of the formats (RFC 1952, RFC 8878, xz-file-format.txt).
    magic("data compressed with xz: unpack it first", FIRST, &[b"\xFD7zXZ\0"]),
    magic("data compressed with zstd: unpack it first", FIRST, &[&[0x28, 0xB5, 0x2F, 0xFD]]),
    magic("data compressed with gzip: unpack it first", FIRST, &[&[0x1F, 0x8B, 0x08]]),
];
