//! Runs a random sequence of operations on three targets: a model in memory, a volume of ironmap, and, as root, a file system that the
//! kernel has mounted. The results must be equal on all targets. The test compares every result, and sometimes the complete trees. Between
//! operations, the volume is sometimes closed and opened, or loses power after a sync.

#[path = "../common/mod.rs"]
mod common;

mod kernel;
mod model;
mod op;
mod ours;

use std::collections::BTreeMap;

use common::mounted::Mounted;
use common::rng::Rng;
use common::skip::Need;

use kernel::Kernel;
use model::Model;
use op::Op;
use ours::Ours;

/// The result of an operation: success or an errno.
type Answer = Result<(), i32>;

/// For each path in a tree: the properties that a user can see.
type Tree = BTreeMap<String, Seen>;

/// The properties of a file that a user can see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    /// The content of a file, or the target of a link. For a directory it is empty.
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A target on which operations run.
trait Target {
    fn apply(&mut self, op: &Op) -> Answer;
    fn tree(&self) -> Tree;
}

/// Describes the first difference between two trees in a short message.
fn difference(left: &Tree, right: &Tree) -> Option<String> {
    let paths = left.keys().chain(right.keys());
    for path in paths {
        let (l, r) = (left.get(path), right.get(path));
        if l == r {
            continue;
        }
        let short = |seen: Option<&Seen>| {
            seen.map(|seen| {
                let (len, content) = (seen.content.len(), &[][..]);
                (Seen { content: content.to_vec(), ..seen.clone() }, len)
            })
        };
        let at =
            l.zip(r).and_then(|(l, r)| l.content.iter().zip(&r.content).position(|(a, b)| a != b));
        return Some(format!("{path}: {:?} / {:?}, first at {at:?}", short(l), short(r)));
    }
    None
}

/// Runs a sequence of operations. If `kernel` is given, it is one of the targets.
fn run(seed: u64, steps: usize, options: &str, mut kernel: Option<Kernel<'_>>) {
    let mut rng = Rng::new(seed);
    let (mut model, mut ours) = (Model::new(), Ours::new(options));
    for step in 0..steps {
        let op = Op::random(&mut rng);
        let what = || format!("{options}: seed {seed:#x}, step {step}, {op:?}");
        let expected = model.apply(&op);
        if let Some(kernel) = &mut kernel {
            assert_eq!(
                kernel.apply(&op),
                expected,
                "the kernel differs from the model: {}",
                what()
            );
        }
        assert_eq!(ours.apply(&op), expected, "{}", what());
        if rng.below(40) == 0 {
            match rng.below(3) {
                0 => ours.reopen(),
                1 => ours.crash(),
                _ => {}
            }
            if let Some(difference) = difference(&model.tree(), &ours.tree()) {
                panic!("model / volume: {difference}: {}", what());
            }
        }
    }
    if let Some(kernel) = &kernel
        && let Some(difference) = difference(&model.tree(), &kernel.tree())
    {
        panic!("model / kernel: {difference}: {options}, seed {seed:#x}");
    }
    ours.finish(&model.tree());
}

/// The number of operations. `IRONMAP_MODEL_STEPS=100000 cargo test --test model` makes a longer run.
fn steps() -> usize {
    std::env::var("IRONMAP_MODEL_STEPS").map_or(1500, |steps| steps.parse().expect("a number"))
}

const KINDS: [&str; 8] = [
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -O inline_data",
    "-t ext4 -O ea_inode,^metadata_csum",
    "-t ext4 -O bigalloc -C 16384",
    "-t ext4 -I 128 -O ^64bit",
    "-t ext4 -O ^has_journal",
    "-t ext4 -b 2048 -O ^dir_index,^filetype,meta_bg,^resize_inode",
];

#[test]
fn the_model_and_the_volume_agree() {
    for (at, kind) in KINDS.iter().enumerate() {
        run(0x6d0d_e100 + at as u64, steps(), kind, None);
    }
}

#[test]
fn the_kernel_the_model_and_the_volume_agree() {
    require!([Need::Root, Need::Tool("losetup")]);
    for (at, kind) in KINDS.iter().enumerate() {
        let mkfs = format!("mke2fs {kind}");
        let mounted = Mounted::new(&mkfs, 128, "noatime,user_xattr");
        run(0x6b65_7200 + at as u64, steps(), kind, Some(Kernel::new(mounted.dir())));
    }
}
