//! The queue of an integrity device. It uses the data device's queue. A read is verified when it is popped. A write updates the tags.
//!
//! The data device's queue (the queue below) receives a bio and later returns the same bio, which contains everything that its completion
//! needs. A write waits for another write only in journal mode. The thread of that other write is then running in
//! [`commit`](DeviceQueue::commit), which does not return before the write completes, so the wait ends.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::checked::Checked;
use super::journal::{Few, Journal, Write};
use super::tagging::Tuples;
use crate::bio::slices::{self, Slices};
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done, Memory};
use crate::device::{
    AnyQueue, BlockFile, DeviceQueue, Drained, LentPart, through_queue, with_below,
};
use crate::error::{Errno, Error};
use crate::units::DevOffset;

pub(super) struct IntegrityQueue {
    below: AnyQueue,
    checked: Arc<Checked>,
    /// Completed bios that were not sent to the queue of the data device.
    held: VecDeque<Done>,
    /// Writes that the next commit carries out, in journal mode.
    staged: Vec<Bio>,
    tuples: Tuples,
    depth: usize,
}

impl IntegrityQueue {
    pub(super) fn new(below: AnyQueue, checked: Arc<Checked>, depth: usize) -> Self {
        let (held, staged) = (VecDeque::new(), Vec::new());
        Self { below, checked, held, staged, tuples: Tuples::default(), depth }
    }

    /// Reads the remaining bytes after a short transfer of the data device's queue.
    #[cold]
    fn read_rest(
        &mut self,
        bufs: &mut [&mut [u8]],
        at: DevOffset,
        mut done: usize,
        flags: BioFlags,
    ) -> Result<(), Errno> {
        let whole: usize = bufs.iter().map(|buf| buf.len()).sum();
        while done < whole {
            let rest = slices::cut_mut(bufs, done..whole);
            let mut part = [LentPart::new(rest, DevOffset(at.0 + done as u64))];
            self.below.read_parts_now(Dev::OWN, &mut part, flags);
            done += some(part[0].result)?;
        }
        Ok(())
    }

    /// Writes the bytes that a short transfer did not write.
    fn write_rest(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        mut done: usize,
        flags: BioFlags,
    ) -> Result<(), Errno> {
        let whole = total(bufs);
        while done < whole {
            let rest = slices::cut(bufs, done..whole);
            let at = DevOffset(at.0 + done as u64);
            match self.write_below(&rest, at, flags) {
                // EAGAIN means that this call of `write_below` wrote nothing. An earlier call has already written a part of the data, so
                // the rest is written without NOWAIT.
                Err(Errno::EAGAIN) if done > 0 && flags.contains(BioFlags::NOWAIT) => {
                    return self.write_rest(bufs, at, done, flags - BioFlags::NOWAIT);
                }
                result => done += some(result)?,
            }
        }
        Ok(())
    }

    /// Writes to the data device, without the tags. The transfer may be short.
    #[inline]
    fn write_below(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let Self { below, checked, .. } = self;
        if !flags.contains(BioFlags::DSYNC) {
            return below.write_now(Dev::OWN, bufs, at, flags);
        }
        let write = |through| {
            let flags = if through { flags } else { flags - BioFlags::DSYNC };
            let written = below.write_now(Dev::OWN, bufs, at, flags);
            written.map_err(|errno| Error::io(errno, "write with FUA"))
        };
        let written = checked.durability.data.write_durable(&*checked.data, write);
        written.map_err(|error| error.errno())
    }

    /// Verifies a read that the queue of the data device has completed.
    #[inline]
    fn verify_flat(
        &mut self,
        buf: &mut [u8],
        at: DevOffset,
        result: Result<usize, Errno>,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let count = result?;
        if count < buf.len() {
            self.read_rest(&mut [&mut *buf], at, count, flags)?;
        }
        let nowait = flags.contains(BioFlags::NOWAIT);
        self.checked.verify(at, buf, nowait).map_err(|error| error.errno())?;
        Ok(buf.len())
    }

    fn verify_bufs(
        &mut self,
        bufs: &mut [&mut [u8]],
        at: DevOffset,
        result: Result<usize, Errno>,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let (count, whole) = (result?, bufs.iter().map(|buf| buf.len()).sum());
        if count < whole {
            self.read_rest(bufs, at, count, flags)?;
        }
        let nowait = flags.contains(BioFlags::NOWAIT);
        let verified = self.checked.verify_vectored(at, bufs, nowait);
        verified.map_err(|error| error.errno())?;
        Ok(whole)
    }

    /// Processes a bio that the queue of the data device has completed.
    #[inline]
    fn completed(&mut self, mut done: Done) -> Done {
        if done.bio.dev != Dev::OWN {
            return done;
        }
        let (at, flags) = (done.bio.at, done.bio.flags);
        match (done.bio.op, &mut done.bio.memory) {
            (BioOp::Read, Memory::Flat(buffer)) => {
                done.result = self.verify_flat(buffer, at, done.result, flags);
            }
            (BioOp::Read, Memory::Vectored(buffers)) => {
                let mut bufs: SmallVec<[&mut [u8]; 4]> =
                    buffers.iter_mut().map(|buffer| &mut **buffer).collect();
                done.result = self.verify_bufs(&mut bufs, at, done.result, flags);
            }
            (BioOp::Write, memory) => {
                let bufs = slices(memory);
                done.result = self.written(&bufs, at, done.result, flags);
            }
            // A flush does not come from the queue of the data device, because `submit` has carried it out itself.
            (BioOp::Flush, _) => {}
        }
        done
    }

    /// Processes a write that the queue of the data device has completed.
    #[inline]
    fn written(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        result: Result<usize, Errno>,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let whole = total(bufs);
        let result = match result {
            Ok(count) if count < whole => self.write_rest(bufs, at, count, flags),
            result => result.map(drop),
        };
        self.checked.end(at, bufs, result, flags.contains(BioFlags::DSYNC));
        result.map(|()| whole)
    }

    fn check_write(&self, at: DevOffset, len: usize) -> Result<(), Errno> {
        if !self.checked.writable {
            return Err(Errno::EROFS);
        }
        if self.checked.journal.is_some()
            && len as u64 > u64::from(self.checked.limits.max_transfer)
        {
            return Err(Errno::EINVAL);
        }
        self.checked.check(at, len)
    }

    fn hold(&mut self, bio: Bio, result: Result<usize, Errno>) {
        self.held.push_back(Done { bio, result });
    }

    /// Carries out staged writes. Consecutive writes are combined into one record if the record has enough space and the writes do not
    /// overlap.
    #[cold]
    fn commit_staged(&mut self) {
        let checked = Arc::clone(&self.checked);
        let Some(journal) = &checked.journal else { return };
        let most = Journal::most(&checked.info);
        let mut staged = std::mem::take(&mut self.staged);
        let mut rest = staged.drain(..).peekable();
        while let Some(first) = rest.next() {
            let mut len = first.memory.len() as u64;
            let mut batch = vec![first];
            while let Some(next) = rest.next_if(|next| {
                let fits = len + next.memory.len() as u64 <= most;
                fits && !batch.iter().any(|bio| overlap(bio, next))
            }) {
                len += next.memory.len() as u64;
                batch.push(next);
            }
            let results = self.write_batch(&checked, journal, &batch);
            for (bio, result) in batch.into_iter().zip(results) {
                let len = bio.memory.len();
                self.hold(bio, result.map(|()| len));
            }
        }
        drop(rest);
        self.staged = staged;
    }

    fn write_batch(
        &mut self,
        checked: &Checked,
        journal: &Journal,
        batch: &[Bio],
    ) -> Few<Result<(), Errno>> {
        let bufs: Few<_> = batch.iter().map(|bio| slices(&bio.memory)).collect();
        let writes: Few<_> =
            batch.iter().zip(&bufs).map(|(bio, bufs)| Write { at: bio.at, bufs }).collect();
        let in_place = || {
            let write =
                |write: &Write<'_>| self.write_rest(write.bufs, write.at, 0, BioFlags::empty());
            writes.iter().map(write).collect()
        };
        match checked.write_together(journal, &writes, in_place) {
            Ok(results) => results,
            // After an error, none of the writes was carried out. Each write is then tried separately.
            Err(_) if batch.len() > 1 => batch
                .iter()
                .flat_map(|bio| self.write_batch(checked, journal, std::slice::from_ref(bio)))
                .collect(),
            Err(error) => smallvec![Err(error.errno())],
        }
    }
}

impl DeviceQueue for IntegrityQueue {
    through_queue!(resources, with_below);

    #[inline]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN {
            return self.below.read_now(dev, buf, at, flags);
        }
        self.checked.check(at, buf.len())?;
        let result = self.below.read_now(dev, buf, at, flags);
        self.verify_flat(buf, at, result, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        if dev != Dev::OWN {
            return self.below.read_parts_now(dev, parts, flags);
        }
        if parts.iter().any(|part| self.checked.check(part.at, part.len()).is_err()) {
            parts.iter_mut().for_each(|part| part.result = Err(Errno::EINVAL));
            return;
        }
        self.below.read_parts_now(dev, parts, flags);
        for part in parts {
            let mut bufs: SmallVec<[&mut [u8]; 4]> =
                part.bufs.iter_mut().map(|buf| &mut **buf).collect();
            part.result = self.verify_bufs(&mut bufs, part.at, part.result, flags);
        }
    }

    #[inline]
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN {
            return self.below.write_now(dev, bufs, at, flags);
        }
        let len = total(bufs);
        self.check_write(at, len)?;
        if let Some(journal) = &self.checked.journal {
            let written = self.checked.write_journaled(journal, &Write { at, bufs });
            return written.map(|()| len).map_err(|error| error.errno());
        }
        let nowait = flags.contains(BioFlags::NOWAIT);
        let begun = self.checked.begin(at, bufs, &mut self.tuples, nowait);
        begun.map_err(|error| error.errno())?;
        let result = self.write_below(bufs, at, flags);
        self.written(bufs, at, result, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        if dev != Dev::OWN {
            return self.below.flush_now(dev);
        }
        self.checked.flush().map_err(|error| error.errno())
    }

    #[inline]
    fn room(&self) -> usize {
        self.depth
            .saturating_sub(self.held.len() + self.staged.len() + self.below.in_flight())
            .min(self.below.room())
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.held.len() + self.staged.len() + self.below.in_flight()
    }

    #[inline]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        if bio.dev != Dev::OWN {
            return self.below.submit(bio);
        }
        if self.room() == 0 {
            return Err(bio);
        }
        let (at, len, flags) = (bio.at, bio.memory.len(), bio.flags);
        match bio.op {
            BioOp::Read => match self.checked.check(at, len) {
                Ok(()) => return self.below.submit(bio),
                Err(errno) => self.hold(bio, Err(errno)),
            },
            BioOp::Flush => {
                // This queue carries out the flush itself instead of passing it to the queue of the data device. Otherwise, the integrity
                // device would learn the result of the flush later, and after a failed flush, a concurrent flush could still report
                // success.
                let flushed = self.flush_now(Dev::OWN).map(|()| 0);
                self.hold(bio, flushed);
            }
            BioOp::Write => {
                if let Err(errno) = self.check_write(at, len) {
                    self.hold(bio, Err(errno));
                    return Ok(());
                }
                if self.checked.journal.is_some() {
                    self.staged.push(bio);
                    return Ok(());
                }
                let nowait = flags.contains(BioFlags::NOWAIT);
                let bufs = slices(&bio.memory);
                if let Err(error) = self.checked.begin(at, &bufs, &mut self.tuples, nowait) {
                    drop(bufs);
                    self.hold(bio, Err(error.errno()));
                    return Ok(());
                }
                drop(bufs);
                return self.below.submit(bio).inspect_err(|bio| {
                    self.checked.end(at, &slices(&bio.memory), Err(Errno::EAGAIN), false);
                });
            }
        }
        Ok(())
    }

    #[inline]
    fn commit(&mut self) -> Result<(), Errno> {
        if !self.staged.is_empty() {
            self.commit_staged();
        }
        self.below.commit()
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        if !self.staged.is_empty() {
            self.commit_staged();
        }
        self.below.wait(min.saturating_sub(self.held.len()))
    }

    /// Carries out uncommitted writes, as other queues do. Waits for the writes in flight, so that no sector stays claimed. If bios of the
    /// data device's queue stay in flight, the content of their sectors may change at any time. The regions of these sectors then stay
    /// dirty, and the device is not marked as closed.
    fn drain(&mut self) -> Drained {
        if !self.staged.is_empty() {
            self.commit_staged();
        }
        self.held.clear();
        while self.below.in_flight() > 0 {
            // The code ignores the error of the wait, because bios that the data device did not accept complete with an error.
            let _ = self.below.wait(1);
            let mut any = false;
            while let Some(done) = self.below.pop() {
                any = true;
                self.completed(done);
            }
            if !any {
                break;
            }
        }
        let drained = self.below.drain();
        if drained != Drained::Ended {
            std::mem::forget(Arc::clone(&self.checked));
        }
        drained
    }

    #[inline]
    fn pop(&mut self) -> Option<Done> {
        if let Some(done) = self.held.pop_front() {
            return Some(done);
        }
        let done = self.below.pop()?;
        Some(self.completed(done))
    }

    #[inline]
    fn take_fresh(&mut self) -> bool {
        self.below.take_fresh() || !self.held.is_empty()
    }
}

impl Drop for IntegrityQueue {
    fn drop(&mut self) {
        self.drain();
    }
}

/// Replaces a transfer of zero bytes with an error, because a repetition would also transfer zero bytes.
fn some(result: Result<usize, Errno>) -> Result<usize, Errno> {
    result.and_then(|count| if count == 0 { Err(Errno::EIO) } else { Ok(count) })
}

fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}

#[inline]
fn slices(memory: &Memory) -> Slices<'_> {
    memory.buffers().iter().map(|buffer| IoSlice::new(buffer)).collect()
}

fn overlap(one: &Bio, two: &Bio) -> bool {
    let end = |bio: &Bio| bio.at.0 + bio.memory.len() as u64;
    one.at.0 < end(two) && two.at.0 < end(one)
}
