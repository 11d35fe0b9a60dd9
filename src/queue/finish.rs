//! Syncs the files of writes whose transfers are complete, or converts unwritten extents of these files, before the writes complete. Also
//! handles a queue that is lost with writes in flight.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::Queue;
use crate::bio::CompletionWork;
use crate::dio::Unsynced;
use crate::error::{Errno, Error, ErrorKind, Result};

/// The maximum time for which the drop of a lost queue (which the kernel no longer serves) waits until the error of the volume is written
/// to the device. If the device does not answer, this write may never complete.
const NOTED: Duration = Duration::from_secs(1);
/// The completion work that needs a sync of the file. Each sync also converts the written ranges of unwritten extents.
const SYNCS: CompletionWork = CompletionWork::SYNC.union(CompletionWork::DATASYNC);

impl Queue {
    /// Converts the written ranges of files that have many such ranges in unwritten extents. Also completes the writes that wait for a sync
    /// of their file or for such a conversion. Each file is synced or converted once for all of its writes.
    #[cold]
    pub(super) fn finish_left(&mut self) {
        for keep in self.state.files.take_full() {
            // The error is ignored here, because the next sync or close of the file converts the remaining ranges and reports an error.
            let _ = self.alone(|| keep.file.convert());
        }
        let mut unsynced = self.state.files.take_unsynced();
        // If the file's metadata are durable, the write needs only a flush of the device. One flush is enough for all writes of this kind:
        // the sync of one of the files makes this flush.
        let flushed = |write: &mut Unsynced| {
            write.left == CompletionWork::DATASYNC && write.keep.file.is_durable()
        };
        let flushed: Vec<_> = unsynced.extract_if(.., flushed).collect();
        if let Some(first) = flushed.first() {
            let keep = Arc::clone(&first.keep);
            self.finish(flushed, || keep.file.sync(true));
        }
        while let Some(first) = unsynced.first() {
            let keep = Arc::clone(&first.keep);
            let same = |write: &mut Unsynced| write.keep.id == keep.id;
            let writes: Vec<_> = unsynced.extract_if(.., same).collect();
            let left: CompletionWork = writes.iter().map(|write| write.left).collect();
            self.finish(writes, || match left.intersects(SYNCS) {
                true => keep.file.sync(!left.contains(CompletionWork::SYNC)),
                false => keep.file.convert(),
            });
        }
    }

    /// Does the sync or the conversion for which writes wait, and then completes the writes. If it fails, each write completes with the
    /// error.
    fn finish(&mut self, writes: Vec<Unsynced>, work: impl Fn() -> Result<()>) {
        let failed = self.alone(work).err();
        for Unsynced { mut completion, .. } in writes {
            if let Some(error) = &failed {
                completion.result = Err(Error::io(error.errno(), error.to_string()));
            }
            self.state.release(completion);
        }
    }

    /// Runs an operation, and repeats it while it fails with `Busy`. This error means that the operation would have to wait while this
    /// thread has requests in flight. Before each repetition, completes a request of this queue.
    pub(crate) fn alone<R>(&mut self, work: impl Fn() -> Result<R>) -> Result<R> {
        loop {
            match work() {
                Err(error) if error.kind() == ErrorKind::Busy && !self.state.files.is_idle() => {
                    self.pump()?;
                }
                result => return result,
            }
        }
    }

    /// Makes the volume read-only after a queue was lost with writes in flight. These writes may reach their blocks at any time, so no
    /// other file may get the blocks. All later changes fail. The content of the files stays locked, and threads that wait for this lock
    /// get an error. A separate thread also writes the error to the device, because the device may not answer.
    #[cold]
    pub(super) fn lose(&mut self) {
        let kept = self.state.files.leak();
        if kept.is_empty() {
            return;
        }
        let numbers: Vec<_> = kept.iter().map(|keep| keep.number.to_string()).collect();
        let what = format!(
            "the kernel refuses all calls for an io_uring queue that has writes in flight to the inodes {}",
            numbers.join(", ")
        );
        let (told, hears) = channel();
        let end = Arc::new(move || {
            let why = Error::io(Errno::EIO, what.clone());
            kept[0].file.end_volume(&why, &mut || {
                kept.iter().for_each(|keep| keep.inode.content.lose());
                let _ = told.send(());
            });
        });
        let ends = Arc::clone(&end);
        match thread::Builder::new().name("ironmap-lost".to_owned()).spawn(move || ends()) {
            Ok(_) => {
                // After this drop, only the thread owns the sender of the channel. So the channel is closed when the thread ends.
                drop(end);
                let _ = hears.recv();
                let _ = hears.recv_timeout(NOTED);
            }
            Err(_) => end(),
        }
    }
}
