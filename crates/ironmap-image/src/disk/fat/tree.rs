//! The files of a new FAT file system. Later sources replace files of earlier sources.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::names::{long_entries, refuse};
use crate::failure::Failure;
use crate::spared::Spared;

/// A directory. The keys are the names in lower case, because FAT ignores case.
#[derive(Debug, Default)]
pub(crate) struct Dir {
    pub(super) entries: BTreeMap<String, Entry>,
    /// The clusters of the directory.
    pub(super) place: Clusters,
}

/// A file or directory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The time of the last change, in seconds since 1970.
    pub(super) time: i64,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Node {
    Dir(Dir),
    File(HostFile),
}

/// A file of the host.
#[derive(Debug)]
pub(super) struct HostFile {
    pub(super) path: PathBuf,
    pub(super) size: u32,
    pub(super) place: Clusters,
}

/// The clusters of a file, which are consecutive. A file without content has none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clusters {
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Dir {
    /// Adds the entries of a directory of the host. No time stamp is later than `latest`.
    ///
    /// # Errors
    /// Fails if the directory cannot be read, or if FAT cannot store a file: a link, a device, a name that FAT does not permit, two names
    /// that differ only in case, or a file of 4 GiB or more.
    pub(crate) fn add(
        &mut self,
        dir: &Path,
        latest: Option<i64>,
        own: &Spared,
    ) -> Result<(), Failure> {
        let failed = |path: &Path, error| Failure::host(path.display(), error);
        let mut here = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(|error| failed(dir, error))? {
            let entry = entry.map_err(|error| failed(dir, error))?;
            let path = entry.path();
            let cannot = |what: &str| Failure::new(format!("{}: {what}", path.display()));
            let Ok(name) = entry.file_name().into_string() else {
                return Err(cannot("the name is not UTF-8, so FAT cannot store it"));
            };
            refuse(&name).map_err(cannot)?;
            let found = entry.metadata().map_err(|error| failed(&path, error))?;
            if own.contains(found.dev(), found.ino()) {
                continue;
            }
            let key = name.to_lowercase();
            if let Some(other) = here.insert(key.clone(), name.clone()) {
                return Err(cannot(&format!("the name differs from {other} only in case")));
            }
            let time = found.mtime().min(latest.unwrap_or(i64::MAX));
            let node = if found.is_dir() {
                let mut below = match self.entries.remove(&key) {
                    Some(Entry { node: Node::Dir(below), .. }) => below,
                    _ => Self::default(),
                };
                below.add(&path, latest, own)?;
                Node::Dir(below)
            } else if found.is_file() {
                let size = u32::try_from(found.len())
                    .map_err(|_| cannot("FAT stores no file of 4 GiB or more"))?;
                Node::File(HostFile { path, size, place: Clusters::default() })
            } else {
                return Err(cannot("FAT stores only files and directories, not links or devices"));
            };
            self.entries.insert(key, Entry { name, time, node });
        }
        Ok(())
    }

    /// Returns the number of directory entries of 32 bytes, without `.` and `..` and without the label. Each name is counted as a long
    /// name.
    pub(super) fn slots(&self) -> u64 {
        self.entries.values().map(|entry| 1 + long_entries(&entry.name) as u64).sum()
    }

    /// Returns the number of clusters that everything below this directory needs.
    pub(super) fn clusters_below(&self, cluster: u64) -> u64 {
        let need = |entry: &Entry| match &entry.node {
            Node::Dir(dir) => dir.clusters(cluster) + dir.clusters_below(cluster),
            Node::File(file) => u64::from(file.size).div_ceil(cluster),
        };
        self.entries.values().map(need).sum()
    }

    /// Returns the number of clusters of this directory itself, with `.` and `..`.
    pub(super) fn clusters(&self, cluster: u64) -> u64 {
        ((self.slots() + 2) * 32).div_ceil(cluster)
    }
}
