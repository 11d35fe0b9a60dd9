//! What a workload did, and from that what a volume may hold after a crash.
//!
//! The name space goes from one transaction to the next, so it is as it was after one of the operations: not before the last
//! whose promise had been given, not behind the one that was under way. Each byte of a file is one that the file held there
//! since the last promise for its data, or zero where it had none.

use std::collections::BTreeMap;

use crate::seen::{Seen, Tree};

/// A file by the order of creation.
pub(crate) type FileId = usize;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File(FileId),
    Directory,
    Symlink(String),
}

/// A whole name space, by paths without a leading slash.
pub(crate) type Names = BTreeMap<String, Node>;

/// An operation of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(String),
    Mkdir(String),
    Symlink {
        path: String,
        target: String,
    },
    Link {
        path: String,
        to: String,
    },
    /// A file that is removed while it is open stays so until the end.
    Unlink {
        path: String,
        open: bool,
    },
    Rmdir(String),
    /// What is at `to` is replaced.
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Write {
        path: String,
        pos: usize,
        len: usize,
    },
    Truncate {
        path: String,
        size: usize,
    },
    Space {
        path: String,
        how: Space,
        pos: usize,
        len: usize,
    },
    /// Of a file or a directory.
    Fsync(String),
    Sync,
}

/// What fallocate(2) does with a range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Space {
    Allocate { keep_size: bool },
    Zero { keep_size: bool },
    Punch,
    Collapse,
    Insert,
}

impl Space {
    fn apply(self, content: &mut Vec<u8>, pos: usize, len: usize) {
        let (size, end) = (content.len(), pos + len);
        match self {
            Self::Allocate { keep_size: false } => content.resize(size.max(end), 0),
            Self::Allocate { keep_size: true } => {}
            Self::Zero { keep_size } => {
                content.resize(if keep_size { size } else { size.max(end) }, 0);
                Self::Punch.apply(content, pos, len);
            }
            Self::Punch => content[pos.min(size)..end.min(size)].fill(0),
            Self::Collapse => drop(content.drain(pos..end)),
            Self::Insert => drop(content.splice(pos..pos, std::iter::repeat_n(0, len))),
        }
    }
}

/// The byte that the write of a number leaves at a position: no zero, and none of what free space is filled with.
pub(crate) fn written(number: usize, pos: usize) -> u8 {
    let mixed = ((number as u64) << 32 | pos as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 + ((mixed >> 40) % 200) as u8
}

/// What free space is filled with: the stale data of others, which no file may ever show.
pub(crate) const STALE: u8 = 0xDB;

/// What a completed operation promises of what was before it.
#[derive(Debug)]
struct Promise {
    /// The operation that gave it.
    number: usize,
    /// The name space that this operation left, or a later one.
    names: usize,
    /// The data of this file; of all without one.
    file: Option<FileId>,
}

/// What was done, and what each name and file was after it. Operations are numbered from 1; 0 is the volume before them.
pub(crate) struct History {
    pub(crate) ops: Vec<Op>,
    /// Each name space with the operation that made it.
    names: Vec<(usize, Names)>,
    /// Each content of a file with the operation that made it.
    files: Vec<Vec<(usize, Vec<u8>)>>,
    /// Operations that moved content of a file, and how far up.
    shifts: Vec<(FileId, usize, i64)>,
    /// The last operation on the names of a file, and in a directory.
    file_touched: Vec<usize>,
    directory_touched: BTreeMap<String, usize>,
    promises: Vec<Promise>,
}

impl History {
    /// Of an empty volume.
    pub(crate) fn new() -> Self {
        Self {
            ops: Vec::new(),
            names: vec![(0, Names::new())],
            files: Vec::new(),
            shifts: Vec::new(),
            file_touched: Vec::new(),
            directory_touched: BTreeMap::new(),
            promises: Vec::new(),
        }
    }

    /// The name space as it is now.
    pub(crate) fn now(&self) -> &Names {
        &self.names[self.names.len() - 1].1
    }

    /// The content of a file as it is now.
    pub(crate) fn content(&self, file: FileId) -> &[u8] {
        self.files[file].last().map_or(&[], |(_, content)| content)
    }

    fn file_at(&self, path: &str) -> Option<FileId> {
        match self.now().get(path) {
            Some(Node::File(file)) => Some(*file),
            _ => None,
        }
    }

    /// The next operation, which must be possible.
    pub(crate) fn push(&mut self, op: Op) {
        let number = self.ops.len() + 1;
        let mut names = self.now().clone();
        match &op {
            Op::Create(path) => {
                self.files.push(vec![(number, Vec::new())]);
                self.file_touched.push(number);
                names.insert(path.clone(), Node::File(self.files.len() - 1));
                self.touch(number, [path]);
            }
            Op::Mkdir(path) => {
                names.insert(path.clone(), Node::Directory);
                self.directory_touched.insert(path.clone(), number);
                self.touch(number, [path]);
            }
            Op::Symlink { path, target } => {
                names.insert(path.clone(), Node::Symlink(target.clone()));
                self.touch(number, [path]);
            }
            Op::Link { path, to } => {
                names.insert(to.clone(), names[path].clone());
                self.touch(number, [path, to]);
            }
            Op::Unlink { path, .. } | Op::Rmdir(path) => {
                self.touch(number, [path]);
                names.remove(path);
            }
            Op::Rename { from, to } => {
                self.touch(number, [from, to]);
                let node = names.remove(from).expect("a name");
                if node == Node::Directory {
                    moved(&mut names, from, to);
                    moved(&mut self.directory_touched, from, to);
                    self.directory_touched.insert(to.clone(), number);
                }
                names.insert(to.clone(), node);
            }
            Op::Exchange { one, other } => {
                self.touch(number, [one, other]);
                let (first, second) = (names[one].clone(), names[other].clone());
                names.insert(one.clone(), second);
                names.insert(other.clone(), first);
            }
            Op::Write { path, pos, len } => self.change(number, path, |content| {
                content.resize(content.len().max(pos + len), 0);
                (*pos..pos + len).for_each(|at| content[at] = written(number, at));
            }),
            Op::Truncate { path, size } => {
                self.change(number, path, |content| content.resize(*size, 0));
            }
            Op::Space { path, how, pos, len } => {
                let file = self.file_at(path).expect("a file");
                match how {
                    Space::Collapse => self.shifts.push((file, number, -(*len as i64))),
                    Space::Insert => self.shifts.push((file, number, *len as i64)),
                    _ => {}
                }
                self.change(number, path, |content| how.apply(content, *pos, *len));
            }
            Op::Fsync(path) => {
                let file = self.file_at(path);
                let names = match file {
                    Some(file) => self.file_touched[file],
                    None => self.directory_touched[path],
                };
                // A directory has no data: the number of no file.
                self.promises.push(Promise {
                    number,
                    names,
                    file: Some(file.unwrap_or(FileId::MAX)),
                });
            }
            Op::Sync => self.promises.push(Promise { number, names: number, file: None }),
        }
        if names != *self.now() {
            self.names.push((number, names));
        }
        self.ops.push(op);
    }

    /// An operation concerns the inodes of these names, and the directories that hold them.
    fn touch<'p>(&mut self, number: usize, paths: impl IntoIterator<Item = &'p String>) {
        for path in paths {
            if let Some(file) = self.file_at(path) {
                self.file_touched[file] = number;
            }
            if let Some((parent, _)) = path.rsplit_once('/') {
                self.directory_touched.insert(parent.to_owned(), number);
            }
        }
    }

    fn change(&mut self, number: usize, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.file_at(path).expect("a file");
        let mut content = self.content(file).to_vec();
        change(&mut content);
        self.files[file].push((number, content));
    }

    /// Whether a volume may look like this when so many operations had returned; what is wrong with it otherwise.
    pub(crate) fn check(&self, tree: &Tree, returned: usize) -> Result<(), String> {
        let under_way = returned + 1;
        let promised = self.promises.iter().filter(|promise| promise.number <= returned);
        let oldest = promised.map(|promise| promise.names).max().unwrap_or(0);
        let current = |since: usize| self.names.partition_point(|(number, _)| *number <= since) - 1;
        let possible = &self.names[current(oldest)..=current(under_way)];
        // Name spaces can look the same and hold other files.
        let mut closest: Option<Vec<String>> = None;
        for (number, names) in possible {
            let faults = self.faults(names, tree, returned);
            if faults.is_empty() {
                return Ok(());
            }
            if closest.as_ref().is_none_or(|closest| faults.len() < closest.len()) {
                let first = format!("against the names of operation {number}:");
                closest = Some([vec![first], faults].concat());
            }
        }
        let range = format!("operations {oldest} to {under_way} of {}", self.ops.len());
        Err(format!("{range}: {}", closest.unwrap_or_default().join("\n    ")))
    }

    fn faults(&self, names: &Names, tree: &Tree, returned: usize) -> Vec<String> {
        let mut faults = Vec::new();
        for path in tree.keys().filter(|path| !names.contains_key(*path)) {
            faults.push(format!("{path}: should not be there"));
        }
        // Which inode each file has shown so far, and under how many names it should be.
        let mut inodes = BTreeMap::new();
        for (path, node) in names {
            let fault = match (node, tree.get(path)) {
                (_, None) => Some("is missing".to_owned()),
                (Node::Directory, Some(Seen::Directory)) => None,
                (Node::Symlink(target), Some(Seen::Symlink(seen))) if seen == target.as_bytes() => {
                    None
                }
                (Node::File(file), Some(Seen::File { inode, links, content })) => {
                    let count = names.values().filter(|other| *other == node).count();
                    if *inodes.entry(*file).or_insert(*inode) != *inode {
                        Some("its names have different inodes".to_owned())
                    } else if *links as usize != count {
                        Some(format!("{links} links for {count} names"))
                    } else {
                        self.fault_of(*file, content, returned)
                    }
                }
                (_, Some(other)) => Some(format!("is {}, not {node:?}", other.kind())),
            };
            faults.extend(fault.map(|fault| format!("{path}: {fault}")));
        }
        let distinct: std::collections::BTreeSet<_> = inodes.values().collect();
        if distinct.len() != inodes.len() {
            faults.push("two files share an inode".to_owned());
        }
        faults
    }

    /// What is wrong with the content of a file.
    fn fault_of(&self, file: FileId, content: &[u8], returned: usize) -> Option<String> {
        let promised = self.promises.iter().filter(|promise| {
            promise.number <= returned && promise.file.is_none_or(|promised| promised == file)
        });
        let since = promised.map(|promise| promise.number).max().unwrap_or(0);
        let versions = &self.files[file];
        let first = versions.partition_point(|(number, _)| *number <= since).saturating_sub(1);
        let end = versions.partition_point(|(number, _)| *number <= returned + 1).max(first + 1);
        let versions: Vec<_> = versions[first..end].iter().map(|(_, content)| content).collect();
        let sizes = versions.iter().map(|version| version.len());
        let (least, most) = (sizes.clone().min()?, sizes.max()?);
        if !(least..=most).contains(&content.len()) {
            return Some(format!("{} bytes, not {least} to {most}", content.len()));
        }
        // What is written behind a shift goes to the blocks where they are: it shows at the old place while the shift is not there.
        let mut distances = vec![0];
        for (of, number, shift) in &self.shifts {
            if *of == file && (since + 1..=returned + 1).contains(number) {
                distances.extend(distances.clone().iter().map(|distance| distance + shift));
            }
        }
        let allowed = |pos: usize, byte: u8| {
            let places = distances.iter().filter_map(|by| pos.checked_add_signed(*by as isize));
            let held = |place: usize| {
                versions.iter().any(|version| version.get(place).copied().unwrap_or(0) == byte)
            };
            places.into_iter().any(held)
        };
        let pos = content.iter().enumerate().position(|(pos, byte)| !allowed(pos, *byte))?;
        let what =
            if content[pos] == STALE { "what free space held" } else { "no byte of its own" };
        Some(format!(
            "{:#x} at {pos} of {}, {what}, since operation {since}",
            content[pos],
            content.len()
        ))
    }
}

/// Moves what lies below a directory.
fn moved<T>(paths: &mut BTreeMap<String, T>, from: &str, to: &str) {
    let below = format!("{from}/");
    let old: Vec<_> = paths.keys().filter(|path| path.starts_with(&below)).cloned().collect();
    for path in old {
        if let Some(value) = paths.remove(&path) {
            paths.insert(format!("{to}/{}", &path[below.len()..]), value);
        }
    }
}
