//! The changes of a workload, and the states that a volume may have after a crash.
//!
//! Names and the attributes of inodes change in transactions, so a crash leaves the state after one of the operations. Some operations,
//! such as a sync, report earlier changes as durable. The state after the crash must include these changes. It can include changes up to
//! the operation in progress.
//!
//! After a crash, each byte of a file has the value that the last sync of the file's data made durable, or a later value. A byte in a hole
//! can also be zero.

use std::collections::BTreeMap;

use crate::crash::op::{Op, Space, Special};
use crate::crash::seen::{Body, Seen, Tree};
use crate::crash::state::{About, Id, Names, Node, State};

/// The byte that fills free space. It stands for old data of other users. No file may show it.
pub(crate) const STALE: u8 = 0xDB;

/// An operation that made earlier changes durable.
#[derive(Clone, Debug)]
struct Promise {
    /// The number of this operation.
    number: usize,
    /// The number of the operation whose state is durable. After a crash, the volume has the state after this operation or a later state.
    state: usize,
    /// The file whose data are durable; `None` for all files.
    file: Option<Id>,
}

/// The operations, and the state of each name and file after each operation. The operations are numbered from 1. State 0 is the volume
/// before the first operation.
#[derive(Clone)]
pub(crate) struct History {
    pub(crate) ops: Vec<Op>,
    /// The seed of the data. Workloads with different seeds write different data; equal data are very unlikely.
    seed: u64,
    /// Each state, with the number of the operation that made it.
    states: Vec<(usize, State)>,
    /// For each file: its contents over time, each with the number of the operation that made it. A directory has no contents.
    contents: Vec<Vec<(usize, Vec<u8>)>>,
    /// For each file or directory: the number of the last operation that changed the object itself, one of its names, or an entry of the
    /// directory.
    touched: Vec<usize>,
    /// Operations that moved the content of a file, each with the distance of the move.
    shifts: Vec<(Id, usize, i64)>,
    promises: Vec<Promise>,
    /// The number of removed files that are still open.
    held: usize,
}

impl History {
    /// The history of an empty volume.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            ops: Vec::new(),
            seed,
            states: vec![(0, State::default())],
            contents: Vec::new(),
            touched: Vec::new(),
            shifts: Vec::new(),
            promises: Vec::new(),
            held: 0,
        }
    }

    fn state(&self) -> &State {
        &self.states[self.states.len() - 1].1
    }

    /// The current names, with the object to which each refers.
    pub(crate) fn now(&self) -> &Names {
        &self.state().names
    }

    /// The current attributes of a file or directory.
    pub(crate) fn about(&self, id: Id) -> &About {
        &self.state().about[&id]
    }

    /// The number of removed files that are still open.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The current content of a file.
    pub(crate) fn content(&self, file: Id) -> &[u8] {
        self.contents[file].last().map_or(&[], |(_, content)| content)
    }

    /// The byte that an operation writes at a position. This byte is never zero, and never the byte [`STALE`] of old data.
    pub(crate) fn written(&self, number: usize, pos: usize) -> u8 {
        let number = (number as u64) ^ self.seed << 16;
        let mixed = (number << 32 | pos as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 + ((mixed >> 40) % 200) as u8
    }

    /// The value that an operation gives to an attribute.
    pub(crate) fn value(&self, number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|pos| self.written(number, pos)).collect()
    }

    fn id_at(&self, path: &str) -> Option<Id> {
        self.now().get(path)?.id()
    }

    /// Adds an operation, which must be possible in the current state.
    pub(crate) fn push(&mut self, op: Op) {
        let number = self.ops.len() + 1;
        let mut state = self.state().clone();
        let made = self.contents.len();
        match &op {
            Op::Create(path) => {
                self.make(number, &mut state, vec![(number, Vec::new())]);
                state.names.insert(path.clone(), Node::File(made));
                self.touch(number, path);
            }
            Op::Mkdir(path) => {
                self.make(number, &mut state, Vec::new());
                state.names.insert(path.clone(), Node::Directory(made));
                self.touch(number, path);
            }
            Op::Mknod { path, what } => {
                state.names.insert(path.clone(), Node::Special(*what));
                self.touch(number, path);
            }
            Op::Symlink { path, target } => {
                state.names.insert(path.clone(), Node::Symlink(target.clone()));
                self.touch(number, path);
            }
            Op::Link { path, to } => {
                state.names.insert(to.clone(), state.names[path].clone());
                self.touch(number, path);
                self.touch(number, to);
            }
            Op::Unlink { path, open } => {
                self.touch(number, path);
                state.names.remove(path);
                self.held += usize::from(*open);
            }
            Op::LetGo => self.held -= 1,
            Op::Rmdir(path) => {
                self.touch(number, path);
                state.names.remove(path);
            }
            Op::Rename { from, to, how } => {
                self.touch(number, from);
                self.touch(number, to);
                state.rename(from, to, *how);
            }
            Op::Write { path, pos, len } => self.write(number, path, *pos, *len),
            Op::Truncate { path, size } => {
                self.change(number, path, |content| content.resize(*size, 0));
            }
            Op::Space { path, how, pos, len } => self.space(number, path, *how, *pos, *len),
            Op::Set { path, what } => {
                let id = self.id_at(path).expect("a file or directory");
                self.touched[id] = number;
                let about = state.about.get_mut(&id).expect("a file or directory");
                about.set(what, |len| self.value(number, len));
            }
            Op::Fsync(path) => {
                let file = self.id_at(path).expect("a file or directory");
                let state = self.touched[file];
                self.promises.push(Promise { number, state, file: Some(file) });
            }
            Op::Sync => self.promises.push(Promise { number, state: number, file: None }),
        }
        if state != *self.state() {
            self.states.push((number, state));
        }
        self.ops.push(op);
    }

    fn make(&mut self, number: usize, state: &mut State, contents: Vec<(usize, Vec<u8>)>) {
        state.about.insert(self.contents.len(), About::new());
        self.contents.push(contents);
        self.touched.push(number);
    }

    fn write(&mut self, number: usize, path: &str, pos: usize, len: usize) {
        let data: Vec<_> = (pos..pos + len).map(|pos| self.written(number, pos)).collect();
        self.change(number, path, |content| {
            content.resize(content.len().max(pos + len), 0);
            content[pos..pos + len].copy_from_slice(&data);
        });
    }

    fn space(&mut self, number: usize, path: &str, how: Space, pos: usize, len: usize) {
        let file = self.id_at(path).expect("a file");
        match how {
            Space::Collapse => self.shifts.push((file, number, -(len as i64))),
            Space::Insert => self.shifts.push((file, number, len as i64)),
            _ => {}
        }
        self.change(number, path, |content| how.apply(content, pos, len));
    }

    /// Records that an operation changed the file with this path and its parent directory.
    fn touch(&mut self, number: usize, path: &str) {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        for path in [path].into_iter().chain(parent) {
            if let Some(id) = self.id_at(path) {
                self.touched[id] = number;
            }
        }
    }

    fn change(&mut self, number: usize, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.id_at(path).expect("a file");
        let mut content = self.content(file).to_vec();
        change(&mut content);
        self.contents[file].push((number, content));
    }

    /// Checks whether the volume may have this tree after the first `returned` operations have returned. If not, returns the fault.
    pub(crate) fn check(&self, tree: &Tree, returned: usize) -> Result<(), String> {
        let under_way = returned + 1;
        let promised = self.promises.iter().filter(|promise| promise.number <= returned);
        let oldest = promised.map(|promise| promise.state).max().unwrap_or(0);
        let current =
            |since: usize| self.states.partition_point(|(number, _)| *number <= since) - 1;
        let possible = &self.states[current(oldest)..=current(under_way)];
        // Two states with equal names can refer to different files. So the tree of the volume is compared with all states that are possible
        // after the crash.
        let mut closest: Option<Vec<String>> = None;
        for (number, state) in possible {
            let faults = self.faults(state, tree, returned);
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

    fn faults(&self, state: &State, tree: &Tree, returned: usize) -> Vec<String> {
        let names = &state.names;
        let mut faults = Vec::new();
        for path in tree.keys().filter(|path| !names.contains_key(*path)) {
            faults.push(format!("{path}: should not be there"));
        }
        // The inode number of each file.
        let mut inodes = BTreeMap::new();
        let mut contents = Vec::new();
        for (path, node) in names {
            let Some(seen) = tree.get(path) else {
                faults.push(format!("{path}: is missing"));
                continue;
            };
            let fault = match (node, &seen.body) {
                (Node::Directory(_), Body::Directory) => None,
                (Node::Symlink(target), Body::Symlink(seen)) if seen == target.as_bytes() => None,
                (Node::Special(Special::Fifo), Body::Fifo) => None,
                (Node::Special(Special::Device(major, minor)), Body::Device(of, at))
                    if (major, minor) == (of, at) =>
                {
                    None
                }
                (Node::File(file), Body::File(content)) => {
                    let Seen { inode, links, .. } = seen;
                    let count = names.values().filter(|other| *other == node).count();
                    if *inodes.entry(*file).or_insert(*inode) != *inode {
                        Some("its names have different inodes".to_owned())
                    } else if *links as usize != count {
                        Some(format!("{links} links for {count} names"))
                    } else {
                        contents.push((path, *file, content));
                        None
                    }
                }
                (_, other) => Some(format!("is {}, not {node:?}", other.kind())),
            };
            let about = node.id().and_then(|id| state.about[&id].fault(seen));
            faults.extend(fault.or(about).map(|fault| format!("{path}: {fault}")));
        }
        let distinct: std::collections::BTreeSet<_> = inodes.values().collect();
        if distinct.len() != inodes.len() {
            faults.push("two files share an inode".to_owned());
        }
        // The check of the contents needs the most time, so it is the last one.
        if faults.is_empty() {
            for (path, file, content) in contents {
                let fault = self.fault_of(file, content, returned);
                faults.extend(fault.map(|fault| format!("{path}: {fault}")));
            }
        }
        faults
    }

    /// Describes the first fault in the content of a file, if there is one.
    fn fault_of(&self, file: Id, content: &[u8], returned: usize) -> Option<String> {
        let promised = self.promises.iter().filter(|promise| {
            promise.number <= returned && promise.file.is_none_or(|promised| promised == file)
        });
        let since = promised.map(|promise| promise.number).max().unwrap_or(0);
        let versions = &self.contents[file];
        let first = versions.partition_point(|(number, _)| *number <= since).saturating_sub(1);
        let end = versions.partition_point(|(number, _)| *number <= returned + 1).max(first + 1);
        let versions: Vec<_> = versions[first..end].iter().map(|(_, content)| content).collect();
        if versions.iter().any(|version| *version == content) {
            return None;
        }
        let sizes = versions.iter().map(|version| version.len());
        let (least, most) = (sizes.clone().min()?, sizes.max()?);
        if !(least..=most).contains(&content.len()) {
            return Some(format!("{} bytes, not {least} to {most}", content.len()));
        }
        // A collapse or an insert moves the blocks of a file, and a later write goes to the moved blocks. If a crash loses the move, the
        // data of this write appear at the old position of the blocks.
        let mut distances = vec![0];
        for (of, number, shift) in &self.shifts {
            if *of == file && (since + 1..=returned + 1).contains(number) {
                distances.extend(distances.clone().iter().map(|distance| distance + shift));
                distances.sort_unstable();
                distances.dedup();
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
        let what = if content[pos] == STALE { "data of free space" } else { "no byte of its own" };
        Some(format!(
            "{:#x} at {pos} of {}, {what}, since operation {since}",
            content[pos],
            content.len()
        ))
    }
}
