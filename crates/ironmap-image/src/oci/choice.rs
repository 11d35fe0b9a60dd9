//! Chooses one of several images: by a name, a digest or a platform, or the image for this machine.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The maximum number of images that an error lists.
const LISTED: usize = 16;

/// The choice that the user made.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// A name or a digest.
    pub image: Option<&'a str>,
    /// The operating system and the processor.
    pub platform: Option<&'a Platform>,
}

/// The operating system and the processor of an image (OCI image specification, "Image Index").
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine.
    fn own() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether this platform includes `other`. A platform without a variant includes all variants.
    pub(super) fn takes(&self, other: &Self) -> bool {
        let variant = self.variant.is_none() || self.variant == other.variant;
        (&self.os, &self.architecture) == (&other.os, &other.architecture) && variant
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/').map(str::to_owned);
        let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
        match (os, architecture) {
            (Some(os), Some(architecture)) if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self { os, architecture, variant })
            }
            _ => Err(format!("{text} is not OS/ARCH, for example linux/arm64")),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

/// An image that can be chosen.
pub(super) struct Candidate<'a, T> {
    pub(super) names: Vec<&'a str>,
    /// The digest as `algorithm:encoded`.
    pub(super) digest: String,
    pub(super) platform: Option<Platform>,
    /// Whether the image is an index, which may name further images.
    pub(super) is_index: bool,
    pub(super) image: T,
}

impl<T> Candidate<'_, T> {
    /// Whether `image` names this candidate: by a name of the candidate, with or without the registry, or by the beginning of the digest.
    fn is(&self, image: &str) -> bool {
        let named = |name: &&str| {
            name.strip_suffix(image).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        let encoded = self.digest.split_once(':').map_or("", |(_, encoded)| encoded);
        let hex = image.len() >= 7 && image.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.names.iter().any(named)
            || self.digest == image
            || hex && encoded.starts_with(image)
            || image.split_once(':').is_some_and(|(algorithm, begin)| {
                begin.len() >= 7
                    && self.digest.starts_with(image)
                    && self.digest[algorithm.len()..].starts_with(':')
            })
    }

    fn shown(&self) -> String {
        let name = if self.names.is_empty() {
            self.digest.chars().take(19).collect()
        } else {
            self.names.join(" = ")
        };
        match &self.platform {
            Some(platform) => format!("{name} ({platform})"),
            None => name,
        }
    }
}

/// Returns the chosen image, and whether its name or digest selected it. The error is a text that lists the images.
pub(super) fn choose<'a, T>(
    mut images: Vec<Candidate<'a, T>>,
    choice: Choice<'_>,
) -> Result<(Candidate<'a, T>, bool), String> {
    let list = list(&images);
    let count = match images.len() {
        1 => "one image".to_owned(),
        count => format!("{count} images"),
    };
    let mut named = false;
    if let Some(image) = choice.image {
        named = images.iter().any(|candidate| candidate.is(image));
        if named {
            images.retain(|candidate| candidate.is(image));
        } else if !matches!(&images[..], [only] if only.is_index) {
            return Err(format!("names {count}, but not {image}: {list}"));
        }
    }
    let own = Platform::own();
    let platform = choice.platform.unwrap_or(&own);
    if choice.platform.is_some() || images.len() > 1 {
        let is_for = |candidate: &Candidate<'a, T>| match &candidate.platform {
            Some(other) => platform.takes(other),
            None => choice.platform.is_some(),
        };
        if choice.platform.is_some() || images.iter().filter(|it| is_for(it)).count() == 1 {
            images.retain(is_for);
        }
    }
    let left = images.len();
    match images.pop().filter(|_| left == 1) {
        Some(image) => Ok((image, named)),
        None => Err(format!(
            "names {count}, but not exactly one for {platform}: {list}: choose an image with --image NAME (or a digest) or --platform OS/ARCH"
        )),
    }
}

fn list<T>(images: &[Candidate<'_, T>]) -> String {
    let mut list: Vec<_> = images.iter().take(LISTED).map(Candidate::shown).collect();
    if images.len() > LISTED {
        list.push(format!("and {} more", images.len() - LISTED));
    }
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image can be chosen by each of its names, by its digest or the beginning of its digest, and by its platform. A choice that
    /// matches several images fails.
    #[test]
    fn an_image_is_chosen_by_name_digest_or_platform() {
        let all = || {
            let of = |names: &[&'static str], digest: &str, platform: &str, image| Candidate {
                names: names.to_vec(),
                digest: format!("sha256:{digest}"),
                platform: platform.parse().ok(),
                is_index: false,
                image,
            };
            vec![
                of(&["docker.io/library/a:1", "1"], "0123456789", "linux/amd64", 0),
                of(&["docker.io/library/a:1", "1"], "1123456789", "linux/arm/v7", 1),
                of(&["b:1"], "2123456789", "linux/arm/v6", 2),
                of(&[], "3123456789", "", 3),
            ]
        };
        let chosen = |image: Option<&str>, platform: &str| {
            let platform: Option<Platform> = platform.parse().ok();
            choose(all(), Choice { image, platform: platform.as_ref() })
                .map(|(found, _)| found.image)
        };
        for (image, platform, expected) in [
            (Some("b:1"), "", Some(2)),
            (Some("a:1"), "linux/amd64", Some(0)),
            (Some("library/a:1"), "linux/arm", Some(1)),
            (Some("docker.io/library/a:1"), "linux/arm/v7", Some(1)),
            (Some("sha256:1123456789"), "", Some(1)),
            (Some("sha256:3123456"), "", Some(3)),
            (Some("3123456"), "", Some(3)),
            (Some("a:1"), "linux/s390x", None),
            (Some("sha256:"), "", None),
            (Some("3123"), "", None),
            (Some(":1"), "", None),
            (Some(""), "", None),
            (Some("c"), "", None),
            (None, "linux/arm", None),
        ] {
            let found = chosen(image, platform);
            assert_eq!(found.as_ref().ok().copied(), expected, "{image:?} {platform}: {found:?}");
            if let Err(error) = found {
                assert!(error.contains("names 4 images") && error.contains("b:1 (linux/arm/v6)"));
                assert!(error.contains("sha256:312345"), "{error}");
            }
        }
        for wrong in ["", "linux", "/amd64", "linux/"] {
            assert!(wrong.parse::<Platform>().is_err(), "{wrong}");
        }
    }
}
