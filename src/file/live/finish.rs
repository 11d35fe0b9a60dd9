//! What writes that are complete have left to be done.

use std::sync::Arc;

use super::{Live, LiveFile};
use crate::bio::Left;
use crate::dio::Unsynced;
use crate::error::Error;
use crate::queue::Queue;

/// Settles files of which much is to be settled, and syncs those of writes that
/// wait for it, each once.
#[cold]
pub(crate) fn finish_writes(queue: &mut Queue) {
    for keep in queue.state.lives.take_full() {
        if let Ok(live) = keep.downcast::<Live>() {
            // What cannot be settled now is when the file is synced or closed, and the error is met again.
            let _ = LiveFile(live).settle(queue);
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
        let data_only = !writes.iter().any(|write| write.left.contains(Left::SYNC));
        let failed = file.sync(queue, data_only).err();
        for Unsynced { mut completion, .. } in writes {
            if let Some(error) = &failed {
                completion.result = Err(Error::io(error.errno(), error.to_string()));
            }
            queue.state.release(completion);
        }
    }
}
