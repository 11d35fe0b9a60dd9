//! Every file is read. If the kernel can read the file, ironmap must return the same content. If the kernel cannot read it, ironmap may
//! return content or an error.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ironmap::fs::ext4::ROOT;
use ironmap::fs::{FileType, Inode};
use ironmap::units::FilePos;
use ironmap::{Error, ErrorKind, FileOptions, Queue, QueueOptions, Volume, VolumeOptions};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::common::command::run;
use crate::common::image::Image;
use crate::common::skip::{Need, note_part};
use crate::common::view::join;
use crate::differences::{READS, none_left, reason};
use crate::images::{Foreign, Steps, VARIABLE, each};
use crate::require;

/// The maximum number of paths that are read in a volume. The limit is needed because a damaged directory may contain itself.
const PATHS: usize = 3000;
/// The numbers of bytes that are read at the start and at the end of each file.
const HEAD: u64 = 512 << 10;
const TAIL: u64 = 64 << 10;
/// The maximum number of differences to print for one image.
const TOLD: usize = 6;

type Content = (Vec<u8>, Vec<u8>);

/// The visible properties of a path. If a property is `None`, it could not be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    stat: Option<Stat>,
    target: Option<Vec<u8>>,
    content: Option<Content>,
    xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Whether the listing reached the end of the directory.
    listed: bool,
    /// The message of the first error.
    error: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    inode: u64,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    size: u64,
    device: Option<(u32, u32)>,
    modified: (i64, u32),
}

type Tree = BTreeMap<Vec<u8>, Seen>;

/// Walks a tree in the order of names. If the walk reaches a directory by two paths, it enters the directory only by the first path. `look`
/// reads the properties of a path, and returns the names in it.
fn walk(mut look: impl FnMut(&[u8], &mut Seen) -> Vec<Vec<u8>>) -> Tree {
    let (mut tree, mut entered) = (Tree::new(), HashSet::new());
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        if tree.len() >= PATHS {
            break;
        }
        let mut seen = Seen::default();
        let mut names = look(&path, &mut seen);
        if seen.stat.as_ref().is_some_and(|stat| entered.insert(stat.inode)) {
            names.sort_unstable_by(|one, other| other.cmp(one));
            left.extend(names.iter().map(|name| join(&path, name)));
        }
        tree.insert(path, seen);
    }
    tree
}

/// The view of ironmap. It uses all read operations of a volume. An error of kind `Corrupt` must name a position.
struct Ours {
    volume: Volume,
    queue: Queue,
}

impl Ours {
    fn open(image: &Image) -> ironmap::Result<Self> {
        let volume = crate::common::beneath::open(&image.location(), &VolumeOptions::default())?;
        let queue = volume.queue(&QueueOptions::new().depth(8))?;
        Ok(Self { volume, queue })
    }

    fn tree(&mut self) -> Tree {
        walk(|path, seen| self.look(path, seen))
    }

    /// Finds the inode of a path by a lookup in each directory. Links are not followed.
    fn inode(&self, path: &[u8]) -> ironmap::Result<Inode> {
        let mut inode = self.volume.fs().inode(ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            inode = inode.lookup(name)?;
        }
        Ok(inode)
    }

    fn look(&mut self, path: &[u8], seen: &mut Seen) -> Vec<Vec<u8>> {
        let Some(inode) = got(self.inode(path), seen) else { return Vec::new() };
        let stat = inode.stat();
        seen.stat = Some(Stat {
            inode: stat.inode.0,
            mode: stat.mode,
            links: stat.links,
            owner: (stat.uid, stat.gid),
            size: stat.size,
            device: stat.device,
            modified: (stat.modified.seconds, stat.modified.nanoseconds),
        });
        let xattrs = got(inode.xattrs(), seen);
        seen.xattrs =
            xattrs.map(|all| all.into_iter().map(|xattr| (xattr.name, xattr.value)).collect());
        match stat.file_type {
            FileType::Directory => {
                let mut names = Vec::new();
                let Some(entries) = got(inode.read_dir(), seen) else { return names };
                seen.listed = true;
                for entry in entries.take(PATHS * 20) {
                    let Some(entry) = got(entry, seen) else {
                        seen.listed = false;
                        break;
                    };
                    if !matches!(entry.name.as_slice(), b"." | b"..") {
                        names.push(entry.name);
                    }
                }
                return names;
            }
            FileType::Symlink => seen.target = got(inode.read_link(), seen),
            FileType::Regular => {
                let content = self.content(inode);
                seen.content = got(content, seen);
            }
            _ => {}
        }
        Vec::new()
    }

    fn content(&mut self, inode: Inode) -> ironmap::Result<Content> {
        let size = inode.size();
        let file = self.volume.open_inode(inode, FileOptions::default())?;
        contents(size, |bytes, pos| file.read_at(&mut self.queue, bytes, FilePos(pos)))
    }
}

fn got<T>(result: ironmap::Result<T>, seen: &mut Seen) -> Option<T> {
    result.inspect_err(|error| note(error, seen)).ok()
}

fn note(error: &Error, seen: &mut Seen) {
    if error.kind() == ErrorKind::Corrupt {
        assert!(error.place().is_some(), "{error}: no place");
    }
    if seen.error.is_empty() {
        seen.error = error.to_string();
    }
}

fn contents<E>(
    size: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, E>,
) -> Result<Content, E> {
    let mut part = |from: u64, to: u64| {
        let mut bytes = vec![0; (to - from) as usize];
        let count = read(&mut bytes, from)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    let tail = size.saturating_sub(TAIL);
    Ok((part(0, size.min(HEAD))?, part(tail, size)?))
}

/// The kernel's view of a mounted tree.
fn kernel(root: &Path) -> Tree {
    walk(|path, seen| {
        let absolute = root.join(OsStr::from_bytes(path));
        look_at(&absolute, seen).unwrap_or_else(|error| {
            seen.error = error.to_string();
            Vec::new()
        })
    })
}

fn look_at(path: &Path, seen: &mut Seen) -> io::Result<Vec<Vec<u8>>> {
    let flags = StatxFlags::BASIC_STATS;
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags)?;
    let file_type = rustix::fs::FileType::from_raw_mode(stat.stx_mode.into());
    let is_device = file_type.is_char_device() || file_type.is_block_device();
    seen.stat = Some(Stat {
        inode: stat.stx_ino,
        mode: stat.stx_mode.into(),
        links: stat.stx_nlink,
        owner: (stat.stx_uid, stat.stx_gid),
        size: stat.stx_size,
        device: is_device.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
        modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
    });
    seen.xattrs = xattrs(path).ok();
    if file_type.is_dir() {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)?.take(PATHS * 20) {
            match entry {
                Ok(entry) => names.push(entry.file_name().as_bytes().to_vec()),
                Err(_) => return Ok(names),
            }
        }
        seen.listed = true;
        return Ok(names);
    }
    if file_type.is_symlink() {
        seen.target = Some(std::fs::read_link(path)?.as_os_str().as_bytes().to_vec());
    } else if file_type.is_file() {
        let file = std::fs::File::open(path)?;
        seen.content = Some(contents(stat.stx_size, |bytes, pos| {
            let mut count = 0;
            while count < bytes.len() {
                match file.read_at(&mut bytes[count..], pos + count as u64)? {
                    0 => break,
                    more => count += more,
                }
            }
            io::Result::Ok(count)
        })?);
    }
    Ok(Vec::new())
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut all = BTreeMap::new();
    for name in names {
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

/// Returns two lists of paths: the paths that the kernel can read and ironmap cannot read, and the paths for which ironmap returns other
/// content than the kernel.
fn differences(kernel: &Tree, ours: &Tree) -> Vec<String> {
    let whole = kernel.len() < PATHS && ours.len() < PATHS;
    let mut all = Vec::new();
    for (path, theirs) in kernel {
        let shown = path.escape_ascii();
        let Some(own) = ours.get(path) else {
            if whole && theirs.stat.is_some() {
                all.push(format!("/{shown}: not found"));
            }
            continue;
        };
        let error = &own.error;
        if theirs.stat.is_some() && theirs.stat != own.stat {
            all.push(format!("/{shown}: {:?}, not {:?}: {error}", own.stat, theirs.stat));
            continue;
        }
        if theirs.target.is_some() && theirs.target != own.target {
            all.push(format!("/{shown}: the target differs: {error}"));
        }
        if theirs.content.is_some() && theirs.content != own.content {
            all.push(format!("/{shown}: the content differs: {error}"));
        }
        if theirs.xattrs.is_some() && theirs.xattrs != own.xattrs {
            let (own, theirs) = (&own.xattrs, &theirs.xattrs);
            all.push(format!("/{shown}: attributes {own:?}, not {theirs:?}: {error}"));
        }
        if theirs.listed && !own.listed {
            all.push(format!("/{shown}: not listed: {error}"));
        }
    }
    for (path, own) in ours {
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
        let listed = kernel.get(parent).is_some_and(|parent| parent.listed);
        if whole && listed && own.stat.is_some() && !kernel.contains_key(path) {
            all.push(format!("/{}: should not be there", path.escape_ascii()));
        }
    }
    all
}

fn image(foreign: &Foreign, root: bool, steps: &mut Steps<'_>) {
    steps.begin("read");
    let image = foreign.copy();
    let ours = Ours::open(&image).map(|mut ours| ours.tree());
    // The read operations must not change the volume. So the bytes of the image are compared with the original.
    run("cmp", &[&foreign.path, &image.path()]);
    if !root {
        return;
    }
    steps.begin("read by the kernel");
    // The superblock's error policy may be `panic`. The mount option overrides it.
    let Ok(mount) = image.try_mount("ro,errors=continue") else { return };
    let theirs = kernel(mount.dir());
    drop(mount);
    let different = match &ours {
        Err(error) => vec![error.to_string()],
        Ok(ours) => differences(&theirs, ours),
    };
    match (different.is_empty(), reason(READS, &foreign.name)) {
        (true, Some(_)) => none_left(steps),
        (false, None) => {
            let told = different.iter().take(TOLD).map(|text| text.chars().take(600).collect());
            steps.wrong(&told.collect::<Vec<String>>().join("\n    "));
        }
        _ => {}
    }
}

#[test]
fn files_that_the_kernel_reads_are_read() {
    require!([Need::Variable(VARIABLE)]);
    let root = Need::Root.missing();
    if let Some(reason) = &root {
        note_part("files_that_the_kernel_reads_are_read", "beside the kernel", reason);
    }
    each("files_that_the_kernel_reads_are_read", |foreign, steps| {
        image(foreign, root.is_none(), steps);
    });
}
