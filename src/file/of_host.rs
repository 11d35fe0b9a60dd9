//! A file of a mounted file system (a host file). While ironmap has a lease on the file, a read is raw: it goes directly to the device.
//! Without a lease, the kernel reads the data. A raw read and a read by the kernel return the same data. A tenure is an uninterrupted
//! period in which ironmap has the lease. A lane is the access of one queue to one file during one tenure.

use std::io::IoSliceMut;
use std::sync::Arc;

use super::read_many::{Placed, Proof};
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, Completion, Rejected, Request, State, Target, UNTOLD};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::fs::host::{HostMap, Refusal, Tenure};
use crate::host::{HostReport, Lanes, OpenFile, Straight};
use crate::open_file::Owner;
use crate::queue::Queue;
use crate::units::InodeNo;

/// A handle of a host file.
#[derive(Clone)]
pub(crate) struct HostHandle {
    open: Arc<OpenFile>,
    strict: bool,
}

/// The result of an attempt to read from the device without the kernel's file system.
enum Attempt {
    Done(Result<usize>),
    /// The read from the device has failed, or its data are not valid, because the lease has ended. The kernel must read the data instead.
    Kernel,
    /// The queue has not yet prepared its access to the file in the present tenure (a period under one lease). The value is the number of
    /// this tenure.
    Unknown(u64),
}

impl HostHandle {
    pub(crate) fn new(open: OpenFile, strict: bool) -> Self {
        Self { open: Arc::new(open), strict }
    }

    pub(crate) fn inode(&self) -> InodeNo {
        self.open.file.inode()
    }

    pub(crate) fn size(&self) -> u64 {
        match self.open.file.status().map {
            Some(map) => map.size(),
            None => self.open.size(),
        }
    }

    pub(crate) fn report(&self) -> HostReport {
        self.open.report(self.size())
    }

    /// Returns the map of the file. Fails if the lease is not valid.
    pub(crate) fn map(&self) -> Result<Arc<HostMap>> {
        self.open.map()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        request: Request,
    ) -> Result<usize> {
        queue.check(self.open.owner())?;
        // Each call gets its own copy of the request. A value that is passed by reference must be in memory. With separate copies, only a
        // call that needs the request in memory stores it there.
        let copy = || Request { ..request };
        match self.read_raw(queue, buf, &copy()) {
            Attempt::Done(result) => result,
            Attempt::Kernel => self.read_kernel(queue, &mut [IoSliceMut::new(buf)], &copy()),
            Attempt::Unknown(tenure) => self.read_first(queue, buf, &copy(), tenure),
        }
    }

    #[inline(always)]
    fn read_raw(&self, queue: &mut Queue, buf: &mut [u8], request: &Request) -> Attempt {
        let tenure = self.open.file.tenure().current();
        let lanes = queue.lanes.as_deref();
        let Some(lane) = lanes.and_then(|lanes| lanes.get(self.open.file.index(), tenure)) else {
            return Attempt::Unknown(tenure);
        };
        let target = lane.target(&self.strict);
        let result = with_queue!(&mut queue.device, device => {
            dio::read_now(device, &mut queue.state, &target, buf, request)
        });
        self.judge(queue, tenure, result)
    }

    /// Returns the device offset of one read of a batch, if the read can go directly to the device. Returns `None` if the read must be
    /// carried out separately.
    #[inline(always)]
    pub(super) fn place(
        &self,
        owner: Owner,
        lanes: Option<&Lanes>,
        state: &mut State,
        request: &Request,
        address: usize,
    ) -> Option<Placed<'static>> {
        let tenure = self.open.file.tenure().current();
        let lane = lanes?.get(self.open.file.index(), tenure)?;
        let target = lane.target(&self.strict);
        let at = dio::place_lent(state, &target, request, address)?;
        let (dev, most) = (target.dev, target.longest());
        (owner == self.open.owner()).then_some(Placed {
            dev,
            at,
            most,
            proof: Proof::Tenure(tenure),
        })
    }

    /// Whether the data of a raw read are valid. This is true if ironmap has had the lease without interruption since the start of this
    /// tenure.
    #[inline(always)]
    pub(super) fn stayed_valid(&self, state: &mut State, tenure: u64) -> bool {
        let valid = self.open.is_valid_for(tenure);
        state.stats_mut().cut += u64::from(!valid);
        valid
    }

    /// Determines whether the kernel must repeat a read that went directly to the device.
    #[inline(always)]
    fn judge(&self, queue: &mut Queue, tenure: u64, result: Result<usize>) -> Attempt {
        match &result {
            Ok(_) if self.open.is_valid_for(tenure) => Attempt::Done(result),
            Ok(_) => {
                queue.state.stats_mut().cut += 1;
                Attempt::Kernel
            }
            Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Attempt::Kernel,
            Err(_) => Attempt::Done(result),
        }
    }

    /// Prepares the queue's access to the file in this tenure (a period under one lease), and reads from the device. If that is not
    /// possible, reads through the kernel.
    #[cold]
    #[inline(never)]
    fn read_first(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        request: &Request,
        tenure: u64,
    ) -> Result<usize> {
        if self.learn(queue, tenure)
            && let Attempt::Done(result) = self.read_raw(queue, buf, request)
        {
            return result;
        }
        self.read_kernel(queue, &mut [IoSliceMut::new(buf)], request)
    }

    /// Prepares the queue's access to the file (its lane) in this tenure (a period under one lease). Returns false if this fails. The
    /// kernel must then serve the request.
    fn learn(&self, queue: &mut Queue, tenure: u64) -> bool {
        let Queue { device, state, lanes: Some(lanes), .. } = queue else { return false };
        if !Tenure::is_raw(tenure) {
            return false;
        }
        match lanes.learn(device, state, &self.open, tenure) {
            Ok(()) => true,
            // The lease that began this tenure has already ended. The kernel must serve the request.
            Err(Errno::EAGAIN) => false,
            Err(errno) => {
                self.open
                    .file
                    .refuse(Refusal::Failed("cannot attach the device to a queue", errno));
                false
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn read_kernel(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
    ) -> Result<usize> {
        self.open.file.want();
        self.open.read_kernel(&mut queue.state, bufs, request, self.strict)
    }

    pub(crate) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        request: Request,
    ) -> Result<usize> {
        queue.check(self.open.owner())?;
        let tenure = self.open.file.tenure().current();
        let known = |lanes: Option<&Lanes>| {
            lanes.and_then(|lanes| lanes.get(self.open.file.index(), tenure).cloned())
        };
        if known(queue.lanes.as_deref()).is_none() {
            self.learn(queue, tenure);
        }
        if let Some(lane) = known(queue.lanes.as_deref()) {
            let target = lane.target(&self.strict);
            let device = &mut queue.device.through_table();
            let result = dio::read_vectored_now(device, &mut queue.state, &target, bufs, &request);
            if let Attempt::Done(result) = self.judge(queue, tenure, result) {
                return result;
            }
        }
        self.read_kernel(queue, bufs, &request)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        if let Err(error) = queue.check(self.open.owner()) {
            return Err(Rejected::boxed(error, memory));
        }
        let tenure = self.open.file.tenure().current();
        let index = self.open.file.index();
        if let Some(lanes) = &mut queue.lanes
            && let Some(lane) = lanes.get(index, tenure)
        {
            let lane = std::rc::Rc::clone(lane);
            let booked = lanes.begin_raw(&lane, &self.open, request.token, request.pos);
            let raw = request.token(booked);
            let target = lane.target(&self.strict);
            let submitted = with_queue!(&mut queue.device, device => {
                dio::submit_read(device, &mut queue.state, &target, memory, &raw)
            });
            return submitted.inspect_err(|_| lanes.cancel(&mut queue.device, booked));
        }
        // `submit_first` gets its own copy of the request, so that only this rare call stores the request in memory.
        let first = Request { ..request };
        self.submit_first(queue, memory, &first, tenure)
    }

    /// Prepares the queue's access to the file in this tenure (a period under one lease), and submits the read to the device. If that is
    /// not possible, submits the read to the kernel.
    #[cold]
    #[inline(never)]
    fn submit_first(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: &Request,
        tenure: u64,
    ) -> Result<(), Box<Rejected>> {
        if self.learn(queue, tenure) && self.open.file.tenure().stands(tenure) {
            return self.submit_read(queue, memory, *request);
        }
        self.open.file.want();
        self.submit_kernel(queue, memory, request)
    }

    /// Submits the read to the kernel if one direct read is enough. If not, carries out the whole read before this call returns.
    fn submit_kernel(
        &self,
        queue: &mut Queue,
        mut memory: Memory,
        request: &Request,
    ) -> Result<(), Box<Rejected>> {
        let (len, Request { pos, token, .. }) = (memory.len(), *request);
        let Queue { device, state, lanes: Some(lanes), .. } = queue else {
            return Err(Rejected::boxed(
                Error::invalid("the queue was not created by a host"),
                memory,
            ));
        };
        let size = self.open.size();
        let inside = pos.0.checked_add(len as u64).is_some_and(|end| end <= size);
        if let (Some(descriptor), Memory::Flat(buffer)) = (self.open.descriptor(), &memory)
            && inside
            && descriptor.geometry.is_aligned(pos, [(buffer.address(), buffer.len())].into_iter())
            && let Ok((booked, dev)) =
                lanes.begin_kernel(device, &self.open, &descriptor.file, token, pos)
        {
            state.stats_mut().kernel_served += 1;
            let target = Target {
                map: &Straight { size },
                dev,
                geometry: &descriptor.geometry,
                // A failure of the direct read does not become an event, because the kernel then reads the range again. The file may have
                // become shorter.
                inode: UNTOLD,
                size,
                strict: &true,
                live: None,
            };
            let request = request.token(booked);
            let through = &mut device.through_table();
            let submitted = dio::submit_read(through, state, &target, memory, &request);
            return submitted.inspect_err(|_| lanes.cancel(device, booked));
        }
        let mut slices: Vec<_> =
            memory.buffers_mut().iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let request = Request { len, ..*request };
        let result = self.open.read_kernel(state, &mut slices, &request, self.strict);
        match result {
            Err(error) if !matches!(error.kind(), ErrorKind::Io(_)) => {
                Err(Rejected::boxed(error, memory))
            }
            result => {
                // This completion is popped like all other completions. A pop finds the caller's token in a table of requests (`lanes`), so
                // the request gets an entry in this table.
                let token = lanes.begin_done(token, pos);
                state.finish(Completion { token, memory, result });
                Ok(())
            }
        }
    }
}
