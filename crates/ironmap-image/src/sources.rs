//! The sources of a new volume: directories, archives, images and other volumes. A later source replaces files of earlier sources.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ironmap::{Location, Part};

use crate::archive::{Archive, Input};
use crate::content::{self, Content};
use crate::context::Context;
use crate::copy::into::{
    Filler, Role, directory_of, needs_of_archive, needs_of_tree, needs_of_volume,
};
use crate::device_table::Node;
use crate::failure::Failure;
use crate::needs::{Dimensions, Needs};
use crate::oci;
use crate::owners::Owners;
use crate::place::{Place, is_stdin, shown, spool};
use crate::progress::Total;
use crate::report::Report;
use crate::source::Source;
use crate::spared::Spared;
use crate::stop::Stop;
use crate::target::Target;
use crate::volumes::canonical;

/// The open sources.
pub(crate) struct Layers(Vec<Layer>);

/// A source whose type is known.
enum Layer {
    Directory(PathBuf),
    /// A file, which is opened only when it is copied, because an image may have more layers than a process may have open files.
    File(Place),
    /// A stream whose first bytes have been read.
    Stream(Box<Archive>, Role),
    Volume(Target),
}

impl Layer {
    fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Directory(dir) => Some(dir.clone()),
            _ => None,
        }
    }
}

/// The location of a source.
enum Origin {
    Place {
        place: Place,
        /// The unnamed file that stores the content of a source that can be read only once.
        kept: Option<File>,
    },
    Volume(Target),
}

impl Origin {
    /// Returns the path of the source on the host, or `None` for standard input and for content that was stored in an unnamed file.
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Place { place, kept: None } if !is_stdin(&place.path) => Some(&place.path),
            _ => None,
        }
    }
}

/// The sources of a new volume. They can be opened several times.
pub(crate) struct Sources {
    volume: Location,
    context: Arc<Context>,
    /// The sources. Each OCI image layout has been replaced by its layers.
    origins: Vec<Origin>,
    nodes: Vec<Node>,
    owners: Owners,
    /// The number and the total size of the files in the sources, if the files were counted.
    total: Option<Total>,
}

impl Sources {
    /// Checks the sources, and opens image layouts. `nodes` are the files that the volume gets after the content of the sources.
    ///
    /// # Errors
    /// Fails if a layout cannot be read, or if a source is the volume itself.
    pub(crate) fn new(
        volume: &Location,
        contents: Vec<Content>,
        nodes: Vec<Node>,
        owners: Owners,
        context: &Arc<Context>,
    ) -> Result<Self, Failure> {
        let paths: Vec<_> = contents.iter().filter_map(Content::host_path).collect();
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(Failure::usage("standard input can be only one of the sources"));
        }
        refuse_own(volume, paths, context)?;
        let mut origins = Vec::new();
        for content in contents {
            add(content, volume, context, &mut origins)?;
        }
        let mut files: Vec<_> = origins.iter().filter_map(Origin::path).collect();
        files.dedup();
        refuse_own(volume, files, context)?;
        Ok(Self {
            volume: volume.clone(),
            context: Arc::clone(context),
            origins,
            nodes,
            owners,
            total: None,
        })
    }

    /// Whether the volume gets no files, because there are neither sources nor other files (`nodes`).
    pub(crate) fn is_empty(&self) -> bool {
        self.origins.is_empty() && self.nodes.is_empty()
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
    /// A source cannot be read, or the file cannot be written.
    pub(crate) fn keep_streams(&mut self, dir: &Path) -> Result<(), Failure> {
        let stop = self.context.stop();
        for origin in &mut self.origins {
            let Origin::Place { place, kept: kept @ None } = origin else { continue };
            let Place { path, shown, .. } = place;
            if !is_stdin(path) {
                let kind = path.metadata().map(|found| found.file_type());
                let kind = kind.map_err(|error| Failure::host(shown, error))?;
                if kind.is_file() || kind.is_dir() || kind.is_block_device() {
                    continue;
                }
            }
            let mut input =
                place.input(stop).map_err(|error| Failure::host(&place.shown, error))?;
            *kept = Some(spool(dir, &place.shown, &mut input, stop)?);
        }
        Ok(())
    }

    /// Opens all sources.
    ///
    /// # Errors
    /// Fails if a source is missing, or if it is neither a directory nor an archive.
    pub(crate) fn open(&self) -> Result<Layers, Failure> {
        let layers = self.origins.iter().map(|origin| open(origin, self.stop()));
        layers.collect::<Result<_, _>>().map(Layers)
    }

    /// Counts the space that all sources need in a volume with blocks or clusters of `unit` bytes.
    ///
    /// # Errors
    /// A source cannot be read.
    pub(crate) fn count(&mut self, unit: u64, report: &mut Report) -> Result<Needs, Failure> {
        let mut needs = Needs::new(unit);
        for layer in self.open()?.0 {
            self.count_layer(layer, &mut needs, report)?;
        }
        for node in &self.nodes {
            let size = node.content.as_ref().map_or(0, |content| content.len() as u64);
            needs.name(&node.path);
            needs.total.add(node.file_type, size);
            needs.file(node.file_type, 0, std::iter::empty());
            needs.range(0, size);
        }
        self.total = Some(needs.total);
        Ok(needs)
    }

    fn count_layer(
        &self,
        layer: Layer,
        needs: &mut Needs,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let stop = self.stop();
        match layer {
            Layer::Directory(dir) => needs_of_tree(&dir, &self.spared(), needs, stop)
                .map_err(|error| Failure::host(dir.display(), error)),
            Layer::File(place) => needs_of_archive(place.archive(stop)?, needs, stop),
            Layer::Stream(archive, _) => needs_of_archive(*archive, needs, stop),
            Layer::Volume(target) => needs_of_volume(&target, needs, report),
        }
    }

    /// Copies all sources (`layers`) in order into the new volume, and then makes the other files (`nodes`). `made` contains the dimensions
    /// of the volume. `time` is the time of all changes.
    ///
    /// # Errors
    /// Fails if a source cannot be read, or if the volume has no space. A failure for lack of space contains the space that all sources
    /// need.
    pub(crate) fn fill(
        &self,
        Layers(layers): Layers,
        time: Option<i64>,
        made: Dimensions,
        is_strict: bool,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let source = Rc::new(Source::open_at(&self.volume, time, &self.context)?);
        let mut needs = Needs::new(made.unit);
        let mut filler = Filler::new(&source, self.owners.clone(), self.total, is_strict, report)?;
        if self.total.is_none()
            && let Some(dirs) = layers.iter().map(Layer::directory).collect()
        {
            filler.count(dirs);
        }
        let mut layers = layers.into_iter();
        let filled = layers.try_for_each(|layer| match layer {
            Layer::Directory(dir) => filler.directory(&dir),
            Layer::File(place) => {
                filler.archive(place.archive(self.stop())?, place.role, &mut needs)
            }
            Layer::Stream(archive, role) => filler.archive(*archive, role, &mut needs),
            Layer::Volume(target) => filler.volume(&target),
        });
        let filled = filled.and_then(|()| self.nodes.iter().try_for_each(|node| filler.node(node)));
        let filled = filled.and(filler.finish());
        let closed = source.close();
        filled.and(closed).map_err(|failure| {
            if !failure.is_for_space() {
                return failure;
            }
            match self.needs_of_rest(layers, needs, report) {
                Some(needs) => failure.needing(needs, made),
                None => failure,
            }
        })
    }

    /// Adds the inodes and the space that the remaining sources need: all directories and volumes, and the archives that have not been
    /// read.
    fn needs_of_rest(
        &self,
        layers: impl Iterator<Item = Layer>,
        mut needs: Needs,
        report: &mut Report,
    ) -> Option<Needs> {
        for layer in layers.filter(|layer| matches!(layer, Layer::File(_) | Layer::Stream(..))) {
            self.count_layer(layer, &mut needs, report).ok()?;
        }
        for origin in &self.origins {
            match origin {
                Origin::Volume(target) => needs_of_volume(target, &mut needs, report).ok()?,
                Origin::Place { .. } => {
                    if let Some(dir) = origin.path().filter(|path| path.is_dir()) {
                        needs_of_tree(dir, &self.spared(), &mut needs, self.stop()).ok()?;
                    }
                }
            }
        }
        Some(needs)
    }
}

/// Adds the locations of a source. An image layout has several locations, one for each layer.
fn add(
    content: Content,
    volume: &Location,
    context: &Arc<Context>,
    origins: &mut Vec<Origin>,
) -> Result<(), Failure> {
    match content.0 {
        content::Origin::Path { path, layers } => {
            let wanted = layers.as_ref().filter(|_| !is_stdin(&path));
            let found = wanted.map_or(Ok(None), |wanted| {
                let spool = |content: &mut dyn Read| {
                    spool(&beside(volume), &shown(&path), content, context.stop())
                };
                oci::layers(&path, wanted.choice(), context.stop(), &spool)
            })?;
            let role = if layers.is_some() { Role::MaybeLayer } else { Role::Tree };
            let places = found.unwrap_or_else(|| vec![Place::of(&path, role)]);
            origins.extend(places.into_iter().map(|place| Origin::Place { place, kept: None }));
        }
        content::Origin::Archive { name, mut bytes, is_layer } => {
            let kept = Some(spool(&beside(volume), &name, &mut bytes, context.stop())?);
            let role = if is_layer { Role::Layer } else { Role::Tree };
            let place = Place { shown: name, ..Place::of(Path::new("-"), role) };
            origins.push(Origin::Place { place, kept });
        }
        content::Origin::Volume(target) => {
            if is_same_part(&target.volume, volume, context) {
                return Err(is_own(&target));
            }
            // A missing or damaged volume must be reported before the new volume is made.
            directory_of(&target, context)?;
            origins.push(Origin::Volume(target));
        }
    }
    Ok(())
}

fn open(origin: &Origin, stop: &Stop) -> Result<Layer, Failure> {
    let (place, kept) = match origin {
        Origin::Place { place, kept } => (place, kept),
        Origin::Volume(target) => return Ok(Layer::Volume(target.clone())),
    };
    let Place { path, shown, role, .. } = place;
    let stream = |archive| Layer::Stream(Box::new(archive), *role);
    if let Some(mut file) = kept.as_ref() {
        let again =
            || file.rewind().and_then(|()| file.try_clone()).map(|file| Input::new(file, stop));
        return Archive::new(shown.clone(), again).map(stream);
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
    place.archive(stop).map(stream)
}

/// Refuses a source in which the volume is stored, because the copy would read a file while it writes to the same file.
pub(crate) fn refuse_own<'a>(
    volume: &Location,
    paths: impl IntoIterator<Item = &'a Path>,
    context: &Context,
) -> Result<(), Failure> {
    let own = Spared::of(volume, context);
    for path in paths {
        if own.has(path) || is_stdin(path) && own.has_stdin() {
            return Err(is_own(shown(path)));
        }
    }
    Ok(())
}

fn is_own(source: impl Display) -> Failure {
    let what = "the file is the volume that is being made, so it cannot be a source";
    Failure::usage(format!("{source}: {what}"))
}

/// Whether both locations are in the same file and may overlap: their parts of the file are equal, or one location is the whole file.
fn is_same_part(one: &Location, other: &Location, context: &Context) -> bool {
    let (own, parts) = (Spared::of(other, context), [&one.data().part, &other.data().part]);
    let is_logical = parts.map(|part| matches!(part, Part::Logical { .. }));
    // A logical volume may use any range of any partition, so it may overlap every other part.
    let overlap =
        parts[0] == parts[1] || parts.contains(&&Part::Whole) || is_logical[0] != is_logical[1];
    canonical(one) == canonical(other)
        || overlap && one.data().path().is_some_and(|path| own.has(path))
}

/// Returns the directory for unnamed files: the directory of the image, which probably has enough space, or the directory for temporary
/// files.
fn beside(volume: &Location) -> PathBuf {
    let image = volume.data().path();
    let image = image.filter(|path| !path.exists() || path.is_file());
    match image.and_then(Path::parent) {
        Some(dir) if dir.as_os_str().is_empty() => PathBuf::from("."),
        Some(dir) => dir.to_owned(),
        None => std::env::temp_dir(),
    }
}
