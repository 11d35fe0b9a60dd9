//! Options of an [`Image`] for a volume in a partition of a new disk.

use ironmap::ErrorKind;
use ironmap::device::{Limits, Ram};

use super::Image;
use crate::failure::Failure;

impl Image {
    /// Sets the label, the UUID and the time of a volume in a partition, unless the caller has set them.
    pub(crate) fn for_partition(
        mut self,
        label: Option<&str>,
        uuid: [u8; 16],
        date: Option<i64>,
    ) -> Self {
        self.source_date = self.source_date.or(date);
        if self.label.is_none() && self.options.label.is_empty() {
            self.label = label.map(|label| label.as_bytes().to_vec());
        }
        self.uuid = self.uuid.or(self.options.uuid).or(Some(uuid));
        self
    }

    /// Sets whether the device is known to read as zeros.
    pub(crate) fn zeroed(mut self, zeroed: bool) -> Self {
        self.options.zeroed = zeroed;
        self
    }

    /// Checks that a partition of `len` bytes on a disk with this sector size has enough space for the volume's metadata, and that the
    /// options are possible. Writes nothing.
    pub(crate) fn check_size(&self, len: u64, sector: u64) -> Result<(), Failure> {
        let limits = Limits { logical_block: sector as u32, ..Ram::LIMITS };
        let options = self.options.clone().size(len);
        let planned = ironmap::tools::plan(&Ram::new(len).with_limits(limits), &options);
        planned.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => Failure::refused_arguments(&error),
            _ => Failure::open(&error),
        })
    }

    /// Whether the new volume gets no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.contents.is_empty() && self.nodes.is_empty() && self.device_table.is_none()
    }
}
