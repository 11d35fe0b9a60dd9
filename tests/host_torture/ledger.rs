//! The oracle: a file in memory that all processes share. For every part of every file, it contains the content that is allowed at this
//! time.
//!
//! A word of data contains the number of its file, its position, and the version in which it was written. A hole contains zeros. A process
//! that changes a file records the new version twice: before the change begins, and after the change has ended. A reader notes the last
//! ended version before its read, and the last begun version after its read. Each word must have one of these two versions, or a version
//! between them.
//!
//! During a write, a read by the kernel may return both old and new words. So each word is checked separately.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::sys::Shared;

/// The number of bytes in a cell. Changes are recorded for each cell.
pub(crate) const CELL: u64 = 4096;
pub(crate) const CELLS: u64 = 128;
/// The maximum size of a file.
pub(crate) const LARGEST: u64 = CELL * CELLS;

/// The maximum number of files in a run.
const FILES: u64 = 1 << 14;
/// The file number for files that are never read. Data with this number must not appear in another file.
pub(crate) const FOREIGN: u64 = (1 << 20) - 1;

/// The extended attribute that contains the number of a file.
const ATTRIBUTE: &str = "user.torture";

/// The number of counters for waiting times. Each counter counts the waits in one range of times. Each range of times between two powers of
/// two microseconds is divided into four ranges.
const STEPS: usize = 120;

// The layout of the shared words. Each file has a record: some words for the file, and three words for each cell.
const STOP: usize = 0;
const NEXT: usize = 1;
const OPERATIONS: usize = 2;
const WAITS: usize = 64;
const RECORDS: usize = 256;
const RECORD: usize = 8 + 3 * CELLS as usize;

/// Composes a word of data.
pub(crate) fn word(id: u64, index: u64, version: u64) -> u64 {
    id << 44 | index << 24 | version
}

/// The content of a range of a file in a version. The range consists of whole words.
pub(crate) fn content(id: u64, range: Range<u64>, version: u64) -> Vec<u8> {
    (range.start / 8..range.end / 8)
        .flat_map(|index| word(id, index, version).to_le_bytes())
        .collect()
}

pub(crate) struct Ledger(Shared);

#[derive(Clone, Copy)]
enum OfFile {
    /// A counter that is odd while the file is being changed.
    Changes,
    Version,
    Size,
    /// A counter that is odd while a process moves ranges of the file to other positions.
    Shifts,
}

#[derive(Clone, Copy)]
enum OfCell {
    /// The lowest version that words in this cell may have.
    Ended,
    /// The highest version that words in this cell may have.
    Begun,
    /// The last version that wrote zeros to this cell.
    Zeroed,
}

impl Ledger {
    pub(crate) fn create(path: &Path) -> Self {
        let ledger = Self(Shared::create(path, RECORDS + FILES as usize * RECORD));
        ledger.0[NEXT].store(1, SeqCst);
        ledger
    }

    pub(crate) fn open(path: &Path) -> Self {
        Self(Shared::open(path))
    }

    fn file(&self, id: u64, what: OfFile) -> &AtomicU64 {
        &self.0[RECORDS + id as usize * RECORD + what as usize]
    }

    fn cell(&self, id: u64, cell: u64, what: OfCell) -> &AtomicU64 {
        &self.0[RECORDS + id as usize * RECORD + 8 + 3 * cell as usize + what as usize]
    }

    /// Tells all processes and threads to end.
    pub(crate) fn stop(&self) {
        self.0[STOP].store(1, SeqCst);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.0[STOP].load(SeqCst) != 0
    }

    /// The number of a new file, or `None` if all numbers are used.
    pub(crate) fn new_file(&self) -> Option<u64> {
        let id = self.0[NEXT].fetch_add(1, SeqCst);
        (id < FILES).then_some(id)
    }

    /// Counts a completed operation on a file.
    pub(crate) fn count(&self, operation: usize) {
        self.0[OPERATIONS + operation].fetch_add(1, SeqCst);
    }

    pub(crate) fn counted(&self, operation: usize) -> u64 {
        self.0[OPERATIONS + operation].load(SeqCst)
    }

    /// Counts how long a writer waited for the release of a lease, in microseconds.
    pub(crate) fn waited(&self, micros: u64) {
        let octave = (micros + 1).ilog2() as u64;
        let step = octave * 4 + ((micros + 1 - (1 << octave)) << 2 >> octave);
        self.0[WAITS + (step as usize).min(STEPS - 1)].fetch_add(1, SeqCst);
    }

    /// Returns the number of waits, and one time in microseconds for each given share of the waits. This share of the waits was not longer
    /// than this time.
    pub(crate) fn waits(&self, shares: &[f64]) -> (u64, Vec<u64>) {
        let counts: Vec<_> = (0..STEPS).map(|step| self.0[WAITS + step].load(SeqCst)).collect();
        let all: u64 = counts.iter().sum();
        let most = |share: &f64| {
            let mut left = (all as f64 * share) as u64;
            let step = counts.iter().position(|count| {
                let found = *count > left || (*count == left && *share >= 1.0);
                left = left.saturating_sub(*count);
                found
            });
            // The upper limit of the range of times that this counter covers.
            let step = step.unwrap_or(0) as u64 + 1;
            (((step % 4) << (step / 4)) >> 2) + (1 << (step / 4))
        };
        (all, shares.iter().map(most).collect())
    }

    pub(crate) fn size(&self, id: u64) -> u64 {
        self.file(id, OfFile::Size).load(SeqCst)
    }

    /// Begins a change of a file. Until the change ends, no other process may change the file.
    pub(crate) fn change(&self, id: u64) -> Change<'_> {
        self.file(id, OfFile::Changes).fetch_add(1, SeqCst);
        let version = self.file(id, OfFile::Version).fetch_add(1, SeqCst) + 1;
        Change { ledger: self, id, version }
    }

    /// Begins a read.
    pub(crate) fn look(&self, id: u64, pos: u64, len: usize) -> Look {
        let changes = self.file(id, OfFile::Changes).load(SeqCst);
        let shifts = self.file(id, OfFile::Shifts).load(SeqCst);
        let ended = cells(pos..pos + len as u64)
            .map(|cell| self.cell(id, cell, OfCell::Ended).load(SeqCst))
            .collect();
        Look { id, pos, len, changes, shifts, ended }
    }
}

/// The numbers of the cells (parts of the file, for which versions are recorded) that overlap a range.
fn cells(range: Range<u64>) -> Range<u64> {
    (range.start / CELL).min(CELLS)..range.end.div_ceil(CELL).min(CELLS)
}

/// A change that is in progress.
pub(crate) struct Change<'a> {
    ledger: &'a Ledger,
    pub(crate) id: u64,
    pub(crate) version: u64,
}

impl Change<'_> {
    /// From now on, permits words of the new version in a range.
    pub(crate) fn data(&self, range: Range<u64>) {
        for cell in cells(range) {
            self.ledger.cell(self.id, cell, OfCell::Begun).store(self.version, SeqCst);
        }
    }

    /// From now on, permits zeros in a range.
    pub(crate) fn zeros(&self, range: Range<u64>) {
        for cell in cells(range.clone()) {
            self.ledger.cell(self.id, cell, OfCell::Zeroed).store(self.version, SeqCst);
        }
        self.data(range);
    }

    /// From now on, forbids older content in a range. Cells that are only partly in the range keep their limits.
    pub(crate) fn ended(&self, range: Range<u64>) {
        for cell in range.start.div_ceil(CELL)..range.end / CELL {
            self.ledger.cell(self.id, cell, OfCell::Ended).store(self.version, SeqCst);
        }
    }

    /// Permits that words appear at other positions, shifted by whole cells. The next call of this function withdraws the permission.
    pub(crate) fn shift(&self) {
        self.ledger.file(self.id, OfFile::Shifts).fetch_add(1, SeqCst);
    }

    /// Ends the change, and records the new size.
    pub(crate) fn end(self, size: u64) {
        self.ledger.file(self.id, OfFile::Size).store(size, SeqCst);
        self.ledger.file(self.id, OfFile::Changes).fetch_add(1, SeqCst);
    }
}

/// A read in progress. It stores the values that the file's counters had at the beginning of the read.
pub(crate) struct Look {
    id: u64,
    pos: u64,
    len: usize,
    changes: u64,
    shifts: u64,
    ended: Vec<u64>,
}

impl Look {
    /// Checks the data that were read, and the number of bytes that were read.
    pub(crate) fn judge(&self, ledger: &Ledger, read: &[u8]) -> Result<(), String> {
        let first = self.pos.next_multiple_of(8);
        let words = read.get((first - self.pos) as usize..).unwrap_or_default().chunks_exact(8);
        let mut found = (first / 8..).zip(words);
        let wrong = found.find_map(|(index, bytes)| {
            let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            self.fault(ledger, index, value).map(|fault| (index, value, fault))
        });
        if let Some((index, value, fault)) = wrong {
            let (id, at, version) = (value >> 44, value >> 24 & 0xf_ffff, value & 0xff_ffff);
            let found = format!("{value:#018x} (file {id}, byte {}, version {version})", at * 8);
            return Err(format!("file {}, byte {}: {found}: {fault}", self.id, index * 8));
        }
        self.judge_count(ledger, read.len())
    }

    /// Returns the reason why a word may not have this value. Returns `None` if the value is permitted.
    fn fault(&self, ledger: &Ledger, index: u64, value: u64) -> Option<String> {
        let cell = index * 8 / CELL;
        if cell >= CELLS {
            return Some("no file is so large".to_owned());
        }
        let of = |what| ledger.cell(self.id, cell, what).load(SeqCst);
        let ended = self.ended[(cell - self.pos / CELL) as usize];
        let (zeroed, begun) = (of(OfCell::Zeroed), of(OfCell::Begun));
        let (id, at, version) = (value >> 44, value >> 24 & 0xf_ffff, value & 0xff_ffff);
        let shifts = ledger.file(self.id, OfFile::Shifts).load(SeqCst);
        let fits = if shifts != self.shifts || !shifts.is_multiple_of(2) {
            let last = ledger.file(self.id, OfFile::Version).load(SeqCst);
            let aligned = at.abs_diff(index).is_multiple_of(CELL / 8);
            value == 0 || (id == self.id && aligned && version <= last)
        } else if value == 0 {
            zeroed >= ended
        } else {
            id == self.id && at == index && (ended..=begun).contains(&version)
        };
        (!fits).then(|| {
            format!("only file {}, versions {ended} to {begun}, zeros of {zeroed}", self.id)
        })
    }

    /// Checks the number of bytes that were read. If the size may have changed during the read, checks nothing.
    fn judge_count(&self, ledger: &Ledger, count: usize) -> Result<(), String> {
        let size = ledger.size(self.id);
        let changes = ledger.file(self.id, OfFile::Changes).load(SeqCst);
        let expected = size.saturating_sub(self.pos).min(self.len as u64) as usize;
        if changes != self.changes || !changes.is_multiple_of(2) || count == expected {
            return Ok(());
        }
        let Self { id, pos, len, .. } = self;
        Err(format!("file {id}, {len} bytes at {pos}: {count} came, the size is {size}"))
    }
}

/// Stores the number of a new file in the file's extended attribute.
pub(crate) fn name(file: &File, id: u64) -> std::io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::fsetxattr(file, ATTRIBUTE, &id.to_le_bytes(), flags)?)
}

/// Reads the number of a file from the file's extended attribute.
pub(crate) fn name_of(file: &File) -> u64 {
    let mut id = [0; 8];
    rustix::fs::fgetxattr(file, ATTRIBUTE, &mut id[..]).expect("the attribute");
    u64::from_le_bytes(id)
}
