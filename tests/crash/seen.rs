//! A volume as ironmap sees it.

use std::collections::BTreeMap;

use ironmap::fs::FileType;
use ironmap::fs::ext4::{Follow, Inode};
use ironmap::units::FilePos;
use ironmap::{FileOptions, Queue, QueueOptions, Result, Volume};

/// Every path, without a leading slash, but for `lost+found`.
pub(crate) type Tree = BTreeMap<String, Seen>;

/// What a path shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    File { inode: u64, links: u32, content: Vec<u8> },
    Directory,
    Symlink(Vec<u8>),
    Other,
}

impl Seen {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::File { .. } => "a file",
            Self::Directory => "a directory",
            Self::Symlink(_) => "a symbolic link, perhaps to elsewhere",
            Self::Other => "something else",
        }
    }
}

/// Everything on a volume.
pub(crate) fn tree(volume: &Volume) -> Result<Tree> {
    let mut walk =
        Walk { volume, queue: volume.queue(&QueueOptions { depth: 8 })?, tree: Tree::new() };
    walk.directory(&volume.fs().resolve(b"/", Follow::All)?, "")?;
    walk.tree.remove("lost+found");
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
            if matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.name);
            let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
            let inode = directory.lookup(&entry.name)?;
            let seen = match inode.file_type() {
                FileType::Regular => self.file(inode)?,
                FileType::Symlink => Seen::Symlink(inode.read_link()?),
                FileType::Directory => {
                    self.directory(&inode, &path)?;
                    Seen::Directory
                }
                _ => Seen::Other,
            };
            self.tree.insert(path, seen);
        }
        Ok(())
    }

    fn file(&mut self, inode: Inode) -> Result<Seen> {
        let mut content = vec![0; inode.size() as usize];
        let (number, links) = (inode.number().0, inode.stat().links);
        let file = self.volume.open_inode(inode, FileOptions::default())?;
        let count = file.read_at(&mut self.queue, &mut content, FilePos(0))?;
        content.truncate(count);
        Ok(Seen::File { inode: number, links, content })
    }
}
