//! Overwrites with one bio, which contains a copy of the data. The data are copied if the caller's memory could change during the transfer.

use std::sync::Arc;

use super::LiveFile;
use super::target::{stamp_overwrite, target_by_metadata};
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, Hold, Holding, Request};
use crate::queue::Queue;

impl LiveFile {
    /// Starts a write of a copy of the caller's owned memory. Returns the memory if the write cannot take this path.
    pub(super) fn submit_copied(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: &Request,
    ) -> Result<(), Memory> {
        let keep = || Arc::clone(&self.handle);
        let holding = Holding { slot: self.handle.index(), hold: Hold::Lane };
        let Some(view) = queue.views.get(&self.handle) else {
            return Err(memory);
        };
        let Some(inode) = queue.state.files.enter(&view.queue_file, keep) else {
            return Err(memory);
        };
        let submitted = if view.takes_overwrites(inode) {
            let target = target_by_metadata(view, self, Some(holding));
            with_queue!(&mut queue.device, device => {
                dio::submit_copied(device, &mut queue.state, &target, memory, request)
            })
        } else {
            Err(memory)
        };
        match &submitted {
            Ok(()) => stamp_overwrite(view, self),
            Err(_) => queue.state.files.turn_back(&view.queue_file),
        }
        submitted
    }
}
