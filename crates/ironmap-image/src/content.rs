//! The sources that a caller can name for the content of a new volume.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use ironmap::Location;

use crate::oci::{Choice, Platform};
use crate::target::Target;

/// A source of files: a directory, an archive, an image of a container, or a directory of another volume.
pub struct Content(pub(crate) Origin);

/// The location of the files.
pub(crate) enum Origin {
    /// A directory or an archive of the host.
    Path {
        path: PathBuf,
        layers: Option<Wanted>,
    },
    /// An archive that the caller reads.
    Archive {
        name: String,
        bytes: Box<dyn Read + Send>,
        is_layer: bool,
    },
    Volume(Target),
}

/// The image that the caller has selected from an image layout with several images.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    image: Option<String>,
    platform: Option<Platform>,
}

impl Wanted {
    pub(crate) fn choice(&self) -> Choice<'_> {
        Choice { image: self.image.as_deref(), platform: self.platform.as_ref() }
    }
}

impl Content {
    /// Creates a source from a directory, or a tar archive, which may be compressed with gzip or zstd. The path `-` is standard input.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self(Origin::Path { path: path.into(), layers: None })
    }

    /// Creates a source from an OCI image layout, the output of `docker save` or `podman save`, or one layer of an image. Each may be a
    /// directory or an archive. The files `.wh.NAME` and `.wh..wh..opq` of a layer hide files of lower layers.
    pub fn oci(path: impl Into<PathBuf>) -> Self {
        Self(Origin::Path { path: path.into(), layers: Some(Wanted::default()) })
    }

    /// Creates a source from a tar archive, which may be compressed with gzip or zstd. `name` represents the archive in messages. The
    /// archive is stored in an unnamed temporary file before the volume is made.
    pub fn tar(name: impl Into<String>, bytes: impl Read + Send + 'static) -> Self {
        Self(Origin::Archive { name: name.into(), bytes: Box::new(bytes), is_layer: false })
    }

    /// Like [`tar`](Self::tar), but the archive is a layer of an image. Its files `.wh.NAME` and `.wh..wh..opq` hide files of earlier
    /// sources.
    pub fn layer(name: impl Into<String>, bytes: impl Read + Send + 'static) -> Self {
        Self(Origin::Archive { name: name.into(), bytes: Box::new(bytes), is_layer: true })
    }

    /// Creates a source from the entries of a directory of another volume. `path` begins with a slash.
    pub fn volume(volume: Location, path: impl Into<Vec<u8>>) -> Self {
        Self(Origin::Volume(Target { volume, path: path.into() }))
    }

    /// Chooses the image with this name or digest, if an image layout has several images. The call has no effect on other sources.
    #[must_use]
    pub fn image(mut self, image: Option<String>) -> Self {
        if let Origin::Path { layers: Some(wanted), .. } = &mut self.0 {
            wanted.image = image;
        }
        self
    }

    /// Chooses the image for this platform if an image layout has several images. By default, the image for Linux and the processor of this
    /// machine is used. The call has no effect on other sources.
    #[must_use]
    pub fn platform(mut self, platform: Option<Platform>) -> Self {
        if let Origin::Path { layers: Some(wanted), .. } = &mut self.0 {
            wanted.platform = platform;
        }
        self
    }

    /// Returns the path of a source that is stored in the host's files.
    pub(crate) fn host_path(&self) -> Option<&Path> {
        match &self.0 {
            Origin::Path { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl<P: AsRef<Path>> From<P> for Content {
    /// Makes the source that [`path`](Content::path) makes.
    fn from(path: P) -> Self {
        Self::path(path.as_ref())
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origin::Path { path, layers: None } => {
                f.debug_tuple("Content::path").field(path).finish()
            }
            Origin::Path { path, .. } => f.debug_tuple("Content::oci").field(path).finish(),
            Origin::Archive { name, is_layer: false, .. } => {
                f.debug_tuple("Content::tar").field(name).finish()
            }
            Origin::Archive { name, .. } => f.debug_tuple("Content::layer").field(name).finish(),
            Origin::Volume(target) => f.debug_tuple("Content::volume").field(target).finish(),
        }
    }
}
