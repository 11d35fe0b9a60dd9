//! A host file, open: raw while its lease stands, by the kernel otherwise, and the same to its user.

use std::io::IoSliceMut;
use std::sync::{Arc, OnceLock, Weak};

use super::kernel::{Descriptor, Straight};
use super::{HostDevice, HostReport, Lanes, Shared};
use crate::bio::Memory;
use crate::device::with_queue;
use crate::dio::{self, Completion, DioFlags, Rejected, StablePages, Target, UNTOLD};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileOptions;
use crate::fs::host::{HostFile, HostMap, Keeper, Refusal, Tenure};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// A handle to a host file.
#[derive(Clone)]
pub(crate) struct HostHandle {
    open: Arc<OpenFile>,
    strict: bool,
}

/// A host file and the ways to its data.
pub(super) struct OpenFile {
    pub(super) file: Arc<HostFile>,
    pub(super) device: Option<Arc<HostDevice>>,
    pub(super) stable_pages: Option<StablePages>,
    /// For direct reads by the kernel, once there was one; `None` where they are impossible.
    descriptor: OnceLock<Option<Descriptor>>,
    /// Behind the file, since fields are dropped in their order.
    _closing: Closing,
    shared: Arc<Shared>,
}

/// Waits, when the file is dropped, for the threads that have it at that moment: then it is closed.
struct Closing {
    file: Weak<HostFile>,
    keeper: Arc<Keeper>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        // Mostly nobody has it, whatever they wait for of other files.
        if self.file.strong_count() > 0 {
            self.keeper.let_go();
        }
    }
}

impl OpenFile {
    /// Whether what was read from the device in a tenure may be believed.
    #[inline(always)]
    pub(super) fn believes(&self, tenure: u64) -> bool {
        self.file.tenure().stands(tenure) && self.shared.keeping.keeper().proof().is_young()
    }

    /// The descriptor for direct reads by the kernel.
    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        let block = self.file.block_size().bytes() as u64;
        let open = || Descriptor::open(self.file.file(), block).ok();
        let descriptor = self.descriptor.get_or_init(open).as_ref();
        descriptor.filter(|descriptor| descriptor.file.limits().direct)
    }
}

/// What came of an attempt to read around the kernel.
enum Attempt {
    Done(Result<usize>),
    /// The kernel is to be asked.
    Kernel,
    /// This queue does not know the way yet.
    Unknown(u64),
}

impl HostHandle {
    pub(super) fn new(
        file: Arc<HostFile>,
        device: Option<Arc<HostDevice>>,
        shared: Arc<Shared>,
        options: FileOptions,
    ) -> Self {
        let FileOptions { strict, stable_pages, .. } = options;
        let descriptor = OnceLock::new();
        let keeper = Arc::clone(shared.keeping.keeper());
        let closing = Closing { file: Arc::downgrade(&file), keeper };
        let open = OpenFile { file, device, stable_pages, descriptor, _closing: closing, shared };
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
        HostReport::of(&self.open.file, self.open.device.as_deref(), self.size())
    }

    /// The map, while the lease stands.
    pub(crate) fn map(&self) -> Result<Arc<HostMap>> {
        let status = self.open.file.status();
        status.map.ok_or_else(|| {
            let why = status.refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
            Error::unsupported(format!("served by the kernel: {why}"))
        })
    }

    #[inline(always)]
    pub(crate) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        queue.check(self.open.shared.owner)?;
        match self.read_raw(queue, buf, pos, flags) {
            Attempt::Done(result) => result,
            Attempt::Kernel => self.read_kernel(queue, &mut [IoSliceMut::new(buf)], pos, flags),
            Attempt::Unknown(tenure) => self.read_first(queue, buf, pos, flags, tenure),
        }
    }

    #[inline(always)]
    fn read_raw(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Attempt {
        let tenure = self.open.file.tenure().current();
        let lanes = queue.lanes.as_deref();
        let Some(lane) = lanes.and_then(|lanes| lanes.get(self.open.file.index(), tenure)) else {
            return Attempt::Unknown(tenure);
        };
        let target = lane.target(self.strict);
        let result = with_queue!(&mut queue.device, device => {
            dio::read_now(device, &mut queue.state, &target, buf, pos, flags)
        });
        self.judge(queue, tenure, result)
    }

    /// Whether the kernel is to be asked after a raw read.
    #[inline(always)]
    fn judge(&self, queue: &mut Queue, tenure: u64, result: Result<usize>) -> Attempt {
        match &result {
            Ok(_) if self.open.believes(tenure) => Attempt::Done(result),
            Ok(_) => {
                queue.state.stats_mut().cut += 1;
                Attempt::Kernel
            }
            Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Attempt::Kernel,
            Err(_) => Attempt::Done(result),
        }
    }

    /// Learns the way and reads; or reads through the kernel.
    #[cold]
    #[inline(never)]
    fn read_first(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
        tenure: u64,
    ) -> Result<usize> {
        if self.learn(queue, tenure)
            && let Attempt::Done(result) = self.read_raw(queue, buf, pos, flags)
        {
            return result;
        }
        self.read_kernel(queue, &mut [IoSliceMut::new(buf)], pos, flags)
    }

    /// Learns the way of a tenure. False where there is none: the kernel serves the file.
    fn learn(&self, queue: &mut Queue, tenure: u64) -> bool {
        let Queue { device, state, lanes: Some(lanes), .. } = queue else { return false };
        if !Tenure::is_raw(tenure) {
            return false;
        }
        match lanes.learn(device, state, &self.open, tenure) {
            Ok(()) => true,
            // It has just ended.
            Err(crate::Errno::EAGAIN) => false,
            Err(errno) => {
                self.open.file.refuse(Refusal::Failed("attaching the device to a queue", errno));
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
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        self.open.file.want();
        self.open.read_kernel(&mut queue.state, bufs, pos, flags, self.strict)
    }

    pub(crate) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        queue.check(self.open.shared.owner)?;
        let tenure = self.open.file.tenure().current();
        let known = |lanes: Option<&Lanes>| {
            lanes.and_then(|lanes| lanes.get(self.open.file.index(), tenure).cloned())
        };
        if known(queue.lanes.as_deref()).is_none() {
            self.learn(queue, tenure);
        }
        if let Some(lane) = known(queue.lanes.as_deref()) {
            let target = lane.target(self.strict);
            let result = with_queue!(&mut queue.device, device => {
                dio::read_vectored_now(device, &mut queue.state, &target, bufs, pos, flags)
            });
            if let Attempt::Done(result) = self.judge(queue, tenure, result) {
                return result;
            }
        }
        self.read_kernel(queue, bufs, pos, flags)
    }

    #[inline(always)]
    pub(crate) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        if let Err(error) = queue.check(self.open.shared.owner) {
            return Err(Rejected::boxed(error, memory));
        }
        let tenure = self.open.file.tenure().current();
        let index = self.open.file.index();
        if let Some(lanes) = &mut queue.lanes
            && let Some(lane) = lanes.get(index, tenure)
        {
            let lane = std::rc::Rc::clone(lane);
            let booked = lanes.begin_raw(&lane, &self.open, token, pos);
            let target = lane.target(self.strict);
            let submitted = with_queue!(&mut queue.device, device => {
                dio::submit_read(device, &mut queue.state, &target, memory, pos, flags, booked)
            });
            return submitted.inspect_err(|_| lanes.cancel(&mut queue.device, booked));
        }
        self.submit_first(queue, memory, pos, flags, token, tenure)
    }

    /// Learns the way and submits; or submits to the kernel.
    #[cold]
    #[inline(never)]
    fn submit_first(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
        tenure: u64,
    ) -> Result<(), Box<Rejected>> {
        if self.learn(queue, tenure) && self.open.file.tenure().stands(tenure) {
            return self.submit_read(queue, memory, pos, flags, token);
        }
        self.open.file.want();
        self.submit_kernel(queue, memory, pos, flags, token)
    }

    /// Submits to the kernel where one request does it; else reads at once.
    fn submit_kernel(
        &self,
        queue: &mut Queue,
        mut memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let Queue { device, state, lanes: Some(lanes), .. } = queue else {
            return Err(Rejected::boxed(Error::invalid("no queue of a host"), memory));
        };
        let size = self.open.size();
        let inside = pos.0.checked_add(memory.len() as u64).is_some_and(|end| end <= size);
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
                // What fails is read again: it may only be that the file has become shorter.
                inode: UNTOLD,
                size,
                strict: true,
                live: None,
            };
            let submitted = with_queue!(device, queue => {
                dio::submit_read(queue, state, &target, memory, pos, flags, booked)
            });
            return submitted.inspect_err(|_| lanes.cancel(device, booked));
        }
        let mut slices: Vec<_> =
            memory.buffers_mut().iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let result = self.open.read_kernel(state, &mut slices, pos, flags, self.strict);
        match result {
            Err(error) if !matches!(error.kind(), ErrorKind::Io(_)) => {
                Err(Rejected::boxed(error, memory))
            }
            result => {
                // It is popped like the others, which are known by their bookings.
                let token = lanes.begin_done(token, pos);
                state.finish(Completion { token, memory, result });
                Ok(())
            }
        }
    }
}
