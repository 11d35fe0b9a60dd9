//! Tables of handles.
//!
//! For C code, a handle is a pointer, but nothing is stored at its address. The pointer is a number that consists of the position of a slot
//! in a table, the generation of the slot, and the kind of the object. A call compares the number with the state of the slot. So a wrong
//! handle (closed, invented, or of another type) is detected, and no memory is accessed through it.
//!
//! The slots are in static memory. The kernel provides the memory of a slot at its first use. Slots are never freed, so a call can read the
//! state of any slot at any time. Slot 0 of a table is unused, so that the number 0 is not a handle.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use ironmap::{Errno, Error, ErrorKind};
use parking_lot::Mutex;

/// A handle as a number: the generation in the upper 32 bits, the index of the slot, and the kind in the lower 6 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) u64);

const KIND_BITS: u32 = 6;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;
const GENERATION: u32 = 32;

/// The kind of a slot that has no object.
const FREE: u64 = 0;
/// The kind of a slot whose object is in an unknown state, because a call on it panicked.
const POISONED: u64 = 1;
/// The kind of a slot whose object belongs to the parent process.
const FORKED: u64 = 2;

/// The reason why a call on a handle is refused. A refusal needs no memory and no lock, so a call in a signal handler can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No object has this handle.
    Closed,
    /// The object belongs to the parent process.
    Forked,
    /// The object was in use when a call panicked.
    Poisoned,
    /// The object belongs to another thread.
    OtherThread,
    /// The object is in a call.
    InCall,
}

impl Refusal {
    pub(crate) fn errno(self) -> c_int {
        match self {
            Self::Closed | Self::Forked => libc::EBADF,
            Self::Poisoned => libc::ENOTRECOVERABLE,
            Self::OtherThread => libc::EPERM,
            Self::InCall => libc::EBUSY,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let what = match refusal {
            Refusal::Closed => "the handle is closed, or has another type",
            Refusal::Forked => {
                "the handle belongs to the parent of this process: open it again after fork"
            }
            Refusal::Poisoned => {
                "an earlier call on this handle panicked, so its state is unknown: close it"
            }
            Refusal::OtherThread => "the queue belongs to another thread",
            Refusal::InCall => {
                "this thread is inside another call of the library: a signal handler or a fork interrupted that call"
            }
        };
        match refusal {
            Refusal::InCall => Self::new(ErrorKind::Busy, what),
            _ => Self::io(Errno(refusal.errno()), what),
        }
    }
}

/// Returns the error for a table without a free slot.
fn no_slot() -> Error {
    Error::io(Errno(libc::EMFILE), "too many handles are open")
}

impl Handle {
    /// Returns the handle that C code passes. A number of another kind becomes NULL, which is not a handle.
    pub(crate) fn of<T: Kind>(pointer: *const T) -> Self {
        let handle = Self::unchecked(pointer);
        if handle.0 & KIND_MASK == T::KIND { handle } else { Self(0) }
    }

    /// Returns the number that C code passes. The number may belong to an object of another kind.
    #[inline(always)]
    pub(crate) fn unchecked<T>(pointer: *const T) -> Self {
        Self(pointer.addr() as u64)
    }

    /// Returns the number as a pointer for C code.
    pub(crate) fn pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    fn index(self) -> usize {
        (self.0 as u32 >> KIND_BITS) as usize
    }

    /// Returns the state of this handle's slot while its object cannot be used. This state contains the index of another slot, so it
    /// differs from all handles of this slot. Therefore, a single comparison shows whether the slot has a given handle.
    fn unusable(self, kind: u64) -> u64 {
        (self.0 ^ 1 << KIND_BITS) & !KIND_MASK | kind
    }

    /// Whether the kind in the number is that of an object, so that the number can be an open handle.
    fn can_be_open(self) -> bool {
        self.0 & KIND_MASK > FORKED
    }
}

/// A type that C code knows. The handles of each type have a different kind.
pub(crate) trait Kind {
    /// The kind of the type's handles.
    const KIND: u64;
}

/// The content of a slot, apart from its state.
pub(crate) trait Content {
    /// The content of a slot that has not been used. All bytes are zero.
    const EMPTY: Self;
}

/// A slot. It fills a cache line, so that threads with different handles use different cache lines.
#[repr(C, align(64))]
pub(crate) struct Slot<C> {
    /// The handle of the object, or its [unusable](Handle::unusable) state with the kind `FREE`, `POISONED` or `FORKED`. 0 if the slot has
    /// never been used.
    state: AtomicU64,
    pub(crate) content: C,
}

impl<C: Content> Slot<C> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a new slot")]
    const EMPTY: Self = Self { state: AtomicU64::new(0), content: C::EMPTY };
}

impl<C> Slot<C> {
    /// Whether the object of the slot has this handle.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        self.equals(handle) && handle.can_be_open()
    }

    /// Whether the object of the slot has this handle. The result is wrong for NULL, because NULL equals the state of slot 0, which has no
    /// object.
    #[inline(always)]
    pub(crate) fn equals(&self, handle: Handle) -> bool {
        self.state.load(Ordering::Acquire) == handle.0
    }

    /// Returns the handle of the object in this slot. The caller is in a call on the object, so the handle does not change.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.state.load(Ordering::Relaxed))
    }

    /// Marks the object as unusable after a panic. The object is leaked.
    pub(crate) fn poison(&self, handle: Handle) {
        if handle.can_be_open() {
            let poisoned = handle.unusable(POISONED);
            let _ = self.state.compare_exchange(
                handle.0,
                poisoned,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Returns the reason why a call with this handle is refused, if the slot does not have the handle.
    #[cold]
    pub(crate) fn refuse(&self, handle: Handle) -> Refusal {
        let state = self.state.load(Ordering::Acquire);
        if !handle.can_be_open() {
            Refusal::Closed
        } else if state == handle.unusable(POISONED) {
            Refusal::Poisoned
        } else if state == handle.unusable(FORKED) {
            Refusal::Forked
        } else {
            Refusal::Closed
        }
    }
}

/// All handles of one kind: at most `N - 1` at a time, where `N` is a power of two. All bytes of an empty table are zero, so the library's
/// file does not contain the table. This is why the kind is a parameter of the type instead of a field.
pub(crate) struct Table<C: 'static, const N: usize, const KIND: u64> {
    slots: [Slot<C>; N],
    /// The mutex that a fork locks. It is a mutex of std, because a mutex of parking_lot could pass its lock to a waiting thread. Such a
    /// thread does not exist in the child, so the lock would never be released.
    unused: std::sync::Mutex<Unused>,
}

/// The slots without objects.
struct Unused {
    /// Slots whose objects were closed. The slot that was closed first is reused first, so that each slot stays unused as long as possible.
    #[allow(clippy::box_collection, reason = "all bytes of an empty table are zero")]
    closed: Option<Box<VecDeque<u32>>>,
    /// The number of slots that have been used at least once. These slots follow slot 0 in the table.
    used: u32,
}

impl<C: Content, const N: usize, const KIND: u64> Table<C, N, KIND> {
    /// A table for handles of this kind. Each table must have a different kind.
    pub(crate) const fn new() -> Self {
        assert!(N.is_power_of_two() && N > 1 && N <= 1 << 26);
        assert!(size_of::<Slot<C>>() == 64);
        assert!(KIND > FORKED && KIND <= KIND_MASK);
        let unused = Unused { closed: None, used: 0 };
        Self { slots: [const { Slot::EMPTY }; N], unused: std::sync::Mutex::new(unused) }
    }
}

impl<C, const N: usize, const KIND: u64> Table<C, N, KIND> {
    fn lock_unused(&self) -> MutexGuard<'_, Unused> {
        // After a panic, the list is still valid: at worst, it lacks a slot.
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot at the position that a handle contains. The object in the slot may have another handle.
    #[inline(always)]
    pub(crate) fn slot(&self, handle: Handle) -> &Slot<C> {
        &self.slots[handle.index() & (N - 1)]
    }

    /// Takes a slot for a new handle before the object is opened, so that a call that finds no slot changes nothing.
    ///
    /// # Errors
    /// `Io` with EMFILE if all slots are in use.
    pub(crate) fn reserve(&'static self) -> Result<Reserved<C, N, KIND>, Error> {
        let mut unused = self.lock_unused();
        // A slot is reused only after many others, so an old handle stays invalid for a long time.
        let closed = unused.closed.as_ref().map_or(0, |closed| closed.len());
        let rested = closed > 1024 || unused.used as usize == N - 1;
        let oldest = if rested {
            unused.closed.as_mut().and_then(|closed| closed.pop_front())
        } else {
            None
        };
        let index = match oldest {
            Some(index) => index,
            None if (unused.used as usize) < N - 1 => {
                unused.used += 1;
                unused.used
            }
            None => return Err(no_slot()),
        };
        Ok(Reserved { table: self, index })
    }

    /// Opens a handle. `fill` puts the object into the slot, which no other thread uses meanwhile.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub(crate) fn open(&'static self, fill: impl FnOnce(&C)) -> Result<Handle, Error> {
        Ok(self.reserve()?.open(fill))
    }

    /// Ends the handle. This succeeds for only one caller. This caller takes the object out of the slot, and then [frees](Self::free) the
    /// slot.
    ///
    /// # Errors
    /// Fails if the slot does not have this handle. Also fails for a poisoned handle, which is then closed, and whose object is leaked.
    pub(crate) fn end(&self, handle: Handle) -> Result<&C, Refusal> {
        let slot = self.slot(handle);
        if !handle.can_be_open() {
            return Err(slot.refuse(handle));
        }
        let ended = handle.unusable(FREE);
        let swap = |from: u64| {
            slot.state.compare_exchange(from, ended, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if swap(handle.0) {
            return Ok(&slot.content);
        }
        let refusal = slot.refuse(handle);
        swap(handle.unusable(POISONED));
        Err(refusal)
    }

    /// The contents of the slots that have been used at least once.
    pub(crate) fn used(&self) -> impl Iterator<Item = &C> {
        let used = self.lock_unused().used as usize;
        self.slots[1..=used].iter().map(|slot| &slot.content)
    }

    /// Makes the slot of an ended handle available, after its object was taken out.
    pub(crate) fn free(&self, handle: Handle) {
        let index = handle.index() as u32;
        self.lock_unused().closed.get_or_insert_default().push_back(index);
    }
}

/// A slot that was taken for a new handle. Dropping this value frees the slot again.
pub(crate) struct Reserved<C: 'static, const N: usize, const KIND: u64> {
    table: &'static Table<C, N, KIND>,
    index: u32,
}

impl<C, const N: usize, const KIND: u64> Reserved<C, N, KIND> {
    fn slot(&self) -> &'static Slot<C> {
        &self.table.slots[self.index as usize]
    }

    /// The handle that [`open`](Self::open) will open.
    pub(crate) fn handle(&self) -> Handle {
        let generation = (self.slot().state.load(Ordering::Relaxed) >> GENERATION) as u32;
        let generation = generation.wrapping_add(1).max(1);
        let position = u64::from(self.index) << KIND_BITS;
        Handle(u64::from(generation) << GENERATION | position | KIND)
    }

    /// Opens a handle. `fill` puts the object into the slot, which no other thread uses meanwhile.
    pub(crate) fn open(self, fill: impl FnOnce(&C)) -> Handle {
        let (slot, handle) = (self.slot(), self.handle());
        fill(&slot.content);
        slot.state.store(handle.0, Ordering::Release);
        std::mem::forget(self);
        handle
    }
}

impl<T, const N: usize, const KIND: u64> Reserved<Shared<T>, N, KIND> {
    /// Opens a handle of an object.
    pub(crate) fn add(self, object: T) -> Handle {
        self.open(|shared| *shared.0.lock() = Some(Arc::new(object)))
    }
}

impl<C: 'static, const N: usize, const KIND: u64> Drop for Reserved<C, N, KIND> {
    fn drop(&mut self) {
        self.table.lock_unused().closed.get_or_insert_default().push_back(self.index);
    }
}

/// A table of handles of some kind.
pub(crate) trait AnyTable: Sync {
    /// Whether the handle is open. A poisoned handle is open until it is closed.
    fn is_open(&self, handle: Handle) -> bool;
    /// Marks the object of a handle, if it is open, as unusable after a panic.
    fn poison(&self, handle: Handle);
    /// Waits until no thread opens or frees a handle, and locks the table for a fork.
    fn lock(&'static self) -> Box<dyn LockedTable>;
}

/// A table that is locked for a fork.
pub(crate) trait LockedTable {
    /// Marks all handles as handles of the parent process, so that calls on them are refused. Their objects are leaked, because they share
    /// files and rings with the parent.
    fn disown(&self);
}

struct Locked<C: 'static, const N: usize, const KIND: u64> {
    table: &'static Table<C, N, KIND>,
    unused: MutexGuard<'static, Unused>,
}

impl<C: Sync, const N: usize, const KIND: u64> AnyTable for Table<C, N, KIND> {
    fn is_open(&self, handle: Handle) -> bool {
        let slot = self.slot(handle);
        slot.has(handle) || handle.0 & KIND_MASK == KIND && slot.refuse(handle) == Refusal::Poisoned
    }

    fn poison(&self, handle: Handle) {
        self.slot(handle).poison(handle);
    }

    fn lock(&'static self) -> Box<dyn LockedTable> {
        Box::new(Locked { table: self, unused: self.lock_unused() })
    }
}

impl<C, const N: usize, const KIND: u64> LockedTable for Locked<C, N, KIND> {
    fn disown(&self) {
        for slot in &self.table.slots[1..=self.unused.used as usize] {
            let handle = slot.handle();
            if handle.0 & KIND_MASK == KIND {
                slot.state.store(handle.unusable(FORKED), Ordering::Relaxed);
            }
        }
    }
}

/// The content of a slot whose object all threads may use.
pub(crate) struct Shared<T>(Mutex<Option<Arc<T>>>);

impl<T> Content for Shared<T> {
    const EMPTY: Self = Self(Mutex::new(None));
}

impl<T: Send + Sync, const N: usize, const KIND: u64> Table<Shared<T>, N, KIND> {
    /// Opens a handle of an object.
    pub(crate) fn add(&'static self, object: T) -> Result<Handle, Error> {
        Ok(self.reserve()?.add(object))
    }

    /// Returns the object. It stays alive during the call, even if another thread closes the handle.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let slot = self.slot(handle);
        // The state is compared before the lock is acquired. In a forked child, the lock of a slot with a handle of the parent may be
        // locked forever.
        if slot.has(handle) {
            let object = slot.content.0.lock();
            if let (true, Some(object)) = (slot.has(handle), &*object) {
                return Ok(Arc::clone(object));
            }
        }
        Err(slot.refuse(handle).into())
    }

    /// Closes the handle, and returns its object.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Error> {
        let object = self.end(handle)?.0.lock().take();
        self.free(handle);
        object.ok_or_else(|| self.slot(handle).refuse(handle).into())
    }

    /// Closes the handle and returns its object, unless other code uses the object.
    ///
    /// # Errors
    /// `Busy` if the object is in use. The handle then stays open.
    pub(crate) fn remove_unused(&self, handle: Handle, users: &'static str) -> Result<T, Error> {
        let slot = self.slot(handle);
        if !slot.has(handle) {
            // If the handle is poisoned, this call ends it.
            return Err(self.end(handle).err().unwrap_or_else(|| slot.refuse(handle)).into());
        }
        let mut shared = slot.content.0.lock();
        let Some(object) = shared.take() else { return Err(slot.refuse(handle).into()) };
        match Arc::try_unwrap(object) {
            Ok(object) => {
                let ended = self.end(handle);
                drop(shared);
                ended?;
                self.free(handle);
                Ok(object)
            }
            Err(object) => {
                *shared = Some(object);
                Err(Error::new(ErrorKind::Busy, users))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table<Shared<String>, 2048, 40> = Table::new();

    /// A closed handle is refused, even if its slot has a new object. NULL, a number that was never a handle, and a handle of another kind
    /// are refused too.
    #[test]
    fn only_open_handles_have_objects() {
        let first = TABLE.add("first".into()).unwrap();
        assert_eq!(*TABLE.get(first).unwrap(), "first");
        assert_eq!(*TABLE.remove(first).unwrap(), "first");
        assert_eq!(TABLE.remove(first).unwrap_err().errno(), Errno::EBADF);
        for round in 0..10_000 {
            let handle = TABLE.add(round.to_string()).unwrap();
            assert!(TABLE.get(first).is_err());
            TABLE.remove(handle).unwrap();
        }
        for number in [0, 1, u64::MAX, first.0 ^ 1, first.0 ^ 1 << 40] {
            assert!(TABLE.get(Handle(number)).is_err());
        }
    }

    /// A slot without a usable object has a state that equals no handle. A call with this number fails, and a close with it does not free
    /// the slot a second time. The test uses NULL, and the states of slots with a closed, a poisoned and a forked handle.
    #[test]
    fn the_state_of_an_empty_slot_is_no_handle() {
        static TABLE: Table<Shared<u32>, 4, 43> = Table::new();
        assert!(TABLE.remove(Handle(0)).is_err());
        let closed = TABLE.add(0).unwrap();
        TABLE.remove(closed).unwrap();
        let states = [FREE, POISONED, FORKED].map(|kind| Handle(closed.unusable(kind)));
        for number in [Handle(0), Handle(1), Handle(2)].into_iter().chain(states) {
            assert!(!TABLE.slot(number).has(number));
            assert!(!TABLE.is_open(number));
            assert!(TABLE.get(number).is_err());
            assert!(TABLE.remove(number).is_err());
            assert!(TABLE.remove_unused(number, "in use").is_err());
        }
        let handles = [TABLE.add(1).unwrap(), TABLE.add(2).unwrap(), TABLE.add(3).unwrap()];
        assert_eq!(handles.map(|handle| *TABLE.get(handle).unwrap()), [1, 2, 3]);
        assert_eq!(TABLE.add(4).unwrap_err().errno(), Errno(libc::EMFILE));
    }

    /// If the object of a handle is in use, closing the handle fails, and the handle stays open.
    #[test]
    fn a_used_object_is_busy() {
        static TABLE: Table<Shared<String>, 2, 41> = Table::new();
        let handle = TABLE.add("object".into()).unwrap();
        let user = TABLE.get(handle).unwrap();
        let refused = TABLE.remove_unused(handle, "in use").unwrap_err();
        assert_eq!(refused.errno(), Errno::EBUSY);
        drop(user);
        assert_eq!(TABLE.remove_unused(handle, "in use").unwrap(), "object");
        assert!(TABLE.get(handle).is_err());
    }

    /// If a table is full, no handle can be opened. After a handle is closed, another one can be opened.
    #[test]
    fn a_full_table_refuses() {
        static TABLE: Table<Shared<u32>, 4, 42> = Table::new();
        let handles = [0, 1, 2].map(|number| TABLE.add(number).unwrap());
        assert_eq!(TABLE.add(2).unwrap_err().errno(), Errno(libc::EMFILE));
        TABLE.remove(handles[0]).unwrap();
        assert_eq!(*TABLE.get(TABLE.add(3).unwrap()).unwrap(), 3);
    }
}
