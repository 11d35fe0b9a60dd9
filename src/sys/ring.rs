//! io_uring, safe: the ring owns the memory of every request from submission to completion.

use std::io::{IoSliceMut, Write as _};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::squeue::EntryMarker as _;
use io_uring::{IoUring, cqueue, squeue};

use super::buffer::RingNumber;
use super::entry::{Narrow, Request, RingFile, Width};
use super::registered::Places;
use super::slots::{Slot, Slots};
use super::{Buffer, Memory, Passenger, Tuples, nvme};
use crate::error::Errno;

/// How many files can be registered with a ring; requests to others cost the kernel a reference each.
const REGISTERED_FILES: u32 = 16;
/// `user_data` with this bit set belongs to a request on borrowed memory: the rest is its index among the parts.
const BORROWED: u64 = 1 << 63;
/// So often a ring that the kernel refuses is looked at for completions before its requests are leaked.
const REFUSALS: u32 = 1000;
/// `user_data` with this bit set belongs to a command to an NVMe namespace, whose completion gives a status.
const COMMAND: u64 = 1 << 62;

static NEXT_RING: AtomicU32 = AtomicU32::new(1);

/// A number that no other ring has; after 2^32 rings numbers come again. Memory of another ring may be taken for registered then, which is
/// safe: the kernel refuses addresses outside of the memory that the ring itself has registered there.
fn next_ring() -> RingNumber {
    RingNumber::new(NEXT_RING.fetch_add(1, Ordering::Relaxed)).unwrap_or(RingNumber::MAX)
}

/// How to set a ring up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingOptions {
    pub(crate) entries: u32,
    pub(crate) iopoll: bool,
    /// A kernel thread submits; it sleeps after this many milliseconds without work.
    pub(crate) sqpoll_idle: Option<u32>,
}

/// A request on memory that the caller lends for the duration of [`Ring::transfer_now`], and what came of it.
pub(crate) struct Transfer<'s, 'a> {
    bufs: &'s mut [IoSliceMut<'a>],
    at: u64,
    tuples: Option<&'s mut Tuples>,
    /// The system call's result (negative errno).
    pub(crate) result: i32,
}

impl<'s, 'a> Transfer<'s, 'a> {
    /// No result of a system call.
    const UNSEEN: i32 = i32::MIN;

    pub(crate) fn new(bufs: &'s mut [IoSliceMut<'a>], at: u64) -> Self {
        Self { bufs, at, tuples: None, result: Self::UNSEEN }
    }

    /// The same with the tuples of its data.
    pub(crate) fn with_tuples(self, tuples: &'s mut Tuples) -> Self {
        Self { tuples: Some(tuples), ..self }
    }
}

/// A ring, and the requests in flight on it.
///
/// A request's memory lives in its slot, which only a completion empties. Dropping the ring waits for all of them, and leaks those that
/// a [lost](Self::drain) ring never gives back. A ring belongs to the thread that made it.
pub(crate) struct Ring<T: Passenger, W: Width = Narrow> {
    // Dropped by hand, since the slots may go only after the kernel is done with them.
    pub(super) ring: ManuallyDrop<IoUring<W::Submission, W::Completion>>,
    slots: Slots<T>,
    /// How many completions at the head of the kernel's queue were seen to be there.
    ready: usize,
    /// Completions were seen since [`Self::take_fresh`] was asked.
    fresh: bool,
    /// Which of the registered files are in use; empty where none was registered yet.
    files: Vec<bool>,
    pub(super) number: RingNumber,
    /// Keeps the callers' registered memory.
    pub(super) registered: Option<Buffer>,
    /// The free places of the table of registered memory, without those of the callers.
    pub(super) places: Places,
    /// Why the kernel refused the ring for good. From then on nothing enters it any more, so that what the kernel has not
    /// taken from the submission queue it never will.
    lost: Option<Errno>,
    /// Requests on lent memory that were queued and not handed over.
    lent: usize,
    /// Entries of the submission queue whose requests were given up: the kernel never takes them.
    dead: usize,
    /// How often [`drain`](Self::drain) was refused.
    refusals: u32,
    /// A kernel thread takes from the submission queue, independent of calls that enter the ring.
    sqpoll: bool,
    /// The kernel signals completions to it, from the first [`readiness`](Self::readiness) on.
    pub(super) event: Option<OwnedFd>,
    _thread: PhantomData<*const ()>,
}

impl<T: Passenger, W: Width> Ring<T, W> {
    /// A ring of at least `options.entries` slots.
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

    /// How many requests can be pushed before one must complete.
    pub(crate) fn room(&self) -> usize {
        self.slots.room()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Registers a file, so that a request need not take a reference to it. The caller keeps it open where there is no room, or the
    /// kernel refuses: then it is addressed by its descriptor.
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

    /// Takes a file's registration back. None of its requests may be queued any more.
    pub(crate) fn unregister_file(&mut self, file: RingFile) {
        if file.flags.contains(squeue::Flags::FIXED_FILE) {
            let _ = self.ring.submitter().register_files_update(file.number as u32, &[-1]);
            self.files[file.number as usize] = false;
        }
    }

    /// Queues a request. The memory comes back with the completion, or now where no slot is free or the ring is lost.
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
        // SAFETY: the entry points to memory, and to tuples, that the slot owns. The slot is emptied only after the completion, by `pop_by`, and is
        // neither moved nor dropped before (see `Slots`).
        if unsafe { self.push_entry(&entry) }.is_ok() {
            return Ok(());
        }
        // Nothing was queued: the slot is emptied again.
        self.slots.take_back(index).map_or(Ok(()), Err)
    }

    /// Takes a request that has completed elsewhere, to be popped like the others.
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

    /// Queues an entry. Where that fails it was not queued, and the ring is lost.
    ///
    /// # Safety
    /// What the entry points to stays valid, and the kernel's alone for a read, until the completion was seen.
    #[inline]
    unsafe fn push_entry(&mut self, entry: &W::Submission) -> Result<(), Errno> {
        // SAFETY: by the contract of this function.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // The submission queue is full: hand it over.
            self.enter(0)?;
        }
        Ok(())
    }

    /// Hands queued requests to the kernel and waits until `min` completions, at most all that are in flight, can be popped. Where that fails,
    /// those that the kernel had not taken can be, with that error.
    pub(crate) fn wait(&mut self, min: usize) -> Result<(), Errno> {
        loop {
            // The kernel knows nothing of those that were put aside, and would wait for as many others.
            self.enter(min.saturating_sub(self.slots.early()))?;
            // A signal, or a hand-over in parts, ends the system call early.
            if self.slots.early() + self.ring.completion().len() >= min {
                return Ok(());
            }
            // The kernel polls for no completion while one lies in the queue.
            (self.ready, self.fresh) = (0, true);
            for entry in self.ring.completion() {
                let (index, result) = seen::<T, W>(&self.slots, &entry.into());
                self.slots.see_early(index, result);
            }
        }
    }

    /// Hands queued requests to the kernel and waits until its completion queue holds `min`, or less long. An error is for good.
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
                    // The kernel lacks memory for the moment, or completions must be reaped first; the caller does.
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

    /// Completes the requests that the kernel had not taken when it refused the ring. Nothing enters it any more, so it never will, except for
    /// the thread that takes them by itself.
    #[cold]
    fn recall(&mut self, errno: Errno) {
        if self.sqpoll {
            return;
        }
        let untaken = self.ring.submission().len().saturating_sub(self.dead + self.lent);
        self.dead += self.slots.recall(untaken, -errno.0);
        self.fresh = true;
    }

    /// Waits for all requests in flight, and drops them. None is left, unless the kernel has refused the ring for good while it had some: their
    /// completions may never be seen, and their memory is never freed.
    pub(crate) fn drain(&mut self) {
        loop {
            while self.pop().is_some() {}
            if self.in_flight() == 0 || self.refusals == REFUSALS {
                return;
            }
            if self.enter(1).is_err() {
                self.refusals += 1;
                // An older kernel puts completions into the queue whenever the thread comes back from it.
                std::thread::yield_now();
            }
        }
    }

    /// The attachments of the requests in flight: after a [`drain`](Self::drain), of those that the kernel keeps for ever.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &T> {
        self.slots.attached()
    }

    /// The next completion: the attachment, the memory, and the system call's result (negative errno).
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(T, Memory, i32)> {
        self.pop_by(|request, result| request.take().map(|(memory, it)| (it, memory, result)))?
    }

    /// The same, taken in place by a caller that knows which part it needs: the rest is dropped in time.
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

    /// Whether completions that were popped since this was last asked may have come to pass since then.
    #[inline]
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Reads into lent memory, or writes from it, all at once, and waits for every one of them. The request's position is each transfer's own.
    pub(crate) fn transfer_now(&mut self, request: Request, transfers: &mut [Transfer<'_, '_>]) {
        let mut open = 0;
        for index in 0..transfers.len() {
            let Transfer { bufs, at, tuples, .. } = &mut transfers[index];
            let mut entry = Request { at: *at, ..request }.lent::<W>(bufs, tuples.as_deref_mut());
            entry.set_user_data(BORROWED | index as u64 | command::<W>(request.file));
            // SAFETY: the memory is borrowed by the caller, as are the tuples, for the whole of this function, which returns only when every
            // completion was seen or the entry can no more reach the kernel (see `withdraw`), and nothing in between can unwind.
            if unsafe { self.push_entry(&entry) }.is_err() {
                break;
            }
            (open, self.lent) = (open + 1, self.lent + 1);
            // Never more in flight than the completion queue surely holds.
            while open >= self.slots.len() {
                open -= self.collect_lent(transfers, open);
            }
        }
        while open > 0 {
            open -= self.collect_lent(transfers, open);
        }
        if let Some(errno) = self.lost {
            // Those that were withdrawn or never queued; requests that had completed before keep their results.
            let unseen =
                transfers.iter_mut().filter(|transfer| transfer.result == Transfer::UNSEEN);
            unseen.for_each(|transfer| transfer.result = -errno.0);
        }
    }

    /// Waits for completions of lent memory, puts others aside, and gives the number of the former. `open` are in flight.
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

    /// Gives `open` requests on lent memory up, of a ring that is lost.
    ///
    /// That is sound where the kernel has taken none of them from the submission queue, of which they are the last entries:
    /// nothing enters the ring any more. Where it has, it may write to the memory at any time, and nobody will say when it is
    /// done. To return would be undefined behaviour and to wait would be forever, so this ends the program. It takes a system
    /// call that worked when the requests were handed over and is refused while they are in flight.
    #[cold]
    fn withdraw(&mut self, open: usize) {
        if self.sqpoll || self.ring.submission().len() < self.dead + open {
            // Not `eprintln!`, which panics where standard error is full: nothing may unwind from here.
            let (mut err, lost) = (std::io::stderr(), self.lost);
            let what = "ironmap: io_uring is refused while it holds memory in use";
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
            // The kernel may still write to the slots' memory, which they do not free. Nor is the ring taken down, which the files that
            // are registered with it outlive then.
            return;
        }
        // The kernel takes a ring down after its descriptor is closed, at its leisure: until then the ring would hold the file,
        // and the next exclusive open of a device would fail.
        let _ = self.ring.submitter().unregister_files();
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

/// The mark of a command, in `user_data`.
#[inline]
fn command<W: Width>(file: RingFile) -> u64 {
    if W::COMMANDS && file.namespace.is_some() { COMMAND } else { 0 }
}

/// Whose completion an entry is, of those whose memory lies in a slot, and its result as a system call gives it.
#[inline]
fn seen<T, W: Width>(slots: &Slots<T>, entry: &cqueue::Entry) -> (u32, i32) {
    let index = entry.user_data() as u32;
    (index, result::<W>(entry, || slots.memory_len(index)))
}

/// The result of a request on memory of this length.
#[inline]
fn result<W: Width>(entry: &cqueue::Entry, len: impl FnOnce() -> usize) -> i32 {
    if W::COMMANDS && entry.user_data() & COMMAND != 0 {
        return nvme::outcome(entry.result(), len());
    }
    entry.result()
}

/// The newest set of flags that the kernel takes.
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
    use crate::sys::RingOp;

    const OPTIONS: RingOptions = RingOptions { entries: 2, iopoll: false, sqpoll_idle: None };

    impl Passenger for u32 {}

    /// Moves a ring to a thread that may not use it, from where the kernel refuses every call: a ring lost for good.
    struct Moved(Ring<u32>);

    // SAFETY: the thread that made the ring does nothing with it any more.
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
        let mut transfers: Vec<_> = slices.iter_mut().map(|bufs| Transfer::new(bufs, 0)).collect();
        ring.transfer_now(request(file), &mut transfers);
        transfers.iter().map(|transfer| transfer.result).collect()
    }

    #[test]
    fn requests_on_lent_memory_end_when_the_ring_is_lost() {
        lost(|mut ring, file| {
            for count in [1, 2, 5] {
                let results = read_now(&mut ring, file, count);
                // The kernel knows that the ring belongs to another thread, if it is recent enough.
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
            // The submission queue is full of what nobody takes.
            read_now(&mut ring, file, 5);
            let Err((memory, attached)) = ring.push(request(file), buffer(), 3) else {
                panic!("it was queued")
            };
            assert_eq!((memory.len(), attached, ring.in_flight()), (64, 3, 1));
            assert_eq!(ring.wait(1), Err(Errno::EEXIST));
            assert_eq!(popped(&mut ring), Some((2, 64, -Errno::EEXIST.0)));
            assert!(ring.pop().is_none());
            ring.drain();
            assert_eq!(ring.in_flight(), 0);
        });
    }

    /// No data are written into the pipe, so the kernel keeps the reads from it. Requests that it took before the ring's descriptor is gone stay
    /// in their slots, and requests that were queued since come back.
    #[test]
    fn requests_that_the_kernel_took_stay_with_a_ring_without_descriptor() {
        let (empty, _writer) = std::io::pipe().unwrap();
        let Ok(mut ring) = Ring::<u32>::new(OPTIONS) else { return };
        let request = request(RingFile::descriptor(empty.as_fd()));
        let buffer = || Memory::Flat(Buffer::aligned(64).unwrap());
        assert!(ring.push(request, buffer(), 1).is_ok());
        ring.wait(0).unwrap();
        assert!(ring.push(request, buffer(), 2).is_ok());
        // Something else has its number from now on.
        let file = File::open("/proc/self/exe").unwrap();
        // SAFETY: takes integers. The number is that of the ring, which is leaked: nobody closes it.
        assert!(unsafe { libc::dup2(file.as_raw_fd(), ring.ring.as_raw_fd()) } >= 0);
        ring.drain();
        assert_eq!(ring.attached().collect::<Vec<_>>(), [&1]);
        let Err(Errno::EOPNOTSUPP) = ring.wait(1) else {
            panic!("the kernel takes a file for a ring")
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
