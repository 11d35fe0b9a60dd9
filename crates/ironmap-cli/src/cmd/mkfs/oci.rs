//! The layers of an OCI image layout: a directory with a file `oci-layout`, an `index.json`, and blobs that are named by their digests (OCI image
//! specification 1.1, "Image Layout", "Image Index", "Image Manifest").

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// The specification asks registries to take manifests of 4 MiB.
const LARGEST: u64 = 4 << 20;
/// An index may name another one.
const DEEPEST: u32 = 4;

/// Types of layers without the suffix of their compression, which the first bytes of an archive tell.
const LAYERS: [&str; 3] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layout {
    image_layout_version: String,
}

/// An image index or an image manifest: the blobs that it names.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// The layers of the image in a directory, the lowest first. `None` for a directory that is not an image layout.
///
/// # Errors
/// A file cannot be read or is not as the specification says; the layout has several images, and not one for this machine; a layer is of an
/// unknown type, for instance encrypted.
pub(super) fn layers(dir: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
    let marker = dir.join("oci-layout");
    let layout: Layout = match read(&marker) {
        Ok(text) => parse(&marker, &text)?,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => return Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(Failure::host(marker.display(), error)),
    };
    if !layout.image_layout_version.starts_with("1.") {
        let version = layout.image_layout_version;
        return Err(wrong(&marker, &format!("version {version} of the layout is unknown")));
    }
    let mut path = dir.join("index.json");
    for _ in 0..DEEPEST {
        let text = read(&path).map_err(|error| Failure::host(path.display(), error))?;
        let document: Document = parse(&path, &text)?;
        match document {
            Document { layers: Some(layers), manifests: None } => {
                return layers
                    .iter()
                    .map(|layer| blob_of_layer(dir, layer))
                    .collect::<Result<_, _>>()
                    .map(Some);
            }
            Document { manifests: Some(images), layers: None } => {
                path = blob(dir, choose(&path, &images)?)?;
            }
            // Tools that read both differ in which of them counts.
            Document { manifests: Some(_), .. } => {
                return Err(wrong(&path, "is an image index and an image manifest at once"));
            }
            _ => return Err(wrong(&path, "is neither an image index nor an image manifest")),
        }
    }
    Err(wrong(&path, "is an image index too deep in others"))
}

/// The only image, or of several the image for this machine.
fn choose<'a>(index: &Path, images: &'a [Descriptor]) -> Result<&'a Descriptor, Failure> {
    if let [image] = images {
        return Ok(image);
    }
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let is_own = |image: &&Descriptor| {
        let platform = image.platform.as_ref();
        platform.is_some_and(|platform| platform.os == "linux" && platform.architecture == own)
    };
    let mut fitting = images.iter().filter(is_own);
    match (fitting.next(), fitting.next()) {
        (Some(image), None) => Ok(image),
        _ => {
            let count = images.len();
            let what = format!("names {count} images, and not one for linux/{own}");
            Err(wrong(index, &what).because("copy one into a layout of its own, as by skopeo copy"))
        }
    }
}

fn blob_of_layer(dir: &Path, layer: &Descriptor) -> Result<PathBuf, Failure> {
    let media = &layer.media_type;
    let bare = media.rsplit_once(['+', '.']);
    let bare = bare.filter(|(_, packed)| matches!(*packed, "gzip" | "zstd"));
    if !LAYERS.contains(&bare.map_or(media.as_str(), |(bare, _)| bare)) {
        return Err(wrong(dir, &format!("layer {} is of the unknown type {media}", layer.digest)));
    }
    blob(dir, layer)
}

/// The file of a blob, which has the size that its descriptor says.
fn blob(dir: &Path, descriptor: &Descriptor) -> Result<PathBuf, Failure> {
    let Descriptor { digest, size, .. } = descriptor;
    // `algorithm:encoded`, of letters that lead to no other directory.
    let parts = digest.split_once(':').filter(|(algorithm, encoded)| {
        let word = |text: &str, more: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && text.chars().all(fits)
        };
        word(algorithm, "+_-") && word(encoded, "=_-")
    });
    let Some((algorithm, encoded)) = parts else {
        return Err(wrong(dir, &format!("{digest:?} is no digest")));
    };
    let path = dir.join("blobs").join(algorithm).join(encoded);
    let found = path.metadata().map_err(|error| Failure::host(path.display(), error))?;
    if !found.is_file() || found.len() != *size {
        let what = format!("is no file of the {size} bytes that its descriptor says");
        return Err(wrong(&path, &what));
    }
    Ok(path)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut text)?;
    Ok(text)
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, Failure> {
    if text.len() as u64 > LARGEST {
        return Err(wrong(path, "is longer than 4 MiB"));
    }
    serde_json::from_slice(text).map_err(|error| wrong(path, &error.to_string()))
}

fn wrong(path: &Path, what: &str) -> Failure {
    Failure::new(format!("{}: {what}", path.display()))
}
