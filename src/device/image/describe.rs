//! The description of an image for the user: format, size and chain of backing files. Only headers are read.

use super::driver::Driver as _;
use super::qcow2::{open_chain, snapshot_names};
use super::vhdx::Vhdx;
use super::vmdk::Vmdk;
use super::{Address, Description, ImageFormat};
use crate::error::Result;

pub(super) const ONLY_READ: &str = "images of this format can be read but not written";

/// Describes an image. The image is not locked, and may be in use.
///
/// # Errors
/// The errors of [`Image::open`](super::Image::open), except `Busy`.
pub fn describe(address: &Address) -> Result<Description> {
    match address.format {
        ImageFormat::Qcow2 => describe_qcow2(address),
        ImageFormat::Vmdk => {
            let image = Vmdk::open(&address.path, false)?;
            let mut files = image.files();
            if files.iter().all(|(path, _)| *path != address.path) {
                files.insert(0, (address.path.clone(), "descriptor"));
            }
            Ok(Description {
                format: format!("VMDK {}", image.kind),
                virtual_size: image.size(),
                cluster_size: image.grain(),
                read_only: Some(ONLY_READ.to_owned()),
                snapshots: Vec::new(),
                files,
            })
        }
        ImageFormat::Vhdx => {
            let image = Vhdx::open(&address.path, false)?;
            Ok(Description {
                format: "VHDX".to_owned(),
                virtual_size: image.size(),
                cluster_size: image.block,
                read_only: Some(ONLY_READ.to_owned()),
                snapshots: Vec::new(),
                files: vec![(address.path.clone(), "vhdx")],
            })
        }
    }
}

fn describe_qcow2(address: &Address) -> Result<Description> {
    let links = open_chain(&address.path, false, false)?;
    let mut files = Vec::new();
    for link in &links {
        files.push((link.file.path(), if link.header.is_some() { "qcow2" } else { "raw" }));
        files.extend(link.data.as_ref().map(|data| (data.path(), "data")));
    }
    let first = links.first();
    let top = first.and_then(|link| link.header.as_ref());
    let snapshots = match (first, top) {
        (Some(link), Some(header)) => snapshot_names(&link.file, header)?,
        _ => Vec::new(),
    };
    let (version, virtual_size, cluster_size) =
        top.map_or((0, 0, 0), |top| (top.version, top.size, top.cluster()));
    Ok(Description {
        format: format!("qcow2 version {version}"),
        virtual_size,
        cluster_size,
        read_only: top.and_then(|top| top.refuse_writing(&address.path)),
        snapshots,
        files,
    })
}
