//! The sources of a new volume: directories, archives and images, and a device table. A later source replaces files of earlier sources.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ironmap::Location;

use crate::archive::{Archive, Input};
use crate::context::Context;
use crate::copy::into::{Filler, Role, needs_of_archive, needs_of_tree};
use crate::device_table::{self, Node};
use crate::failure::Failure;
use crate::needs::Needs;
use crate::oci::{self, Choice};
use crate::owners::Owners;
use crate::place::{Place, is_stdin, shown, spool};
use crate::progress::Total;
use crate::report::Report;
use crate::source::Source;
use crate::spared::Spared;
use crate::stop::Stop;

/// The content of a new volume.
#[derive(Clone, Copy, Debug)]
pub struct SourceOptions<'a> {
    /// The volume.
    pub volume: &'a Location,
    /// Directories and archives, from the lowest layer to the highest. `-` is standard input.
    pub paths: &'a [PathBuf],
    /// The paths are OCI image layouts, archives of layouts, or layers.
    pub oci: bool,
    /// The choice of an image, for a layout that contains several images.
    pub choice: Choice<'a>,
    /// The owner of all files.
    pub owner: Option<(u32, u32)>,
    /// A file with lines `FROM-UID:FROM-GID TO-UID:TO-GID`.
    pub owner_map: Option<&'a Path>,
    /// A table of devices and directories.
    pub device_table: Option<&'a Path>,
}

/// The sources, opened.
pub struct Layers(Vec<Layer>);

/// A source whose type is known.
enum Layer {
    Directory(PathBuf),
    /// A file, which is opened only when it is copied: an image may have more layers than a process may have open files.
    File(Place),
    /// A stream whose first bytes have been read.
    Stream(Box<Archive>),
}

impl Layer {
    fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Directory(dir) => Some(dir.clone()),
            _ => None,
        }
    }

    fn role(&self, oci: bool) -> Role {
        match self {
            _ if !oci => Role::Tree,
            Self::File(place) if place.in_layout => Role::Layer,
            _ => Role::MaybeLayer,
        }
    }

    fn archive(self, stop: &Stop) -> Result<Archive, Failure> {
        match self {
            Self::Stream(archive) => Ok(*archive),
            Self::File(place) => place.archive(stop),
            Self::Directory(dir) => Place::of(&dir).archive(stop),
        }
    }
}

/// The sources of a new volume. They can be opened several times.
pub struct Sources {
    volume: Location,
    context: Arc<Context>,
    oci: bool,
    /// The locations of the sources. An OCI image layout is replaced by its layers.
    places: Vec<Place>,
    /// For each source that can be read only once, the unnamed file that stores its content.
    kept: Vec<Option<File>>,
    table: Vec<Node>,
    owners: Owners,
    /// The number of files in the sources and their sizes, if they were counted.
    total: Option<Total>,
}

impl Sources {
    /// Checks the sources, and opens image layouts.
    ///
    /// # Errors
    /// Fails if a layout, a table or a map cannot be read, or if a source is the volume itself.
    pub fn new(options: &SourceOptions<'_>, context: &Arc<Context>) -> Result<Self, Failure> {
        let SourceOptions { volume, paths, oci, .. } = *options;
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(Failure::usage("-d - may be given only once"));
        }
        refuse_own(options, paths, context)?;
        let mut places = Vec::new();
        for path in paths {
            let layers = if oci && !is_stdin(path) {
                let spool = |content: &mut dyn Read| spool(&beside(volume), &shown(path), content);
                oci::layers(path, options.choice, context.stop(), &spool)?
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
        refuse_own(options, &files, context)?;
        let table = options.device_table.map(device_table::read).transpose()?;
        Ok(Self {
            volume: volume.clone(),
            context: Arc::clone(context),
            oci,
            kept: places.iter().map(|_| None).collect(),
            places,
            table: table.unwrap_or_default(),
            owners: Owners::new(options.owner, options.owner_map)?,
            total: None,
        })
    }

    /// Whether there is no source.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.table.is_empty()
    }

    fn stop(&self) -> &Stop {
        self.context.stop()
    }

    fn spared(&self) -> Spared {
        Spared::of(&self.volume, &self.context)
    }

    /// Stores the content of standard input, pipes and other streams in unnamed files of this directory.
    ///
    /// # Errors
    /// Fails if a source cannot be read, or if the file cannot be written.
    pub fn keep_streams(&mut self, dir: &Path) -> Result<(), Failure> {
        let stop = self.context.stop();
        for (place, kept) in self.places.iter().zip(&mut self.kept) {
            let Place { path, shown, .. } = place;
            if !is_stdin(path) {
                let kind = path.metadata().map(|found| found.file_type());
                let kind = kind.map_err(|error| Failure::host(shown, error))?;
                if kind.is_file() || kind.is_dir() || kind.is_block_device() {
                    continue;
                }
            }
            let mut input = place.input(stop).map_err(|error| Failure::host(shown, error))?;
            *kept = Some(spool(dir, shown, &mut input)?);
        }
        Ok(())
    }

    /// Opens all sources.
    ///
    /// # Errors
    /// Fails if a source is missing, or if it is neither a directory nor an archive.
    pub fn open(&self) -> Result<Layers, Failure> {
        let places = self.places.iter().zip(&self.kept);
        let layers = places.map(|(place, kept)| open(place, kept.as_ref(), self.stop()));
        layers.collect::<Result<_, _>>().map(Layers)
    }

    /// Counts the space that all sources need in a volume with blocks or clusters of `unit` bytes.
    ///
    /// # Errors
    /// Fails if a source cannot be read.
    pub fn count(&mut self, unit: u64) -> Result<Needs, Failure> {
        let (mut needs, stop) = (Needs::new(unit), self.stop());
        for layer in self.open()?.0 {
            match layer {
                Layer::Directory(dir) => needs_of_tree(&dir, &self.spared(), &mut needs, stop)
                    .map_err(|error| Failure::host(dir.display(), error))?,
                layer => needs_of_archive(layer.archive(stop)?, &mut needs, stop)?,
            }
        }
        for node in &self.table {
            needs.name(&node.path);
            needs.file(node.file_type, 0, std::iter::empty());
        }
        self.total = Some(needs.total);
        Ok(needs)
    }

    /// Copies all layers into the new volume, in order. `time` is the time of all changes. If the volume is too small, `advice` describes a
    /// volume with enough space.
    ///
    /// # Errors
    /// Fails if the volume has no space, or if a source cannot be read.
    pub fn fill(
        &self,
        Layers(layers): Layers,
        time: Option<i64>,
        unit: u64,
        advice: &dyn Fn(&Needs) -> Option<String>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let source = Rc::new(Source::open_at(&self.volume, time, &self.context)?);
        let mut needs = Needs::new(unit);
        let mut filler = Filler::new(&source, self.owners.clone(), self.total, report)?;
        if self.total.is_none()
            && let Some(dirs) = layers.iter().map(Layer::directory).collect()
        {
            filler.count(dirs);
        }
        let mut layers = layers.into_iter();
        let filled = layers.try_for_each(|layer| match layer {
            Layer::Directory(dir) => filler.directory(&dir),
            layer => {
                let role = layer.role(self.oci);
                filler.archive(layer.archive(self.stop())?, role, &mut needs)
            }
        });
        let filled = filled.and_then(|()| {
            self.table.iter().try_for_each(|node| filler.node(&node.path, node.stat()))
        });
        let filled = filled.and(filler.finish());
        let closed = source.close();
        filled.and(closed).map_err(|failure| {
            if !failure.is_for_space() {
                return failure;
            }
            match self.needs_of_rest(layers, needs).and_then(|all| advice(&all)) {
                Some(advice) => failure.because(advice),
                None => failure,
            }
        })
    }

    /// Adds the needs of all directories, and of archives that have not been read.
    fn needs_of_rest(
        &self,
        layers: impl Iterator<Item = Layer>,
        mut needs: Needs,
    ) -> Option<Needs> {
        let stop = self.stop();
        for layer in layers {
            if layer.directory().is_none() {
                needs_of_archive(layer.archive(stop).ok()?, &mut needs, stop).ok()?;
            }
        }
        let dirs = self.places.iter().map(|place| &place.path);
        for dir in dirs.filter(|path| !is_stdin(path) && path.is_dir()) {
            needs_of_tree(dir, &self.spared(), &mut needs, stop).ok()?;
        }
        Some(needs)
    }
}

fn open(place: &Place, kept: Option<&File>, stop: &Stop) -> Result<Layer, Failure> {
    let Place { path, shown, .. } = place;
    if let Some(mut file) = kept {
        let again =
            || file.rewind().and_then(|()| file.try_clone()).map(|file| Input::new(file, stop));
        return Archive::new(shown.clone(), again).map(|archive| Layer::Stream(Box::new(archive)));
    }
    if !is_stdin(path) {
        let found = path.metadata().map_err(|error| Failure::host(shown, error))?;
        if found.is_dir() {
            return Ok(Layer::Directory(path.clone()));
        }
        if found.is_file() {
            // The archive is opened here as a test, so that a missing or unreadable archive is reported before the volume is made.
            return place.archive(stop).map(|_| Layer::File(place.clone()));
        }
    }
    place.archive(stop).map(|archive| Layer::Stream(Box::new(archive)))
}

/// Refuses a source in which the volume is stored, because the copy would read a file while it writes to the same file.
fn refuse_own(
    options: &SourceOptions<'_>,
    paths: &[PathBuf],
    context: &Context,
) -> Result<(), Failure> {
    let own = Spared::of(options.volume, context);
    let paths = paths.iter().map(PathBuf::as_path);
    for path in paths.chain(options.owner_map).chain(options.device_table) {
        if own.has(path) || is_stdin(path) && own.has_stdin() {
            let what = "the file is the volume that is being made, so it cannot be a source";
            return Err(Failure::usage(format!("{}: {what}", shown(path))));
        }
    }
    Ok(())
}

/// The directory for unnamed files: the directory of the image, which probably has enough space, or the directory for temporary files.
fn beside(volume: &Location) -> PathBuf {
    let image = volume.data().path();
    let image = image.filter(|path| !path.exists() || path.is_file());
    match image.and_then(Path::parent) {
        Some(dir) if dir.as_os_str().is_empty() => PathBuf::from("."),
        Some(dir) => dir.to_owned(),
        None => std::env::temp_dir(),
    }
}
