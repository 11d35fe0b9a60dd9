//! Reads.

use std::io::IoSliceMut;
use std::sync::Arc;

use super::LiveFile;
use super::target::current_target;
use super::write::would_change;
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, DioFlags, Hold, Holding, Keep, Rejected, Request};
use crate::error::Result;
use crate::iomap::WriteAt;
use crate::queue::Queue;
use crate::units::FilePos;

impl LiveFile {
    #[inline(always)]
    pub(in crate::file) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        let live = &*self.0;
        if let Some(view) = live.view(&queue.views)
            && let Some(inside) = view.enter()
            && let Some(target) = current_target(view, live, &inside, None)
        {
            let request = Request::read(pos, buf.len(), flags);
            return with_queue!(&mut queue.device, device => {
                dio::read_now(device, &mut queue.state, &target, buf, &request)
            });
        }
        self.read_vectored_at(queue, &mut [IoSliceMut::new(buf)], pos, flags)
    }

    #[inline(never)]
    pub(in crate::file) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        let live = &*self.0;
        queue.check(live.volume)?;
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let hold = self.enter(
            queue,
            WriteAt::Pos(pos).range(len as u64),
            flags.contains(DioFlags::NOWAIT),
        )?;
        let nowait = flags.contains(DioFlags::NOWAIT);
        // Size and map are of one time: with an older map, data appended since would read as zeros.
        let result = loop {
            let view = match live.current(&mut queue.views, &mut queue.state.lives, nowait) {
                Ok(view) => view,
                Err(error) => break Err(error),
            };
            if let Some(target) = current_target(view, live, view.open(), None) {
                let request = Request::read(pos, len, flags);
                break with_queue!(&mut queue.device, device => {
                    dio::read_vectored_now(device, &mut queue.state, &target, bufs, &request)
                });
            }
            if nowait {
                break Err(would_change());
            }
        };
        self.leave(queue, hold);
        result
    }

    #[inline(always)]
    pub(in crate::file) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let live = &*self.0;
        let keep = || Arc::clone(&self.0) as Keep;
        if let Some(view) = live.view(&queue.views)
            && let Some(inode) = queue.state.lives.enter(&view.known, keep)
        {
            let holding = Holding { slot: live.index.number, hold: Hold::Lane };
            if let Some(target) = current_target(view, live, inode, Some(holding)) {
                let request = Request::queued_read(pos, flags, token);
                let submitted = with_queue!(&mut queue.device, device => {
                    dio::submit_read(device, &mut queue.state, &target, memory, &request)
                });
                if submitted.is_err() {
                    queue.state.lives.turn_back(&view.known);
                }
                return submitted;
            }
            queue.state.lives.turn_back(&view.known);
        }
        self.submit_read_slowly(queue, memory, pos, flags, token)
    }

    #[inline(never)]
    fn submit_read_slowly(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let live = &*self.0;
        let range = WriteAt::Pos(pos).range(memory.len() as u64);
        let entered = queue
            .check(live.volume)
            .and_then(|()| self.enter(queue, range, flags.contains(DioFlags::NOWAIT)));
        let hold = match entered {
            Ok(hold) => hold,
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        let holding = Holding { slot: live.index.number, hold };
        queue.state.lives.begin(holding, || Arc::clone(&self.0) as Keep);
        let nowait = flags.contains(DioFlags::NOWAIT);
        // As above.
        let submitted = loop {
            let view = match live.current(&mut queue.views, &mut queue.state.lives, nowait) {
                Ok(view) => view,
                Err(error) => break Err(Rejected::boxed(error, memory)),
            };
            if let Some(target) = current_target(view, live, view.open(), Some(holding)) {
                let request = Request::queued_read(pos, flags, token);
                break with_queue!(&mut queue.device, device => {
                    dio::submit_read(device, &mut queue.state, &target, memory, &request)
                });
            }
            if nowait {
                break Err(Rejected::boxed(would_change(), memory));
            }
        };
        if submitted.is_err() {
            queue.state.lives.cancel(holding);
        }
        submitted
    }
}
