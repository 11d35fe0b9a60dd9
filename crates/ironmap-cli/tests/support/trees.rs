//! Compares two trees of mounted file systems.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::xattr;

/// The compared attributes of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct View {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    device: u64,
    target: Option<PathBuf>,
    content: Option<u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The flags, as lsattr reports them.
    flags: u32,
    /// The modification time, or `None` for files that the test itself has made.
    modified: Option<(i64, i64)>,
}

pub(crate) fn view(root: &Path, begun: i64) -> BTreeMap<PathBuf, View> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = stat.is_file().then(|| {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            fs::read(&path).unwrap().hash(&mut hasher);
            hasher.finish()
        });
        let view = View {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            links: stat.nlink(),
            size: if stat.is_dir() { 0 } else { stat.size() },
            device: stat.rdev(),
            target: stat.is_symlink().then(|| fs::read_link(&path).unwrap()),
            content,
            xattrs: xattrs(&path),
            flags: flags(&path, &stat),
            modified: (stat.mtime() < begun).then_some((stat.mtime(), stat.mtime_nsec())),
        };
        found.insert(path.strip_prefix(root).unwrap().to_owned(), view);
    }
    found
}

/// The space of the files, in units of 512 bytes. It shows whether a file has the same holes and the same preallocated space.
pub(crate) fn space(root: &Path, views: &BTreeMap<PathBuf, View>) -> BTreeMap<PathBuf, u64> {
    let files = views.iter().filter(|(_, view)| view.content.is_some());
    files.map(|(path, _)| (path.clone(), fs::metadata(root.join(path)).unwrap().blocks())).collect()
}

/// The flags that users set. The flags for the format of the extent map are omitted.
fn flags(path: &Path, stat: &fs::Metadata) -> u32 {
    if !stat.is_dir() && !stat.is_file() {
        return 0;
    }
    let flags = rustix::fs::ioctl_getflags(fs::File::open(path).unwrap()).unwrap();
    flags.bits() & 0xFF
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let text = std::str::from_utf8(name).unwrap();
            (name.to_vec(), xattr(path, text).unwrap())
        })
        .collect()
}

pub(crate) fn compare(expected: &BTreeMap<PathBuf, View>, found: &BTreeMap<PathBuf, View>) {
    let mut wrong = String::new();
    for (path, view) in expected {
        match found.get(path) {
            None => wrong += &format!("{} is missing\n", path.display()),
            Some(found) if found != view => {
                wrong += &format!("{}:\n  {view:?}\n  {found:?}\n", path.display());
            }
            Some(_) => {}
        }
    }
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        wrong += &format!("{} is too much\n", path.display());
    }
    assert_eq!(wrong, "", "expected, then found");
}
