//! Counts the files to copy and their sizes, for the progress display.

use std::collections::HashSet;
use std::fs::FileType as HostType;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::Result;
use ironmap::fs::{FileSystem, FileType, Follow, Inode};
use ironmap::units::InodeNo;

use super::CopyOptions;
use crate::context::Context;
use crate::host_tree::walk_host;
use crate::progress::{Progress, Total};
use crate::spared::Spared;
use crate::target::{Subject, Target};
use crate::volumes::Volumes;

/// Starts the progress display. A thread counts the files during the copy. With `links`, further names of a file are copied as hard links,
/// so they add no content to the count.
pub(super) fn start(
    options: &CopyOptions,
    volumes: &mut Volumes,
    links: bool,
    context: &Context,
) -> Progress {
    let mut progress = Progress::shown(context);
    if progress.wants_total()
        && let Some(trees) = Tree::of_all(options, volumes)
    {
        let counted = Counted { recurses: options.recurses, links, spared: Spared::default() };
        progress.count(move |stopped| counted.count(&trees, stopped));
    }
    progress
}

/// A tree to copy.
pub(crate) enum Tree {
    Host(PathBuf, Follow),
    Volume(Arc<dyn FileSystem>, InodeNo),
}

impl Tree {
    /// Returns the trees that a command line names, or `None` if a source has no size (standard input) or cannot be opened.
    fn of_all(options: &CopyOptions, volumes: &mut Volumes) -> Option<Vec<Self>> {
        let follow = options.follow;
        let tree = |source: &Subject| match source {
            Subject::Host(path) if path == Path::new("-") => None,
            Subject::Host(path) => Some(Self::Host(path.clone(), follow)),
            Subject::Volume(target) => Self::of_volume(target, follow, volumes),
        };
        options.sources.iter().map(tree).collect()
    }

    /// This code does not report a failure, because the copy fails in the same way and reports it.
    fn of_volume(target: &Target, follow: Follow, volumes: &mut Volumes) -> Option<Self> {
        let found = volumes.file(target, follow).ok()?;
        Some(Self::Volume(Arc::clone(found.name.fs()), found.number()))
    }
}

/// Selects the names to count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// Whether the copy includes directories.
    pub(crate) recurses: bool,
    /// Whether further names of a file become hard links, which copy no content.
    pub(crate) links: bool,
    /// The files to skip.
    pub(crate) spared: Spared,
}

impl Counted {
    /// Counts all files. Returns `None` if a tree cannot be read, a file has no size, or `stopped` returns true.
    pub(crate) fn count(&self, trees: &[Tree], stopped: &dyn Fn() -> bool) -> Option<Total> {
        let (mut total, mut seen) = (Total::default(), HashSet::new());
        for tree in trees {
            match tree {
                Tree::Host(path, follow) => {
                    self.host(path, *follow, &mut seen, &mut total, stopped).ok()?;
                }
                Tree::Volume(fs, root) => self.volume(fs, *root, &mut total, stopped).ok()??,
            }
        }
        Some(total)
    }

    fn host(
        &self,
        root: &Path,
        follow: Follow,
        seen: &mut HashSet<(u64, u64)>,
        total: &mut Total,
        stopped: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        walk_host(root, follow, &self.spared, &mut |_, stat| {
            let kind = file_type(stat.file_type());
            let special =
                !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink);
            if stopped() || !self.recurses && (special || stat.is_dir()) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let further = self.links && stat.nlink() > 1 && !stat.is_dir();
            let further = further && !seen.insert((stat.dev(), stat.ino()));
            total.add(kind, if further { 0 } else { stat.len() });
            Ok(())
        })
    }

    fn volume(
        &self,
        fs: &Arc<dyn FileSystem>,
        root: InodeNo,
        total: &mut Total,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<()>> {
        let mut seen = HashSet::new();
        let mut add = |inode: &Inode| {
            let directory = inode.file_type() == FileType::Directory;
            let several = directory || self.links && inode.stat().links > 1;
            let further = several && !seen.insert(inode.number());
            total.add(inode.file_type(), if further { 0 } else { inode.size() });
            directory && !further && self.recurses
        };
        let root = fs.known_inode(root)?;
        let mut pending = Vec::new();
        if add(&root) {
            pending.push(root);
        }
        while let Some(dir) = pending.pop() {
            for entry in dir.read_dir()? {
                if stopped() {
                    return Ok(None);
                }
                let entry = entry?;
                if matches!(&*entry.name, b"." | b"..") {
                    continue;
                }
                let inode = fs.known_inode(entry.inode)?;
                if add(&inode) {
                    pending.push(inode);
                }
            }
        }
        Ok(Some(()))
    }
}

/// Returns the type of a file of the host. All special files count as FIFOs.
pub(super) fn file_type(kind: HostType) -> FileType {
    if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_file() {
        FileType::Regular
    } else {
        FileType::Fifo
    }
}
