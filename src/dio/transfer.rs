//! Transfers of borrowed memory. A short transfer is continued until it is complete. A transfer that failed with EAGAIN is repeated. A read
//! whose data do not match their checksums is repeated once.

use std::io::{IoSlice, IoSliceMut};

use smallvec::SmallVec;

use super::{Io, RETRIES};
use crate::bio::slices;
use crate::bio::{BioFlags, Dev};
use crate::device::LentPart;
use crate::error::Errno;
use crate::units::DevOffset;

/// The next step after a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Complete,
    /// The device has transferred this number of bytes, at least one logical block. The next transfer begins after these bytes.
    Continue(usize),
    /// The device has returned EAGAIN, or has transferred less than a logical block. The whole transfer is repeated.
    Repeat,
    Fail(Errno),
}

impl Next {
    /// Returns the step after a transfer of `len` bytes. A short count is rounded down to whole logical blocks, so that the remaining bytes
    /// are aligned. `sector_mask` is the logical block size minus one.
    pub(super) fn after(
        result: Result<usize, Errno>,
        len: usize,
        sector_mask: u64,
        flags: BioFlags,
        retries: &mut u8,
    ) -> Self {
        match result {
            Ok(count) if count == len => return Self::Complete,
            // The result 0 means that the transfer begins past the end of the device.
            Ok(0) => return Self::Fail(Errno::EIO),
            Ok(count) => match count & !(sector_mask as usize) {
                0 => {}
                whole => return Self::Continue(whole),
            },
            Err(Errno::EAGAIN) if !flags.contains(BioFlags::NOWAIT) => {}
            Err(errno) => return Self::Fail(errno),
        }
        if *retries == 0 || flags.contains(BioFlags::NOWAIT) {
            return Self::Fail(Errno::EIO);
        }
        *retries -= 1;
        Self::Repeat
    }
}

/// A list of the parts of a request. A list with few parts needs no allocation.
pub(super) type Parts<'a> = SmallVec<[LentPart<'a>; 2]>;

/// The device and the flags of transfers.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferTo {
    pub(super) dev: Dev,
    /// The logical block size minus one. The length of a short transfer is rounded down to whole blocks.
    pub(super) sector_mask: u64,
    pub(super) flags: BioFlags,
}

/// Returns a part without its first `count` bytes.
fn skip(mut part: LentPart<'_>, count: usize) -> LentPart<'_> {
    let mut bufs = &mut part.bufs[..];
    IoSliceMut::advance_slices(&mut bufs, count);
    let left = bufs.len();
    let gone = part.bufs.len() - left;
    part.bufs.drain(..gone);
    LentPart::new(part.bufs, DevOffset(part.at.0 + count as u64))
}

impl Io<'_> {
    /// Reads all parts. If there are errors, returns the first.
    pub(super) fn read_parts(&mut self, to: TransferTo, mut parts: Parts<'_>) -> Result<(), Errno> {
        let mut retries = RETRIES;
        while !parts.is_empty() {
            self.queue.read_parts_now(to.dev, &mut parts, to.flags);
            let mut again = Parts::new();
            for mut part in parts {
                let len = part.len();
                match Next::after(part.result, len, to.sector_mask, to.flags, &mut retries) {
                    Next::Complete => {}
                    Next::Continue(whole) => {
                        self.state.stats.short += 1;
                        again.push(skip(part, whole));
                    }
                    Next::Repeat => again.push(skip(part, 0)),
                    Next::Fail(Errno::EILSEQ) if to.flags.contains(BioFlags::REREAD) => {
                        self.reread(to, part.at, &mut part.bufs)?;
                    }
                    Next::Fail(errno) => return Err(errno),
                }
            }
            parts = again;
        }
        Ok(())
    }

    /// Writes the buffers one after another, starting at a position.
    pub(super) fn write_all(
        &mut self,
        to: TransferTo,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
    ) -> Result<(), Errno> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let (mut done, mut retries) = (0, RETRIES);
        let mut flags = to.flags;
        // A synchronous write-through call may flush the device as a side effect. On such a device, the data are written without DSYNC, and
        // one flush follows. This case occurs if a call continues a queued write-through request.
        let flushes = flags.contains(BioFlags::DSYNC) && self.state.calls_flush();
        flags.set(BioFlags::DSYNC, flags.contains(BioFlags::DSYNC) && !flushes);
        while done < len {
            let rest = slices::cut(bufs, done..len);
            let at = DevOffset(at.0 + done as u64);
            let result = self.queue.write_now(to.dev, &rest, at, flags);
            match Next::after(result, len - done, to.sector_mask, flags, &mut retries) {
                Next::Complete => break,
                Next::Continue(whole) => {
                    self.state.stats.short += 1;
                    done += whole;
                    // NOWAIT is cleared, because the device could refuse the remaining bytes after the first part was written.
                    flags -= BioFlags::NOWAIT;
                }
                Next::Repeat => {}
                Next::Fail(errno) => return Err(errno),
            }
        }
        if flushes {
            self.state.events.flush().map_err(|error| error.errno())?;
        }
        Ok(())
    }
}
