//! The requests of a ring: the memory that each request owns, completions that were seen early, and requests that the kernel has not taken.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use super::Memory;

/// The value of `batch` in a slot without a request, or with a request that was not queued in a ring.
const NONE: u64 = 0;

/// The slot of one request in flight.
#[repr(align(64))]
pub(super) struct Slot<T> {
    /// The memory of the request, and the value that the caller attached. `None` if the slot is free.
    pub(super) request: Option<(Memory, T)>,
    /// A list of memory ranges for this request, or for an earlier request in this slot. Old kernels may read the list until the request
    /// completes.
    pub(super) iovecs: Vec<libc::iovec>,
    /// The number of the batch in which the request was queued. A batch contains the requests that are submitted together.
    batch: u64,
    /// The index of the next free slot, if this slot is free.
    next: u32,
}

/// The slots of a ring.
///
/// If requests are in flight when the slots are dropped, all slots are leaked, because the kernel may still write to the memory of these
/// requests.
pub(super) struct Slots<T> {
    slots: ManuallyDrop<Box<[Slot<T>]>>,
    /// The index of the first free slot. If no slot is free, this is the number of slots.
    free: u32,
    in_flight: usize,
    /// Completions that were taken from the kernel's queue while a thread waited for another request, and that are not yet popped.
    early: VecDeque<(u32, i32)>,
    /// The number of the current batch. Requests are added to this batch until it is submitted.
    batch: u64,
}

impl<T> Slots<T> {
    pub(super) fn new(count: u32) -> Self {
        let free = |index| Slot { request: None, iovecs: Vec::new(), batch: NONE, next: index + 1 };
        let slots: Box<[_]> = (0..count).map(free).collect();
        Self {
            slots: ManuallyDrop::new(slots),
            free: 0,
            in_flight: 0,
            // The queue has its full capacity from the start, because all requests may complete early, and no memory may be allocated while
            // the kernel uses memory that a caller lends.
            early: VecDeque::with_capacity(count as usize),
            batch: NONE + 1,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of free slots. If it is 0, a request must be taken out before another request can be put in.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.slots.len() - self.in_flight
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Puts a request into a free slot, as a part of the current batch. Returns the request if no slot is free.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        memory: Memory,
        attached: T,
    ) -> Result<(u32, &mut Slot<T>), (Memory, T)> {
        let index = self.free;
        if index as usize >= self.slots.len() {
            return Err((memory, attached));
        }
        // The kernel has addresses of memory in other slots, so no reference to those slots may be created. An index expression borrows
        // only this slot; `get_mut` would borrow all slots.
        let slot = &mut self.slots[index as usize];
        (self.free, self.in_flight) = (slot.next, self.in_flight + 1);
        slot.batch = self.batch;
        // `forget` leaks nothing, because a free slot contains no request. An assignment would add code that drops the previous value of
        // the slot.
        std::mem::forget(slot.request.replace((memory, attached)));
        Ok((index, slot))
    }

    /// Takes out a request whose entry was not queued.
    #[cold]
    pub(super) fn take_back(&mut self, index: u32) -> Option<(Memory, T)> {
        self.slots[index as usize].batch = NONE;
        self.early.retain(|(early, _)| *early != index);
        self.end(index, Option::take)?
    }

    /// Puts in a request that is already complete.
    pub(super) fn put_complete(
        &mut self,
        memory: Memory,
        attached: T,
        result: i32,
    ) -> Result<(), (Memory, T)> {
        let (index, slot) = self.put(memory, attached)?;
        slot.batch = NONE;
        self.early.push_back((index, result));
        Ok(())
    }

    /// Stores a completion that was taken from the kernel's queue before the caller pops the request.
    pub(super) fn see_early(&mut self, index: u32, result: i32) {
        self.early.push_back((index, result));
    }

    #[inline]
    pub(super) fn early(&self) -> usize {
        self.early.len()
    }

    #[inline(always)]
    pub(super) fn pop_early(&mut self) -> Option<(u32, i32)> {
        self.early.pop_front()
    }

    /// Returns the length of a request's memory in bytes.
    #[inline]
    pub(super) fn memory_len(&self, index: u32) -> usize {
        self.slots[index as usize].request.as_ref().map_or(0, |(memory, _)| memory.len())
    }

    /// Ends the request in a slot. `take` takes the request out of the slot. Returns `None` if the slot is empty.
    #[inline(always)]
    pub(super) fn end<R>(
        &mut self,
        index: u32,
        take: impl FnOnce(&mut Option<(Memory, T)>) -> R,
    ) -> Option<R> {
        let slot = &mut self.slots[index as usize];
        slot.request.as_ref()?;
        slot.next = self.free;
        (self.free, self.in_flight) = (index, self.in_flight - 1);
        Some(take(&mut slot.request))
    }

    /// Begins a new batch, after all queued requests were submitted.
    #[inline(always)]
    pub(super) fn next_batch(&mut self) {
        self.batch += 1;
    }

    /// Completes all requests of the current batch with a result if the kernel has taken none of them. Returns the number of completed
    /// requests. `untaken` is the number of requests that the kernel has not taken. If the batch contains more than `untaken` requests, the
    /// kernel has taken some of them. In this case, no request is completed, because it is unknown which requests the kernel has taken.
    #[cold]
    pub(super) fn recall(&mut self, untaken: usize, result: i32) -> usize {
        let batch = self.batch;
        let queued = |slot: &Slot<T>| slot.batch == batch && slot.request.is_some();
        if self.slots.iter().filter(|slot| queued(slot)).count() != untaken {
            return 0;
        }
        for (index, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| queued(slot)) {
            slot.batch = NONE;
            self.early.push_back((index as u32, result));
        }
        untaken
    }

    /// The values that callers attached to the requests in flight.
    pub(super) fn attached(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.request.as_ref()).map(|(_, attached)| attached)
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        if self.in_flight() == 0 {
            // SAFETY: the slots are dropped once, here, and no request is in flight.
            unsafe { ManuallyDrop::drop(&mut self.slots) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;

    fn memory(fill: u8) -> Memory {
        let mut buffer = Buffer::aligned(64).unwrap();
        buffer.fill(fill);
        buffer.into()
    }

    fn pop(slots: &mut Slots<u8>) -> Option<(u8, i32)> {
        let (index, result) = slots.pop_early()?;
        let (memory, attached) = slots.end(index, Option::take)??;
        assert!(memory.buffers().iter().all(|part| part.iter().all(|byte| *byte == attached)));
        Some((attached, result))
    }

    /// The memory of a request in flight stays at its address even if the slots are moved. The test writes to the memory in place of the
    /// kernel.
    #[test]
    fn memory_stays_where_it_is_until_its_request_ends() {
        let mut slots = Slots::new(4);
        let (index, slot) = slots.put(memory(0), 7).unwrap();
        let Some((Memory::Flat(buffer), _)) = &mut slot.request else { panic!("one buffer") };
        let (address, len) = (buffer.as_mut_ptr(), buffer.len());
        let (second, _) = slots.put(memory(1), 1).unwrap();
        slots.next_batch();
        let mut moved = Box::new(slots);
        moved.put(memory(2), 2).unwrap();
        // SAFETY: the slot owns the memory, and no code reads it until the request ends.
        unsafe { std::ptr::write_bytes(address, 7, len) };
        moved.see_early(index, len as i32);
        assert_eq!((pop(&mut moved), moved.in_flight()), (Some((7, 64)), 2));
        assert_eq!(moved.recall(1, -1), 1);
        moved.see_early(second, 64);
        while pop(&mut moved).is_some() {}
        assert_eq!((moved.in_flight(), moved.room()), (0, 4));
    }

    #[test]
    fn only_what_the_kernel_has_not_taken_is_recalled() {
        let mut slots = Slots::new(4);
        let (taken, _) = slots.put(memory(1), 1).unwrap();
        slots.next_batch();
        slots.put(memory(2), 2).unwrap();
        slots.put_complete(memory(3), 3, 64).unwrap();
        let (refused, _) = slots.put(memory(4), 4).unwrap();
        assert!(slots.put(memory(5), 5).is_err(), "the table has four slots");
        assert!(slots.take_back(refused).is_some());
        assert_eq!(
            slots.recall(2, -1),
            0,
            "the kernel has taken the request in slot 2, so it cannot be recalled"
        );
        assert_eq!((slots.recall(1, -1), slots.recall(0, -1)), (1, 0));
        assert_eq!([pop(&mut slots), pop(&mut slots)], [Some((3, 64)), Some((2, -1))]);
        assert_eq!(slots.attached().collect::<Vec<_>>(), [&1]);
        slots.see_early(taken, 64);
        assert_eq!((pop(&mut slots), slots.in_flight()), (Some((1, 64)), 0));
    }

    /// Dropping the slots neither frees nor moves the memory of requests in flight.
    #[test]
    fn slots_in_flight_outlive_their_ring() {
        let mut slots = Slots::<u8>::new(2);
        let (_, slot) = slots.put(memory(1), 1).unwrap();
        let Some((Memory::Flat(buffer), _)) = &mut slot.request else { panic!("one buffer") };
        let (address, len) = (buffer.as_mut_ptr(), buffer.len());
        let leaked: *mut [Slot<u8>] = &raw mut **slots.slots;
        drop(slots);
        // SAFETY: the slots were leaked together with the memory in flight.
        unsafe { std::ptr::write_bytes(address, 9, len) };
        // SAFETY: the leaked slots have no other owner, and came from a box.
        drop(unsafe { Box::from_raw(leaked) });
    }
}
