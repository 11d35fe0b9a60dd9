//! Workloads by chance, of which each operation is possible when it comes.

use crate::common::rng::Rng;
use crate::history::{History, Names, Node, Op, Space};

/// A file grows to so many bytes at most, all files together to so many.
const FILE_LIMIT: u64 = 48 << 10;
const TOTAL_LIMIT: usize = 1 << 20;
/// There are so many names, so that they meet often.
const NAMES: u64 = 12;
const DIRECTORIES: u64 = 4;

/// A multiple of every block and cluster of ours.
const UNIT: u64 = 8192;

/// So many operations by a seed, for files with extents or without.
pub(crate) fn workload(seed: u64, count: usize, extents: bool) -> History {
    let mut rng = Rng::new(seed);
    let mut history = History::new();
    while history.ops.len() < count {
        let op = choose(&mut rng, &history);
        // Files without extents have no space without content.
        if let Some(op) = op.filter(|op| extents || !matches!(op, Op::Space { .. })) {
            history.push(op);
        }
    }
    history
}

/// An operation, or none where the one that was thought of is not possible.
fn choose(rng: &mut Rng, history: &History) -> Option<Op> {
    let names = history.now();
    let is_file = |node: &Node| matches!(node, Node::File(_));
    let is_leaf = |node: &Node| *node != Node::Directory;
    Some(match rng.below(100) {
        0..14 => Op::Create(free(rng, names)?),
        14..18 => Op::Mkdir(free_directory(rng, names)?),
        18..21 => {
            // Kept in the inode, or in a block.
            let target = "t".repeat([10, 59, 60, 300][rng.below(4) as usize]);
            Op::Symlink { path: free(rng, names)?, target }
        }
        21..25 => Op::Link { path: any(rng, names, is_file)?, to: free(rng, names)? },
        25..33 => Op::Unlink { path: any(rng, names, is_leaf)?, open: rng.below(4) == 0 },
        33..35 => {
            let path = any(rng, names, |node| *node == Node::Directory)?;
            let below = format!("{path}/");
            let empty = !names.keys().any(|other| other.starts_with(&below));
            empty.then_some(Op::Rmdir(path))?
        }
        35..41 => Op::Rename { from: any(rng, names, is_leaf)?, to: free(rng, names)? },
        41..47 => {
            // Who renames one name of a file to another does nothing.
            let (from, to) = (any(rng, names, is_leaf)?, any(rng, names, is_leaf)?);
            (names[&from] != names[&to]).then_some(Op::Rename { from, to })?
        }
        47..49 => {
            let from = any(rng, names, |node| *node == Node::Directory)?;
            Op::Rename { from, to: free_directory(rng, names)? }
        }
        49..52 => {
            let (one, other) = (any(rng, names, is_leaf)?, any(rng, names, is_leaf)?);
            (names[&one] != names[&other]).then_some(Op::Exchange { one, other })?
        }
        52..58 => space(rng, history)?,
        58..74 => {
            let path = any(rng, names, is_file)?;
            let Node::File(file) = names[&path] else { return None };
            let size = history.content(file).len() as u64;
            let pos = [rng.below(size + 1), size, rng.below(FILE_LIMIT / 1024) * 1024, 0]
                [rng.below(4) as usize];
            let len =
                1 + [rng.below(100), rng.below(5000), rng.below(12) * 1024, rng.below(20_000)]
                    [rng.below(4) as usize];
            let fits = pos + len <= FILE_LIMIT && total(history) + len as usize <= TOTAL_LIMIT;
            fits.then_some(Op::Write { path, pos: pos as usize, len: len as usize })?
        }
        74..80 => {
            let size = [0, rng.below(FILE_LIMIT), rng.below(FILE_LIMIT / 1024) * 1024]
                [rng.below(3) as usize];
            Op::Truncate { path: any(rng, names, is_file)?, size: size as usize }
        }
        80..94 => Op::Fsync(any(rng, names, |node| !matches!(node, Node::Symlink(_)))?),
        _ => Op::Sync,
    })
}

fn space(rng: &mut Rng, history: &History) -> Option<Op> {
    let path = any(rng, history.now(), |node| matches!(node, Node::File(_)))?;
    let Node::File(file) = history.now()[&path] else { return None };
    let size = history.content(file).len() as u64;
    let keep_size = rng.below(2) == 0;
    let how = [
        Space::Allocate { keep_size },
        Space::Zero { keep_size },
        Space::Punch,
        Space::Collapse,
        Space::Insert,
    ][rng.below(5) as usize];
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
    (fits && room).then_some(Op::Space { path, how, pos: pos as usize, len: len as usize })
}

fn total(history: &History) -> usize {
    let files = history.now().values().filter_map(|node| match node {
        Node::File(file) => Some(history.content(*file).len()),
        _ => None,
    });
    files.sum()
}

/// A name that is there.
fn any(rng: &mut Rng, names: &Names, wanted: impl Fn(&Node) -> bool) -> Option<String> {
    let fit: Vec<_> = names.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path).collect();
    (!fit.is_empty()).then(|| fit[rng.below(fit.len() as u64) as usize].clone())
}

/// A name for a file that is not there, in the root or in a directory that is.
fn free(rng: &mut Rng, names: &Names) -> Option<String> {
    // Of different lengths, so that entries are split and joined.
    let number = rng.below(NAMES);
    let name = format!("f{number}{}", "-".repeat(number as usize * 7));
    let path = match any(rng, names, |node| *node == Node::Directory) {
        Some(directory) if rng.below(3) > 0 => format!("{directory}/{name}"),
        _ => name,
    };
    (!names.contains_key(&path)).then_some(path)
}

/// A name for a directory that is not there, in the root.
fn free_directory(rng: &mut Rng, names: &Names) -> Option<String> {
    let path = format!("d{}", rng.below(DIRECTORIES));
    (!names.contains_key(&path)).then_some(path)
}
