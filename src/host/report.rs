//! Reports how a host file is read: from the device or through the kernel. If the file is read through the kernel, the report states the
//! reason.

use std::path::PathBuf;

use super::HostDevice;
use crate::device::path::DevicePathKind;
use crate::fs::host::{HostFile, HostFs, Refusal};

/// How a host file is read when the report is made: from the device or through the kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostReport {
    /// The path, as the caller gave it.
    pub path: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The file system. `None` if files on it can only be read through the kernel.
    pub fs: Option<HostFs>,
    /// The block size of the file system in bytes.
    pub block_size: u32,
    /// The reason why the file is read through the kernel. `None` if the file is read from the device, under a lease.
    pub refusal: Option<Refusal>,
    /// How many times the lease was broken.
    pub breaks: u64,
    /// The number of extents; contiguous extents count as one. `None` if the file is read through the kernel.
    pub extents: Option<usize>,
    /// Whether the file shares blocks with other files.
    pub shared: bool,
    /// The device of the file system, if ironmap has searched for it.
    pub device: Option<DeviceReport>,
}

/// The device of the file system that contains the host file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device node through which the file is read, and the kind of its device path. `None` if no node can be opened.
    pub device_path: Option<(PathBuf, DevicePathKind)>,
    /// The position of the file system on the device of this device node, in bytes.
    pub base: u64,
    /// Whether this device node supports NOWAIT. `None` if no node can be opened. Without NOWAIT, a queued read of the file completes
    /// before its submission returns.
    pub nowait: Option<bool>,
    /// One line with the available device nodes and the reason for the choice.
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
            nowait: device.device_path.as_ref().ok().map(|open| open.file.limits().nowait),
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

    /// Whether the file is read from the device instead of through the kernel.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.refusal.is_none()
    }
}
