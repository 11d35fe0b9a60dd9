//! Memory that is registered with a ring: one allocation of the caller, and bounce buffers. The kernel need not pin registered memory for
//! each request. Many requests use a bounce buffer, one after another.

use super::Buffer;
use super::buffer::Registered;
use super::entry::Width;
use super::ring::{Ring, errno};
use super::tuples::Passenger;
use crate::error::Errno;

/// The number of allocations that can be registered: one allocation of the caller, and the default number of bounce buffers of a queue.
const REGISTERED_BUFFERS: u16 = 1 + 512;
/// The index of the caller's allocation in the ring's table of registered memory.
const CALLERS: u16 = 0;
/// The longest buffer that the kernel registers.
const MAX_REGISTERED: usize = 1 << 30;

/// The free entries of the ring's table of registered memory.
pub(super) enum Places {
    /// The table has not been created yet.
    Unmade,
    /// The kernel has refused to create a table.
    Refused,
    /// The indexes of the free entries, except [`CALLERS`].
    Free(Vec<u16>),
}

impl<T: Passenger, W: Width> Ring<T, W> {
    /// Allocates memory, registers it with the ring, and cuts it into `count` buffers of `size` bytes. Fails with EBUSY if memory of the
    /// caller is already registered.
    pub(crate) fn register(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        let total = count.checked_mul(size).filter(|total| (1..=MAX_REGISTERED).contains(total));
        let total = total.ok_or(Errno::EINVAL)?;
        let mut whole = Buffer::aligned(total).map_err(|_| Errno::ENOMEM)?;
        self.register_whole(&mut whole)?;
        Ok((0..count).map(|_| whole.split_to(size)).collect())
    }

    /// Registers the memory of a buffer with the ring. Parts that are later split off the buffer are registered too. Fails with EBUSY if
    /// memory of the caller is already registered.
    pub(crate) fn register_whole(&mut self, whole: &mut Buffer) -> Result<(), Errno> {
        if self.registered.is_some() {
            return Err(Errno::EBUSY);
        }
        if !(1..=MAX_REGISTERED).contains(&whole.len()) {
            return Err(Errno::EINVAL);
        }
        let iovec = whole.iovec();
        let tabled = self.free_places().is_some();
        let submitter = self.ring.submitter();
        let registered = if tabled {
            // SAFETY: the range is live memory of one buffer. The kernel pins its pages, and `self.registered` keeps the memory alive until
            // after the ring is closed.
            unsafe { submitter.register_buffers_update(CALLERS.into(), &[iovec], None) }
        } else {
            // SAFETY: the range is live memory of one buffer. The kernel pins its pages, and `self.registered` keeps the memory alive until
            // after the ring is closed.
            unsafe { submitter.register_buffers(&[iovec]) }
        };
        registered.map_err(|error| errno(&error))?;
        whole.set_registered(Some(Registered { ring: self.number, place: CALLERS }));
        // The stored buffer has no bytes. Its reference to the region keeps the memory alive.
        self.registered = Some(whole.split_to(0));
        Ok(())
    }

    /// Returns the free entries of the table of registered memory, or `None` if the kernel has refused to create the table. The first call
    /// creates the table.
    fn free_places(&mut self) -> Option<&mut Vec<u16>> {
        if let Places::Unmade = self.places {
            let made = self.ring.submitter().register_buffers_sparse(REGISTERED_BUFFERS.into());
            self.places = match made {
                Ok(()) => Places::Free((CALLERS + 1..REGISTERED_BUFFERS).rev().collect()),
                Err(_) => Places::Refused,
            };
        }
        match &mut self.places {
            Places::Free(places) => Some(places),
            _ => None,
        }
    }

    /// Registers the allocation of one buffer. If no entry is free or the kernel refuses, the buffer is not registered, and the kernel pins
    /// its pages for each request.
    #[cold]
    pub(crate) fn register_one(&mut self, buffer: &mut Buffer) {
        let Some(place) = self.free_places().and_then(Vec::pop) else { return };
        // SAFETY: the range is allocated. The kernel pins its pages, and checks that the memory of each request that uses this entry
        // (`place`) is within the range. Only requests on this buffer use the entry, and each of them owns the buffer or a part of it. So
        // no such request exists when the allocation is freed.
        let registered = unsafe {
            self.ring.submitter().register_buffers_update(place.into(), &[buffer.iovec()], None)
        };
        match registered {
            Ok(()) => buffer.set_registered(Some(Registered { ring: self.number, place })),
            Err(_) => self.free_places().into_iter().for_each(|places| places.push(place)),
        }
    }

    /// Ends the registration of a buffer. The kernel then releases the pages.
    #[cold]
    pub(crate) fn unregister_one(&mut self, buffer: &mut Buffer) {
        let Some(place) = buffer.place_in(self.number).filter(|place| *place != CALLERS) else {
            return;
        };
        buffer.set_registered(None);
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty range removes the registration; for requests in flight the pages stay pinned until the requests end.
        let gone =
            unsafe { self.ring.submitter().register_buffers_update(place.into(), &[none], None) };
        if gone.is_ok() {
            self.free_places().into_iter().for_each(|places| places.push(place));
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::sys::{Memory, Request, RingOp, RingOptions};

    const OPTIONS: RingOptions = RingOptions { entries: 2, iopoll: false, sqpoll_idle: None };

    /// Reads into registered memory return the file's content, both for the caller's allocation and for single buffers. When a single
    /// buffer is unregistered, its entry in the table is reused.
    #[test]
    fn pieces_are_registered_beside_the_callers_memory() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut start = [0; 4096];
        file.read_exact_at(&mut start, 0).unwrap();
        let Ok(mut ring) = Ring::<u32>::new(OPTIONS) else { return };
        if ring.free_places().is_none() {
            return;
        }
        let to = ring.register_file(file.as_fd());
        let read = |ring: &mut Ring<u32>, buffer: Buffer| {
            let request = Request { file: to, op: RingOp::Read, at: 0, rw_flags: 0 };
            assert!(ring.push(request, Memory::Flat(buffer), 0).is_ok());
            ring.wait(1).unwrap();
            let Some((_, Memory::Flat(buffer), 4096)) = ring.pop() else {
                panic!("the buffer is read")
            };
            assert!(buffer[..] == start);
            buffer
        };
        let first = Buffer::aligned(4096).unwrap();
        for buffer in [first, ring.register(1, 4096).unwrap().remove(0)] {
            read(&mut ring, buffer);
        }
        for _ in 0..2 * REGISTERED_BUFFERS {
            let mut piece = Buffer::aligned(4096).unwrap();
            ring.register_one(&mut piece);
            assert!(piece.place_in(ring.number).is_some_and(|place| place != CALLERS));
            piece = read(&mut ring, piece);
            ring.unregister_one(&mut piece);
            assert_eq!(piece.place_in(ring.number), None);
        }
        // A buffer for which no entry is free is not registered. Reads into this buffer still succeed.
        let mut pieces: Vec<_> = (0..=REGISTERED_BUFFERS)
            .map(|_| {
                let mut piece = Buffer::aligned(4096).unwrap();
                ring.register_one(&mut piece);
                piece
            })
            .collect();
        let without = pieces.iter().filter(|piece| piece.place_in(ring.number).is_none());
        assert_eq!(without.count(), 2);
        for piece in pieces.drain(..) {
            read(&mut ring, piece);
        }
    }
}
