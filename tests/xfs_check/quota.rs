//! Quota files in metadata directories. The kernel may be built without quota. So mkfs.xfs makes ordinary files from a prototype. The test
//! then moves the directory of these files to the metadata tree. xfs_repair must find no fault in the result.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ironmap::fs::Follow;

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::realtime::damaged;
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::common::xfsprogs;
use crate::note;
use crate::verdict::{ironmap, repair};

const UUID: u128 = 0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0;
const BLOCK: usize = 4096;
/// For each quota file: its name, the type code of its entries, and its `di_metatype`.
const FILES: [(&str, u8, u16); 3] = [("user", 1, 2), ("group", 4, 3), ("project", 2, 4)];
const DIRECTORY: u16 = 1;
/// Byte offsets of fields in an inode.
const MODE: usize = 2;
const KIND: usize = 6;
const LINKS: usize = 16;
const SIZE: usize = 56;
const FLAGS: usize = 90;
const FLAGS2: usize = 120;
const FORK: usize = 176;
/// The flags (`di_flags`) of metadata inodes: immutable, synchronous, no access times, no dump, no defragmentation. A metadata directory
/// also has the flag that forbids symbolic links.
const METADATA: u16 = 0x20F8;
const NO_SYMLINKS: u16 = 0x400;
const METADATA2: u8 = 0x20;
/// The command that sets the quota flags of the superblock. Quota of all kinds is counted, enforced and checked.
const QUOTA_FLAGS: &str = "sb 0;write -d qflags 0x7cf";
/// The length of an entry in a quota file, and the offsets of its fields.
const ENTRY: usize = 136;
const BLOCKS: usize = 40;
const INODES: usize = 48;
const CRC: usize = 108;

/// The only block of a quota file. Its first entry is for ID 0. The entry counts two inodes (the root and a file) and one block.
fn quota(code: u8) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for (id, entry) in block.chunks_exact_mut(ENTRY).enumerate() {
        entry[..4].copy_from_slice(&[b'D', b'Q', 1, code]);
        entry[4..8].copy_from_slice(&(id as u32).to_be_bytes());
        entry[120..136].copy_from_slice(&UUID.to_be_bytes());
        if id == 0 {
            entry[BLOCKS..BLOCKS + 8].copy_from_slice(&1_u64.to_be_bytes());
            entry[INODES..INODES + 8].copy_from_slice(&2_u64.to_be_bytes());
        }
        seal(entry);
    }
    block
}

fn seal(entry: &mut [u8]) {
    entry[CRC..CRC + 4].fill(0);
    let sum = crc32c::crc32c(entry);
    entry[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
}

fn add16(inode: &mut [u8], at: usize, bits: u16) {
    let before = u16::from_be_bytes([inode[at], inode[at + 1]]);
    inode[at..at + 2].copy_from_slice(&(before | bits).to_be_bytes());
}

/// Turns an inode into a metadata file of this kind.
fn adopt(inode: &mut [u8], kind: u16) {
    // A metadata file has no permission bits.
    (inode[MODE], inode[MODE + 1]) = (inode[MODE] & 0xF0, 0);
    add16(inode, KIND, kind);
    add16(inode, FLAGS, METADATA | if kind == DIRECTORY { NO_SYMLINKS } else { 0 });
    inode[FLAGS2 + 7] |= METADATA2;
}

/// Adds `by` to a counter in an inode.
fn count(inode: &mut [u8], (at, width): (usize, usize), by: i64) {
    let low = at + width - 2;
    let before = i64::from(u16::from_be_bytes([inode[low], inode[low + 1]]));
    let after = u16::try_from(before + by).expect("a small number");
    inode[low..low + 2].copy_from_slice(&after.to_be_bytes());
}

fn made() -> Image {
    let dir = scratch();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let plain = write("plain", b"plain");
    let mut text = format!("/dev/null\n0 0\nd--755 0 0\nplain ---644 0 0 {plain}\n");
    text.push_str("quota d--755 0 0\n");
    for (name, code, _) in FILES {
        text += &format!("{name} ---644 0 0 {}\n", write(name, &quota(code)));
    }
    text.push_str("$\n$\n");
    let prototype = write("prototype", text.as_bytes());
    let uuid = format!("uuid={UUID:032x}");
    let uuid = [&uuid[..13], &uuid[13..17], &uuid[17..21], &uuid[21..25], &uuid[25..]].join("-");
    let options = words("-m metadir=1,uquota,gquota,pquota -n parent=0 -p");
    let options = [&["-m", &uuid][..], &options, &[&prototype]].concat();
    let image = Image::mkfs_xfs_by(&xfsprogs::newer("mkfs.xfs"), "320M", &options).unwrap();
    let number = |path: &str| {
        let volume = image.open().unwrap();
        volume.fs().resolve(path.as_bytes(), Follow::All).unwrap().number().0
    };
    let (root, tree, quota) = (number(""), number("") + 1, number("quota"));
    let files = FILES.map(|(name, _, kind)| (number(&format!("quota/{name}")), kind));
    let file = File::options().read(true).write(true).open(image.path()).unwrap();
    let layout = Layout::of(&file);
    let change = |number: u64, how: &dyn Fn(&mut Vec<u8>)| {
        let mut inode = layout.read(&file, number);
        how(&mut inode);
        layout.forge(&file, &inode, number);
    };
    // A directory entry in an inode consists of name length, cookie, name, file type and inode number.
    let entry = |at: u16| {
        let (at, number) = (at.to_be_bytes(), (quota as u32).to_be_bytes());
        [&[5][..], &at, b"quota", &[2], &number].concat()
    };
    let len = entry(0).len() as i64;
    let names = |inode: &mut [u8], by: i64| {
        inode[FORK] = (i64::from(inode[FORK]) + by) as u8;
        count(inode, (LINKS, 4), by);
        count(inode, (SIZE, 8), by * len);
    };
    // Moves the name "quota" from the root directory to the root of the metadata tree. In the root directory, the name is the last entry.
    // In the metadata tree's root, it becomes the second entry.
    change(root, &|inode| names(inode, -1));
    change(tree, &|inode| {
        let end = FORK + usize::from(inode[SIZE + 7]);
        inode[end..end + len as usize].copy_from_slice(&entry(0x78));
        names(inode, 1);
    });
    change(quota, &|inode| {
        adopt(inode, DIRECTORY);
        inode[FORK + 2..FORK + 6].copy_from_slice(&(tree as u32).to_be_bytes());
    });
    for (number, kind) in files {
        change(number, &|inode| {
            adopt(inode, kind);
            // XFS stores the entries of a quota file past the end of the file, so the size of the file is 0.
            inode[SIZE..SIZE + 8].fill(0);
        });
    }
    drop(file);
    damaged(&image.path(), QUOTA_FLAGS);
    image
}

/// Writes a wrong number of inodes into the first entry of the user quota file.
fn miscount(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let content = std::fs::read(image).unwrap();
    let entry = quota(1)[..ENTRY].to_vec();
    let at = content.windows(ENTRY).position(|window| window == entry).expect("the file");
    let mut entry = entry;
    entry[INODES + 7] = 9;
    seal(&mut entry);
    file.write_all_at(&entry, at as u64).unwrap();
}

/// The check finds the quota files by name. It verifies their kinds and the usage that they record.
#[test]
fn files_of_quota() {
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&why);
    }
    let image = made();
    for verdict in [repair(&image.path(), Tools::NEWER), ironmap(&image.path())] {
        assert!(verdict.clean, "{}", verdict.text);
    }
    let dir = scratch();
    let copy = dir.path().join("copy");
    let damages: [(&str, &str); 7] = [
        ("", "inodes"),
        ("path -m /quota/user;write -d core.metatype 3", "di_metatype: 3, should be 2"),
        ("path -m /quota/project;write -d core.nlinkv2 2", "2 links, but 1 names"),
        ("path -m /quota/group;write -d v3.metadata 0", "which is not a metadata inode"),
        ("path -m /quota/user;write -d core.size 4096", "di_size: 4096, should be 0"),
        ("path -m /quota;write -d core.nlinkv2 3", "3 links, but 2 names"),
        ("path -m /quota;write -d core.mode 040700", "di_mode"),
    ];
    for (commands, part) in damages {
        run("cp", &["--sparse=always".into(), image.path(), copy.clone()]);
        if commands.is_empty() {
            miscount(&copy);
        } else {
            damaged(&copy, commands);
        }
        let (theirs, ours) = (repair(&copy, Tools::NEWER), ironmap(&copy));
        assert!(!theirs.clean, "{commands}: {}", theirs.text);
        assert!(ours.text.contains(part), "{commands}: {part}: {}", ours.text);
    }
}
