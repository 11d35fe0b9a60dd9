//! Queues, and the files that were opened on them. Only the thread that made a queue may use it and its files.
//!
//! A slot of a queue contains the number of the thread that may use the queue, or a different number during a call. So a call in another
//! thread is refused, and so is a call in a signal handler that interrupts a call of the same thread. The check costs no atomic operation.

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence};

use ironmap::dio::DioFlags;
use ironmap::{Buffer, Error, File, FileOptions, Files, Host, Queue, Readiness};

use crate::calls::Calls;
use crate::failure::{Count, catch, forget, keep, panicked, prepare_thread, refused, returned};
use crate::handle::{Content, Handle, Kind, Refusal, Reserved, Slot, Table};
use crate::tables::{ironmap_file, ironmap_queue};
use crate::thread::{this_thread, watch_end};
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
    /// An empty buffer. The buffers for the caller's memory are aliases of it, which saves an allocation for each request.
    pub(crate) lent: Buffer,
    /// The functions for the frequent calls on this queue.
    pub(crate) calls: Calls,
    /// The open files, which are closed together with the queue.
    files: HashSet<Handle>,
}

impl LocalQueue {
    pub(crate) fn new(queue: Queue, store: Store) -> Self {
        Self {
            calls: Calls::of(&queue),
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
    /// The handle of the file.
    pub(crate) handle: Handle,
}

impl OpenFile {
    /// Returns the result of a call on this file for C code. The reason of a failure is stored for the file.
    #[inline(always)]
    pub(crate) fn returned<T: Count>(&self, result: Result<T, Error>) -> isize {
        match result {
            Ok(value) => value.count(),
            Err(error) => self.failed(error),
        }
    }

    /// Stores the reason why a call on this file failed, and returns the result for C code.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(&self, error: Error) -> isize {
        failed(self.handle, error)
    }
}

/// The slot of a queue.
pub(crate) struct QueueSlot {
    /// The number of the thread that may use the queue. During a call, it is larger by 1; if there is no queue, it is 0.
    owner: AtomicUsize,
    /// The number of the thread that has made the queue.
    thread: AtomicUsize,
    queue: UnsafeCell<Option<Box<LocalQueue>>>,
}

// SAFETY: only the thread that `owner` names accesses the queue, in one call at a time. A queue that is dropped in its own thread never
// moves to another one.
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

// SAFETY: the file is accessed only during a call of the thread that owns the file's queue.
unsafe impl Sync for FileSlot {}

impl Content for FileSlot {
    const EMPTY: Self =
        Self { queue: AtomicPtr::new(ptr::null_mut()), file: UnsafeCell::new(None) };
}

pub(crate) static QUEUES: Table<QueueSlot, { 1 << 14 }, { ironmap_queue::KIND }> = Table::new();
pub(crate) static FILES: Table<FileSlot, FILES_AT_MOST, { ironmap_file::KIND }> = Table::new();
const FILES_AT_MOST: usize = 1 << 18;

/// The value of `thread` for a queue whose thread has ended.
const ENDED: usize = usize::MAX;
/// The value of `thread` for a queue that was in use when a call panicked.
const LOST: usize = usize::MAX - 1;
/// Ends the permission of a thread for all queues that it has not freed.
pub(crate) fn revoke(thread: usize) {
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
    /// Returns the permission to use the queue, or `None` in another thread or during another call.
    #[inline(always)]
    fn enter(&self) -> Option<Entered<'_>> {
        if self.owner.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        // The fences order the accesses for signal handlers.
        compiler_fence(Ordering::SeqCst);
        self.add_to_owner(1);
        compiler_fence(Ordering::SeqCst);
        Some(Entered { slot: self })
    }

    /// Adds to `owner`, in the thread of the queue. No other thread changes `owner` meanwhile, so the addition need not be atomic, and is
    /// one instruction.
    #[inline(always)]
    fn add_to_owner(&self, number: usize) {
        let owner = self.owner.load(Ordering::Relaxed);
        self.owner.store(owner.wrapping_add(number), Ordering::Relaxed);
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.slot.add_to_owner(usize::MAX);
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

/// Whether this thread is in a call on the queue with this handle. If so, the calling function runs in a signal handler. It must not wait
/// for a fork in another thread, because this fork waits for the interrupted call.
pub(crate) fn is_in_call(queue: *const ironmap_queue) -> bool {
    is_used_by_this_thread(QUEUES.slot(Handle::of(queue)))
}

/// Whether this thread is in a call on the queue of this file, as in [`is_in_call`].
pub(crate) fn is_in_call_of_file(file: *const ironmap_file) -> bool {
    queue_of(FILES.slot(Handle::of(file))).is_some_and(is_used_by_this_thread)
}

fn is_used_by_this_thread(slot: &Slot<QueueSlot>) -> bool {
    slot.content.owner.load(Ordering::Relaxed) == this_thread() + 1
}

/// Returns the reason why a call without permission is refused.
#[cold]
fn no_permission(slot: &Slot<QueueSlot>) -> Refusal {
    match slot.content.thread.load(Ordering::Relaxed) {
        LOST => Refusal::Poisoned,
        thread if thread == this_thread() => Refusal::InCall,
        _ => Refusal::OtherThread,
    }
}

/// Opens a handle of a queue for the calling thread.
pub(crate) fn add_queue(queue: LocalQueue) -> Result<Handle, Error> {
    let queue = Box::new(queue);
    prepare_thread();
    watch_end()?;
    QUEUES.open(|slot| {
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
    // Dropping `entered` would make this thread the owner again, but the slot must not have an owner.
    std::mem::forget(entered);
    slot.content.owner.store(0, Ordering::Relaxed);
    let freed = catch(|| {
        files.into_iter().flatten().for_each(|file| drop(end_file(file)));
        // The drop leaks requests that the kernel does not complete. The memory of these requests belongs to the caller, so the caller gets
        // the error of the wait.
        queue.map_or(Ok(()), |mut queue| queue.queue.wait(usize::MAX))
    });
    // The slot may later get a queue of another thread. The end of this thread must not revoke that queue.
    slot.content.thread.store(0, Ordering::Relaxed);
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
    let handle = reserved.open(|slot| {
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
        None if slot.has(handle) => {
            let refusal = queue_slot.map_or(Refusal::Closed, no_permission);
            if refusal == Refusal::Poisoned {
                // The handle is closed, and the file is leaked together with its queue.
                let _ = FILES.end(handle);
            }
            refused(refusal)
        }
        _ => FILES.end(handle).map_or_else(refused, |_| 0),
    }
}

#[inline(always)]
fn queue_of(slot: &Slot<FileSlot>) -> Option<&'static Slot<QueueSlot>> {
    // SAFETY: the pointer is null or points to a slot of `QUEUES`, which is static.
    unsafe { slot.content.queue.load(Ordering::Acquire).as_ref() }
}

/// Runs a call from C on a queue or on a file of this queue. After a panic, the objects of the call are in an unknown state, so the queue
/// and its files become unusable.
///
/// `call` also contains the checks of the handle, so the calling function needs to save only one register.
#[inline(always)]
fn guarded(queue: &Slot<QueueSlot>, call: impl FnOnce() -> isize) -> isize {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        lose(queue);
        returned::<()>(None, Err(panicked(&*panic)))
    })
}

/// Runs a call on a file and its queue.
#[inline(always)]
pub(crate) fn with_file<T: Count>(
    file: *const ironmap_file,
    work: impl FnOnce(&OpenFile, &mut LocalQueue) -> Result<T, Error>,
) -> isize {
    enter_file(file, |open, local| open.returned(work(open, local)))
}

/// Runs a call on a file and its queue. `work` returns the result for C code, and stores the reason of a failure itself. Until `work`
/// returns, a call in a signal handler is refused, so the handler cannot store a reason at the same time.
#[inline(always)]
pub(crate) fn enter_file(
    file: *const ironmap_file,
    work: impl FnOnce(&OpenFile, &mut LocalQueue) -> isize,
) -> isize {
    let handle = Handle::unchecked(file);
    let slot = FILES.slot(handle);
    let Some(queue) = queue_of(slot) else { return refuse_file(handle) };
    guarded(queue, move || {
        let Some(mut entered) = queue.content.enter() else {
            return refuse_file(handle);
        };
        // This call has the permission for the queue, so from here on, no other call can close the file.
        if !slot.equals(handle) {
            return refuse_closed(slot, handle);
        }
        // SAFETY: this call is the only one on the queue of the file, so nothing changes the slot.
        let open = unsafe { &*slot.content.file.get() }.as_deref();
        // SAFETY: the slot has this handle, so the file is open.
        let open = unsafe { open.unwrap_unchecked() };
        // SAFETY: the queue of an open file has not been freed.
        work(open, unsafe { entered.queue().unwrap_unchecked() })
    })
}

/// Runs a call on a queue.
#[inline(always)]
pub(crate) fn with_queue<T: Count>(
    queue: *const ironmap_queue,
    work: impl FnOnce(&mut LocalQueue) -> Result<T, Error>,
) -> isize {
    let handle = Handle::unchecked(queue);
    let slot = QUEUES.slot(handle);
    guarded(slot, move || {
        let Some(mut entered) = slot.content.enter() else {
            return refuse_queue(handle);
        };
        if !slot.equals(handle) {
            return refuse_closed(slot, handle);
        }
        // SAFETY: the slot has this handle, so it has a queue.
        let result = work(unsafe { entered.queue().unwrap_unchecked() });
        // As in `enter_file`, the reason of a failure is stored before `entered` is dropped.
        result.map_or_else(|error| failed(slot.handle(), error), T::count)
    })
}

// Each request runs `enter_file` or `with_queue`. The functions below are not inlined, so that these two need to save only a few registers.

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

/// Stores the reason why a call on this handle failed, and returns the result for C code.
#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value, reason = "the hot path does not drop the error")]
pub(crate) fn failed(handle: Handle, error: Error) -> isize {
    keep(Some(handle), &error) as isize
}

/// Makes a queue and its files unusable after a panic. The queue has no owner after this call, and is leaked.
#[cold]
#[inline(never)]
fn lose(slot: &Slot<QueueSlot>) {
    slot.poison(slot.handle());
    slot.content.thread.store(LOST, Ordering::Relaxed);
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

    fn open() -> (Handle, *mut ironmap_queue, [*mut ironmap_file; 2]) {
        let ram = Arc::new(Ram::new(8 << 20));
        ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
        let volume: Volume = VolumeOptions::new().write(true).open_on(ram).unwrap();
        volume.write("/file", "content").unwrap();
        let handle = VOLUMES.add(OpenVolume { volume }).unwrap();
        let open = VOLUMES.get(handle).unwrap();
        let queue = open.volume.queue(&QueueOptions::new()).unwrap();
        let files = [(); 2].map(|()| open.volume.open("/file").unwrap());
        let queue = add_queue(LocalQueue::new(queue, Store::Volume(open))).unwrap();
        let added = files.map(|file| {
            let mut added = None;
            with_queue(queue.pointer(), |local| {
                let reserved = FILES.reserve()?;
                let (durable, path, handle) =
                    (DioFlags::empty(), Box::default(), reserved.handle());
                let file = OpenFile { file, durable, writes: false, path, handle };
                added = Some(add_file(reserved, queue, local, file));
                Ok(())
            });
            added.unwrap().pointer()
        });
        (handle, queue.pointer(), added)
    }

    fn read(file: *mut ironmap_file) -> isize {
        let mut memory = [0_u8; 16];
        // SAFETY: the memory has this length.
        unsafe { ironmap_pread(file, memory.as_mut_ptr().cast::<c_void>(), memory.len(), 0) }
    }

    /// A call that panics returns an error. The queue and its files can then only be closed, in either order; the volume stays usable.
    #[test]
    fn a_panic_poisons_the_queue_and_its_files() {
        let (volume, queue, [file, other]) = open();
        assert_eq!(read(file), 7);
        assert_eq!(with_file::<()>(file, |_, _| panic!("a test")), LOST);
        assert_eq!([read(file), read(other)], [LOST; 2]);
        assert_eq!(ironmap_close(file) as isize, LOST);
        assert_eq!(ironmap_close(file), -Errno::EBADF.0);
        assert_eq!(with_queue(queue, |_| Ok(())), LOST);
        assert_eq!(ironmap_queue_free(queue) as isize, LOST);
        assert_eq!(ironmap_queue_free(queue), -Errno::EBADF.0);
        assert_eq!(read(other), LOST);
        assert_eq!(ironmap_close(other) as isize, LOST);
        assert_eq!(ironmap_close(other), -Errno::EBADF.0);
        assert_eq!(ironmap_volume_sync(volume.pointer()), 0);
        // The volume cannot be closed, because the queue was leaked after the panic and still uses the volume.
        assert_eq!(ironmap_volume_close(volume.pointer()), -Errno::EBUSY.0);
    }

    /// A call within a call on the same queue is refused, and the outer call continues.
    #[test]
    fn a_call_within_a_call_is_refused() {
        let (_, queue, [file, other]) = open();
        let busy = -(libc::EBUSY as isize);
        let inner = |open: &OpenFile, _: &mut LocalQueue| {
            assert_eq!([read(file), read(other)], [busy; 2]);
            assert_eq!(ironmap_queue_free(queue) as isize, busy);
            Ok(usize::from(!open.writes))
        };
        assert_eq!(with_file(file, inner), 1);
        assert_eq!([read(file), read(other)], [7; 2]);
        assert_eq!(ironmap_queue_free(queue), 0);
        assert_eq!([read(file), read(other)], [-(libc::EBADF as isize); 2]);
    }

    /// If a call on a volume panics, the volume can only be closed. The open queues and files of the volume stay usable.
    #[test]
    fn a_panic_poisons_a_volume() {
        let (volume, queue, [file, _]) = open();
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
