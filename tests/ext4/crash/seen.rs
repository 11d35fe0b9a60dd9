//! A volume as ironmap sees it.

use ironmap::fs::{FileType, Follow, Inode};
use ironmap::units::FilePos;
use ironmap::{FileOptions, Queue, QueueOptions, Result, Volume};
use std::collections::BTreeMap;

/// A record for every path. Paths have no leading slash, and `lost+found` is omitted.
pub(crate) type Tree = BTreeMap<String, Seen>;

/// The inode flag that workloads change.
pub(crate) const NO_DUMP: u32 = 0x40;

/// The observable properties of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) inode: u64,
    pub(crate) links: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) accessed: i64,
    /// The value is [`NO_DUMP`] or zero.
    pub(crate) flags: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    File(Vec<u8>),
    Directory,
    Symlink(Vec<u8>),
    Fifo,
    /// A character device.
    Device(u32, u32),
    Other,
}

impl Body {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "a file",
            Self::Directory => "a directory",
            Self::Symlink(_) => "a symbolic link, perhaps to elsewhere",
            Self::Fifo => "a pipe",
            Self::Device(..) => "a device, perhaps another",
            Self::Other => "something else",
        }
    }
}

/// Reads all paths of a volume.
pub(crate) fn tree(volume: &Volume) -> Result<Tree> {
    let mut walk =
        Walk { volume, queue: volume.queue(&QueueOptions::new().depth(8))?, tree: Tree::new() };
    walk.directory(&volume.fs().resolve(b"/", Follow::All)?, "")?;
    Ok(walk.tree)
}

struct Walk<'v> {
    volume: &'v Volume,
    queue: Queue,
    tree: Tree,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Inode, path: &str) -> Result<()> {
        for entry in directory.read_dir()? {
            let entry = entry?;
            // Files in `lost+found` are omitted, because e2fsck creates them.
            let lost = path.is_empty() && entry.name == b"lost+found";
            if lost || matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.name);
            let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
            let inode = directory.lookup(&entry.name)?;
            let stat = inode.stat().clone();
            let xattrs = inode.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value));
            let xattrs = xattrs.collect();
            let body = match (inode.file_type(), stat.device) {
                (FileType::Regular, _) => self.file(inode)?,
                (FileType::Symlink, _) => Body::Symlink(inode.read_link()?),
                (FileType::Directory, _) => {
                    self.directory(&inode, &path)?;
                    Body::Directory
                }
                (FileType::Fifo, _) => Body::Fifo,
                (FileType::CharDevice, Some((major, minor))) => Body::Device(major, minor),
                _ => Body::Other,
            };
            let seen = Seen {
                inode: stat.inode.0,
                links: stat.links,
                mode: stat.mode,
                uid: stat.uid,
                accessed: stat.accessed.seconds,
                flags: stat.flags & NO_DUMP,
                xattrs,
                body,
            };
            self.tree.insert(path, seen);
        }
        Ok(())
    }

    fn file(&mut self, inode: Inode) -> Result<Body> {
        let mut content = vec![0; inode.size() as usize];
        let file = self.volume.open_inode(inode, FileOptions::default())?;
        let count = file.read_at(&mut self.queue, &mut content, FilePos(0))?;
        content.truncate(count);
        Ok(Body::File(content))
    }
}
