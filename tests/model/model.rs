//! The model: a tree in memory that follows the rules of POSIX.

use std::collections::BTreeMap;

use crate::op::{Op, Path, Renaming, Space, UNIT, target};
use crate::{Answer, Seen, Target, Tree};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EPERM: i32 = 1;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;
const ENODATA: i32 = 61;
const ESPIPE: i32 = 29;
const ENODEV: i32 = 19;

type Id = usize;

struct Node {
    seen: Seen,
    entries: Option<BTreeMap<&'static str, Id>>,
    parent: Id,
}

pub(crate) struct Model {
    nodes: Vec<Node>,
}

const S_IFMT: u32 = 0o170_000;
const DIR: u32 = 0o040_000;
const REG: u32 = 0o100_000;
const LNK: u32 = 0o120_000;
const FIFO: u32 = 0o010_000;

impl Model {
    pub(crate) fn new() -> Self {
        let mut model = Self { nodes: Vec::new() };
        model.make(0, DIR | 0o755);
        model
    }

    fn make(&mut self, parent: Id, mode: u32) -> Id {
        let directory = mode & S_IFMT == DIR;
        let seen = Seen {
            mode,
            links: if directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            content: Vec::new(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.push(Node { seen, entries: directory.then(BTreeMap::new), parent });
        self.nodes.len() - 1
    }

    fn kind(&self, id: Id) -> u32 {
        self.nodes[id].seen.mode & S_IFMT
    }

    /// Finds the directory that contains the last name. Links in the path are not followed.
    fn parent(&self, path: &Path) -> Result<Id, i32> {
        let mut dir = 0;
        for name in &path[..path.len() - 1] {
            dir = self.child(dir, name)?.ok_or(ENOENT)?;
            match self.kind(dir) {
                DIR => {}
                LNK => return Err(ENOENT),
                _ => return Err(ENOTDIR),
            }
        }
        Ok(dir)
    }

    fn child(&self, dir: Id, name: &str) -> Result<Option<Id>, i32> {
        let entries = self.nodes[dir].entries.as_ref().ok_or(ENOTDIR)?;
        Ok(entries.get(name).copied())
    }

    /// Finds the file that a path names. If the path names a link, the result is the link itself.
    fn find(&self, path: &Path) -> Result<Id, i32> {
        self.child(self.parent(path)?, path[path.len() - 1])?.ok_or(ENOENT)
    }

    /// Finds the file to open. A path that is a link is an error.
    fn open(&self, path: &Path) -> Result<Id, i32> {
        let id = self.find(path)?;
        if self.kind(id) == LNK { Err(ELOOP) } else { Ok(id) }
    }

    fn file(&self, path: &Path) -> Result<Id, i32> {
        let id = self.open(path)?;
        match self.kind(id) {
            REG => Ok(id),
            DIR => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    fn create(&mut self, path: &Path, mode: u32) -> Result<Id, i32> {
        let (dir, name) = (self.parent(path)?, path[path.len() - 1]);
        if self.child(dir, name)?.is_some() {
            return Err(EEXIST);
        }
        let id = self.make(dir, mode);
        self.put(dir, name, Some(id));
        Ok(id)
    }

    /// Sets or removes an entry. The link count of a directory also counts its subdirectories.
    fn put(&mut self, dir: Id, name: &'static str, id: Option<Id>) {
        let entries = self.nodes[dir].entries.as_mut().expect("a directory");
        let before = match id {
            Some(id) => entries.insert(name, id),
            None => entries.remove(name),
        };
        let count =
            |model: &Self, id: Option<Id>| u32::from(id.is_some_and(|id| model.kind(id) == DIR));
        let (gained, lost) = (count(self, id), count(self, before));
        self.nodes[dir].seen.links = self.nodes[dir].seen.links + gained - lost;
        if let Some(id) = id {
            self.nodes[id].parent = dir;
        }
    }

    fn is_empty(&self, id: Id) -> bool {
        self.nodes[id].entries.as_ref().is_some_and(BTreeMap::is_empty)
    }

    fn is_within(&self, mut id: Id, above: Id) -> bool {
        while id != 0 {
            if id == above {
                return true;
            }
            id = self.nodes[id].parent;
        }
        above == 0
    }

    fn unlink(&mut self, path: &Path) -> Answer {
        let (dir, id) = (self.parent(path)?, self.find(path)?);
        if self.kind(id) == DIR {
            return Err(EISDIR);
        }
        self.nodes[id].seen.links -= 1;
        self.put(dir, path[path.len() - 1], None);
        Ok(())
    }

    fn rmdir(&mut self, path: &Path) -> Answer {
        let (dir, id) = (self.parent(path)?, self.find(path)?);
        if self.kind(id) != DIR {
            return Err(ENOTDIR);
        }
        if !self.is_empty(id) {
            return Err(ENOTEMPTY);
        }
        self.put(dir, path[path.len() - 1], None);
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> Answer {
        let id = self.find(from)?;
        let (dir, name) = (self.parent(to)?, to[to.len() - 1]);
        if self.child(dir, name)?.is_some() {
            return Err(EEXIST);
        }
        if self.kind(id) == DIR {
            return Err(EPERM);
        }
        self.nodes[id].seen.links += 1;
        self.put(dir, name, Some(id));
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, how: Renaming) -> Answer {
        let (old_dir, new_dir) = (self.parent(from)?, self.parent(to)?);
        let (old, new) = (from[from.len() - 1], to[to.len() - 1]);
        let moved = self.child(old_dir, old)?.ok_or(ENOENT)?;
        let there = self.child(new_dir, new)?;
        if how == Renaming::NoReplace && there.is_some() {
            return Err(EEXIST);
        }
        if how == Renaming::Exchange && there.is_none() {
            return Err(ENOENT);
        }
        if self.is_within(new_dir, moved) {
            return Err(EINVAL);
        }
        if there.is_some_and(|there| self.is_within(old_dir, there)) {
            return Err(if how == Renaming::Exchange { EINVAL } else { ENOTEMPTY });
        }
        if there == Some(moved) {
            return Ok(());
        }
        if how == Renaming::Exchange {
            self.put(new_dir, new, Some(moved));
            self.put(old_dir, old, there);
            return Ok(());
        }
        if let Some(there) = there {
            match (self.kind(moved) == DIR, self.kind(there) == DIR) {
                (true, true) if !self.is_empty(there) => return Err(ENOTEMPTY),
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            }
            self.nodes[there].seen.links -= 1;
        }
        self.put(old_dir, old, None);
        self.put(new_dir, new, Some(moved));
        Ok(())
    }

    fn fallocate(&mut self, path: &Path, how: Space, pos: u64, len: u64) -> Answer {
        let id = self.open(path)?;
        match self.kind(id) {
            REG => {}
            DIR => return Err(EISDIR),
            FIFO => return Err(ESPIPE),
            _ => return Err(ENODEV),
        }
        let content = &mut self.nodes[id].seen.content;
        let (start, end) = (pos as usize, (pos + len) as usize);
        match how {
            Space::Allocate => content.resize(content.len().max(end), 0),
            Space::KeepSize => {}
            Space::Punch | Space::Zero => {
                let (start, end) = (content.len().min(start), content.len().min(end));
                content[start..end].fill(0);
            }
            Space::Collapse | Space::Insert if !(pos | len).is_multiple_of(UNIT) => {
                return Err(EINVAL);
            }
            Space::Collapse if end < content.len() => drop(content.drain(start..end)),
            Space::Insert if start < content.len() => {
                content.splice(start..start, vec![0; len as usize]);
            }
            Space::Collapse | Space::Insert => return Err(EINVAL),
        }
        Ok(())
    }
}

impl Target for Model {
    fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Create(path, mode) => self.create(path, REG | mode).map(drop),
            Op::Mkdir(path, mode) => self.create(path, DIR | mode).map(drop),
            Op::Symlink(path, len) => {
                let id = self.create(path, LNK | 0o777)?;
                self.nodes[id].seen.content = target(*len);
                Ok(())
            }
            Op::Fifo(path) => self.create(path, FIFO | 0o600).map(drop),
            Op::Unlink(path) => self.unlink(path),
            Op::Rmdir(path) => self.rmdir(path),
            Op::Link(from, to) => self.link(from, to),
            Op::Rename(from, to, how) => self.rename(from, to, *how),
            Op::Write(path, pos, len, byte) => {
                let id = self.file(path)?;
                let content = &mut self.nodes[id].seen.content;
                let (pos, end) = (*pos as usize, *pos as usize + len);
                content.resize(content.len().max(end), 0);
                content[pos..end].fill(*byte);
                Ok(())
            }
            Op::Truncate(path, size) => {
                let id = self.file(path)?;
                self.nodes[id].seen.content.resize(*size as usize, 0);
                Ok(())
            }
            Op::Fallocate(path, how, pos, len) => self.fallocate(path, *how, *pos, *len),
            Op::Chmod(path, mode) => {
                let id = self.open(path)?;
                let seen = &mut self.nodes[id].seen;
                seen.mode = seen.mode & S_IFMT | mode;
                Ok(())
            }
            Op::Chown(path, uid, gid) => {
                let id = self.find(path)?;
                let seen = &mut self.nodes[id].seen;
                (seen.uid, seen.gid) = (*uid, *gid);
                Ok(())
            }
            Op::SetXattr(path, name, len, byte) => {
                let id = self.find(path)?;
                self.check_xattr(id, name)?;
                let value = vec![*byte; *len];
                self.nodes[id].seen.xattrs.insert(name.as_bytes().to_vec(), value);
                Ok(())
            }
            Op::RemoveXattr(path, name) => {
                let id = self.find(path)?;
                self.check_xattr(id, name)?;
                let xattrs = &mut self.nodes[id].seen.xattrs;
                xattrs.remove(name.as_bytes()).map(drop).ok_or(ENODATA)
            }
        }
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut todo = vec![(String::new(), 0)];
        while let Some((path, id)) = todo.pop() {
            for (name, child) in self.nodes[id].entries.iter().flatten() {
                let path = format!("{path}/{name}");
                tree.insert(path.clone(), self.nodes[*child].seen.clone());
                todo.push((path, *child));
            }
        }
        tree
    }
}

impl Model {
    /// Only files and directories may have attributes with the prefix `user.`.
    fn check_xattr(&self, id: Id, name: &str) -> Answer {
        let user = name.starts_with("user.");
        if user && !matches!(self.kind(id), REG | DIR) { Err(EPERM) } else { Ok(()) }
    }
}
