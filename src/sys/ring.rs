//! A safe interface to io_uring. The ring owns the memory of every request from its submission to its completion.

use std::io::{IoSliceMut, Write as _};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::squeue::EntryMarker as _;
use io_uring::{IoUring, cqueue, squeue};

use super::buffer::RingNumber;
use super::entry::{Narrow, Request, RingFile, RingOp, Width};
use super::registered::Places;
use super::slots::{Slot, Slots};
use super::{Buffer, Memory, Passenger, Tuples, nvme};
use crate::error::Errno;

/// The number of files that can be registered with a ring. For each request to any other file, the kernel must acquire a reference.
const REGISTERED_FILES: u32 = 16;
/// The bit of `user_data` that marks a request with memory of the caller. The lower 32 bits are the index of its [`Transfer`].
const BORROWED: u64 = 1 << 63;
/// If the kernel refuses the ring, a drain tries this many times to enter it. After that, the memory of the requests in flight is leaked.
const REFUSALS: u32 = 1000;
/// The bit of `user_data` that marks a command to an NVMe namespace. The completion of a command contains an NVMe status.
const COMMAND: u64 = 1 << 62;

static NEXT_RING: AtomicU32 = AtomicU32::new(1);

/// Returns a number for a new ring. After 2^32 rings, numbers repeat, and memory of an earlier ring may count as registered with the new
/// ring. This is safe, because the kernel refuses an address outside of the memory that the new ring has registered at the same index.
fn next_ring() -> RingNumber {
    RingNumber::new(NEXT_RING.fetch_add(1, Ordering::Relaxed)).unwrap_or(RingNumber::MAX)
}

/// The options of a new ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingOptions {
    pub(crate) entries: u32,
    pub(crate) iopoll: bool,
    /// If set, a kernel thread submits requests. The thread sleeps after it has had no work for this many milliseconds.
    pub(crate) sqpoll_idle: Option<u32>,
}

/// A request with memory that the caller lends during [`Ring::transfer_now`], and its result.
pub(crate) struct Transfer<'s, 'a> {
    bufs: &'s mut [IoSliceMut<'a>],
    file: RingFile,
    at: u64,
    tuples: Option<&'s mut Tuples>,
    /// The result of the system call: the number of bytes, or a negative errno.
    pub(crate) result: i32,
}

impl<'s, 'a> Transfer<'s, 'a> {
    /// The result of a transfer whose completion has not been seen yet. No system call returns this value.
    const UNSEEN: i32 = i32::MIN;

    pub(crate) fn new(bufs: &'s mut [IoSliceMut<'a>], file: RingFile, at: u64) -> Self {
        Self { bufs, file, at, tuples: None, result: Self::UNSEEN }
    }

    /// Adds the tuples of the data to the request.
    pub(crate) fn with_tuples(self, tuples: &'s mut Tuples) -> Self {
        Self { tuples: Some(tuples), ..self }
    }
}

/// A ring, and its requests in flight.
///
/// The memory of a request stays in its slot until the request completes. Dropping a ring waits for all requests. If a ring is
/// [lost](Self::drain), some requests never complete, and the drop leaks their memory. Only the thread that created a ring may use it.
pub(crate) struct Ring<T: Passenger, W: Width = Narrow> {
    // `drop` closes the ring before it frees the slots. Until then, the kernel may use the memory in the slots.
    pub(super) ring: ManuallyDrop<IoUring<W::Submission, W::Completion>>,
    slots: Slots<T>,
    /// The number of completions that were seen in the kernel's completion queue but not yet popped.
    ready: usize,
    /// Whether completions were seen since the last call of [`Self::take_fresh`].
    fresh: bool,
    /// For each entry of the table of registered files: whether it is in use. The list is empty before the first file is registered.
    files: Vec<bool>,
    pub(super) number: RingNumber,
    /// The registered memory of the caller. This reference keeps the memory alive.
    pub(super) registered: Option<Buffer>,
    /// The free entries of the table of registered memory, except the entry that is reserved for the caller's allocation.
    pub(super) places: Places,
    /// The errno with which the kernel has permanently refused the ring. A refused ring is not entered again, so the kernel never takes the
    /// requests that are still in the submission queue.
    lost: Option<Errno>,
    /// The number of requests with lent memory that are queued but not submitted.
    lent: usize,
    /// The number of submission queue entries whose requests were completed or withdrawn. The kernel never takes these entries.
    dead: usize,
    /// The number of times that the kernel has refused the ring in a [`drain`](Self::drain).
    refusals: u32,
    /// Whether a kernel thread takes entries from the submission queue. This thread takes entries even if no thread of the process enters
    /// the ring.
    sqpoll: bool,
    /// The eventfd that the kernel signals for each completion. The first call of [`readiness`](Self::readiness) creates it.
    pub(super) event: Option<OwnedFd>,
    _thread: PhantomData<*const ()>,
}

impl<T: Passenger, W: Width> Ring<T, W> {
    /// Creates a ring with at least `options.entries` slots.
    pub(crate) fn new(options: RingOptions) -> Result<Self, Errno> {
        let entries = options.entries.clamp(1, 4096).next_power_of_two();
        let ring = build::<W>(entries, options).map_err(|error| errno(&error))?;
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            slots: Slots::new(entries),
            ready: 0,
            fresh: false,
            files: Vec::new(),
            number: next_ring(),
            registered: None,
            places: Places::Unmade,
            lost: None,
            lent: 0,
            dead: 0,
            refusals: 0,
            sqpoll: options.sqpoll_idle.is_some(),
            event: None,
            _thread: PhantomData,
        })
    }

    /// The number of requests that can still be pushed. If it is 0, a request must complete before the next push.
    pub(crate) fn room(&self) -> usize {
        self.slots.room()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Registers a file, so that the kernel need not acquire a reference to the file for each request. If no entry is free or the kernel
    /// refuses, requests use the descriptor `file`, so the caller must keep this descriptor open.
    pub(crate) fn register_file(&mut self, file: BorrowedFd<'_>) -> RingFile {
        let submitter = self.ring.submitter();
        if self.files.is_empty() && submitter.register_files_sparse(REGISTERED_FILES).is_ok() {
            self.files = vec![false; REGISTERED_FILES as usize];
        }
        let Some(place) = self.files.iter().position(|used| !used) else {
            return RingFile::descriptor(file);
        };
        match submitter.register_files_update(place as u32, &[file.as_raw_fd()]) {
            Ok(1) => {
                self.files[place] = true;
                RingFile { number: place as i32, flags: squeue::Flags::FIXED_FILE, namespace: None }
            }
            _ => RingFile::descriptor(file),
        }
    }

    /// Ends the registration of a file. No request to this file may be queued.
    pub(crate) fn unregister_file(&mut self, file: RingFile) {
        if file.flags.contains(squeue::Flags::FIXED_FILE) {
            let _ = self.ring.submitter().register_files_update(file.number as u32, &[-1]);
            self.files[file.number as usize] = false;
        }
    }

    /// Queues a request. The completion returns the memory of the request. If no slot is free or the ring is lost, this call returns the
    /// memory.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: Request,
        memory: Memory,
        attached: T,
    ) -> Result<(), (Memory, T)> {
        let (index, Slot { request: slot, iovecs, .. }) = self.slots.put(memory, attached)?;
        let Some((memory, attached)) = slot else { return Ok(()) };
        let mut entry = request.owned::<W>(memory, iovecs, self.number, attached.tuples());
        entry.set_user_data(u64::from(index) | command::<W>(request.file));
        // SAFETY: the entry points to memory and tuples that the slot owns. `pop_by` empties the slot only after the completion; before
        // that, the slot's content is neither moved nor dropped (see `Slots`).
        if unsafe { self.push_entry(&entry) }.is_ok() {
            return Ok(());
        }
        // The entry was not queued, so the request is removed from its slot.
        self.slots.take_back(index).map_or(Ok(()), Err)
    }

    /// Adds a request that was completed without the ring. [`pop`](Self::pop) returns it like any other request.
    pub(crate) fn push_complete(
        &mut self,
        memory: Memory,
        attached: T,
        result: i32,
    ) -> Result<(), (Memory, T)> {
        self.slots.put_complete(memory, attached, result)?;
        self.fresh = true;
        Ok(())
    }

    /// Queues an entry. On failure, the entry is not queued, and the ring is lost.
    ///
    /// # Safety
    /// The memory to which the entry points stays valid until the completion has been seen. For a read, only the kernel may access this
    /// memory until then.
    #[inline(always)] // each request runs this function, and a call costs 12 instructions
    unsafe fn push_entry(&mut self, entry: &W::Submission) -> Result<(), Errno> {
        // SAFETY: the caller guarantees that the memory of the entry stays valid until its completion has been seen.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // The submission queue is full, so its entries are submitted to make space.
            self.enter(0)?;
        }
        Ok(())
    }

    /// Submits queued requests to the kernel, and waits until `min` completions can be popped. `min` is at most the number of requests in
    /// flight. If the call fails, the requests that the kernel had not taken can be popped, with this error as their result.
    pub(crate) fn wait(&mut self, min: usize) -> Result<(), Errno> {
        loop {
            // `early` counts the completions that this loop has taken from the kernel's queue. The kernel does not count them, so the ring
            // waits for fewer completions.
            self.enter(min.saturating_sub(self.slots.early()))?;
            // This code checks the number of completions, because a signal or a partial submission may end the system call early.
            if self.slots.early() + self.ring.completion().len() >= min {
                return Ok(());
            }
            // The completion queue is emptied here, because the kernel does not poll for more completions while the queue contains an
            // entry.
            (self.ready, self.fresh) = (0, true);
            for entry in self.ring.completion() {
                let (index, result) = seen::<T, W>(&self.slots, &entry.into());
                self.slots.see_early(index, result);
            }
        }
    }

    /// Submits queued requests to the kernel, and waits until the kernel's completion queue contains `min` completions. The call may return
    /// earlier. If it fails, all later calls fail too.
    fn enter(&mut self, min: usize) -> Result<(), Errno> {
        if let Some(errno) = self.lost {
            self.recall(errno);
            return Err(errno);
        }
        loop {
            match self.ring.submit_and_wait(min) {
                Ok(_) => {
                    self.lent = 0;
                    self.slots.next_batch();
                    return Ok(());
                }
                Err(error) => match errno(&error) {
                    Errno::EINTR => {}
                    // The kernel is short of memory, or its completion queue is full. The caller removes completions from this queue.
                    Errno::EBUSY | Errno::EAGAIN => return Ok(()),
                    errno => {
                        self.lost = Some(errno);
                        self.recall(errno);
                        return Err(errno);
                    }
                },
            }
        }
    }

    /// After the kernel has refused the ring, completes the requests that the kernel had not taken. The kernel will never take them,
    /// because the ring is not entered again. A kernel thread may still take entries, so if there is such a thread, no request is
    /// completed.
    #[cold]
    fn recall(&mut self, errno: Errno) {
        if self.sqpoll {
            return;
        }
        let untaken = self.ring.submission().len().saturating_sub(self.dead + self.lent);
        self.dead += self.slots.recall(untaken, -errno.0);
        self.fresh = true;
    }

    /// Waits for all requests in flight, and drops them. If the kernel has permanently refused the ring, some requests may stay in flight.
    /// Their completions may never be seen, so their memory is never freed.
    pub(crate) fn drain(&mut self) {
        loop {
            while self.pop().is_some() {}
            if self.in_flight() == 0 || self.refusals == REFUSALS {
                return;
            }
            if self.enter(1).is_err() {
                self.refusals += 1;
                // `yield_now` makes a system call, because older kernels post completions at the end of a system call.
                std::thread::yield_now();
            }
        }
    }

    /// Returns the values that are attached to the requests in flight. After a [`drain`](Self::drain), these requests never complete.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &T> {
        self.slots.attached()
    }

    /// Returns the next completion: the attached value, the memory, and the result of the system call (a number of bytes, or a negative
    /// errno).
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(T, Memory, i32)> {
        self.pop_by(|request, result| request.take().map(|(memory, it)| (it, memory, result)))?
    }

    /// Passes the next completion to `take`, and returns the result of `take`. `take` must empty the slot.
    #[inline(always)]
    pub(crate) fn pop_by<R>(
        &mut self,
        take: impl FnOnce(&mut Option<(Memory, T)>, i32) -> R,
    ) -> Option<R> {
        let (index, result) = match self.slots.pop_early() {
            Some(early) => early,
            None => {
                let mut completions = self.ring.completion();
                if self.ready == 0 {
                    self.ready = completions.len();
                    self.fresh = true;
                }
                let entry = completions.next()?;
                self.ready -= 1;
                seen::<T, W>(&self.slots, &entry.into())
            }
        };
        self.slots.end(index, |request| take(request, result))
    }

    /// Whether completions were seen since the last call.
    #[inline]
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Reads into memory that the caller lends, or writes from this memory. Submits all transfers together, and waits for all of them. Each
    /// transfer has its own file and position.
    pub(crate) fn transfer_now(&mut self, op: RingOp, rw_flags: i32, all: &mut [Transfer<'_, '_>]) {
        let mut open = 0;
        for index in 0..all.len() {
            let Transfer { bufs, file, at, tuples, .. } = &mut all[index];
            let (file, at, tuples) = (*file, *at, tuples.as_deref_mut());
            let mut entry = Request { file, op, at, rw_flags }.lent::<W>(bufs, tuples);
            entry.set_user_data(BORROWED | index as u64 | command::<W>(file));
            // SAFETY: the memory and the tuples are borrowed until this function returns. It returns only after every completion was seen,
            // or when the kernel can never take the entry (see `withdraw`). Nothing in between can unwind.
            if unsafe { self.push_entry(&entry) }.is_err() {
                break;
            }
            (open, self.lent) = (open + 1, self.lent + 1);
            // If many transfers are in flight, completions are collected before more transfers are submitted, so that the number of
            // transfers in flight never exceeds the guaranteed size of the completion queue.
            while open >= self.slots.len() {
                open -= self.collect_lent(all, open);
            }
        }
        while open > 0 {
            open -= self.collect_lent(all, open);
        }
        if let Some(errno) = self.lost {
            // A transfer without a result was withdrawn or never queued. It gets the error of the ring.
            let unseen = all.iter_mut().filter(|transfer| transfer.result == Transfer::UNSEEN);
            unseen.for_each(|transfer| transfer.result = -errno.0);
        }
    }

    /// Waits for completions of transfers whose memory the caller lends. `open` is the number of these transfers in flight. Returns the
    /// number of completed transfers. Completions of other requests are stored for [`pop`](Self::pop).
    fn collect_lent(&mut self, transfers: &mut [Transfer<'_, '_>], open: usize) -> usize {
        let mut found = 0;
        let entered = self.enter(1);
        (self.ready, self.fresh) = (0, true);
        for entry in self.ring.completion() {
            let entry: cqueue::Entry = entry.into();
            if entry.user_data() & BORROWED == 0 {
                let (index, result) = seen::<T, W>(&self.slots, &entry);
                self.slots.see_early(index, result);
            } else {
                let transfer = &mut transfers[entry.user_data() as u32 as usize];
                transfer.result =
                    result::<W>(&entry, || transfer.bufs.iter().map(|buf| buf.len()).sum());
                found += 1;
            }
        }
        if entered.is_err() && found == 0 {
            self.withdraw(open);
            return open;
        }
        found
    }

    /// Abandons `open` requests with lent memory after the ring was lost.
    ///
    /// This is sound if all of these requests are still in the submission queue, as its last entries: the kernel never takes them, because
    /// the ring is not entered again. If the kernel has taken a request, it may write to the lent memory at any time, and the completion
    /// cannot be observed. A return would then be undefined behaviour, and a wait would never end, so this function ends the program. This
    /// happens only if the kernel accepts the submission of the requests, and refuses a later call while they are in flight.
    #[cold]
    fn withdraw(&mut self, open: usize) {
        if self.sqpoll || self.ring.submission().len() < self.dead + open {
            // From here on, no code may unwind. The code avoids `eprintln!`, which panics if standard error is full.
            let (mut err, lost) = (std::io::stderr(), self.lost);
            let what = "ironmap: the kernel refuses io_uring calls while requests in flight use lent memory: the program must end";
            let _ = writeln!(err, "{what} ({lost:?})");
            std::process::abort();
        }
        (self.dead, self.lent) = (self.dead + open, self.lent.saturating_sub(open));
    }
}

impl<T: Passenger, W: Width> Drop for Ring<T, W> {
    fn drop(&mut self) {
        self.drain();
        if self.in_flight() > 0 {
            // The memory of the slots is not freed, because the kernel may still write to it. The ring is not closed, so its registered
            // files stay open.
            return;
        }
        // The kernel removes a ring some time after the ring's descriptor was closed. Until then, the registered files would stay open, and
        // an exclusive open of a registered device would fail. Therefore, the files are unregistered before the ring is closed.
        let _ = self.ring.submitter().unregister_files();
        // SAFETY: the ring is dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

/// Returns the bits of `user_data` for a request to this file: [`COMMAND`] if requests to the file are NVMe commands, otherwise 0.
#[inline]
fn command<W: Width>(file: RingFile) -> u64 {
    if W::COMMANDS && file.namespace.is_some() { COMMAND } else { 0 }
}

/// Returns the index of the slot of a completed request, and the request's result. The result has the form of a system call's result.
#[inline]
fn seen<T, W: Width>(slots: &Slots<T>, entry: &cqueue::Entry) -> (u32, i32) {
    let index = entry.user_data() as u32;
    (index, result::<W>(entry, || slots.memory_len(index)))
}

/// Returns the result of a completed request whose memory has this length. The result has the form of a system call's result.
#[inline]
fn result<W: Width>(entry: &cqueue::Entry, len: impl FnOnce() -> usize) -> i32 {
    if W::COMMANDS && entry.user_data() & COMMAND != 0 {
        return nvme::outcome(entry.result(), len());
    }
    entry.result()
}

/// Creates a ring with the newest set of flags that the kernel accepts.
fn build<W: Width>(
    entries: u32,
    options: RingOptions,
) -> std::io::Result<IoUring<W::Submission, W::Completion>> {
    let base = || {
        let mut builder = IoUring::<W::Submission, W::Completion>::builder();
        builder.dontfork().setup_cqsize(entries * 2);
        if options.iopoll {
            builder.setup_iopoll();
        }
        builder
    };
    if let Some(idle) = options.sqpoll_idle {
        return base().setup_sqpoll(idle).build(entries);
    }
    base()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| base().setup_coop_taskrun().setup_taskrun_flag().build(entries))
        .or_else(|_| base().build(entries))
}

pub(super) fn errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::EIO.0))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::thread;

    use super::*;

    const OPTIONS: RingOptions = RingOptions { entries: 2, iopoll: false, sqpoll_idle: None };

    impl Passenger for u32 {}

    /// A ring that is moved to a thread that did not create it. The kernel refuses every call of this thread, so the ring is permanently
    /// lost.
    struct Moved(Ring<u32>);

    // SAFETY: the thread that created the ring does not use it afterwards.
    unsafe impl Send for Moved {}

    fn lost(test: impl FnOnce(Ring<u32>, RingFile) + Send + 'static) {
        let file = File::open("/proc/self/exe").unwrap();
        let Ok(mut ring) = Ring::new(OPTIONS) else { return };
        let registered = ring.register_file(file.as_fd());
        let moved = Moved(ring);
        thread::spawn(move || {
            let moved = moved;
            test(moved.0, registered);
        })
        .join()
        .unwrap();
    }

    fn request(file: RingFile) -> Request {
        Request { file, op: RingOp::Read, at: 0, rw_flags: 0 }
    }

    fn read_now(ring: &mut Ring<u32>, file: RingFile, count: usize) -> Vec<i32> {
        let mut memory = vec![[0; 64]; count];
        let mut slices: Vec<_> = memory.iter_mut().map(|part| [IoSliceMut::new(part)]).collect();
        let mut transfers: Vec<_> =
            slices.iter_mut().map(|bufs| Transfer::new(bufs, file, 0)).collect();
        ring.transfer_now(RingOp::Read, 0, &mut transfers);
        transfers.iter().map(|transfer| transfer.result).collect()
    }

    #[test]
    fn requests_on_lent_memory_end_when_the_ring_is_lost() {
        lost(|mut ring, file| {
            for count in [1, 2, 5] {
                let results = read_now(&mut ring, file, count);
                // A recent kernel refuses the calls, because another thread created the ring. Older kernels carry out the reads.
                let refused = results.iter().all(|result| *result == -Errno::EEXIST.0);
                assert!(refused || results.iter().all(|result| *result == 64), "{results:?}");
            }
        });
    }

    #[test]
    fn a_lost_ring_gives_memory_back_or_keeps_it_and_is_dropped_without_end() {
        lost(|mut ring, file| {
            let buffer = || Memory::Flat(Buffer::aligned(64).unwrap());
            let popped = |ring: &mut Ring<u32>| {
                let (attached, memory, result) = ring.pop()?;
                Some((attached, memory.len(), result))
            };
            assert!(ring.push(request(file), buffer(), 1).is_ok());
            if ring.wait(1) == Ok(()) {
                return;
            }
            assert_eq!(popped(&mut ring), Some((1, 64, -Errno::EEXIST.0)));
            assert!(ring.push(request(file), buffer(), 2).is_ok());
            // These reads fill the submission queue with entries that the kernel never takes.
            read_now(&mut ring, file, 5);
            let Err((memory, attached)) = ring.push(request(file), buffer(), 3) else {
                panic!("the request was queued")
            };
            assert_eq!((memory.len(), attached, ring.in_flight()), (64, 3, 1));
            assert_eq!(ring.wait(1), Err(Errno::EEXIST));
            assert_eq!(popped(&mut ring), Some((2, 64, -Errno::EEXIST.0)));
            assert!(ring.pop().is_none());
            ring.drain();
            assert_eq!(ring.in_flight(), 0);
        });
    }

    /// Nothing is written to the pipe, so reads from it do not complete. A request that the kernel has already taken stays in its slot. A
    /// request that was only queued is returned.
    #[test]
    fn requests_that_the_kernel_took_stay_with_a_ring_without_descriptor() {
        let (empty, _writer) = std::io::pipe().unwrap();
        let Ok(mut ring) = Ring::<u32>::new(OPTIONS) else { return };
        let request = request(RingFile::descriptor(empty.as_fd()));
        let buffer = || Memory::Flat(Buffer::aligned(64).unwrap());
        assert!(ring.push(request, buffer(), 1).is_ok());
        ring.wait(0).unwrap();
        assert!(ring.push(request, buffer(), 2).is_ok());
        // From here on, the number of the ring's descriptor refers to another file.
        let file = File::open("/proc/self/exe").unwrap();
        // SAFETY: the call has only integers as arguments. The replaced descriptor is that of the ring. The ring is leaked, so it never
        // closes this number.
        assert!(unsafe { libc::dup2(file.as_raw_fd(), ring.ring.as_raw_fd()) } >= 0);
        ring.drain();
        assert_eq!(ring.attached().collect::<Vec<_>>(), [&1]);
        let Err(Errno::EOPNOTSUPP) = ring.wait(1) else {
            panic!(
                "the kernel has accepted a regular file as a ring, but should refuse it with EOPNOTSUPP"
            )
        };
        assert!(ring.pop().is_none());
    }

    #[test]
    fn completions_seen_early_are_popped_later() {
        let file = File::open("/proc/self/exe").unwrap();
        let Ok(mut ring) = Ring::new(OPTIONS) else { return };
        let file = ring.register_file(file.as_fd());
        for token in [1, 2] {
            let memory = Memory::Flat(Buffer::aligned(64).unwrap());
            assert!(ring.push(request(file), memory, token).is_ok());
        }
        assert_eq!(read_now(&mut ring, file, 5), [64; 5]);
        ring.wait(2).unwrap();
        let mut tokens = [ring.pop().unwrap().0, ring.pop().unwrap().0];
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2]);
    }
}
