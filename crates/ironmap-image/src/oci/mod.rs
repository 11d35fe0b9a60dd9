//! Finds the layers of an image. The source has one of two forms:
//!
//! - an OCI image layout, which has a file `oci-layout`, an `index.json`, and blobs that are named by their digests (OCI image
//!   specification 1.1, "Image Layout", "Image Index", "Image Manifest");
//! - the older output of `docker save` and `podman save`, which has a `manifest.json` (Docker Image Specification v1.2, "Combined Image
//!   JSON + Filesystem Changeset Format").
//!
//! Either form may be a directory or an archive of that directory.

mod choice;
mod layout;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::io::Errno;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::choice::{Candidate, choose};
pub use self::choice::{Choice, Platform};
use self::layout::Layout;
use crate::failure::Failure;
use crate::place::Place;
use crate::stop::Stop;

/// The maximum nesting depth of indexes: an index may refer to another index.
const DEEPEST: u32 = 4;

/// The file that exists only in an image layout, and the file that exists in the older format.
const MARK: &str = "oci-layout";
const MANIFEST: &str = "manifest.json";

/// The media types of layers, without the suffix for the compression. The first bytes of an archive show its compression.
const LAYERS: [&str; 3] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
];

/// The media types of descriptors that refer to an index.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// The annotations by which an index names an image.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    image_layout_version: String,
}

/// An image index or an image manifest, reduced to the blobs to which it refers.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// One image from `manifest.json`: the names of the image, and the files of its layers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Returns the layers of the image at a path, the lowest layer first. Returns `None` if the source does not have one of the two forms.
/// `spool` stores the content of a compressed archive.
///
/// # Errors
/// Fails if a file cannot be read or violates the specification. If there are several images and the user chose none, fails if no image is
/// for this machine. Fails if a layer has an unknown type, for example if it is encrypted.
pub(crate) fn layers(
    path: &Path,
    mut choice: Choice<'_>,
    stop: &Stop,
    spool: &dyn Fn(&mut dyn Read) -> Result<File, Failure>,
) -> Result<Option<Vec<Place>>, Failure> {
    let Some(layout) = Layout::open(path, &[MARK, MANIFEST], stop, spool)? else { return Ok(None) };
    let Some(version) = layout.read(MARK)? else {
        let manifest = layout.read(MANIFEST)?;
        // A member with the name `manifest.json` does not prove that the archive contains images, because any tree may contain a file with
        // this name.
        let Some(images) = manifest.as_deref().and_then(saved) else { return Ok(None) };
        return layers_of_saved(&layout, &images, choice).map(Some);
    };
    let Version { image_layout_version: version } = parse(&layout, MARK, &version)?;
    if !version.starts_with("1.") {
        return Err(layout.wrong(
            MARK,
            &format!("version {version} of the layout is not supported: it must be 1.x"),
        ));
    }
    let mut name = "index.json".to_owned();
    for _ in 0..DEEPEST {
        let text = layout.read(&name)?;
        let missing = || layout.failed(&name, Errno::NOENT);
        let document: Document = parse(&layout, &name, &text.ok_or_else(missing)?)?;
        match document {
            Document { layers: Some(layers), manifests: None, config } => {
                if let Some(image) = choice.image {
                    return Err(layout.wrong(
                        &name,
                        &format!("contains only one image, and it is not the image {image}"),
                    ));
                }
                let config = config.map(|config| name_of_blob(&layout, &config)).transpose()?;
                let platform = config.and_then(|config| platform_of(&layout, &config));
                if let (Some(wanted), Some(found)) = (choice.platform, platform)
                    && !wanted.takes(&found)
                {
                    let what = format!("is an image for {found}, not for {wanted}");
                    return Err(layout.wrong(&name, &what));
                }
                let places = layers.iter().map(|layer| blob_of_layer(&layout, layer));
                return places.collect::<Result<_, _>>().map(Some);
            }
            Document { manifests: Some(images), layers: None, .. } => {
                let (image, named) = choose(candidates(&images), choice)
                    .map_err(|what| layout.wrong(&name, &what))?;
                choice.image = choice.image.filter(|_| !named);
                let image = image.image;
                blob(&layout, image)?;
                name = name_of_blob(&layout, image)?;
            }
            // A document that is both an index and a manifest is refused, because tools read it in different ways.
            Document { manifests: Some(_), .. } => {
                return Err(layout.wrong(&name, "is both an image index and an image manifest"));
            }
            _ => {
                let what = "is neither an image index nor an image manifest";
                return Err(layout.wrong(&name, what));
            }
        }
    }
    Err(layout.wrong(&name, "the image indexes are nested too deeply"))
}

/// Whether a member shows that its archive contains images and is not a layer. `content` is the beginning of the member's content.
pub(crate) fn is_of_images(name: &[u8], content: &[u8]) -> bool {
    name == MARK.as_bytes() || name == MANIFEST.as_bytes() && saved(content).is_some()
}

/// Returns the images of a `manifest.json`, or `None` if the file has another format.
fn saved(text: &[u8]) -> Option<Vec<Saved>> {
    serde_json::from_slice(text).ok()
}

fn layers_of_saved(
    layout: &Layout,
    images: &[Saved],
    choice: Choice<'_>,
) -> Result<Vec<Place>, Failure> {
    let with_platform = choice.platform.is_some();
    let candidates = images.iter().map(|image| candidate_of_saved(layout, image, with_platform));
    let candidates = candidates.collect();
    let chosen = choose(candidates, choice).map_err(|what| layout.wrong(MANIFEST, &what))?;
    let image: &Saved = chosen.0.image;
    let place = |name: &String| {
        if !is_plain(name) {
            return Err(layout.wrong(MANIFEST, &format!("{name:?} is not a valid name of a layer")));
        }
        layout.find(name).map(|(place, _)| place).map_err(|error| layout.failed(name, error))
    };
    image.layers.iter().map(place).collect()
}

/// Returns an image of `manifest.json`. The image's configuration names the platform, and the digest of the configuration is the digest of
/// the image (Docker Image Specification v1.2, "Image JSON").
fn candidate_of_saved<'a>(
    layout: &Layout,
    image: &'a Saved,
    with_platform: bool,
) -> Candidate<'a, &'a Saved> {
    let digest = image.config.rsplit('/').next().unwrap_or_default();
    Candidate {
        names: image.repo_tags.iter().flatten().map(String::as_str).collect(),
        digest: format!("sha256:{}", digest.strip_suffix(".json").unwrap_or(digest)),
        platform: with_platform.then(|| platform_of(layout, &image.config)).flatten(),
        is_index: false,
        image,
    }
}

/// Whether a path has no `.`, `..` or empty component, so that it cannot lead out of its directory.
fn is_plain(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Returns the platform that a configuration names, or `None` if the configuration does not exist or names no platform.
fn platform_of(layout: &Layout, config: &str) -> Option<Platform> {
    if !is_plain(config) {
        return None;
    }
    serde_json::from_slice(&layout.read(config).ok()??).ok()
}

/// Returns the images of an index. An image with several names occurs once.
fn candidates(images: &[Descriptor]) -> Vec<Candidate<'_, &Descriptor>> {
    let mut all: Vec<Candidate<'_, &Descriptor>> = Vec::new();
    for image in images {
        let names = NAMES.iter().filter_map(|name| image.annotations.get(*name));
        let names = names.map(String::as_str);
        let same = |other: &&mut Candidate<'_, &Descriptor>| {
            (&other.digest, &other.platform) == (&image.digest, &image.platform)
        };
        if let Some(other) = all.iter_mut().find(same) {
            let new: Vec<_> = names.filter(|name| !other.names.contains(name)).collect();
            other.names.extend(new);
            continue;
        }
        all.push(Candidate {
            names: names.collect(),
            digest: image.digest.clone(),
            platform: image.platform.clone(),
            is_index: INDEXES.contains(&image.media_type.as_str()),
            image,
        });
    }
    all
}

fn blob_of_layer(layout: &Layout, layer: &Descriptor) -> Result<Place, Failure> {
    let media = &layer.media_type;
    let bare = media.rsplit_once(['+', '.']);
    let bare = bare.filter(|(_, packed)| matches!(*packed, "gzip" | "zstd"));
    if !LAYERS.contains(&bare.map_or(media.as_str(), |(bare, _)| bare)) {
        let what = format!("the layer has the unknown type {media}");
        return Err(layout.wrong(&format!("layer {}", layer.digest), &what));
    }
    blob(layout, layer)
}

/// Returns the file of a blob. Its size must match the descriptor.
fn blob(layout: &Layout, descriptor: &Descriptor) -> Result<Place, Failure> {
    let name = name_of_blob(layout, descriptor)?;
    let (place, len) = layout.find(&name).map_err(|error| layout.failed(&name, error))?;
    let size = descriptor.size;
    if len != size {
        let what = format!("the file has {len} bytes, but its descriptor says {size}");
        return Err(layout.wrong(&name, &what));
    }
    Ok(place)
}

fn name_of_blob(layout: &Layout, descriptor: &Descriptor) -> Result<String, Failure> {
    let digest = &descriptor.digest;
    // A digest is `algorithm:encoded`. The allowed characters cannot lead to another directory.
    let parts = digest.split_once(':').filter(|(algorithm, encoded)| {
        let word = |text: &str, more: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && text.chars().all(fits)
        };
        word(algorithm, "+_-") && word(encoded, "=_-")
    });
    let name = parts.map(|(algorithm, encoded)| format!("blobs/{algorithm}/{encoded}"));
    name.ok_or_else(|| layout.wrong("blobs", &format!("{digest:?} is not a digest")))
}

fn parse<T: DeserializeOwned>(layout: &Layout, name: &str, text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| layout.wrong(name, &error.to_string()))
}
