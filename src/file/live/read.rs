//! Reads of a file that can change.

use std::io::IoSliceMut;
use std::sync::Arc;

use super::LiveFile;
use super::target::current_target;
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, Hold, Holding, Keep, Rejected, Request};
use crate::error::Result;
use crate::iomap::WriteAt;
use crate::queue::Queue;

impl LiveFile {
    #[inline(always)]
    pub(in crate::file) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        request: Request,
    ) -> Result<usize> {
        let live = &*self.0;
        if let Some(view) = live.view(&queue.views)
            && let Some(inside) = view.enter()
            && let Some(target) = current_target(view, live, &inside, None)
        {
            return with_queue!(&mut queue.device, device => {
                dio::read_now(device, &mut queue.state, &target, buf, &request)
            });
        }
        self.read_vectored_at(queue, &mut [IoSliceMut::new(buf)], request)
    }

    #[inline(never)]
    pub(in crate::file) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        request: Request,
    ) -> Result<usize> {
        let (live, nowait) = (&*self.0, request.is_nowait());
        queue.check(live.volume)?;
        let range = WriteAt::Pos(request.pos).range(request.len as u64);
        let hold = self.enter(queue, range, nowait)?;
        let Queue { device, state, views, .. } = &mut *queue;
        let result = live.target(views, &mut state.files, None, nowait).and_then(|target| {
            dio::read_vectored_now(&mut device.through_table(), state, &target, bufs, &request)
        });
        self.leave(queue, hold);
        result
    }

    #[inline(always)]
    pub(in crate::file) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        let live = &*self.0;
        let keep = || Arc::clone(&self.0) as Keep;
        let holding = Holding { slot: live.index.number, hold: Hold::Lane };
        if let Some(view) = live.view(&queue.views)
            && let Some(inode) = queue.state.files.enter(&view.queue_file, keep)
        {
            if let Some(target) = current_target(view, live, inode, Some(holding)) {
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
        let (live, nowait) = (&*self.0, request.is_nowait());
        let range = WriteAt::Pos(request.pos).range(memory.len() as u64);
        let entered = queue.check(live.volume).and_then(|()| self.enter(queue, range, nowait));
        let hold = match entered {
            Ok(hold) => hold,
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        let holding = Holding { slot: live.index.number, hold };
        queue.state.files.begin(holding, || Arc::clone(&self.0) as Keep);
        let Queue { device, state, views, .. } = queue;
        let submitted = match live.target(views, &mut state.files, Some(holding), nowait) {
            Err(error) => Err(Rejected::boxed(error, memory)),
            Ok(target) => {
                dio::submit_read(&mut device.through_table(), state, &target, memory, &request)
            }
        };
        if submitted.is_err() {
            state.files.cancel(holding);
        }
        submitted
    }
}
