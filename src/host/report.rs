//! The present server of a host file (the device or the kernel), and the reason.

use std::path::PathBuf;

use super::HostDevice;
use crate::device::path::DevicePathKind;
use crate::fs::host::{HostFile, HostFs, Refusal};

/// The present server of a host file (the device or the kernel), and the reason.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostReport {
    /// The path, as given.
    pub path: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The file system, if its files can be read around the kernel.
    pub fs: Option<HostFs>,
    /// The block size of the file system in bytes.
    pub block_size: u32,
    /// The reason why the kernel serves it; `None` while it is read raw, under a lease.
    pub refusal: Option<Refusal>,
    /// How many times the lease was broken.
    pub breaks: u64,
    /// The number of extents, while the file is read raw. Contiguous extents are merged.
    pub extents: Option<usize>,
    /// Whether the file shares blocks with other files.
    pub shared: bool,
    /// The devices beneath, if they were searched.
    pub device: Option<DeviceReport>,
}

/// The device beneath a host file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The node through which the file is read, and its kind; `None` if none can be opened.
    pub device_path: Option<(PathBuf, DevicePathKind)>,
    /// The start of the file system, in bytes from the device path's start.
    pub base: u64,
    /// The available device paths and the reason for the chosen one, in one line.
    pub choice: String,
}

impl HostReport {
    pub(super) fn of(file: &HostFile, device: Option<&HostDevice>, size: u64) -> Self {
        let status = file.status();
        let device = device.map(|device| DeviceReport {
            device_path: device
                .device_path
                .as_ref()
                .ok()
                .map(|open| (open.device_path.path.clone(), open.device_path.kind)),
            base: device.device_path.as_ref().map_or(0, |open| open.device_path.base),
            choice: device.choice.clone(),
        });
        Self {
            path: file.path().to_owned(),
            size,
            fs: file.fs(),
            block_size: file.block_size().bytes() as u32,
            refusal: status.refusal,
            breaks: status.breaks,
            extents: status.map.as_ref().map(|map| map.extents().len()),
            shared: status.map.is_some_and(|map| map.is_shared()),
            device,
        }
    }

    /// Whether the file is read around the kernel.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.refusal.is_none()
    }
}
