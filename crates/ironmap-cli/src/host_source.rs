//! Reads files of mounted file systems. If possible, the reads bypass the kernel's file system.

use std::path::Path;

use ironmap::{
    Error, ErrorKind, File, FileOptions, Host, HostOptions, HostReport, Queue, QueueOptions,
};
use ironmap_image::Failure;

/// The mounted file systems of this host.
pub(crate) struct HostSource(Host);

impl HostSource {
    pub(crate) fn open() -> Result<Self, Failure> {
        let host = Host::new(&HostOptions::default());
        host.map(Self).map_err(|error| Failure::at("host", &error))
    }

    /// A handle for a file, and a report on how the file is read.
    pub(crate) fn file(
        &self,
        path: &Path,
        options: FileOptions,
    ) -> Result<(File, HostReport), Failure> {
        let failed = |error: Error| match error.kind() {
            // The library's error already names the path.
            ErrorKind::Io(_) => Failure::new(error.to_string()),
            _ => Failure::at(path.display(), &error),
        };
        let file = self.0.open_with(path, options).map_err(failed)?;
        let report = file.host().ok_or_else(|| {
            Failure::new("the file belongs to a volume, not to a mounted file system")
        })?;
        Ok((file, report))
    }

    pub(crate) fn queue(&self) -> Result<Queue, Failure> {
        let queue = self.0.queue(&QueueOptions::default());
        queue.map_err(|error| Failure::at("host", &error))
    }
}
