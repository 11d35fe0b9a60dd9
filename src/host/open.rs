//! An open host file, with the device and the descriptor that give access to its data.

use std::sync::{Arc, OnceLock, Weak};

use super::kernel::Descriptor;
use super::{HostDevice, HostReport, Shared};
use crate::dio::StablePages;
use crate::error::{Error, Result};
use crate::fs::host::{HostFile, HostMap, Keeper};
use crate::open_file::Owner;

/// A host file, with the device and the descriptor that give access to its data.
pub(crate) struct OpenFile {
    pub(crate) file: Arc<HostFile>,
    pub(crate) device: Option<Arc<HostDevice>>,
    pub(crate) stable_pages: Option<StablePages>,
    /// The descriptor for direct reads through the kernel, opened at its first use. `None` if direct reads are impossible.
    descriptor: OnceLock<Option<Descriptor>>,
    /// This field must be declared after `file`, because fields are dropped in the order of their declarations.
    _closing: Closing,
    shared: Arc<Shared>,
}

/// When this value is dropped, the drop waits until the threads that handle leases do not use the file. After the drop, the file is closed.
struct Closing {
    file: Weak<HostFile>,
    keeper: Arc<Keeper>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        // The wait also covers threads that use other files. If no thread uses this file (the usual case), there is no wait.
        if self.file.strong_count() > 0 {
            self.keeper.let_go();
        }
    }
}

impl OpenFile {
    pub(crate) fn new(
        file: Arc<HostFile>,
        device: Option<Arc<HostDevice>>,
        shared: Arc<Shared>,
        stable_pages: Option<StablePages>,
    ) -> Self {
        let descriptor = OnceLock::new();
        let keeper = Arc::clone(shared.keeping.keeper());
        let closing = Closing { file: Arc::downgrade(&file), keeper };
        Self { file, device, stable_pages, descriptor, _closing: closing, shared }
    }

    /// The volume or host whose queues can read the file.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Owner {
        self.shared.owner
    }

    pub(crate) fn report(&self, size: u64) -> HostReport {
        HostReport::of(&self.file, self.device.as_deref(), size)
    }

    /// Returns the map of the file. Fails if the lease is not valid.
    pub(crate) fn map(&self) -> Result<Arc<HostMap>> {
        let status = self.file.status();
        status.map.ok_or_else(|| {
            let why = status.refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
            Error::unsupported(format!("the file can only be read through the kernel: {why}"))
        })
    }

    /// Whether data that were read from the device during a tenure (a period under a lease) are valid. They are valid if the tenure has not
    /// ended and the last check of all leases is recent.
    #[inline(always)]
    pub(crate) fn is_valid_for(&self, tenure: u64) -> bool {
        self.file.tenure().stands(tenure) && self.shared.keeping.keeper().proof().is_young()
    }

    /// The descriptor for direct reads through the kernel.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        let block = self.file.block_size().bytes() as u64;
        let open = || Descriptor::open(self.file.file(), block).ok();
        let descriptor = self.descriptor.get_or_init(open).as_ref();
        descriptor.filter(|descriptor| descriptor.file.limits().direct)
    }
}
