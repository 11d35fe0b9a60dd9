//! Shows the device below a volume: its capabilities and its protection.

use std::io;
use std::path::PathBuf;

use ironmap::device::image::describe;
use ironmap::device::{DeviceProtection, Limits};
use ironmap::integrity::{Counts, Opened};
use ironmap::location::Medium;
use ironmap::{Location, Volume};
use serde::Serialize;

use crate::cmd::integrity::Geometry;

#[derive(Serialize)]
pub(super) struct Device {
    size: u64,
    engine: String,
    direct: bool,
    logical_block: u32,
    physical_block: u32,
    dma_alignment: u32,
    max_transfer: u32,
    fua: bool,
    volatile_cache: bool,
    stable_writes: bool,
    nowait: bool,
    poll: bool,
    atomic_write: u32,
    /// `null` if the device has no protection.
    protection: Option<Protection>,
    /// The integrity device below the volume, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    integrity: Option<Integrity>,
    /// The virtual disk image below the volume, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Image>,
    notices: Vec<String>,
}

#[derive(Serialize)]
struct Image {
    format: String,
    virtual_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_size: Option<u64>,
    /// The image file, followed by its backing files or extents.
    files: Vec<ImageFile>,
}

#[derive(Serialize)]
struct ImageFile {
    path: String,
    format: &'static str,
}

impl Image {
    fn of(volume: &Location) -> Option<Self> {
        let Medium::Image(address) = &volume.data().medium else { return None };
        let found = describe(address).ok()?;
        let file =
            |(path, format): (PathBuf, _)| ImageFile { path: path.display().to_string(), format };
        Some(Self {
            format: found.format,
            virtual_size: found.virtual_size,
            cluster_size: Some(found.cluster_size).filter(|size| *size > 0),
            files: found.files.into_iter().map(file).collect(),
        })
    }
}

#[derive(Serialize)]
struct Integrity {
    #[serde(flatten)]
    geometry: Geometry,
    /// Whether the device was closed properly before this open.
    closed: bool,
    mismatches: u64,
    retries: u64,
    unverified: u64,
}

impl Integrity {
    fn of(opened: &Opened) -> Self {
        let Counts { mismatches, retries, unverified, .. } = opened.device.counts();
        let geometry = Geometry::new(opened.device.info());
        Self { geometry, closed: !opened.recovered.crashed, mismatches, retries, unverified }
    }
}

#[derive(Serialize)]
struct Protection {
    format: String,
    interval: u32,
    metadata: u32,
    generated: bool,
    verified: bool,
    carried: bool,
    #[serde(skip)]
    text: String,
}

impl Protection {
    fn of(device: &dyn ironmap::device::Device) -> Option<Self> {
        let protection = device.protection()?;
        let text = protection.to_string();
        let DeviceProtection { format, interval, metadata, generated, verified, carried, .. } =
            protection.clone();
        Some(Self { format, interval, metadata, generated, verified, carried, text })
    }
}

impl Device {
    pub(super) fn of(volume: &Volume, location: &Location) -> Self {
        let limits = volume.device().limits();
        let &Limits { logical_block, physical_block, max_transfer, .. } = limits;
        Self {
            size: volume.device().size(),
            engine: volume.engine().to_string(),
            direct: limits.direct,
            logical_block,
            physical_block,
            dma_alignment: limits.dma_align,
            max_transfer,
            fua: limits.fua,
            volatile_cache: limits.volatile_cache,
            stable_writes: limits.stable_writes,
            nowait: limits.nowait,
            poll: limits.poll,
            atomic_write: limits.atomic_write,
            protection: Protection::of(&**volume.device()),
            integrity: volume.integrity().map(Integrity::of),
            image: Image::of(location),
            notices: [volume.notices(), volume.faults()].concat(),
        }
    }

    /// Prints the description as text. `line` prints a labelled line.
    pub(super) fn print(
        &self,
        line: &mut impl FnMut(&str, String) -> io::Result<()>,
    ) -> io::Result<()> {
        let device = self;
        let yes = |flag: bool| if flag { "yes" } else { "no" };
        line("Device", format!("{} bytes, read by {}", device.size, device.engine))?;
        line(
            "Alignment",
            format!(
                "logical block {}, physical block {}, memory {}; at most {} per request",
                device.logical_block,
                device.physical_block,
                device.dma_alignment,
                device.max_transfer
            ),
        )?;
        line(
            "Device can",
            format!(
                "direct {}, nowait {}, poll {}, fua {}, volatile cache {}, stable writes {}",
                yes(device.direct),
                yes(device.nowait),
                yes(device.poll),
                yes(device.fua),
                yes(device.volatile_cache),
                yes(device.stable_writes)
            ),
        )?;
        let atomic = match device.atomic_write {
            0 => "none".to_owned(),
            most => format!("up to {most} bytes"),
        };
        line("Atomic writes", atomic)?;
        let protection = device.protection.as_ref().map_or("none", |protection| &protection.text);
        line("Protection", protection.to_owned())?;
        if let Some(integrity) = &device.integrity {
            line("Integrity", integrity.geometry.text())?;
            let Integrity { mismatches, retries, unverified, .. } = integrity;
            line(
                "Sectors so far",
                format!(
                    "{mismatches} with wrong tags, {retries} read twice, {unverified} not verified"
                ),
            )?;
        }
        if let Some(Image { format, virtual_size, cluster_size, files }) = &device.image {
            let clusters = match cluster_size {
                None => String::new(),
                Some(size) => format!(", clusters of {size} bytes"),
            };
            line("Image", format!("{format}, {virtual_size} bytes{clusters}"))?;
            for ImageFile { path, format } in files {
                line("Image file", format!("{path} ({format})"))?;
            }
        }
        for notice in &device.notices {
            line("Notice", notice.clone())?;
        }
        Ok(())
    }
}
