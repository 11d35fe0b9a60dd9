//! A process that changes files in all supported ways. Only one process changes a file at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ironmap::bio::Buffer;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, RenameFlags};
use rustix::io::Errno;

use super::Setting;
use super::common::process::pause;
use super::common::rng::Rng;
use super::ledger::{self, CELL, Change, FOREIGN, LARGEST, Ledger, content, word};
use super::sys::{Shared, truncate};

/// The number of files that each mutator changes.
pub(crate) const FILES: usize = 10;

/// A function that changes one of the mutator's files. The second argument is the index of the file (its slot).
type Operation = fn(&mut Mutator, usize) -> io::Result<()>;

pub(crate) const OPERATIONS: [(&str, Operation); 16] = [
    ("overwrite", |own, slot| own.overwrite(slot)),
    ("overwrite again", |own, slot| own.overwrite(slot)),
    ("overwrite directly", |own, slot| own.overwrite_directly(slot)),
    ("append", |own, slot| own.append(slot)),
    ("truncate by path", |own, slot| own.truncate_by_path(slot)),
    ("truncate by descriptor", |own, slot| own.truncate_by_descriptor(slot)),
    ("truncate by open", |own, slot| own.truncate_by_open(slot)),
    ("punch", |own, slot| own.punch(slot)),
    ("zero", |own, slot| own.zero(slot)),
    ("allocate", |own, slot| own.allocate(slot)),
    ("collapse and insert", |own, slot| own.shift(slot)),
    ("rename", |own, slot| own.rename(slot)),
    ("unlink and recreate", |own, slot| own.recreate(slot)),
    ("write to a mapping", |own, slot| own.map(slot)),
    ("open and close", |own, slot| own.hold(slot)),
    ("reflink", |own, slot| own.reflink(slot)),
];

pub(crate) struct Mutator<'a> {
    setting: &'a Setting,
    ledger: &'a Ledger,
    rng: Rng,
    number: usize,
    /// The number of each of the mutator's files, by slot. A slot is the index of a file in this list.
    ids: Vec<u64>,
}

/// Changes files until the stop flag is set.
pub(crate) fn run(setting: &Setting, ledger: &Ledger, number: usize) {
    let rng = Rng::new(setting.seed ^ (number as u64) << 32);
    let mut mutator = Mutator { setting, ledger, rng, number, ids: vec![0; FILES] };
    for slot in 0..FILES {
        while let Err(error) = mutator.recreate(slot) {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        }
    }
    while !ledger.stopped() {
        let slot = mutator.rng.below(FILES as u64) as usize;
        let operation = mutator.rng.below(OPERATIONS.len() as u64) as usize;
        let (name, carry_out) = OPERATIONS[operation];
        match carry_out(&mut mutator, slot) {
            Ok(()) => ledger.count(operation),
            // Other processes fill the disk, so an error that reports a full disk is not a failure.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => panic!("seed {:#x}: {name}: {error}", setting.seed),
        }
        mutator.pause(12);
    }
}

impl Mutator<'_> {
    fn path(&self, slot: usize) -> PathBuf {
        self.setting.slot(self.number, slot)
    }

    /// Pauses, so that readers can acquire the lease.
    fn pause(&mut self, most: u64) {
        pause(Duration::from_millis(self.rng.below(most)));
    }

    /// A range of whole words, or of whole cells.
    fn range(&mut self, below: u64) -> Range<u64> {
        let unit = if self.rng.below(2) == 0 { CELL } else { 8 };
        let start = self.rng.below(below / unit + 1) * unit;
        let most = 1 << self.rng.below(6);
        let len = (self.rng.below(most) + 1) * CELL;
        let len = if unit == CELL { len } else { self.rng.below(len / 8) * 8 + 8 };
        start.min(LARGEST - 8)..(start + len).min(LARGEST)
    }

    /// Opens the mutator's file with this index. The open waits until leases are released.
    fn open(&self, slot: usize, options: &OpenOptions) -> io::Result<File> {
        let path = self.path(slot);
        self.wait(&path, || options.open(&path))
    }

    /// Opens a file with the given function. If a process holds a lease on the file, counts how long the open took.
    fn wait<T>(&self, path: &Path, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let leased = is_leased(path);
        let begin = Instant::now();
        let result = act();
        if leased && result.is_ok() {
            self.ledger.waited(begin.elapsed().as_micros() as u64);
        }
        result
    }

    /// Runs a change, and records its end even if it fails.
    fn change(
        &mut self,
        slot: usize,
        act: impl FnOnce(&mut Self, &Change<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let change = self.ledger.change(self.ids[slot]);
        let result = act(self, &change);
        change.end(self.path(slot).metadata()?.len());
        result
    }

    fn overwrite(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().write(true))?;
            for _ in 0..=own.rng.below(3) {
                let range = own.range(file.metadata()?.len());
                write(&file, change, range)?;
            }
            if own.rng.below(3) == 0 {
                file.sync_data()?;
            }
            own.pause(3);
            Ok(())
        })
    }

    fn overwrite_directly(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            let direct = OFlags::DIRECT.bits() as i32;
            let file = own.open(slot, OpenOptions::new().write(true).custom_flags(direct))?;
            let range = own.range(file.metadata()?.len());
            let range = range.start / CELL * CELL..range.end.next_multiple_of(CELL);
            let bytes = content(change.id, range.clone(), change.version);
            let mut buffer = Buffer::aligned(bytes.len()).map_err(io::Error::other)?;
            buffer.copy_from_slice(&bytes);
            change.data(range.clone());
            file.write_all_at(&buffer, range.start)?;
            change.ended(range);
            Ok(())
        })
    }

    fn append(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().append(true))?;
            let size = file.metadata()?.len();
            let len = own.rng.below(16 * CELL / 8) * 8 + 8;
            // With O_APPEND, the kernel writes at the end of the file and ignores the position in the call.
            write(&file, change, size..(size + len).min(LARGEST))
        })
    }

    /// Chooses a new size. Returns the size, and the range that reads as zeros after the truncation, or after a later extension.
    fn new_size(&mut self, change: &Change<'_>) -> (u64, Range<u64>) {
        let size = self.range(LARGEST).start;
        change.zeros(size..LARGEST);
        (size, size..LARGEST)
    }

    fn truncate_by_path(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            let path = own.path(slot);
            let (size, zeros) = own.new_size(change);
            own.wait(&path, || truncate(&path, size))?;
            change.ended(zeros);
            Ok(())
        })
    }

    fn truncate_by_descriptor(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().write(true))?;
            let (size, zeros) = own.new_size(change);
            file.set_len(size)?;
            change.ended(zeros);
            if own.rng.below(2) == 0 {
                let range = own.range(size);
                write(&file, change, range)?;
            }
            Ok(())
        })
    }

    fn truncate_by_open(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, change| {
            change.zeros(0..LARGEST);
            let file = own.open(slot, OpenOptions::new().write(true).truncate(true))?;
            change.ended(0..LARGEST);
            let len = own.rng.below(LARGEST / 8) * 8;
            own.pause(4);
            write(&file, change, 0..len)
        })
    }

    fn punch(&mut self, slot: usize) -> io::Result<()> {
        self.make_zeros(slot, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
    }

    fn zero(&mut self, slot: usize) -> io::Result<()> {
        self.make_zeros(slot, FallocateFlags::ZERO_RANGE)
    }

    fn make_zeros(&mut self, slot: usize, flags: FallocateFlags) -> io::Result<()> {
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().write(true))?;
            let range = own.range(file.metadata()?.len());
            change.zeros(range.clone());
            rustix::fs::fallocate(&file, flags, range.start, range.end - range.start)?;
            change.ended(range);
            Ok(())
        })
    }

    fn allocate(&mut self, slot: usize) -> io::Result<()> {
        self.change(slot, |own, _| {
            let file = own.open(slot, OpenOptions::new().write(true))?;
            let range = own.range(LARGEST);
            let flags = FallocateFlags::empty();
            Ok(rustix::fs::fallocate(&file, flags, range.start, range.end - range.start)?)
        })
    }

    /// Removes a range of cells from the file. After a pause, inserts a hole at the position of this range.
    fn shift(&mut self, slot: usize) -> io::Result<()> {
        let size = self.path(slot).metadata()?.len();
        // The range must end before the end of the file.
        let Some(cells) = (size / CELL).checked_sub(2).filter(|cells| *cells > 0) else {
            return Ok(());
        };
        let first = self.rng.below(cells);
        let len = (self.rng.below(cells - first) + 1) * CELL;
        let range = first * CELL..first * CELL + len;
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().write(true))?;
            change.zeros(range.clone());
            change.shift();
            let flags = FallocateFlags::COLLAPSE_RANGE;
            if let Err(errno) = rustix::fs::fallocate(&file, flags, range.start, len) {
                change.shift();
                return Err(errno.into());
            }
            drop(file);
            own.pause(30);
            let file = own.open(slot, OpenOptions::new().write(true))?;
            let flags = FallocateFlags::INSERT_RANGE;
            if rustix::fs::fallocate(&file, flags, range.start, len).is_ok() {
                change.ended(range);
            } else {
                change.zeros(0..LARGEST);
                file.set_len(0)?;
                change.ended(0..LARGEST);
            }
            change.shift();
            Ok(())
        })
    }

    fn rename(&mut self, slot: usize) -> io::Result<()> {
        let other = self.rng.below(FILES as u64) as usize;
        let (from, to) = (self.path(slot), self.path(other));
        let cwd = rustix::fs::CWD;
        rustix::fs::renameat_with(cwd, &from, cwd, &to, RenameFlags::EXCHANGE)?;
        self.ids.swap(slot, other);
        Ok(())
    }

    /// Replaces the file by a new file with a rename. In some cases, removes the old file before the rename.
    fn recreate(&mut self, slot: usize) -> io::Result<()> {
        let Some(id) = self.ledger.new_file() else { return Ok(()) };
        let (path, new) = (self.path(slot), self.path(slot).with_extension("new"));
        let file = File::create(&new)?;
        if let Err(error) = ledger::name(&file, id) {
            std::fs::remove_file(&new)?;
            return Err(error);
        }
        let change = self.ledger.change(id);
        let len = self.rng.below(LARGEST / 8) * 8;
        let written = write(&file, &change, 0..len);
        change.end(file.metadata()?.len());
        if self.rng.below(2) == 0 {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            self.pause(10);
        }
        // On a full disk, the directory entry may need a block that is not free. Each index must have a file, so the rename is repeated
        // until other processes have freed blocks.
        while let Err(error) = std::fs::rename(&new, &path) {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
            self.pause(10);
        }
        self.ids[slot] = id;
        written
    }

    /// Writes through a mapping whose descriptor was closed.
    fn map(&mut self, slot: usize) -> io::Result<()> {
        // While the disk is full, a store to a mapping can end this process. So this process takes a lock that the process that fills the
        // disk also needs.
        let lock = File::open(&self.setting.ledger)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Ok(()),
            locked => locked?,
        }
        self.change(slot, |own, change| {
            let file = own.open(slot, OpenOptions::new().read(true).write(true))?;
            let size = file.metadata()?.len() / 8 * 8;
            let range = own.range(size);
            let range = range.start.min(size)..range.end.min(size);
            if range.is_empty() {
                return Ok(());
            }
            let flags = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, range.start, range.end - range.start)?;
            let mapping = Shared::map(&file, size as usize / 8);
            drop(file);
            own.pause(3);
            change.data(range.clone());
            for index in range.start / 8..range.end / 8 {
                let word = word(change.id, index, change.version);
                mapping[index as usize].store(word, Ordering::SeqCst);
            }
            change.ended(range);
            own.pause(5);
            Ok(())
        })
    }

    fn hold(&mut self, slot: usize) -> io::Result<()> {
        let file = self.open(slot, OpenOptions::new().write(true))?;
        self.pause(20);
        drop(file);
        Ok(())
    }

    /// Clones the file. Later writes to the shared blocks must allocate new blocks.
    fn reflink(&mut self, slot: usize) -> io::Result<()> {
        if !self.setting.kind.has_reflink() {
            return Ok(());
        }
        let path = self.path(slot).with_extension("clone");
        let clone = File::create(&path)?;
        let cloned = rustix::fs::ioctl_ficlone(&clone, File::open(self.path(slot))?);
        let range = self.range(LARGEST);
        let written = clone.write_all_at(&content(FOREIGN, range.clone(), 1), range.start);
        std::fs::remove_file(&path)?;
        cloned?;
        written
    }
}

/// Writes words of a new version.
fn write(file: &File, change: &Change<'_>, range: Range<u64>) -> io::Result<()> {
    change.data(range.clone());
    file.write_all_at(&content(change.id, range.clone(), change.version), range.start)?;
    change.ended(range);
    Ok(())
}

/// Whether any process holds a lease on a file.
fn is_leased(path: &Path) -> bool {
    let Ok(stat) = path.metadata() else { return false };
    let dev = stat.dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let name = format!(" {major:02x}:{minor:02x}:{} ", stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| line.contains("LEASE") && line.contains(&name))
}
