//! What a new volume is filled with.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::device_table::{self, Node};
use super::fit::spool;
use super::{Args, Superblock, oci};
use crate::archive::{Archive, Input};
use crate::cmd::cp::into::{Filler, Role, needs_of_archive, needs_of_tree};
use crate::failure::{Failure, Report};
use crate::needs::Needs;
use crate::owners::Owners;
use crate::progress::Total;
use crate::source::Source;
use crate::spared::Spared;

/// Where the content of a source is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// It is only a part of the file: begin and length.
    pub(super) part: Option<(u64, u64)>,
    /// The file that it is a part of, in the place of a compressed one.
    pub(super) unpacked: Option<Arc<File>>,
    /// How messages name it.
    pub(super) shown: String,
    /// An image layout names it as a layer.
    pub(super) in_layout: bool,
}

impl Place {
    fn of(path: &Path) -> Self {
        let (path, shown) = (path.to_owned(), shown(path));
        Self { path, part: None, unpacked: None, shown, in_layout: false }
    }

    pub(super) fn input(&self) -> io::Result<Input> {
        match (self.part, &self.unpacked) {
            _ if is_stdin(&self.path) => Input::stdin(),
            (Some((at, len)), Some(file)) => Input::shared(file, at, len),
            (Some((at, len)), None) => Input::part(&self.path, at, len),
            (None, _) => Input::open(&self.path),
        }
    }

    fn archive(&self) -> Result<Archive, Failure> {
        Archive::new(self.shown.clone(), || self.input())
    }
}

/// A source that was looked at.
pub(super) enum Layer {
    Directory(PathBuf),
    /// A file, which is opened when its turn comes: an image may have more layers than a process may have files.
    File(Place),
    /// A stream, whose first bytes were read.
    Stream(Box<Archive>),
}

impl Layer {
    fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Directory(dir) => Some(dir.clone()),
            _ => None,
        }
    }

    fn role(&self, args: &Args) -> Role {
        match self {
            _ if !args.oci => Role::Tree,
            Self::File(place) if place.in_layout => Role::Layer,
            _ => Role::MaybeLayer,
        }
    }

    fn archive(self) -> Result<Archive, Failure> {
        match self {
            Self::Stream(archive) => Ok(*archive),
            Self::File(place) => place.archive(),
            Self::Directory(dir) => Place::of(&dir).archive(),
        }
    }
}

/// What `-d` names, which may be opened again.
pub(super) struct Sources {
    /// In place of an OCI image layout, its layers.
    places: Vec<Place>,
    /// For each path that can be read once only, where what it gave is kept.
    kept: Vec<Option<File>>,
    table: Vec<Node>,
    owners: Owners,
    /// What they hold, if that was counted.
    pub(super) total: Option<Total>,
}

impl Sources {
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        if args.sources.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(Failure::usage("-d -: standard input is read once"));
        }
        refuse_own(args, &args.sources)?;
        let mut places = Vec::new();
        for path in &args.sources {
            let layers = if args.oci && !is_stdin(path) {
                let spool = |content: &mut dyn Read| spool(&beside(args), &shown(path), content);
                oci::layers(path, args.choice(), &spool)?
            } else {
                None
            };
            match layers {
                Some(layers) => places.extend(layers),
                None => places.push(Place::of(path)),
            }
        }
        let mut files: Vec<_> = places.iter().map(|place| place.path.clone()).collect();
        files.dedup();
        refuse_own(args, &files)?;
        let table = args.device_table.as_deref().map(device_table::read).transpose()?;
        let owners = Owners::new(args.owner, args.owner_map.as_deref())?;
        let kept = places.iter().map(|_| None).collect();
        Ok(Self { places, kept, table: table.unwrap_or_default(), owners, total: None })
    }

    /// Whether nothing goes into the volume.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.table.is_empty()
    }

    /// Has standard input, pipes and their like kept.
    pub(super) fn keep_streams(
        &mut self,
        keep: impl Fn(&str, Input) -> Result<File, Failure>,
    ) -> Result<(), Failure> {
        for (place, kept) in self.places.iter().zip(&mut self.kept) {
            let Place { path, shown, .. } = place;
            if !is_stdin(path) {
                let kind = path.metadata().map(|found| found.file_type());
                let kind = kind.map_err(|error| Failure::host(shown, error))?;
                if kind.is_file() || kind.is_dir() || kind.is_block_device() {
                    continue;
                }
            }
            let input = place.input().map_err(|error| Failure::host(shown, error))?;
            *kept = Some(keep(shown, input)?);
        }
        Ok(())
    }

    pub(super) fn open(&self) -> Result<Vec<Layer>, Failure> {
        let places = self.places.iter().zip(&self.kept);
        places.map(|(place, kept)| open(place, kept.as_ref())).collect()
    }
}

fn open(place: &Place, kept: Option<&File>) -> Result<Layer, Failure> {
    let Place { path, shown, .. } = place;
    if let Some(mut file) = kept {
        let again = || file.rewind().and_then(|()| file.try_clone()).map(Input::new);
        return Archive::new(shown.clone(), again).map(|archive| Layer::Stream(Box::new(archive)));
    }
    if !is_stdin(path) {
        let found = path.metadata().map_err(|error| Failure::host(shown, error))?;
        if found.is_dir() {
            return Ok(Layer::Directory(path.clone()));
        }
        if found.is_file() {
            // A missing or unreadable archive is an error before the volume is made.
            return place.archive().map(|_| Layer::File(place.clone()));
        }
    }
    place.archive().map(|archive| Layer::Stream(Box::new(archive)))
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
            Layer::Directory(dir) => needs_of_tree(&dir, &Spared::of(&args.volume), &mut needs)
                .map_err(|error| Failure::host(dir.display(), error))?,
            layer => needs_of_archive(layer.archive()?, &mut needs)?,
        }
    }
    for node in &sources.table {
        needs.name(&node.path);
        needs.file(node.file_type, 0, std::iter::empty());
    }
    Ok(needs)
}

/// The directory for what is kept meanwhile: that of the image, which has room for it, or the one for temporary files.
fn beside(args: &Args) -> PathBuf {
    let image = args.volume.data().path();
    let image = image.filter(|path| !path.exists() || path.is_file());
    match image.and_then(Path::parent) {
        Some(dir) if dir.as_os_str().is_empty() => PathBuf::from("."),
        Some(dir) => dir.to_owned(),
        None => std::env::temp_dir(),
    }
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
        layer => {
            let role = layer.role(args);
            filler.archive(layer.archive()?, role, &mut needs)
        }
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
        if layer.directory().is_none() {
            needs_of_archive(layer.archive().ok()?, &mut needs).ok()?;
        }
    }
    let dirs = sources.places.iter().map(|place| &place.path);
    for dir in dirs.filter(|path| !is_stdin(path) && path.is_dir()) {
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
