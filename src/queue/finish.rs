//! The completion work of finished writes, and the end of writes that never complete.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::Queue;
use crate::bio::CompletionWork;
use crate::dio::Unsynced;
use crate::error::{Errno, Error, ErrorKind, Result};

/// The longest time that a lost queue waits for the record on its device that the volume has ended. A device that does not answer may never
/// write it.
const NOTED: Duration = Duration::from_secs(1);
/// A sync also converts.
const SYNCS: CompletionWork = CompletionWork::SYNC.union(CompletionWork::DATASYNC);

impl Queue {
    /// Converts files with many unconverted ranges, and syncs or converts the files of waiting writes, each once.
    #[cold]
    pub(super) fn finish_left(&mut self) {
        for keep in self.state.files.take_full() {
            // A range that cannot be converted now is converted when the file is synced or closed, which reports the error again.
            let _ = self.alone(|| keep.file.convert());
        }
        let mut unsynced = self.state.files.take_unsynced();
        // The sync of any file flushes the device for all files.
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

    /// Completes writes with the result of their completion work.
    fn finish(&mut self, writes: Vec<Unsynced>, work: impl Fn() -> Result<()>) {
        let failed = self.alone(work).err();
        for Unsynced { mut completion, .. } in writes {
            if let Some(error) = &failed {
                completion.result = Err(Error::io(error.errno(), error.to_string()));
            }
            self.state.release(completion);
        }
    }

    /// Runs an operation that may wait for requests in flight. The requests of this queue are completed first.
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

    /// Ends the volume of a queue that is lost with writes in flight. These writes may reach their blocks at any time, so the blocks must
    /// not be given to another file. Therefore no later change succeeds, the content of the files stays held, and threads that wait for it
    /// get an error. A separate thread records this on the device, because the device may not answer.
    #[cold]
    pub(super) fn lose(&mut self) {
        let kept = self.state.files.leak();
        if kept.is_empty() {
            return;
        }
        let numbers: Vec<_> = kept.iter().map(|keep| keep.number.to_string()).collect();
        let what = format!(
            "the kernel refuses all calls for an io_uring queue that has writes in flight; inodes of its requests: {}",
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
                // The channel is closed when the thread ends.
                drop(end);
                let _ = hears.recv();
                let _ = hears.recv_timeout(NOTED);
            }
            Err(_) => end(),
        }
    }
}
