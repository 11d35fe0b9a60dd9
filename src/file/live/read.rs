//! Reads of a file in a volume that is open for writing.

use std::io::IoSliceMut;
use std::sync::Arc;

use super::target::current_target;
use super::{Access, LiveFile};
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, Hold, Holding, Rejected, Request, State};
use crate::error::Result;
use crate::file::read_many::{Placed, Proof};
use crate::iomap::WriteAt;
use crate::open_file::Views;
use crate::queue::Queue;

impl LiveFile {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::file) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        request: Request,
    ) -> Result<usize> {
        if let Some(view) = queue.views.get(&self.handle)
            && let Some(inside) = view.enter()
            && let Some(target) = current_target(view, self, &inside, None)
        {
            return with_queue!(&mut queue.device, device => {
                dio::read_now(device, &mut queue.state, &target, buf, &request)
            });
        }
        self.read_vectored_at(queue, &mut [IoSliceMut::new(buf)], request)
    }

    /// Returns the device offset of one read of a batch. The returned value contains the lock on the content, and keeps it until the read
    /// is complete. Returns `None` if the read must be carried out separately.
    #[inline(always)]
    pub(in crate::file) fn place_read<'q>(
        &self,
        views: &'q Views,
        state: &mut State,
        request: &Request,
        address: usize,
    ) -> Option<Placed<'q>> {
        let view = views.get(&self.handle)?;
        let inside = view.enter()?;
        let target = current_target(view, self, &inside, None)?;
        let at = dio::place_lent(state, &target, request, address)?;
        let most = self.geometry.longest();
        Some(Placed { dev: target.dev, at, most, proof: Proof::Content { _inside: inside } })
    }

    #[inline(never)]
    pub(in crate::file) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        request: Request,
    ) -> Result<usize> {
        let nowait = request.is_nowait();
        queue.check(self.volume)?;
        let range = WriteAt::Pos(request.pos).range(request.len as u64);
        let _entered = self.enter(queue, range, Access::Shared, nowait)?;
        let Queue { device, state, views, .. } = &mut *queue;
        let target = self.target(views, &mut state.files, None, nowait)?;
        dio::read_vectored_now(&mut device.through_table(), state, &target, bufs, &request)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::file) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        let keep = || Arc::clone(&self.handle);
        let holding = Holding { slot: self.handle.index(), hold: Hold::Lane };
        if let Some(view) = queue.views.get(&self.handle)
            && let Some(inode) = queue.state.files.enter(&view.queue_file, keep)
        {
            if let Some(target) = current_target(view, self, inode, Some(holding)) {
                let submitted = with_queue!(&mut queue.device, device => {
                    dio::submit_read(device, &mut queue.state, &target, memory, &request)
                });
                if submitted.is_err() {
                    queue.state.files.turn_back(&view.queue_file);
                }
                return submitted;
            }
            queue.state.files.turn_back(&view.queue_file);
        }
        self.submit_read_slowly(queue, memory, request)
    }

    #[inline(never)]
    fn submit_read_slowly(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        let nowait = request.is_nowait();
        let range = WriteAt::Pos(request.pos).range(memory.len() as u64);
        let checked = queue.check(self.volume);
        let entered = checked.and_then(|()| self.enter(queue, range, Access::Shared, nowait));
        let entered = match entered {
            Ok(entered) => entered,
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        let Queue { device, state, views, .. } = queue;
        let holding = state.files.begin(&self.handle, entered);
        let submitted = match self.target(views, &mut state.files, holding, nowait) {
            Err(error) => Err(Rejected::boxed(error, memory)),
            Ok(target) => {
                dio::submit_read(&mut device.through_table(), state, &target, memory, &request)
            }
        };
        if submitted.is_err() {
            holding.into_iter().for_each(|holding| state.files.cancel(holding));
        }
        submitted
    }
}
