//! The requests that a workload submits.

use std::ops::Range;

use ironmap::Result;
use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;

use crate::crash_data::history::{CELL, FileId, What, fill, name};
use crate::crash_data::workload::{DEPTH, FILE_LIMIT, Flight, Kind, Run};

/// The maximum number of requests that are submitted in a row.
const IN_A_ROW: u64 = 5;

impl Run<'_> {
    /// A range within a file, at its end, or past its end. Its length is a multiple of a cell, a sector or a block.
    pub(crate) fn range(&mut self, at: usize) -> Range<u64> {
        let unit = [CELL, 512, 512, 4096][self.rng.below(4) as usize];
        let size = self.files[at].size;
        let pos = match self.rng.below(6) {
            0 => size,
            1 => size + self.rng.below(20_000),
            _ => self.rng.below(size + 1),
        };
        let pos = pos.min(FILE_LIMIT) / unit * unit;
        pos..pos + self.len(unit)
    }

    fn len(&mut self, unit: u64) -> u64 {
        let most = [2_000, 9_000, 40_000][self.rng.below(3) as usize];
        (1 + self.rng.below(most)).next_multiple_of(unit)
    }

    /// The range of a write. In a workload of overwrites, the range is within the file.
    fn place(&mut self, at: usize) -> Range<u64> {
        let (range, size) = (self.range(at), self.files[at].size);
        match self.kind {
            Kind::Overwrites if range.start >= size => 0..CELL,
            Kind::Overwrites => range.start..range.end.min(size),
            Kind::Everything => range,
        }
    }

    /// The range of an append whose position is known. The position is unknown while a request in flight may still move the end of the
    /// file. A failed append moves the end back when its error is reported. A long file is truncated before the append.
    fn place_at_end(&mut self, at: usize) -> Result<Range<u64>> {
        self.queue.poll()?;
        self.take_completed()?;
        if self.files[at].size > FILE_LIMIT {
            self.truncate(at)?;
        }
        let id = self.files[at].id;
        if self.flights.iter().any(|flight| flight.file == id && flight.moves_end) {
            self.drain()?;
        }
        let (unit, size) = ([CELL, 512, 4096][self.rng.below(3) as usize], self.files[at].size);
        Ok(size..size + self.len(unit))
    }

    fn flags(&mut self) -> DioFlags {
        match self.rng.below(20) {
            0..4 => DioFlags::DSYNC,
            4..6 => DioFlags::SYNC,
            6..8 => DioFlags::BOUNCE,
            _ => DioFlags::empty(),
        }
    }

    /// Prepares a write: waits for earlier writes that overlap the range, and fills the buffer with cells that contain the number of the
    /// write.
    fn buffer(&mut self, at: usize, range: &Range<u64>) -> Result<(u32, Buffer)> {
        let id = self.files[at].id;
        let overlaps = |flight: &Flight| {
            flight.file == id && flight.range.start < range.end && range.start < flight.range.end
        };
        if self.flights.iter().any(overlaps) {
            self.drain()?;
        }
        let number = self.history.new_write();
        let mut buf = Buffer::aligned((range.end - range.start) as usize)?;
        fill(&mut buf, id, number, range.start);
        let file = &mut self.files[at];
        file.size = file.size.max(range.end);
        Ok((number, buf))
    }

    pub(crate) fn write(&mut self, at: usize) -> Result<()> {
        let (range, flags) = (self.place(at), self.flags());
        self.write_at(at, range, flags)
    }

    pub(crate) fn write_at(&mut self, at: usize, range: Range<u64>, flags: DioFlags) -> Result<()> {
        let (number, buf) = self.buffer(at, &range)?;
        let begin = self.event();
        let (id, what) = (self.files[at].id, What::Write(number, range.clone()));
        let change = self.history.begun(id, what, is_synced(flags), begin);
        let pos = FilePos(range.start);
        let count = self.files[at].file.write_at_with(&mut self.queue, &buf, pos, flags)?;
        assert_eq!(count, buf.len(), "there is room");
        let end = self.event();
        self.history.ended(change, end);
        Ok(())
    }

    pub(crate) fn append(&mut self, at: usize) -> Result<()> {
        let (range, flags) = (self.place_at_end(at)?, self.flags());
        let (number, buf) = self.buffer(at, &range)?;
        let begin = self.event();
        let (id, what) = (self.files[at].id, What::Write(number, range.clone()));
        let change = self.history.begun(id, what, is_synced(flags), begin);
        let pos = self.files[at].file.append(&mut self.queue, &buf, flags)?;
        if pos.0 != range.start {
            self.history.moved(change, pos.0);
            return self.one_has_failed(id);
        }
        let end = self.event();
        self.history.ended(change, end);
        Ok(())
    }

    /// Submits several requests without waiting for their completions.
    pub(crate) fn several(&mut self, submit: impl Fn(&mut Self) -> Result<()>) -> Result<()> {
        for _ in 0..=self.rng.below(IN_A_ROW) {
            submit(self)?;
        }
        if self.flights.len() > DEPTH / 2 { self.complete(DEPTH / 4) } else { Ok(()) }
    }

    pub(crate) fn submit(&mut self, at: usize) -> Result<()> {
        let (range, flags) = (self.place(at), self.flags());
        self.fly(at, range, flags, false)
    }

    pub(crate) fn submit_append(&mut self, at: usize) -> Result<()> {
        let (range, flags) = (self.place_at_end(at)?, self.flags());
        self.fly(at, range, flags, true)
    }

    /// Submits an append, or a write that may move the end of the file.
    fn fly(&mut self, at: usize, range: Range<u64>, flags: DioFlags, append: bool) -> Result<()> {
        let moves_end = !append && range.end > self.files[at].size;
        let (number, buf) = self.buffer(at, &range)?;
        let begin = self.event();
        let Self { files, queue, history, flights, .. } = self;
        let (open, token) = (&files[at], u64::from(number));
        let what = What::Write(number, range.clone());
        let change = history.begun(open.id, what, is_synced(flags), begin);
        let pos = FilePos(range.start);
        let submitted = if append {
            open.file.submit_append(queue, buf, flags, token)
        } else {
            open.file.submit_write(queue, buf, pos, flags, token).map(|()| pos)
        };
        let at = submitted.map_err(|rejected| rejected.error)?;
        let id = open.id;
        flights.push(Flight { number, file: id, range, moves_end, change });
        if at != pos {
            history.moved(change, at.0);
            return self.one_has_failed(id);
        }
        Ok(())
    }

    /// The append got a position before the expected end. So an earlier append in flight must have failed.
    fn one_has_failed(&mut self, id: FileId) -> Result<()> {
        let failed = self.drain();
        assert!(failed.is_err(), "an append of {} came elsewhere", name(id));
        failed
    }

    /// Waits for this number of requests. If fewer are in flight, waits for all of them.
    pub(crate) fn complete(&mut self, count: usize) -> Result<()> {
        self.queue.wait(count.min(self.flights.len()))?;
        self.take_completed()
    }

    pub(crate) fn drain(&mut self) -> Result<()> {
        self.complete(usize::MAX)
    }

    fn take_completed(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(done) = self.queue.pop() {
            let number = |flight: &Flight| u64::from(flight.number);
            let found = self.flights.iter().position(|flight| number(flight) == done.token);
            let flight = self.flights.swap_remove(found.expect("it was submitted"));
            match done.result {
                Ok(count) => {
                    assert_eq!(count as u64, flight.range.end - flight.range.start);
                    let end = self.event();
                    self.history.ended(flight.change, end);
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

fn is_synced(flags: DioFlags) -> bool {
    flags.intersects(DioFlags::DSYNC | DioFlags::SYNC)
}
