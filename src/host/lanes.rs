//! The state of host files in one queue: the requests in flight, and a lane for each file. A lane contains the file's map from one tenure
//! (a period under a lease). It belongs to the last tenure in which the queue read the file.
//!
//! A read needs its map until the read completes. If the lease is broken, the host file may replace its map earlier. Therefore each queue
//! has its own reference count of the map. With one count for all queues, each read would write to shared memory twice.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::Arc;

use super::open::OpenFile;
use super::{HostDevice, Shared};
use crate::bio::Dev;
use crate::device::{AnyQueue, BlockFile, DeviceQueue, Engine};
use crate::dio::{Completion, DioFlags, Geometry, Request, State, Target};
use crate::error::{Errno, ErrorKind, Result};
use crate::fs::host::{HostMap, Tenure};
use crate::units::{FilePos, InodeNo};

/// The host files that one queue has read, and the requests of the queue.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    /// For each file, by its index: the queue's access to the file during one tenure (a period under a lease).
    lanes: Vec<Option<Rc<Lane>>>,
    /// The devices that are attached to the queue, by the index of the device.
    devices: Vec<Option<Dev>>,
    requests: Vec<Booking>,
    free: Vec<u32>,
    /// Whether the check of all leases was recent enough when this field was last updated. The field is updated once for each group of
    /// completions that arrive together.
    young: bool,
}

/// The access of a queue to one file during one tenure (a period under a lease).
pub(crate) struct Lane {
    /// The number of the tenure. `tenure` compares this number with the current number to determine whether the tenure has ended.
    number: u64,
    tenure: Arc<Tenure>,
    map: Arc<HostMap>,
    dev: Dev,
    geometry: Geometry,
    inode: InodeNo,
    in_flight: Cell<u32>,
    /// A reference that keeps the file open while requests are in flight.
    file: RefCell<Option<Arc<OpenFile>>>,
}

/// The data that the queue stores about a queued request for a host file.
struct Booking {
    token: u64,
    pos: FilePos,
    route: Route,
}

enum Route {
    Raw(Rc<Lane>),
    /// A read through the file's own descriptor. The descriptor is attached to the queue for this request.
    Kernel(Arc<OpenFile>, Dev),
    /// A read whose data the kernel had already read at the time of submission.
    Done,
    /// This element of the table of requests is not in use.
    Vacant,
}

impl Lane {
    #[inline(always)]
    pub(crate) fn target<'a>(&'a self, strict: &'a bool) -> Target<'a, HostMap> {
        Target {
            map: &*self.map,
            dev: self.dev,
            geometry: &self.geometry,
            inode: self.inode,
            size: self.map.size(),
            strict,
            live: None,
        }
    }

    fn enter(&self, file: &Arc<OpenFile>) {
        if self.in_flight.replace(self.in_flight.get() + 1) == 0 {
            *self.file.borrow_mut() = Some(Arc::clone(file));
        }
    }

    /// Counts down the requests in flight to the file. After the last request, returns the reference that kept the file open.
    fn leave(&self) -> Option<Arc<OpenFile>> {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 { self.file.take() } else { None }
    }
}

impl Lanes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            lanes: Vec::new(),
            devices: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            young: false,
        }
    }

    /// Returns this queue's access to a file, if it was created during the tenure `number` (a period under a lease).
    #[inline(always)]
    pub(crate) fn get(&self, index: u32, number: u64) -> Option<&Rc<Lane>> {
        match self.lanes.get(index as usize) {
            Some(Some(lane)) if lane.number == number => Some(lane),
            _ => None,
        }
    }

    /// Creates this queue's access to a file for one tenure (a period under a lease). Fails if the tenure has ended, or if this queue
    /// cannot attach the device.
    pub(crate) fn learn(
        &mut self,
        device: &mut AnyQueue,
        state: &mut State,
        file: &OpenFile,
        number: u64,
    ) -> Result<(), Errno> {
        let (Some(map), Some(beneath)) = (file.file.map_of(number), &file.device) else {
            return Err(Errno::EAGAIN);
        };
        let (dev, geometry) = self.attach(device, state, file, beneath)?;
        let lane = Lane {
            number,
            tenure: Arc::clone(file.file.tenure()),
            map,
            dev,
            geometry,
            inode: file.file.inode(),
            in_flight: Cell::new(0),
            file: RefCell::default(),
        };
        let index = file.file.index() as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(Rc::new(lane));
        Ok(())
    }

    /// Attaches a device to the queue, if the device is not attached yet.
    fn attach(
        &mut self,
        device: &mut AnyQueue,
        state: &mut State,
        file: &OpenFile,
        beneath: &HostDevice,
    ) -> Result<(Dev, Geometry), Errno> {
        let opened = beneath.device_path.as_ref().map_err(|_| Errno::ENODEV)?;
        let limits = &opened.beneath.limits;
        let geometry =
            Geometry::new(limits, file.file.block_size().bytes() as u64).with(file.stable_pages);
        if self.shared.own.is_some() || self.shared.engine == Engine::Null {
            state.admit(limits);
            return Ok((Dev::OWN, geometry));
        }
        let index = beneath.index as usize;
        if self.devices.len() <= index {
            self.devices.resize(index + 1, None);
        }
        if let Some(dev) = self.devices[index] {
            return Ok((dev, geometry));
        }
        let dev = device.attach(&opened.file, true)?;
        state.admit(limits);
        self.devices[index] = Some(dev);
        Ok((dev, geometry))
    }

    /// Adds a read from the block device to the table of requests. Returns a token that the queue uses instead of the caller's token.
    #[inline]
    pub(crate) fn begin_raw(
        &mut self,
        lane: &Rc<Lane>,
        file: &Arc<OpenFile>,
        token: u64,
        pos: FilePos,
    ) -> u64 {
        lane.enter(file);
        self.insert(Booking { token, pos, route: Route::Raw(Rc::clone(lane)) })
    }

    /// Adds a read through the file's own descriptor to the table of requests. Attaches the descriptor to the queue for this request.
    pub(crate) fn begin_kernel(
        &mut self,
        device: &mut AnyQueue,
        file: &Arc<OpenFile>,
        descriptor: &Arc<BlockFile>,
        token: u64,
        pos: FilePos,
    ) -> Result<(u64, Dev), Errno> {
        let dev = device.attach(descriptor, false)?;
        let route = Route::Kernel(Arc::clone(file), dev);
        Ok((self.insert(Booking { token, pos, route }), dev))
    }

    /// Adds a request whose data the kernel has already read to the table of requests.
    pub(crate) fn begin_done(&mut self, token: u64, pos: FilePos) -> u64 {
        self.insert(Booking { token, pos, route: Route::Done })
    }

    #[inline]
    fn insert(&mut self, booking: Booking) -> u64 {
        match self.free.pop() {
            Some(index) => {
                self.requests[index as usize] = booking;
                u64::from(index)
            }
            None => {
                self.requests.push(booking);
                // A completion must not allocate memory. So the list of free elements gets enough space for all elements here.
                self.free.reserve(self.requests.len());
                self.requests.len() as u64 - 1
            }
        }
    }

    #[inline]
    fn remove(&mut self, index: u64) -> Option<Route> {
        let booking = self.requests.get_mut(index as usize)?;
        self.free.push(index as u32);
        Some(std::mem::replace(&mut booking.route, Route::Vacant))
    }

    /// Removes a request that was not started from the table of requests.
    #[cold]
    pub(crate) fn cancel(&mut self, device: &mut AnyQueue, index: u64) {
        match self.remove(index) {
            Some(Route::Raw(lane)) => drop(lane.leave()),
            Some(Route::Kernel(_, dev)) => device.detach(dev),
            Some(Route::Done | Route::Vacant) | None => {}
        }
    }

    /// Ends a request. If the data of a read are not valid, reads the range again through the kernel.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        device: &mut AnyQueue,
        state: &mut State,
        completion: &mut Completion,
    ) {
        if device.take_fresh() || state.take_fresh() || !self.young {
            self.young = self.shared.keeping.keeper().proof().is_young();
        }
        let index = completion.token as usize;
        let Some(Booking { token, pos, route }) = self.requests.get_mut(index) else { return };
        completion.token = *token;
        // The most frequent case: the data are valid, and other requests to the same file are still in flight.
        if let Route::Raw(lane) = route
            && completion.result.is_ok()
            && self.young
            && lane.tenure.stands(lane.number)
            && lane.in_flight.get() > 1
        {
            lane.in_flight.set(lane.in_flight.get() - 1);
            *route = Route::Vacant;
            self.free.push(index as u32);
            return;
        }
        let pos = *pos;
        self.accept_rest(device, state, completion, index as u64, pos);
    }

    #[inline(never)]
    fn accept_rest(
        &mut self,
        device: &mut AnyQueue,
        state: &mut State,
        completion: &mut Completion,
        index: u64,
        pos: FilePos,
    ) {
        let succeeded = completion.result.is_ok();
        match self.remove(index) {
            Some(Route::Raw(lane)) => {
                let stands = self.young && lane.tenure.stands(lane.number);
                let file = lane.file.borrow().clone();
                drop(lane.leave());
                if let Some(file) = file
                    && (!stands || completion.result.is_err())
                {
                    read_again(completion, pos, |slices, request| {
                        state.stats_mut().cut += u64::from(succeeded);
                        file.read_kernel(state, slices, request, false)
                    });
                }
            }
            Some(Route::Kernel(file, dev)) => {
                device.detach(dev);
                if completion.result.is_err() {
                    read_again(completion, pos, |slices, request| {
                        file.read_kernel_again(state, slices, request)
                    });
                }
            }
            Some(Route::Done | Route::Vacant) | None => {}
        }
    }
}

/// Repeats a read through the kernel: a read whose data are not valid, or a read that failed with an I/O error.
#[cold]
#[inline(never)]
fn read_again(
    completion: &mut Completion,
    pos: FilePos,
    read: impl FnOnce(&mut [IoSliceMut<'_>], &Request) -> Result<usize>,
) {
    let kind = completion.result.as_ref().err().map(|error| error.kind());
    if matches!(kind, None | Some(ErrorKind::Io(_))) {
        let len = completion.memory.len();
        let mut slices: Vec<_> =
            completion.memory.buffers_mut().iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        completion.result = read(&mut slices, &Request::read(pos, len, DioFlags::empty()));
    }
}
