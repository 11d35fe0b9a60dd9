//! The file of one image of a chain. The crate imago reads and writes the file through this module. This module determines the order of
//! writes, and which header fields may change.
//!
//! imago writes tables in a fixed order, but does not make one table durable before it writes the next table. imago writes the pointer to a
//! new L2 table before the refcount of the table's cluster. So this module marks an image as dirty before an allocation, and removes the
//! mark after the next flush. If the mark is present after a crash, the refcounts are invalid. This module makes each table durable before
//! it writes a pointer to the table.

use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::file::ImageFile;
use super::header::{AUTOCLEAR, DIRTY, Header, INCOMPATIBLE, REFCOUNTS, SEEN_LEN, V2_LEN};
use super::metadata::{L2_OFFSET, Metadata, table};
use crate::error::{Errno, Error, Result};
use crate::sys::image_storage::Store;

/// The largest distance between the end of the file and a new allocation after it. A larger distance shows that the refcounts are wrong.
const MAX_GAP: u64 = 64 << 20;

/// The file of a raw image, or of a qcow2 image with its checked header.
#[derive(Debug)]
pub(super) struct Layer {
    file: ImageFile,
    seen: Option<[u8; SEEN_LEN]>,
    /// The tables of an image that is open for writing.
    tables: Option<Tables>,
    /// Whether a write or a sync of imago has failed.
    broken: AtomicBool,
}

#[derive(Debug)]
struct Tables {
    cluster: u64,
    l1: Range<u64>,
    order: Mutex<Order>,
    incompatible: u64,
}

/// The state of the writes to the file.
#[derive(Debug)]
struct Order {
    /// The positions of the L2 tables, to which the L1 table points.
    l2: HashSet<u64>,
    /// The positions of the refcount blocks, to which the refcount table points.
    refcount_blocks: HashSet<u64>,
    refcounts: Range<u64>,
    /// `l2_written` means that a write to an L2 table may not be durable yet. `written` means the same for all other writes.
    l2_written: bool,
    written: bool,
    dirty: bool,
    has_autoclear: bool,
}

impl Layer {
    pub(super) fn new(file: ImageFile, header: Option<&Header>) -> Self {
        let seen = header.map(Header::seen);
        Self { file, seen, tables: None, broken: AtomicBool::new(false) }
    }

    /// Creates the layer of an image that is opened for writing. Refuses the image if its present state makes writes unsafe.
    pub(super) fn for_writing(file: ImageFile, header: &Header) -> Result<Self> {
        if let Some(what) = header.refuse_writing(&file.path()) {
            return Err(Error::unsupported(what));
        }
        let Metadata { l2, refcount_blocks } = Metadata::read(&file, header)?;
        let tables = Tables {
            cluster: header.cluster(),
            l1: header.l1_at..header.l1_at + header.l1_entries * 8,
            order: Mutex::new(Order {
                l2,
                refcount_blocks,
                refcounts: header.refcounts_at..header.refcounts_at + header.refcounts_len,
                l2_written: false,
                written: false,
                dirty: false,
                has_autoclear: header.autoclear != 0,
            }),
            incompatible: header.incompatible,
        };
        Ok(Self { tables: Some(tables), ..Self::new(file, Some(header)) })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Prepares the first write. Clears the autoclear features, because a write makes them invalid.
    pub(super) fn begin(&self) -> Result<(), Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::EBADF)?;
        let mut order = tables.order.lock();
        if order.has_autoclear {
            self.put(&0_u64.to_be_bytes(), AUTOCLEAR as u64)?;
            self.sync_all(&mut order)?;
            order.has_autoclear = false;
        }
        Ok(())
    }

    /// Marks the image as dirty before its tables change. The mark is durable when the function returns.
    pub(super) fn mark(&self) -> Result<(), Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::EBADF)?;
        let mut order = tables.order.lock();
        if !order.dirty {
            self.put(&(tables.incompatible | DIRTY).to_be_bytes(), INCOMPATIBLE as u64)?;
            self.sync_all(&mut order)?;
            order.dirty = true;
        }
        Ok(())
    }

    /// Removes the mark after a flush, when all tables are durable. The removal need not be durable. If a crash undoes the removal, the
    /// image only stays marked as dirty.
    pub(super) fn unmark(&self) -> Result<(), Errno> {
        let Some(tables) = &self.tables else { return Ok(()) };
        let mut order = tables.order.lock();
        if order.dirty {
            self.put(&tables.incompatible.to_be_bytes(), INCOMPATIBLE as u64)?;
            order.dirty = false;
        }
        Ok(())
    }

    /// Writes data of the disk to clusters that imago has allocated.
    pub(super) fn write_data(&self, data: &[u8], at: u64) -> Result<(), Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::EBADF)?;
        let end = at.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        let mut order = tables.order.lock();
        if !tables.may_hold_data(&order, at..end) {
            self.give_up();
            return Err(Errno::EUCLEAN);
        }
        self.check_gap(at)?;
        order.written = true;
        self.file.write(&[IoSlice::new(data)], at)
    }

    fn check_gap(&self, at: u64) -> Result<(), Errno> {
        if at > self.file.len().saturating_add(MAX_GAP) {
            self.give_up();
            return Err(Errno::EUCLEAN);
        }
        Ok(())
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        self.made_durable(self.file.write(&[IoSlice::new(bytes)], at))
    }

    /// Records a failure if the write or flush has failed. The kernel reports a failure only once, so all later writes must fail.
    fn made_durable(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn sync_all(&self, order: &mut Order) -> Result<(), Errno> {
        self.made_durable(self.file.sync())?;
        (order.written, order.l2_written) = (false, false);
        Ok(())
    }

    /// Replaces the refcount table by a larger table that imago has already written. imago requests this by a write of a new header. In
    /// this header, all other fields must have the values that imago has received. If a field differs, the write is not a header. Because
    /// of wrong refcounts, imago has then placed a table at position 0.
    fn move_refcounts(&self, order: &mut Order, header: &[u8]) -> Result<(), Errno> {
        let is_header = |seen: [u8; SEEN_LEN]| {
            let known = [0..REFCOUNTS.start, REFCOUNTS.end..header.len()];
            header.len() >= V2_LEN
                && known.into_iter().all(|part| header.get(part.clone()) == seen.get(part))
        };
        if !self.seen.is_some_and(is_header) {
            return Err(Errno::EUCLEAN);
        }
        let refcounts = Header::refcounts_of(header).ok_or(Errno::EUCLEAN)?;
        let blocks = table(&self.file, refcounts.start, (refcounts.end - refcounts.start) / 8);
        order.refcount_blocks.extend(blocks.map_err(|error| error.errno())?);
        self.sync_all(order)?;
        self.put(&header[REFCOUNTS], REFCOUNTS.start as u64)?;
        // The new position must be durable before data overwrite the old table.
        self.sync_all(order)?;
        order.refcounts = refcounts;
        Ok(())
    }

    /// Carries out a write of imago. It writes a table, a part of a table, or data that imago copies.
    fn write_table(&self, bufs: &[IoSlice<'_>], at: u64) -> Result<(), Errno> {
        let tables = self.tables.as_ref().ok_or(Errno::EBADF)?;
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = at.checked_add(len).ok_or(Errno::EFBIG)?;
        let mut order = tables.order.lock();
        let bytes = || bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
        if at == 0 {
            return self.move_refcounts(&mut order, &bytes());
        }
        if at < tables.cluster {
            self.give_up();
            return Err(Errno::EUCLEAN);
        }
        self.check_gap(at)?;
        if tables.l1.contains(&at) {
            if order.written || order.l2_written {
                self.sync_all(&mut order)?;
            }
            for entry in bytes().chunks_exact(8) {
                let entry = entry.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
                order.l2.insert(entry & L2_OFFSET);
            }
            order.written = true;
        } else if order.l2.contains(&at) {
            if order.written {
                self.sync_all(&mut order)?;
            }
            order.l2_written = true;
        } else {
            // imago may also write copied data here. Data must not overwrite a table. So each target is checked, except the refcount table
            // and its blocks.
            let is_refcounts = order.refcounts.contains(&at)
                || order.refcount_blocks.contains(&(at / tables.cluster * tables.cluster));
            if !is_refcounts && !tables.may_hold_data(&order, at..end) {
                self.give_up();
                return Err(Errno::EUCLEAN);
            }
            if order.refcounts.contains(&at) {
                let blocks = bytes();
                let (blocks, _) = blocks.as_chunks::<8>();
                order.refcount_blocks.extend(blocks.iter().map(|block| u64::from_be_bytes(*block)));
            }
            order.written = true;
        }
        self.made_durable(self.file.write(bufs, at))
    }
}

impl Tables {
    /// Whether data may overwrite a range. The range must not contain a part of the header or of a table.
    fn may_hold_data(&self, order: &Order, range: Range<u64>) -> bool {
        let meets = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        let first = range.start / self.cluster * self.cluster;
        let mut clusters = (first..range.end).step_by(self.cluster as usize);
        range.start >= self.cluster
            && !meets(&self.l1)
            && !meets(&order.refcounts)
            && !clusters.any(|cluster| {
                order.l2.contains(&cluster) || order.refcount_blocks.contains(&cluster)
            })
    }
}

impl Store for Layer {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read(&self, bufs: &mut [IoSliceMut<'_>], at: u64) -> io::Result<()> {
        let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        self.file.read(&mut slices, at).map_err(os_error)?;
        let Some(seen) = &self.seen else { return Ok(()) };
        // imago receives the checked header instead of the file's header.
        let mut pos = at;
        for buf in bufs {
            let from = usize::try_from(pos).unwrap_or(usize::MAX);
            if from >= SEEN_LEN {
                break;
            }
            let count = buf.len().min(SEEN_LEN - from);
            buf[..count].copy_from_slice(&seen[from..from + count]);
            pos += buf.len() as u64;
        }
        Ok(())
    }

    fn write(&self, bufs: &[IoSlice<'_>], at: u64) -> io::Result<()> {
        if self.is_broken() {
            return Err(os_error(Errno::EIO));
        }
        let result = self.write_table(bufs, at);
        // A failed write may have written a part of a table, so no later write may succeed.
        self.made_durable(result).map_err(os_error)
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_broken() {
            return Err(os_error(Errno::EIO));
        }
        match &self.tables {
            Some(tables) => self.sync_all(&mut tables.order.lock()).map_err(os_error),
            None => Ok(()),
        }
    }
}

fn os_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
