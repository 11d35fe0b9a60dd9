//! Queues, and the files that were opened on them. Only the thread that made a queue may use it and its files.
//!
//! A slot of a queue contains the number of the thread that may use the queue, or 0 during a call. So a call in another thread is refused.
//! A call in a signal handler that interrupts a call of the same thread is refused too. The check costs no atomic operation.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashSet;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

use ironmap::dio::DioFlags;
use ironmap::{Buffer, Errno, Error, ErrorKind, File, FileOptions, Files, Host, Queue, Readiness};

use crate::failure::{Count, catch, forget, keep, panicked, prepare_thread, refused, returned};
use crate::handle::{Content, Handle, Kind, Refusal, Reserved, Slot, Table};
use crate::tables::{ironmap_file, ironmap_queue};
use crate::volume::OpenVolume;

/// The volume or host of a queue.
pub(crate) enum Store {
    Volume(Arc<OpenVolume>),
    Host(Arc<Host>),
}

impl Store {
    pub(crate) fn open(&self, path: &std::path::Path, options: FileOptions) -> Result<File, Error> {
        match self {
            Self::Volume(volume) => Files::open_with(&volume.volume, path, options),
            Self::Host(host) => Files::open_with(&**host, path, options),
        }
    }
}

/// A queue, and everything that lives as long as the queue.
pub(crate) struct LocalQueue {
    pub(crate) queue: Queue,
    pub(crate) store: Store,
    pub(crate) readiness: Option<Readiness>,
    /// The memory that is registered with the queue.
    pub(crate) registered: Option<Buffer>,
    /// An empty buffer. The buffers for the caller's memory are made from it, which saves an allocation for each request.
    pub(crate) lent: Buffer,
    /// The open files, which are closed together with the queue.
    files: HashSet<Handle>,
}

impl LocalQueue {
    pub(crate) fn new(queue: Queue, store: Store) -> Self {
        Self {
            queue,
            store,
            readiness: None,
            registered: None,
            lent: Buffer::from(Vec::new()),
            files: HashSet::new(),
        }
    }
}

/// A file of a queue.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// The flags of all writes: those of `O_DSYNC` and `O_SYNC`.
    pub(crate) durable: DioFlags,
    /// Whether the file was opened for writing.
    pub(crate) writes: bool,
    pub(crate) path: Box<[u8]>,
}

/// The slot of a queue.
pub(crate) struct QueueSlot {
    /// The number of the thread that may use the queue. 0 during a call, and if there is no queue.
    owner: AtomicUsize,
    /// The number of the thread that has made the queue.
    thread: AtomicUsize,
    queue: UnsafeCell<Option<Box<LocalQueue>>>,
}

// SAFETY: the queue is only accessed by the thread that `owner` names, and by one call of this thread at a time. A queue that is dropped
// in its own thread never moves to another one.
unsafe impl Sync for QueueSlot {}

impl Content for QueueSlot {
    const EMPTY: Self = Self {
        owner: AtomicUsize::new(0),
        thread: AtomicUsize::new(0),
        queue: UnsafeCell::new(None),
    };
}

/// The slot of a file.
pub(crate) struct FileSlot {
    /// The slot of the file's queue, or null if the slot has not been used.
    queue: AtomicPtr<Slot<QueueSlot>>,
    file: UnsafeCell<Option<Box<OpenFile>>>,
}

// SAFETY: the file is only accessed during a call of the thread that owns the file's queue.
unsafe impl Sync for FileSlot {}

impl Content for FileSlot {
    const EMPTY: Self =
        Self { queue: AtomicPtr::new(ptr::null_mut()), file: UnsafeCell::new(None) };
}

pub(crate) static QUEUES: Table<QueueSlot, { 1 << 14 }, { ironmap_queue::KIND }> = Table::new();
pub(crate) static FILES: Table<FileSlot, FILES_AT_MOST, { ironmap_file::KIND }> = Table::new();
const FILES_AT_MOST: usize = 1 << 18;

/// A number that no two running threads share, and that is not 0.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: the ABI of x86-64 for thread-local storage has the thread pointer at this address, and the instruction only reads it.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
        }
        pointer
    }
    #[cfg(target_arch = "aarch64")]
    {
        let pointer: usize;
        // SAFETY: the instruction reads the thread pointer from a register that every program may read.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
        }
        pointer
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static MARK: u8 = const { 0 });
        MARK.with(|mark| ptr::from_ref(mark).addr())
    }
}

/// The value of `thread` for a queue whose thread has ended.
const ENDED: usize = usize::MAX;
/// The number of rounds in which glibc and musl call the destructors of a thread that ends.
const ROUNDS: usize = 4;

/// The key of a thread-local value. Each thread that has made a queue sets this value, so that `thread_ends` is called when the thread
/// ends.
static END: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

thread_local! {
    /// Whether the destructors of the thread already run, so that the thread ends soon.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Asks the C library to call [`thread_ends`] in the given round of destructors when the thread ends.
fn at_end_of_thread(round: usize) -> bool {
    let key = *END.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key can be written to. The library stays loaded, as it is linked with `-z nodelete`.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0).then_some(key)
    });
    let value = ptr::without_provenance(round);
    // SAFETY: the key exists, and its value is a number.
    key.is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) } == 0)
}

/// Called when a thread ends. A later thread may have the same number. Therefore this function revokes the thread's permission for all
/// queues that the thread has not freed. It does so in the last round of destructors, because destructors of the program may free queues in
/// earlier rounds.
extern "C" fn thread_ends(round: *mut c_void) {
    let round = round.addr();
    ENDS.set(true);
    if round < ROUNDS && at_end_of_thread(round + 1) {
        return;
    }
    let thread = this_thread();
    for slot in QUEUES.used() {
        if slot.thread.load(Ordering::Relaxed) == thread {
            slot.owner.store(0, Ordering::Relaxed);
            slot.thread.store(ENDED, Ordering::Relaxed);
        }
    }
}

/// The permission of one call to use a queue and its files.
pub(crate) struct Entered<'a> {
    slot: &'a QueueSlot,
}

impl QueueSlot {
    /// The permission to use the queue; `None` in another thread, and during another call.
    #[inline(always)]
    fn enter(&self) -> Option<Entered<'_>> {
        if self.owner.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        // While this thread is the owner, no other thread changes `owner`. So a plain store suffices. The fence orders the store for signal
        // handlers.
        self.owner.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(Entered { slot: self })
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // The number of the thread is read again, so that no register must keep it during the call.
        self.slot.owner.store(this_thread(), Ordering::Relaxed);
    }
}

impl Entered<'_> {
    /// Returns the queue that this call may use.
    #[inline(always)]
    fn queue(&mut self) -> Option<&mut LocalQueue> {
        // SAFETY: `self` is the only permission, and it is borrowed exclusively.
        unsafe { &mut *self.slot.queue.get() }.as_deref_mut()
    }
}

/// The reason why a call without permission is refused.
#[cold]
fn no_permission(slot: &Slot<QueueSlot>) -> Refusal {
    if slot.is_poisoned() {
        Refusal::Poisoned
    } else if slot.content.thread.load(Ordering::Relaxed) == this_thread() {
        Refusal::InCall
    } else {
        Refusal::OtherThread
    }
}

/// Opens a handle of a queue for the calling thread.
pub(crate) fn add_queue(queue: LocalQueue) -> Result<Handle, Error> {
    let queue = Box::new(queue);
    prepare_thread();
    if ENDS.get() {
        return Err(Error::new(
            ErrorKind::Busy,
            "a thread that is ending cannot create another queue",
        ));
    }
    if !at_end_of_thread(1) {
        return Err(Error::io(Errno::ENOMEM, "cannot watch for the end of the thread"));
    }
    QUEUES.open(|_, slot| {
        // SAFETY: the slot is free, so no thread owns it, and no call uses it.
        unsafe { *slot.queue.get() = Some(queue) };
        slot.thread.store(this_thread(), Ordering::Relaxed);
        slot.owner.store(this_thread(), Ordering::Relaxed);
    })
}

/// Closes the handles of a queue and of its files, and waits for the requests of the queue.
pub(crate) fn free_queue(queue: *const ironmap_queue) -> isize {
    let handle = Handle::of(queue);
    let slot = QUEUES.slot(handle);
    let ended = match slot.content.enter() {
        Some(entered) => QUEUES.end(handle).map(|_| entered),
        None if slot.has(handle) => Err(no_permission(slot)),
        None => Err(QUEUES.end(handle).err().unwrap_or_else(|| slot.refuse(handle))),
    };
    let mut entered = match ended {
        Ok(entered) => entered,
        Err(refusal) => return refused(refusal),
    };
    let files = entered.queue().map(|queue| std::mem::take(&mut queue.files));
    // SAFETY: the permission of this call is the only one, and this call has ended the handle.
    let queue = unsafe { &mut *slot.content.queue.get() }.take();
    // The drop of `entered` would set the owner again, but the slot must not have an owner.
    std::mem::forget(entered);
    let freed = catch(|| {
        files.into_iter().flatten().for_each(|file| drop(end_file(file)));
        // The drop leaks requests that the kernel does not complete. The memory of these requests belongs to the caller. So the caller gets
        // the error of the wait.
        queue.map_or(Ok(()), |mut queue| queue.queue.wait(usize::MAX))
    });
    QUEUES.free(handle);
    forget(handle);
    returned(None, freed.and_then(|result| result))
}

/// Closes the handle of a file, during a call of the thread that owns the file's queue.
fn end_file(handle: Handle) -> Result<(), Error> {
    let slot = FILES.end(handle)?;
    // SAFETY: only one caller ends the handle, in the thread of the queue and during its only call.
    let file = unsafe { &mut *slot.file.get() }.take();
    FILES.free(handle);
    forget(handle);
    drop(file);
    Ok(())
}

/// A slot for the handle of a file.
pub(crate) type ReservedFile = Reserved<FileSlot, FILES_AT_MOST, { ironmap_file::KIND }>;

/// Opens a handle of a file on the queue of a call.
pub(crate) fn add_file(
    reserved: ReservedFile,
    queue_handle: Handle,
    queue: &mut LocalQueue,
    file: OpenFile,
) -> Handle {
    let file = Box::new(file);
    let handle = reserved.open(|_, slot| {
        // SAFETY: the slot is free, so no call uses it.
        unsafe { *slot.file.get() = Some(file) };
        let of_queue = ptr::from_ref(QUEUES.slot(queue_handle)).cast_mut();
        slot.queue.store(of_queue, Ordering::Release);
    });
    queue.files.insert(handle);
    handle
}

/// Closes a file.
pub(crate) fn close_file(file: *const ironmap_file) -> isize {
    let handle = Handle::of(file);
    let slot = FILES.slot(handle);
    let queue_slot = queue_of(slot);
    match queue_slot.and_then(|queue| queue.content.enter()) {
        Some(mut entered) if slot.has(handle) => {
            if let Some(queue) = entered.queue() {
                queue.files.remove(&handle);
            }
            returned(None, catch(|| end_file(handle)).and_then(|result| result))
        }
        None if slot.has(handle) => refuse_file(handle),
        // A poisoned handle is closed, and its file is leaked.
        _ => FILES.end(handle).map_or_else(refused, |_| 0),
    }
}

#[inline(always)]
fn queue_of(slot: &Slot<FileSlot>) -> Option<&'static Slot<QueueSlot>> {
    // SAFETY: the pointer is null or points to a slot of `QUEUES`, which is static.
    unsafe { slot.content.queue.load(Ordering::Acquire).as_ref() }
}

/// Runs a call from C. After a panic, the objects of the call are in an unknown state, and `lose` makes them unusable.
///
/// The closure `call` also contains the checks of the handle. So few values must survive the call of the closure, and the calling function
/// saves only a few registers.
#[inline(always)]
fn guarded(call: impl FnOnce() -> isize, lose: impl FnOnce()) -> isize {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        lose();
        returned::<()>(None, Err(panicked(&*panic)))
    })
}

/// Runs a call on a file and its queue.
#[inline(always)]
pub(crate) fn with_file<T: Count>(
    file: *const ironmap_file,
    work: impl FnOnce(&OpenFile, &mut LocalQueue) -> Result<T, Error>,
) -> isize {
    let handle = Handle::unchecked(file);
    let slot = FILES.slot(handle);
    let call = move || {
        let Some(mut entered) = queue_of(slot).and_then(|queue| queue.content.enter()) else {
            return refuse_file(handle);
        };
        // This call has the permission for the queue, so from here on no other call can close the file.
        if !slot.equals(handle) {
            return refuse_closed(slot, handle);
        }
        // SAFETY: this call is the only one on the queue of the file, so nothing changes the slot.
        let open = unsafe { &*slot.content.file.get() }.as_deref();
        // SAFETY: the slot has this handle, so the file is open.
        let open = unsafe { open.unwrap_unchecked() };
        // SAFETY: the queue of an open file has not been freed.
        let result = work(open, unsafe { entered.queue().unwrap_unchecked() });
        // The reason of a failure is stored before `entered` is dropped. Until then, a call in a signal handler is refused, so it cannot
        // store a reason at the same time.
        result.map_or_else(|error| failed(slot, error), T::count)
    };
    guarded(call, move || lose_file(slot))
}

/// Runs a call on a queue.
#[inline(always)]
pub(crate) fn with_queue<T: Count>(
    queue: *const ironmap_queue,
    work: impl FnOnce(&mut LocalQueue) -> Result<T, Error>,
) -> isize {
    let handle = Handle::unchecked(queue);
    let slot = QUEUES.slot(handle);
    let call = move || {
        let Some(mut entered) = slot.content.enter() else {
            return refuse_queue(handle);
        };
        if !slot.equals(handle) {
            return refuse_closed(slot, handle);
        }
        // SAFETY: the slot has this handle, so it has a queue.
        let result = work(unsafe { entered.queue().unwrap_unchecked() });
        // As in `with_file`, the reason of a failure is stored before `entered` is dropped.
        result.map_or_else(|error| failed(slot, error), T::count)
    };
    guarded(call, move || lose_queue(slot))
}

// Each request runs `with_file` or `with_queue`. The functions below are not inlined, so that these two need to save only a few registers.

#[cold]
#[inline(never)]
fn refuse_file(handle: Handle) -> isize {
    let slot = FILES.slot(handle);
    refused(match queue_of(slot) {
        Some(queue) if slot.has(handle) => no_permission(queue),
        _ => slot.refuse(handle),
    })
}

#[cold]
#[inline(never)]
fn refuse_queue(handle: Handle) -> isize {
    let slot = QUEUES.slot(handle);
    refused(if slot.has(handle) { no_permission(slot) } else { slot.refuse(handle) })
}

#[cold]
#[inline(never)]
fn refuse_closed<C>(slot: &Slot<C>, handle: Handle) -> isize {
    refused(slot.refuse(handle))
}

/// Stores the reason of a failure, during the call on the object of this slot.
#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value, reason = "the hot path does not drop the error")]
fn failed<C>(slot: &Slot<C>, error: Error) -> isize {
    keep(Some(slot.handle()), &error) as isize
}

/// Makes a file and its queue unusable after a panic, because their states are unknown.
#[cold]
#[inline(never)]
fn lose_file(slot: &Slot<FileSlot>) {
    slot.poison(slot.handle());
    if let Some(queue) = queue_of(slot) {
        lose_queue(queue);
    }
}

/// Makes a queue unusable: the queue has no owner after this call, and is leaked.
#[cold]
#[inline(never)]
fn lose_queue(slot: &Slot<QueueSlot>) {
    slot.poison(slot.handle());
    slot.content.owner.store(0, Ordering::Relaxed);
}

/// Returns the open file with this handle, for use during a call on its queue.
///
/// # Errors
/// Fails if the handle is not that of an open file, or if the file was opened on another queue.
///
/// # Safety
/// The calling thread is in a call on this queue. The reference is not used after the call, and no file of the queue is closed meanwhile.
#[inline(always)]
pub(crate) unsafe fn open_file<'a>(
    file: *const ironmap_file,
    queue: *const ironmap_queue,
) -> Result<&'a OpenFile, Error> {
    let handle = Handle::unchecked(file);
    let slot = FILES.slot(handle);
    let of_queue = ptr::from_ref(QUEUES.slot(Handle::unchecked(queue)));
    if slot.content.queue.load(Ordering::Acquire).cast_const() != of_queue || !slot.equals(handle) {
        return Err(other_queue(handle));
    }
    // SAFETY: the file is open, and only this thread closes it.
    let open = unsafe { &*slot.content.file.get() }.as_deref();
    open.ok_or_else(|| slot.refuse(handle).into())
}

#[cold]
fn other_queue(handle: Handle) -> Error {
    let slot = FILES.slot(handle);
    match slot.has(handle) {
        true => Error::invalid("the file was opened on another queue"),
        false => slot.refuse(handle).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};

    use ironmap::device::{QueueOptions, Ram};
    use ironmap::fs::ext4::MkfsOptions;
    use ironmap::{Errno, Volume, VolumeOptions};

    use super::*;
    use crate::failure::call;
    use crate::file::{ironmap_close, ironmap_pread};
    use crate::queue::ironmap_queue_free;
    use crate::tables::{VOLUMES, ironmap_volume};
    use crate::volume::{ironmap_volume_close, ironmap_volume_sync};

    const LOST: isize = -(libc::ENOTRECOVERABLE as isize);

    fn open() -> (Handle, *mut ironmap_queue, *mut ironmap_file) {
        let ram = Arc::new(Ram::new(8 << 20));
        ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
        let volume: Volume = VolumeOptions::new().write(true).open_on(ram).unwrap();
        volume.write("/file", "content").unwrap();
        let handle = VOLUMES.add(OpenVolume { volume }).unwrap();
        let open = VOLUMES.get(handle).unwrap();
        let queue = open.volume.queue(&QueueOptions::new()).unwrap();
        let file = open.volume.open("/file").unwrap();
        let queue = add_queue(LocalQueue::new(queue, Store::Volume(open))).unwrap();
        let (durable, path) = (DioFlags::empty(), Box::default());
        let file = OpenFile { file, durable, writes: false, path };
        let mut added = None;
        with_queue(queue.pointer(), |local| {
            added = Some(add_file(FILES.reserve()?, queue, local, file));
            Ok(())
        });
        (handle, queue.pointer(), added.unwrap().pointer())
    }

    fn read(file: *mut ironmap_file) -> isize {
        let mut memory = [0_u8; 16];
        // SAFETY: the memory has this length.
        unsafe { ironmap_pread(file, memory.as_mut_ptr().cast::<c_void>(), memory.len(), 0) }
    }

    /// A call that panics returns an error. The file and its queue can then only be closed; the volume stays usable.
    #[test]
    fn a_panic_poisons_the_file_and_its_queue() {
        let (volume, queue, file) = open();
        assert_eq!(read(file), 7);
        assert_eq!(with_file::<()>(file, |_, _| panic!("a test")), LOST);
        assert_eq!(read(file), LOST);
        assert_eq!(ironmap_close(file) as isize, LOST);
        assert_eq!(ironmap_close(file), -Errno::EBADF.0);
        assert_eq!(with_queue(queue, |_| Ok(())), LOST);
        assert_eq!(ironmap_queue_free(queue) as isize, LOST);
        assert_eq!(ironmap_queue_free(queue), -Errno::EBADF.0);
        assert_eq!(ironmap_volume_sync(volume.pointer()), 0);
        // The volume cannot be closed, because the queue was leaked after the panic and still uses the volume.
        assert_eq!(ironmap_volume_close(volume.pointer()), -Errno::EBUSY.0);
    }

    /// If a call on a volume panics, the volume can only be closed. The open queues and files of the volume stay usable.
    #[test]
    fn a_panic_poisons_a_volume() {
        let (volume, queue, file) = open();
        assert_eq!(call::<()>(Some(volume), || panic!("a test")), LOST);
        let pointer: *mut ironmap_volume = volume.pointer();
        let lost: c_int = ironmap_volume_sync(pointer);
        assert_eq!(lost as isize, LOST);
        assert_eq!(read(file), 7, "the file of an open queue can still be read");
        assert_eq!(ironmap_queue_free(queue), 0);
        assert_eq!(ironmap_volume_close(pointer) as isize, LOST);
        assert_eq!(ironmap_volume_close(pointer), -Errno::EBADF.0);
    }
}
