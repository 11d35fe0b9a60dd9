//! Damages each metadata block of a volume in turn. Only the names and contents that need the block may be lost. The kernel's map of the
//! device (`fsmap`) says what each block contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use ironmap::device::{Device, Limits, Ram};
use ironmap::fs::FileType;
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{FileOptions, QueueOptions, Volume};

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::require;

const SEED: u64 = 0x0E5C_0E5C;
const BLOCK: u64 = 1024;
const DIR_BLOCK: u64 = 4096;
/// The position in a directory's file at which the hash index begins, in units of 512 bytes (basic sectors).
const INDEX: u64 = (1 << 35) / 512;

/// The files of the volume, by their paths. For each file: its content (the target, for a symbolic link) and its inode number.
type Tree = BTreeMap<String, (Vec<u8>, u64)>;

/// Fills the volume with directories of all forms, in all groups, and with files of many extents.
fn fill(root: &Path) {
    for (dir, count) in [("short", 3), ("one-block", 20), ("leaf", 90), ("node", 900)] {
        fs::create_dir_all(root.join(dir)).unwrap();
        for number in 0..count {
            let name = format!("{dir}/{dir}-{number:030}");
            fs::write(root.join(&name), name).unwrap();
        }
    }
    for number in 0..8 {
        // Linux puts each new directory into another group.
        let below = root.join(format!("groups/of-{number}/below"));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("file"), format!("{number}")).unwrap();
    }
    // Only 4 of every 40 names remain. Afterwards the file `map` gets many extents.
    fs::create_dir_all(root.join("sparse")).unwrap();
    for number in 0..400 {
        fs::write(root.join(format!("sparse/sparse-{number:030}")), "content").unwrap();
    }
    for number in (0..400).filter(|number| number % 40 > 3) {
        fs::remove_file(root.join(format!("sparse/sparse-{number:030}"))).unwrap();
    }
    let map = File::create(root.join("map")).unwrap();
    for number in 0..900 {
        map.write_all_at(&[(number % 250) as u8 + 1; 1024], number * 2048).unwrap();
    }
    symlink("x".repeat(900), root.join("long-link")).unwrap();
    let value = [b'v'; 3000];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("short"), "user.long", &value, flags).unwrap();
}

fn tree_of(root: &Path) -> Tree {
    let (mut tree, mut waiting) = (Tree::new(), vec![root.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else if stat.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            tree.insert(name, (content, stat.ino()));
        }
    }
    tree
}

/// The names that are found with their complete content. Errors are counted.
fn found(volume: &Volume, tree: &Tree) -> (BTreeSet<String>, usize) {
    let (mut names, mut errors) = (BTreeSet::new(), 0);
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut waiting = vec![(volume.fs().root(), String::new())];
    while let Some((number, path)) = waiting.pop() {
        let dir = volume.fs().known_inode(number).and_then(|dir| {
            let entries: Vec<_> = dir.read_dir()?.collect();
            Ok(entries)
        });
        let Ok(entries) = dir else {
            errors += 1;
            continue;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                errors += 1;
                continue;
            };
            let name = String::from_utf8(entry.name).unwrap();
            if matches!(&*name, "." | "..") {
                continue;
            }
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            match content(volume, &mut queue, entry.inode) {
                Ok((kind, content)) => {
                    assert!(content == tree[&path].0, "{path} has another content");
                    // A lookup by path finds the same inode as the directory entry.
                    let by_path =
                        volume.fs().resolve(path.as_bytes(), ironmap::fs::Follow::NotLast);
                    assert_eq!(by_path.unwrap().number(), entry.inode, "{path}");
                    if kind == FileType::Directory {
                        waiting.push((entry.inode, path.clone()));
                    }
                    names.insert(path);
                }
                Err(_) => errors += 1,
            }
        }
    }
    (names, errors)
}

/// Checks that each listing through the public interface ends with an error if it lacks a name.
fn check_listings(volume: &Volume, tree: &Tree, what: &str) {
    let mut waiting = vec![String::new()];
    while let Some(dir) = waiting.pop() {
        let Ok(entries) = volume.read_dir(format!("/{dir}")) else { continue };
        let entries: Vec<_> = entries.collect();
        let path =
            |name: &str| if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        let listed: BTreeSet<_> = entries
            .iter()
            .flatten()
            .map(|entry| path(std::str::from_utf8(&entry.name).unwrap()))
            .collect();
        let parent = |path: &str| path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        let lacks: Vec<_> =
            tree.keys().filter(|path| parent(path) == dir && !listed.contains(*path)).collect();
        let ends = entries.last().is_some_and(Result::is_err);
        assert!(lacks.is_empty() || ends, "{what}: /{dir} lacks {lacks:?} without an error");
        waiting.extend(
            listed.into_iter().filter(|path| tree.keys().any(|other| parent(other) == *path)),
        );
    }
}

fn content(
    volume: &Volume,
    queue: &mut ironmap::Queue,
    number: InodeNo,
) -> ironmap::Result<(FileType, Vec<u8>)> {
    let inode = volume.fs().known_inode(number)?;
    let kind = inode.file_type();
    let content = match kind {
        FileType::Directory => Vec::new(),
        FileType::Symlink => inode.read_link()?,
        _ => {
            let mut content = vec![0; inode.stat().size as usize];
            let file = volume.open_inode(inode, FileOptions::new())?;
            let read = file.read_at(queue, &mut content, FilePos(0))?;
            assert_eq!(read, content.len());
            content
        }
    };
    Ok((kind, content))
}

/// A block of metadata: its position on the device, the text that describes its content, and its position in the file that owns it, in
/// units of 512 bytes.
struct Metadata {
    at: u64,
    owner: String,
    offset: u64,
}

/// All blocks of metadata, from the kernel's map of the device. `directories` are the inode numbers of directories and symbolic links.
fn metadata(mounted: &Path, directories: &BTreeSet<u64>) -> Vec<Metadata> {
    let dir = mounted.to_str().unwrap();
    let said = run("xfs_io", &["-r", "-c", "fsmap -n 4096", dir]);
    let mut blocks = Vec::new();
    // A line is `3: 7:0 [104..111]: inode 131 data 0..7 8` or `3: 7:0 [16..27]: per-AG metadata 12`.
    for line in String::from_utf8(said).unwrap().lines() {
        let (_, rest) = line.split_once('[').unwrap();
        let (range, rest) = rest.split_once("]: ").unwrap();
        let (first, last) = range.split_once("..").unwrap();
        let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
        let free = rest.starts_with("free space");
        let inode = rest.strip_prefix("inode ").and_then(|rest| rest.split(' ').next());
        let number: Option<u64> = inode.and_then(|number| number.parse().ok());
        let is_data = number.is_some_and(|number| !directories.contains(&number))
            && rest.split(' ').nth(2) == Some("data");
        if free || is_data || rest.contains("log") {
            continue;
        }
        let offset = rest.split(' ').nth(3).and_then(|text| text.split_once(".."));
        let offset = offset.and_then(|(first, _)| first.parse::<u64>().ok()).unwrap_or(0);
        for step in (0..=last - first).step_by((BLOCK / 512) as usize) {
            let at = (first + step) * 512;
            blocks.push(Metadata { at, owner: rest.to_owned(), offset: offset + step });
        }
    }
    blocks
}

impl Metadata {
    /// The names that may be lost if this block is damaged. If a directory is lost, all names below it are lost too.
    fn names(&self, tree: &Tree, image: &[u8], layout: &Layout) -> BTreeSet<String> {
        let start = self.at - self.offset % (DIR_BLOCK / 512) * 512;
        let bytes = &image[start as usize..][..DIR_BLOCK as usize];
        let has = |name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
        let words: Vec<_> = self.owner.split(' ').collect();
        // For other metadata, the owner in the kernel's map can be the text `inode btree`.
        let owner = if words[0] == "inode" { words[1].parse::<u64>().ok() } else { None };
        let is_in_inodes = self.owner.starts_with("inodes");
        let lost = |path: &String, inode: u64| {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let name = path.rsplit('/').next().unwrap();
            let place = layout.place_of(inode);
            let by_inode = is_in_inodes && (self.at..self.at + BLOCK).contains(&place);
            let parent = tree.get(parent).map(|(_, inode)| *inode);
            let is_data = words.get(2) == Some(&"data");
            let is_attr = words.get(2).is_some_and(|word| word.starts_with("attr"));
            let is_map = owner.is_some() && !is_data && !is_attr;
            let by_entry = owner.is_some()
                && (owner == parent || parent.is_none() && owner == Some(layout_root(image)))
                && is_data
                && self.offset < INDEX
                && has(name);
            let own = owner == Some(inode) && !is_attr && !tree[path].0.is_empty();
            by_inode || by_entry || own || is_map && owner == parent
        };
        let direct: BTreeSet<_> =
            tree.iter().filter(|(path, (_, inode))| lost(path, *inode)).map(|(p, _)| p).collect();
        let root_is_lost = is_in_inodes
            && (self.at..self.at + BLOCK).contains(&layout.place_of(layout_root(image)));
        let above = |path: &str| {
            let ends = path.match_indices('/').map(|(at, _)| &path[..at]);
            ends.chain([path]).any(|part| direct.contains(&part.to_owned()))
        };
        tree.keys().filter(|path| root_is_lost || above(path)).cloned().collect()
    }
}

fn layout_root(image: &[u8]) -> u64 {
    u64::from_be_bytes(image[56..64].try_into().unwrap())
}

/// Each block of metadata is overwritten in three ways: with zeros, with random bytes, and with another block of metadata. A block of
/// inodes is overwritten in only one of these ways.
#[test]
fn a_damaged_block_loses_only_what_needs_it() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let image = Image::mkfs_xfs("320M", &words("-b size=1024 -m rmapbt=1 -d agcount=4")).unwrap();
    let mount = image.mount("noatime");
    fill(mount.dir());
    rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    let tree = tree_of(mount.dir());
    let with_blocks = |path: &String| {
        let stat = fs::symlink_metadata(mount.dir().join(path)).unwrap();
        !stat.is_file()
    };
    let mut directories: BTreeSet<u64> =
        tree.iter().filter(|(path, _)| with_blocks(path)).map(|(_, (_, inode))| *inode).collect();
    directories.insert(fs::metadata(mount.dir()).unwrap().ino());
    let blocks = metadata(mount.dir(), &directories);
    drop(mount);
    let bytes = fs::read(image.path()).unwrap();
    let layout = Layout::of(&File::open(image.path()).unwrap());
    let limits = Limits { dma_align: 1, ..Ram::LIMITS };
    let ram = Arc::new(Ram::from_image(&bytes).with_limits(limits));
    let write = |at: u64, bytes: &[u8]| {
        ram.write_all_at(&[IoSlice::new(bytes)], DevOffset(at), false).unwrap();
    };
    let (all, errors) = found(&Volume::on(ram.clone()).unwrap(), &tree);
    assert_eq!((all.len(), errors), (tree.len(), 0));
    assert!(blocks.len() > 150, "only {} blocks", blocks.len());
    println!("{} blocks, seed {SEED:#x}", blocks.len());
    let mut rng = Rng::new(SEED);
    let mut lossy = 0;
    for (index, block) in blocks.iter().enumerate() {
        let at = block.at as usize;
        let good = &bytes[at..at + BLOCK as usize];
        let may = block.names(&tree, &bytes, &layout);
        let other = blocks[(index + 7) % blocks.len()].at as usize;
        let random: Vec<u8> = (0..BLOCK).map(|_| rng.below(256) as u8).collect();
        let other = &bytes[other..other + BLOCK as usize];
        let kinds = [&[0; BLOCK as usize][..], &random, other];
        // Most blocks contain inodes and are alike, so each of them is damaged in one way only.
        let is_inodes = block.owner.starts_with("inodes");
        for (kind, bad) in kinds.into_iter().enumerate() {
            if bad == good || is_inodes && kind != index % kinds.len() {
                continue;
            }
            write(block.at, bad);
            let what = format!("{} at {at:#x}", block.owner);
            match Volume::on(ram.clone()) {
                Ok(volume) => {
                    let (names, errors) = found(&volume, &tree);
                    if !is_inodes && kind == index % 3 {
                        check_listings(&volume, &tree, &what);
                    }
                    let lost: BTreeSet<_> = all.difference(&names).cloned().collect();
                    let more: Vec<_> = lost.difference(&may).collect();
                    assert!(more.is_empty(), "{what}: {more:?} are lost too");
                    assert!(lost.is_empty() || errors > 0, "{what}: {lost:?} without an error");
                    lossy += usize::from(!lost.is_empty());
                }
                // Only the loss of the root directory prevents an open.
                Err(error) => assert_eq!(may.len(), tree.len(), "{what}: {error}"),
            }
            write(block.at, good);
        }
    }
    assert!(lossy > 100, "only {lossy} blocks had names");
}
