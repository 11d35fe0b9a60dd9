//! What a new volume is filled with.

use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::device_table::{self, Node};
use super::{Args, Superblock, oci};
use crate::archive::{Archive, Input};
use crate::cmd::cp::into::{Filler, needs_of_archive, needs_of_tree};
use crate::failure::{Failure, Report};
use crate::needs::Needs;
use crate::owners::Owners;
use crate::progress::Total;
use crate::source::Source;
use crate::spared::Spared;

/// A source, open.
pub(super) enum Layer {
    Directory(PathBuf),
    Archive(Box<Archive>),
}

impl Layer {
    fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Directory(dir) => Some(dir.clone()),
            Self::Archive(_) => None,
        }
    }
}

/// What `-d` names, which may be opened again.
pub(super) struct Sources {
    /// In place of an OCI image layout, its layers.
    paths: Vec<PathBuf>,
    /// For each path that can be read once only, where what it gave is kept.
    kept: Vec<Option<File>>,
    table: Vec<Node>,
    owners: Owners,
    /// What they hold, if that was counted.
    pub(super) total: Option<Total>,
}

impl Sources {
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let mut paths = Vec::new();
        for path in &args.sources {
            let layers = if args.oci && !is_stdin(path) { oci::layers(path)? } else { None };
            match layers {
                Some(layers) => paths.extend(layers),
                None => paths.push(path.clone()),
            }
        }
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(Failure::usage("-d -: standard input is read once"));
        }
        refuse_own(args, &paths)?;
        let table = args.device_table.as_deref().map(device_table::read).transpose()?;
        let owners = Owners::new(args.owner, args.owner_map.as_deref())?;
        let kept = paths.iter().map(|_| None).collect();
        Ok(Self { paths, kept, table: table.unwrap_or_default(), owners, total: None })
    }

    /// Whether nothing goes into the volume.
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.table.is_empty()
    }

    /// Has standard input, pipes and their like kept.
    pub(super) fn keep_streams(
        &mut self,
        keep: impl Fn(&str, Input) -> Result<File, Failure>,
    ) -> Result<(), Failure> {
        for (path, kept) in self.paths.iter().zip(&mut self.kept) {
            let name = shown(path);
            let opened = if is_stdin(path) {
                Input::stdin()
            } else {
                let kind = path.metadata().map(|found| found.file_type());
                let kind = kind.map_err(|error| Failure::host(&name, error))?;
                if kind.is_file() || kind.is_dir() || kind.is_block_device() {
                    continue;
                }
                Input::open(path)
            };
            let input = opened.map_err(|error| Failure::host(&name, error))?;
            *kept = Some(keep(&name, input)?);
        }
        Ok(())
    }

    pub(super) fn open(&self) -> Result<Vec<Layer>, Failure> {
        self.paths.iter().zip(&self.kept).map(|(path, kept)| open(path, kept.as_ref())).collect()
    }
}

fn open(path: &Path, kept: Option<&File>) -> Result<Layer, Failure> {
    let again = |mut file: &File| file.rewind().and_then(|()| file.try_clone());
    if kept.is_none() && !is_stdin(path) {
        let found = path.metadata().map_err(|error| Failure::host(path.display(), error))?;
        if found.is_dir() {
            return Ok(Layer::Directory(path.to_owned()));
        }
    }
    let archive = Archive::new(shown(path), || match kept {
        Some(file) => again(file).map(Input::new),
        None if is_stdin(path) => Input::stdin(),
        None => Input::open(path),
    });
    Ok(Layer::Archive(Box::new(archive?)))
}

/// Refuses sources that the volume is in: it would be written while it is read.
fn refuse_own(args: &Args, paths: &[PathBuf]) -> Result<(), Failure> {
    let own = Spared::of(&args.volume);
    for path in paths.iter().chain(&args.owner_map).chain(&args.device_table) {
        if own.has(path) || is_stdin(path) && own.has_stdin() {
            let what = "is the volume that is made, and cannot be its source";
            return Err(Failure::usage(format!("{}: {what}", shown(path))));
        }
    }
    Ok(())
}

/// What all sources need of a volume with content in pieces of this size.
pub(super) fn needs_of_all(args: &Args, sources: &Sources, unit: u64) -> Result<Needs, Failure> {
    let mut needs = Needs::new(unit);
    for layer in sources.open()? {
        match layer {
            Layer::Archive(archive) => needs_of_archive(*archive, &mut needs)?,
            Layer::Directory(dir) => needs_of_tree(&dir, &Spared::of(&args.volume), &mut needs)
                .map_err(|error| Failure::host(dir.display(), error))?,
        }
    }
    for node in &sources.table {
        needs.name(&node.path);
        needs.file(node.file_type, 0, std::iter::empty());
    }
    Ok(needs)
}

/// How messages name a source.
fn shown(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Copies all layers into the new volume, one over the other.
pub(super) fn fill(
    args: &Args,
    sources: &Sources,
    layers: Vec<Layer>,
    time: Option<i64>,
    superblock: &Superblock,
    report: &mut Report,
) -> Result<(), Failure> {
    let source = Rc::new(Source::open_at(&args.volume, time)?);
    let mut needs = Needs::new(unit(superblock));
    let mut filler = Filler::new(&source, sources.owners.clone(), sources.total, report)?;
    if sources.total.is_none()
        && let Some(dirs) = layers.iter().map(Layer::directory).collect()
    {
        filler.count(dirs);
    }
    let mut layers = layers.into_iter();
    let filled = layers.try_for_each(|layer| match layer {
        Layer::Directory(dir) => filler.directory(&dir),
        Layer::Archive(archive) => filler.archive(*archive, args.oci, &mut needs),
    });
    let filled = filled.and_then(|()| {
        sources.table.iter().try_for_each(|node| filler.node(&node.path, node.stat()))
    });
    let filled = filled.and(filler.finish());
    let closed = source.close();
    filled.and(closed).map_err(|failure| {
        if !failure.is_for_space() {
            return failure;
        }
        match needs_of_rest(args, sources, layers, needs)
            .and_then(|all| advice(&all, args, superblock))
        {
            Some(advice) => failure.because(advice),
            None => failure,
        }
    })
}

/// Adds what archives that were not begun need, and all directories.
fn needs_of_rest(
    args: &Args,
    sources: &Sources,
    layers: impl Iterator<Item = Layer>,
    mut needs: Needs,
) -> Option<Needs> {
    for layer in layers {
        if let Layer::Archive(archive) = layer {
            needs_of_archive(*archive, &mut needs).ok()?;
        }
    }
    for dir in sources.paths.iter().filter(|path| !is_stdin(path) && path.is_dir()) {
        needs_of_tree(dir, &Spared::of(&args.volume), &mut needs).ok()?;
    }
    Some(needs)
}

/// In what pieces content takes room.
fn unit(made: &Superblock) -> u64 {
    // A larger volume has blocks of 4096 bytes.
    (made.block_size.bytes() as u64 * u64::from(made.cluster_blocks)).max(4096)
}

/// Why the volume is too small, and which size should be enough: a third for the volume's own metadata is plenty. `None` where it should have done,
/// and something else is wrong.
fn advice(needs: &Needs, args: &Args, made: &Superblock) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let &Needs { inodes, bytes, .. } = needs;
    let (size, count) =
        (made.blocks_count * made.block_size.bytes() as u64, u64::from(made.inodes_count));
    // Some are the file system's own.
    let few = inodes + 16 > count;
    let (wanted, inode_size) = (inodes + 64, u64::from(made.inode_size));
    let room = bytes.saturating_add(bytes / 3 + args.journal_size.unwrap_or(0) + 8 * MIB);
    // Bytes for each inode: 16 KiB are the most by default.
    let usual = (size / count.max(1)).max(1);
    let (room, for_inodes) = match args.inodes {
        Some(_) => (room.saturating_add(wanted.max(count) * inode_size), 0),
        None => {
            let usual = if wanted * usual < 512 * MIB { usual } else { usual.max(16 << 10) };
            (room.saturating_add(room / usual * inode_size * 2), wanted * usual)
        }
    };
    let with_more = room.saturating_add(wanted * inode_size).max(size).div_ceil(MIB);
    let enough = room.max(for_inodes).div_ceil(MIB);
    let sources: Vec<_> = args.sources.iter().map(|path| shown(path)).collect();
    let (sources, bytes) = (sources.join(" and "), bytes.div_ceil(MIB));
    let need = if args.sources.len() == 1 { "needs" } else { "need" };
    let needs = format!("{sources} {need} {inodes} inodes and about {bytes}M");
    match args.inodes {
        Some(_) if few => {
            let enough = enough.max(size.div_ceil(MIB));
            Some(format!(
                "the volume has too few inodes: {needs}; --inodes {wanted} and a size of {enough}M should be enough"
            ))
        }
        None if few && with_more < enough => Some(format!(
            "the volume is too small: {needs}; --inodes {wanted} and {with_more}M, or a size of {enough}M should be enough"
        )),
        _ if enough <= size / MIB => None,
        _ => {
            Some(format!("the volume is too small: {needs}; a size of {enough}M should be enough"))
        }
    }
}
