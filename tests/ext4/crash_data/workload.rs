//! Random direct writes: single writes, and many writes in flight. Between them are operations that move and free blocks.

use std::ops::Range;

use ironmap::dio::DioFlags;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, Fallocate, NewFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{File, FileOptions, Queue, QueueOptions, Result, Volume};

use crate::common::rng::Rng;
use crate::crash_data::history::{CELL, ChangeId, FileId, History, What, name};

/// The highest position at which a write may begin.
pub(crate) const FILE_LIMIT: u64 = 128 << 10;
/// The number of files that are open at a time.
const FILES: usize = 6;
/// The maximum number of requests in flight.
pub(crate) const DEPTH: usize = 12;

/// The kinds of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Everything,
    /// The files are created and synced, and then only overwritten. This kind is for volumes without a journal.
    Overwrites,
}

/// A running workload.
pub(crate) struct Run<'v> {
    volume: &'v Volume,
    pub(crate) kind: Kind,
    /// The function that is called at each event (the begin or the return of an operation) with the number of the event.
    mark: &'v dyn Fn(u64),
    pub(crate) rng: Rng,
    pub(crate) queue: Queue,
    pub(crate) files: Vec<Open>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) history: History,
}

pub(crate) struct Open {
    pub(crate) id: FileId,
    number: InodeNo,
    pub(crate) file: File,
    /// The size that the file will have after all requests in flight.
    pub(crate) size: u64,
    linked: bool,
}

/// A write in flight, identified by its number.
pub(crate) struct Flight {
    pub(crate) number: u32,
    pub(crate) file: FileId,
    pub(crate) range: Range<u64>,
    /// Whether a write that is not an append moves the end of the file. Until such a write completes, the position of an append is unknown.
    pub(crate) moves_end: bool,
    pub(crate) change: ChangeId,
}

/// The result of a workload.
pub(crate) struct Outcome {
    pub(crate) history: History,
    /// The number of the first event (begin or return of an operation) to which the rules apply.
    pub(crate) since: u64,
    /// The result of the last operation. All earlier operations have succeeded.
    pub(crate) result: Result<()>,
}

/// Runs `count` operations that a seed determines. If an operation fails, runs no further operation. Calls `mark` at each event (the begin
/// or the return of an operation).
pub(crate) fn run(
    volume: &Volume,
    kind: Kind,
    seed: u64,
    count: usize,
    mark: &dyn Fn(u64),
) -> Outcome {
    let mut run = Run {
        volume,
        kind,
        mark,
        rng: Rng::new(seed),
        queue: volume.queue(&QueueOptions::new().depth(DEPTH as u32)).expect("a queue"),
        files: Vec::new(),
        flights: Vec::new(),
        history: History::default(),
    };
    let (mut since, mut result) = (0, Ok(()));
    if kind == Kind::Overwrites {
        result = run.prepare();
        since = run.history.events();
    }
    for number in 0..count {
        if result.is_ok() {
            result = match kind {
                Kind::Everything => run.step(),
                Kind::Overwrites => run.overwrite(),
            };
            result = result.map_err(|error| error.context(format!("operation {number}")));
        }
    }
    let drained = run.drain();
    Outcome { history: run.history, since, result: result.and(drained) }
}

impl Run<'_> {
    fn step(&mut self) -> Result<()> {
        if self.files.is_empty() {
            return self.create();
        }
        let at = self.rng.below(self.files.len() as u64) as usize;
        match self.rng.below(100) {
            0..20 => self.write(at),
            20..50 => self.several(|run| run.submit(at)),
            50..57 => self.append(at),
            57..67 => self.several(|run| run.submit_append(at)),
            67..72 => self.complete(1),
            72..79 => self.sync(at),
            79..81 => self.sync_all(),
            81..85 => self.truncate(at),
            85..92 => self.space(at),
            92..96 if self.files.len() < FILES => self.create(),
            92..98 => self.unlink(at),
            _ => self.close(at),
        }
    }

    fn overwrite(&mut self) -> Result<()> {
        let at = self.rng.below(self.files.len() as u64) as usize;
        match self.rng.below(10) {
            0..4 => self.write(at),
            4..8 => self.several(|run| run.submit(at)),
            8 => self.complete(1),
            _ => self.sync(at),
        }
    }

    /// Creates files without holes, and waits until all work on them is complete.
    fn prepare(&mut self) -> Result<()> {
        for at in 0..FILES {
            self.create()?;
            self.write_at(at, 0..FILE_LIMIT / 2, DioFlags::empty())?;
        }
        self.sync_all()
    }

    pub(crate) fn event(&mut self) -> u64 {
        let event = self.history.event();
        (self.mark)(event);
        event
    }

    /// Runs an operation that changes a file.
    fn change(
        &mut self,
        file: FileId,
        what: What,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let begin = self.event();
        let change = self.history.begun(file, what, false, begin);
        work()?;
        let end = self.event();
        self.history.ended(change, end);
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let id = self.history.new_file();
        let (volume, who) = (self.volume, Credentials::default());
        let fs = volume.fs();
        self.change(id, What::Create, || {
            fs.writable()
                .unwrap()
                .create(ROOT, name(id).as_bytes(), NewFile::Regular, 0o644, &who)
                .map(drop)
        })?;
        let inode = fs.lookup(ROOT, name(id).as_bytes())?;
        let number = inode.number();
        let file = volume.open_inode(inode, FileOptions::new().write(true))?;
        self.files.push(Open { id, number, file, size: 0, linked: true });
        Ok(())
    }

    /// Removes a file. The blocks are freed immediately, or when the file is closed.
    fn unlink(&mut self, at: usize) -> Result<()> {
        let Open { id, linked, .. } = self.files[at];
        if linked {
            self.files[at].linked = false;
            let fs = self.volume.fs();
            self.change(id, What::Unlink, || {
                fs.writable().unwrap().unlink(ROOT, name(id).as_bytes())
            })?;
        }
        if self.rng.below(2) == 0 { self.close(at) } else { Ok(()) }
    }

    /// Waits for the requests in flight, and closes the last handle of a file.
    fn close(&mut self, at: usize) -> Result<()> {
        self.drain()?;
        self.event();
        self.files.swap_remove(at);
        self.event();
        Ok(())
    }

    fn sync(&mut self, at: usize) -> Result<()> {
        let begin = self.event();
        let file = &self.files[at];
        match self.rng.below(2) {
            0 => file.file.sync(&mut self.queue)?,
            _ => file.file.sync_data(&mut self.queue)?,
        }
        let (id, end) = (file.id, self.event());
        self.history.synced(Some(id), begin, end);
        Ok(())
    }

    fn sync_all(&mut self) -> Result<()> {
        self.drain()?;
        let begin = self.event();
        self.volume.fs().sync()?;
        let end = self.event();
        self.history.synced(None, begin, end);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, at: usize) -> Result<()> {
        self.drain()?;
        let file = &mut self.files[at];
        let (id, number) = (file.id, file.number);
        let size = self.rng.below(file.size + 9000) / CELL * CELL;
        file.size = size;
        let fs = self.volume.fs();
        self.change(id, What::Truncate(size), || fs.writable().unwrap().truncate(number, size))
    }

    fn space(&mut self, at: usize) -> Result<()> {
        self.drain()?;
        let range = self.range(at);
        let (id, number) = (self.files[at].id, self.files[at].number);
        let keep_size = self.rng.below(2) == 0;
        let how = match self.rng.below(4) {
            0 => Fallocate::Zero { keep_size },
            1 | 2 => Fallocate::Allocate { keep_size },
            _ => Fallocate::Punch,
        };
        let grown = if keep_size || how == Fallocate::Punch { 0 } else { range.end };
        let zeroed = match how {
            Fallocate::Allocate { .. } => 0..0,
            _ => range.clone(),
        };
        self.files[at].size = self.files[at].size.max(grown);
        let fs = self.volume.fs();
        self.change(id, What::Space { zeroed, grown }, || {
            fs.writable().unwrap().fallocate(
                number,
                how,
                FilePos(range.start),
                range.end - range.start,
            )
        })
    }
}
