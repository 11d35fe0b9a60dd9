//! What writes that are complete have left to be done, and what becomes of those that never are.

use std::sync::Arc;

use super::{Live, LiveFile};
use crate::bio::CompletionWork;
use crate::dio::Unsynced;
use crate::error::{Errno, Error};
use crate::queue::Queue;

/// Converts files of which much is to be converted, and syncs those of writes that
/// wait for it, each once.
#[cold]
pub(crate) fn finish_writes(queue: &mut Queue) {
    for keep in queue.state.lives.take_full() {
        if let Ok(live) = keep.downcast::<Live>() {
            // What cannot be converted now is when the file is synced or closed, and the error is met again.
            let _ = LiveFile(live).convert(queue);
        }
    }
    let mut unsynced = queue.state.lives.take_unsynced();
    while let Some(first) = unsynced.first() {
        let Ok(live) = Arc::clone(&first.keep).downcast::<Live>() else { return };
        let file = LiveFile(live);
        let same = |write: &mut Unsynced| {
            write.keep.downcast_ref::<Live>().is_some_and(|live| live.id == file.0.id)
        };
        let writes: Vec<_> = unsynced.extract_if(.., same).collect();
        let data_only = !writes.iter().any(|write| write.left.contains(CompletionWork::SYNC));
        let failed = file.sync(queue, data_only).err();
        for Unsynced { mut completion, .. } in writes {
            if let Some(error) = &failed {
                completion.result = Err(Error::io(error.errno(), error.to_string()));
            }
            queue.state.release(completion);
        }
    }
}

/// Ends the volume of a queue that is lost with writes in flight. They may reach their blocks at any time, so that these must not become
/// another file's: nothing is changed any more, the content of the files stays held, and who waits for it is told.
#[cold]
pub(crate) fn lose(queue: &mut Queue) {
    let kept = queue.state.lives.leak();
    let lives: Vec<_> = kept.into_iter().filter_map(|keep| keep.downcast::<Live>().ok()).collect();
    let Some(first) = lives.first() else { return };
    let numbers: Vec<_> = lives.iter().map(|live| live.number().to_string()).collect();
    let what = format!(
        "the kernel refuses a queue that has writes in flight, among requests to inode {}",
        numbers.join(", ")
    );
    first.fs().abort_then(&Error::io(Errno::EIO, what), || {
        lives.iter().for_each(|live| live.open.content.lose());
    });
}
