//! The methods of a device that only forward to its open file.

/// Implements the methods of a [`Device`](super::Device) that has an open file in its field `file`. These methods are the same for all
/// engines, whose devices differ only in their queues.
macro_rules! through_file {
    () => {
        fn size(&self) -> u64 {
            self.file.size()
        }

        fn read_within(
            &self,
            buf: &mut [u8],
            at: $crate::units::DevOffset,
            _: $crate::device::InRange,
        ) -> $crate::error::Result<()> {
            self.file.read_exact_at(buf, at)
        }

        fn is_writable(&self) -> bool {
            self.file.is_writable()
        }

        fn write_within(
            &self,
            bufs: &[std::io::IoSlice<'_>],
            at: $crate::units::DevOffset,
            fua: bool,
            _: $crate::device::InRange,
        ) -> $crate::error::Result<()> {
            self.file.write_all_at(bufs, at, fua)
        }

        fn flush(&self) -> $crate::error::Result<()> {
            self.file.flush()
        }

        fn discard_within(
            &self,
            at: $crate::units::DevOffset,
            len: u64,
            _: $crate::device::InRange,
        ) -> $crate::error::Result<()> {
            self.file.discard(at, len)
        }

        fn zero_within(
            &self,
            at: $crate::units::DevOffset,
            len: u64,
            _: $crate::device::InRange,
        ) -> $crate::error::Result<()> {
            self.file.write_zeroes(at, len)
        }

        fn data_within(
            &self,
            at: $crate::units::DevOffset,
            _: $crate::device::InRange,
        ) -> $crate::error::Result<std::ops::Range<$crate::units::DevOffset>> {
            self.file.data_from(at)
        }
    };
}
pub(super) use through_file;
