//! Random workloads. Each operation is possible at the time when it is executed.

use crate::common::rng::Rng;
use crate::crash::history::History;
use crate::crash::op::{Op, Renaming, Set, Space, Special};
use crate::crash::state::{Names, Node};

/// The maximum size of a file, and of all files together.
const FILE_LIMIT: u64 = 48 << 10;
const TOTAL_LIMIT: usize = 1 << 20;
const DIRECTORIES: u64 = 4;

/// A common multiple of all block sizes and cluster sizes of the tested volumes.
const UNIT: u64 = 8192;

/// Properties of a volume and of its file names. They determine which operations the generator chooses.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    /// Whether files have extents. Without extents, space cannot be preallocated.
    extents: bool,
    /// Whether values of attributes may be larger than a block.
    large_values: bool,
    /// The number of different names. If there are few names, operations often affect the same file. If there are many long names,
    /// directories grow.
    names: u64,
    /// The prefix of every name.
    prefix: &'static str,
}

impl Style {
    /// The properties of a volume that mke2fs makes with the given options.
    pub(crate) fn of(format: &str) -> Self {
        Self {
            extents: !format.contains("ext3") && !format.contains("ext2"),
            large_values: format.contains("ea_inode"),
            names: 12,
            prefix: "",
        }
    }

    pub(crate) fn growing(self) -> Self {
        Self { names: 1000, ..self }
    }

    pub(crate) fn with_prefix(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    fn grows(self) -> bool {
        self.names > 100
    }
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Create,
    Mkdir,
    Mknod,
    Symlink,
    Link,
    Unlink,
    UnlinkOpen,
    LetGo,
    Rmdir,
    Rename,
    Replace,
    RenameDirectory,
    NoReplace,
    Exchange,
    Whiteout,
    Write,
    Append,
    Shrink,
    Grow,
    Allocate,
    AllocateKeepSize,
    Zero,
    ZeroKeepSize,
    Punch,
    Collapse,
    Insert,
    Permissions,
    Owner,
    Accessed,
    NoDump,
    Xattr,
    LargeXattr,
    RemoveXattr,
    Acl,
    Fsync,
    Sync,
}

use Kind::{
    Accessed, Acl, Allocate, AllocateKeepSize, Append, Collapse, Create, Exchange, Fsync, Grow,
    Insert, LargeXattr, LetGo, Link, Mkdir, Mknod, NoDump, NoReplace, Owner, Permissions, Punch,
    RemoveXattr, Rename, RenameDirectory, Replace, Rmdir, Shrink, Symlink, Sync, Unlink,
    UnlinkOpen, Whiteout, Write, Xattr, Zero, ZeroKeepSize,
};

/// Every kind of operation. Its weight determines how often it is chosen.
pub(crate) const KINDS: [(Kind, u64); 36] = [
    (Create, 14),
    (Mkdir, 4),
    (Mknod, 2),
    (Symlink, 3),
    (Link, 4),
    (Unlink, 6),
    (UnlinkOpen, 2),
    (LetGo, 2),
    (Rmdir, 2),
    (Rename, 5),
    (Replace, 6),
    (RenameDirectory, 2),
    (NoReplace, 1),
    (Exchange, 3),
    (Whiteout, 2),
    (Write, 10),
    (Append, 6),
    (Shrink, 3),
    (Grow, 3),
    (Allocate, 1),
    (AllocateKeepSize, 1),
    (Zero, 1),
    (ZeroKeepSize, 1),
    (Punch, 1),
    (Collapse, 1),
    (Insert, 1),
    (Permissions, 1),
    (Owner, 1),
    (Accessed, 1),
    (NoDump, 1),
    (Xattr, 4),
    (LargeXattr, 2),
    (RemoveXattr, 2),
    (Acl, 2),
    (Fsync, 14),
    (Sync, 6),
];

/// Makes a history of `count` operations from a seed.
pub(crate) fn workload(seed: u64, count: usize, style: Style) -> History {
    let (mut rng, mut history) = (Rng::new(seed), History::new(seed));
    while history.ops.len() < count {
        push_any(&mut rng, &mut history, style);
    }
    history
}

/// Chooses a random operation, and adds it if it is possible.
pub(crate) fn push_any(rng: &mut Rng, history: &mut History, style: Style) {
    let mut point = rng.below(KINDS.iter().map(|(_, weight)| weight).sum());
    let mut chosen = KINDS.iter().find_map(|(kind, weight)| {
        let here = point < *weight;
        point = point.saturating_sub(*weight);
        here.then_some(*kind)
    });
    if style.grows() && rng.below(2) == 0 {
        chosen = Some(Create);
    }
    if let Some(op) = chosen.and_then(|kind| choose(kind, rng, history, style)) {
        history.push(op);
    }
}

/// Chooses an operation of this kind, or returns `None` if the chosen operation is not possible.
pub(crate) fn choose(kind: Kind, rng: &mut Rng, history: &History, style: Style) -> Option<Op> {
    let names = history.now();
    let free = |rng: &mut Rng| free(rng, names, style);
    let free_directory = |rng: &mut Rng| free_directory(rng, names, style);
    let leaf = |rng: &mut Rng| any(rng, names, |node| !matches!(node, Node::Directory(_)));
    let file = |rng: &mut Rng| any(rng, names, |node| matches!(node, Node::File(_)));
    let directory = |rng: &mut Rng| any(rng, names, |node| matches!(node, Node::Directory(_)));
    let renamed = |rng: &mut Rng, how| Some(Op::Rename { from: leaf(rng)?, to: free(rng)?, how });
    // A rename between two names of one file has no effect.
    let two = |rng: &mut Rng, how| {
        let (from, to) = (leaf(rng)?, leaf(rng)?);
        (names[&from] != names[&to]).then_some(Op::Rename { from, to, how })
    };
    Some(match kind {
        Create => Op::Create(free(rng)?),
        Mkdir => Op::Mkdir(free_directory(rng)?),
        Mknod => {
            let what = [Special::Fifo, Special::Device(5, 1), Special::Device(300, 70_000)];
            Op::Mknod { path: free(rng)?, what: what[rng.below(3) as usize] }
        }
        Symlink => {
            // Short targets are stored in the inode, and longer targets in a block.
            let target = "t".repeat([10, 59, 60, 300][rng.below(4) as usize]);
            Op::Symlink { path: free(rng)?, target }
        }
        Link => Op::Link { path: file(rng)?, to: free(rng)? },
        Unlink => Op::Unlink { path: leaf(rng)?, open: false },
        UnlinkOpen => Op::Unlink { path: file(rng)?, open: true },
        LetGo => (history.held() > 0).then_some(Op::LetGo)?,
        Rmdir => {
            let path = directory(rng)?;
            let below = format!("{path}/");
            let empty = !names.keys().any(|other| other.starts_with(&below));
            empty.then_some(Op::Rmdir(path))?
        }
        Rename => renamed(rng, Renaming::Plain)?,
        NoReplace => renamed(rng, Renaming::NoReplace)?,
        Whiteout => renamed(rng, Renaming::Whiteout)?,
        Replace => two(rng, Renaming::Plain)?,
        Exchange => two(rng, Renaming::Exchange)?,
        RenameDirectory => {
            let (from, to) = (directory(rng)?, free_directory(rng)?);
            Op::Rename { from, to, how: Renaming::Plain }
        }
        Write | Append => write(kind, file(rng)?, rng, history)?,
        Shrink | Grow => truncate(kind, file(rng)?, rng, history),
        Allocate => space(rng, history, style, Space::Allocate { keep_size: false })?,
        AllocateKeepSize => space(rng, history, style, Space::Allocate { keep_size: true })?,
        Zero => space(rng, history, style, Space::Zero { keep_size: false })?,
        ZeroKeepSize => space(rng, history, style, Space::Zero { keep_size: true })?,
        Punch => space(rng, history, style, Space::Punch)?,
        Collapse => space(rng, history, style, Space::Collapse)?,
        Insert => space(rng, history, style, Space::Insert)?,
        // A new file inherits the no-dump flag from its directory. So the workload sets this flag only on files.
        NoDump => Op::Set { path: file(rng)?, what: Set::NoDump(rng.below(3) > 0) },
        Permissions | Owner | Accessed | Xattr | LargeXattr | RemoveXattr | Acl => {
            let path = any(rng, names, |node| node.id().is_some())?;
            let what = set(kind, rng, history, style, &path)?;
            Op::Set { path, what }
        }
        Fsync => Op::Fsync(any(rng, names, |node| node.id().is_some())?),
        Sync => Op::Sync,
    })
}

fn write(kind: Kind, path: String, rng: &mut Rng, history: &History) -> Option<Op> {
    let size = content_of(history, &path).len() as u64;
    let pos = match kind {
        Append => size,
        _ => [rng.below(size + 1), rng.below(FILE_LIMIT / 1024) * 1024, 0][rng.below(3) as usize],
    };
    let len = 1 + [rng.below(100), rng.below(5000), rng.below(12) * 1024, rng.below(20_000)]
        [rng.below(4) as usize];
    let fits = pos + len <= FILE_LIMIT && total(history) + len as usize <= TOTAL_LIMIT;
    fits.then_some(Op::Write { path, pos: pos as usize, len: len as usize })
}

fn truncate(kind: Kind, path: String, rng: &mut Rng, history: &History) -> Op {
    let size = content_of(history, &path).len() as u64;
    let size = match kind {
        Shrink => [0, rng.below(size), rng.below(size) / 1024 * 1024][rng.below(3) as usize],
        _ => size + 1 + rng.below(FILE_LIMIT.saturating_sub(size)),
    };
    Op::Truncate { path, size: size as usize }
}

fn set(kind: Kind, rng: &mut Rng, history: &History, style: Style, path: &str) -> Option<Set> {
    const XATTRS: [&str; 3] = ["user.a", "user.second", "trusted.third"];
    let name = XATTRS[rng.below(3) as usize];
    let about = history.about(history.now()[path].id()?);
    Some(match kind {
        Permissions => Set::Permissions([0o600, 0o644, 0o711, 0o777][rng.below(4) as usize]),
        Owner => Set::Owner([0, 1000, 70_000][rng.below(3) as usize]),
        Accessed => Set::Accessed(1_000_000 + rng.below(1 << 30) as i64),
        // Some values are stored in the inode, others in a block. Even the smallest block has space for all of them together.
        Xattr => Set::Xattr { name, len: [1, 30, 200][rng.below(3) as usize] },
        // On some volumes a large value is in a separate inode.
        LargeXattr => {
            let large = [1500, 3000, 9000][rng.below(3) as usize];
            Set::Xattr { name, len: if style.large_values { large } else { 250 } }
        }
        RemoveXattr => {
            let there: Vec<_> = about.xattr_names().collect();
            let index = rng.below(there.len() as u64) as usize;
            Set::RemoveXattr(there.get(index)?)
        }
        _ => Set::Acl([0o640, 0o755, 0o770][rng.below(3) as usize]),
    })
}

fn space(rng: &mut Rng, history: &History, style: Style, how: Space) -> Option<Op> {
    let path = any(rng, history.now(), |node| matches!(node, Node::File(_)))?;
    let size = content_of(history, &path).len() as u64;
    let (pos, len) = match how {
        Space::Collapse | Space::Insert => {
            (rng.below(FILE_LIMIT / UNIT) * UNIT, UNIT << rng.below(2))
        }
        _ => (rng.below(FILE_LIMIT), 1 + rng.below(12_000)),
    };
    let fits = match how {
        Space::Collapse => pos + len < size,
        Space::Insert => pos < size && size + len <= FILE_LIMIT,
        _ => pos + len <= FILE_LIMIT,
    };
    let room = total(history) + (len as usize) < TOTAL_LIMIT;
    (style.extents && fits && room).then_some(Op::Space {
        path,
        how,
        pos: pos as usize,
        len: len as usize,
    })
}

fn content_of<'h>(history: &'h History, path: &str) -> &'h [u8] {
    history.now()[path].id().map_or(&[], |file| history.content(file))
}

fn total(history: &History) -> usize {
    let files = history.now().values().filter_map(Node::id);
    files.map(|file| history.content(file).len()).sum()
}

/// Chooses an existing name.
fn any(rng: &mut Rng, names: &Names, wanted: impl Fn(&Node) -> bool) -> Option<String> {
    let fit: Vec<_> = names.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path).collect();
    (!fit.is_empty()).then(|| fit[rng.below(fit.len() as u64) as usize].clone())
}

/// Chooses a name for a new file, in the root or in an existing directory.
fn free(rng: &mut Rng, names: &Names, style: Style) -> Option<String> {
    let number = rng.below(style.names);
    // The names have different lengths, so that directory entries are split and joined.
    let padding = if style.grows() { 200 + number % 40 } else { number * 7 };
    let name = format!("{}f{number}{}", style.prefix, "-".repeat(padding as usize));
    let path = match any(rng, names, |node| matches!(node, Node::Directory(_))) {
        Some(directory) if rng.below(3) > 0 => format!("{directory}/{name}"),
        _ => name,
    };
    (!names.contains_key(&path)).then_some(path)
}

/// Chooses a name for a new directory in the root.
fn free_directory(rng: &mut Rng, names: &Names, style: Style) -> Option<String> {
    let path = format!("{}d{}", style.prefix, rng.below(DIRECTORIES));
    (!names.contains_key(&path)).then_some(path)
}
