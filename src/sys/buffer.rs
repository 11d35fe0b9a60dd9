//! Memory for the data of requests. A queue owns the memory while a request is in flight, and returns it with the completion.

use std::alloc::{self, Layout};
use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The alignment of every [`Buffer`] that this crate allocates, in bytes. It is sufficient for every device that Linux supports.
pub(crate) const ALIGNMENT: usize = 4096;

/// One allocation or mapping of memory. Several buffers can be parts of it. Dropping the last of these buffers releases the memory.
struct Region {
    base: NonNull<u8>,
    memory: Source,
}

/// The origin of a region's memory.
enum Source {
    /// An allocation of this module, with all bytes initialised.
    Own(Layout),
    /// The allocation of a `Vec`, whose unused capacity may be uninitialised.
    Vec(Layout),
    /// The memory of another owner. Dropping the owner releases the memory.
    Owner(Box<dyn Any + Send + Sync>),
}

// SAFETY: a Region only releases its memory, once. The bytes are accessed through Buffers, each of which owns its range exclusively.
unsafe impl Send for Region {}
// SAFETY: a shared Region gives no access to its bytes: they are read and written only through Buffers.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if let Source::Own(layout) | Source::Vec(layout) = self.memory
            && layout.size() != 0
        {
            // SAFETY: this module or a Vec<u8> allocated `base` with this layout. No Buffer of this region exists, since each Buffer has an
            // Arc of its region.
            unsafe { alloc::dealloc(self.base.as_ptr(), layout) }
        }
    }
}

/// A type that owns memory that a [`Buffer`] can use without a copy: see [`Buffer::from_owner`].
///
/// # Safety
/// Until the owner is dropped, the bytes of `bytes_mut` are initialised, readable and writable. They stay at their addresses, even if the
/// owner is moved. Until then, no other code reads or writes them, except through the owner itself.
pub unsafe trait MemoryOwner: Send + Sync + 'static {
    /// Returns the memory.
    fn bytes_mut(&mut self) -> &mut [u8];
}

// SAFETY: the allocation of a box stays in place when the box is moved, and belongs to the box alone.
unsafe impl MemoryOwner for Box<[u8]> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the allocation of a vector stays in place when the vector is moved, and belongs to the vector alone. The length of the vector
// does not change while a `Buffer` owns it.
unsafe impl MemoryOwner for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// A range of bytes for the data of a request. It moves into a queue with the request, and back to the caller with the completion.
///
/// The memory stays at its address when the `Buffer` is moved, and no other code can access it. The kernel may therefore read and write the
/// memory while a request that owns it is in flight. A buffer can be split in two and joined again without copying.
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    region: Arc<Region>,
    /// The registration of the memory with a ring, if there is one.
    registered: Option<Registered>,
}

/// The number of a ring. The first 2^32 rings of a process have different numbers. The type is small because each move of a request copies
/// the number.
pub(crate) type RingNumber = NonZeroU32;

/// An index in a ring's table of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(super) ring: RingNumber,
    pub(super) place: u16,
}

// Requests are moved several times, so a buffer must be small. Two buffers fit into a cache line.
const _: () = assert!(size_of::<Buffer>() == 32);

// SAFETY: a Buffer owns its range exclusively, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: a shared Buffer gives only shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a zeroed buffer of `len` bytes, aligned for direct I/O.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the memory cannot be allocated.
    pub fn aligned(len: usize) -> Result<Self> {
        let no_memory = || {
            Error::new(ErrorKind::LimitExceeded, format!("cannot allocate a buffer of {len} bytes"))
        };
        let layout = Layout::from_size_align(len, ALIGNMENT).map_err(|_| no_memory())?;
        let base = if len == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(no_memory)?
        };
        Ok(Self::of(base, len, Source::Own(layout)))
    }

    /// Creates a buffer from memory that the caller owns, such as huge pages or the pool of a database engine. The owner is dropped after
    /// the last buffer of this memory.
    pub fn from_owner(owner: impl MemoryOwner) -> Self {
        // The owner is moved to its final address before the address of its bytes is read.
        let mut owner = Box::new(owner);
        let bytes = owner.bytes_mut();
        let (base, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // An implementation of `MemoryOwner` guarantees the conditions of `from_raw_parts`. In addition, the owner stays at its address
        // while the buffer exists.
        Self::of(base, len, Source::Owner(owner))
    }

    /// Creates a buffer at another address, with the region and the registration of this buffer. The region or the caller keeps the memory
    /// of the new buffer valid.
    ///
    /// # Safety
    /// While the new buffer or a request of it exists, the `len` bytes from `base` are initialised, readable and writable, and no other
    /// code reads or writes them. If this buffer is registered, the bytes are part of it.
    #[doc(hidden)] // For bindings of other languages, whose programs lend memory to several requests at a time.
    #[must_use]
    #[inline(always)]
    pub unsafe fn alias(&self, base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, region: Arc::clone(&self.region), registered: self.registered }
    }

    /// Creates a buffer from the address of its memory. `owner` is dropped after the last buffer of this memory.
    ///
    /// # Safety
    /// The `len` bytes from `base` are initialised, readable and writable until `owner` is dropped. No other code reads or writes them
    /// while a buffer or a request of this memory exists.
    pub unsafe fn from_raw_parts(
        base: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        Self::of(base, len, Source::Owner(Box::new(owner)))
    }

    fn of(base: NonNull<u8>, len: usize, memory: Source) -> Self {
        Self { base, len, region: Arc::new(Region { base, memory }), registered: None }
    }

    /// Creates a buffer from a slice to which no other reference exists, so that a request can read data into the slice.
    /// [`into_owner`](Self::into_owner) returns the slice.
    ///
    /// # Errors
    /// Returns the slice if another `Arc` or `Weak` refers to it.
    pub fn from_unique(mut slice: Arc<[u8]>) -> Result<Self, Arc<[u8]>> {
        let Some(bytes) = Arc::get_mut(&mut slice) else { return Err(slice) };
        let (base, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: the allocation stays at its address. The buffer has the only reference to it, until the buffer is dropped or the slice is
        // returned.
        Ok(unsafe { Self::from_raw_parts(base, len, slice) })
    }

    /// Returns the owner of the memory, as the type that the caller requests.
    ///
    /// Returns the buffer unchanged if other buffers share the memory, or if the owner has another type.
    pub fn into_owner<O: Send + Sync + 'static>(mut self) -> Result<O, Self> {
        let is_whole = Arc::get_mut(&mut self.region).is_some_and(
            |region| matches!(&region.memory, Source::Owner(owner) if owner.is::<O>()),
        );
        if !is_whole {
            return Err(self);
        }
        let Self { base, len, region, registered } = self;
        let owner = match Arc::try_unwrap(region) {
            Ok(mut region) => {
                match std::mem::replace(&mut region.memory, Source::Own(Layout::new::<()>())) {
                    Source::Owner(owner) => owner
                        .downcast::<O>()
                        .map_err(Source::Owner)
                        .map_err(|memory| (region, memory)),
                    memory => Err((region, memory)),
                }
            }
            Err(region) => return Err(Self { base, len, region, registered }),
        };
        owner.map(|owner| *owner).map_err(|(mut region, memory)| {
            region.memory = memory;
            Self { base, len, region: Arc::new(region), registered }
        })
    }

    /// Splits off the first `at` bytes into a separate buffer without copying. `self` keeps the remaining bytes.
    ///
    /// # Panics
    /// Panics if `at` exceeds the length.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "a buffer of {} bytes cannot be split at {at}", self.len);
        let head = Self {
            base: self.base,
            len: at,
            region: Arc::clone(&self.region),
            registered: self.registered,
        };
        // SAFETY: `at <= len`, so the result is within the allocation or one past its end.
        self.base = unsafe { self.base.add(at) };
        self.len -= at;
        head
    }

    /// Joins `tail` to the end of `self`.
    ///
    /// # Errors
    /// Returns `tail` if it does not follow `self` in the same allocation.
    pub fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        // SAFETY: one past the end of this range is within the allocation or one past its end.
        let end = unsafe { self.base.add(self.len) };
        if !Arc::ptr_eq(&self.region, &tail.region) || end != tail.base {
            return Err(tail);
        }
        self.len += tail.len;
        Ok(())
    }

    /// Shortens the buffer to its first `len` bytes. [`regain`](Self::regain) restores the length.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Extends the buffer to its whole allocation again. Returns false and changes nothing if other buffers share the allocation, or if the
    /// memory comes from another owner or a vector.
    pub(crate) fn regain(&mut self) -> bool {
        match Arc::get_mut(&mut self.region) {
            Some(Region { base, memory: Source::Own(layout) }) => {
                (self.base, self.len) = (*base, layout.size());
                true
            }
            _ => false,
        }
    }

    /// Returns the address of the first byte. A caller can use it to check the alignment.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Returns the index of the memory in the table of this ring, or `None` if the buffer is not registered with this ring.
    #[inline]
    pub(super) fn place_in(&self, ring: RingNumber) -> Option<u16> {
        self.registered.filter(|registered| registered.ring == ring).map(|it| it.place)
    }

    pub(super) fn set_registered(&mut self, registered: Option<Registered>) {
        self.registered = registered;
    }

    /// Returns the address of the first byte, for code in another language that borrows the memory. The address never changes. It may be
    /// used while the buffer exists, except while a request owns the memory.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn iovec(&mut self) -> libc::iovec {
        libc::iovec { iov_base: self.base.as_ptr().cast(), iov_len: self.len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is initialised, is within one allocation that `region` keeps alive, and is only written through `&mut self` or
        // by the kernel while the Buffer itself is inside a ring.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is initialised and is within one allocation that `region` keeps alive. Only this Buffer owns the range, and it
        // is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl From<Vec<u8>> for Buffer {
    /// Takes over the memory of the vector without copying it. The memory may be unaligned.
    fn from(vec: Vec<u8>) -> Self {
        let mut vec = std::mem::ManuallyDrop::new(vec);
        let (len, capacity) = (vec.len(), vec.capacity());
        let base = NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let layout = Layout::array::<u8>(capacity).unwrap_or(Layout::new::<()>());
        Self::of(base, len, Source::Vec(layout))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_and_join_keep_the_bytes_and_the_allocation() {
        let mut whole = Buffer::aligned(8192).unwrap();
        whole[4096] = 7;
        let mut head = whole.split_to(4096);
        assert_eq!((head.len(), whole.len(), whole[0]), (4096, 4096, 7));
        head[0] = 9;
        head.unsplit(whole).unwrap();
        assert_eq!((head.len(), head[0], head[4096]), (8192, 9, 7));
    }

    #[test]
    fn only_the_last_part_regains_the_allocation() {
        let mut whole = Buffer::aligned(8192).unwrap();
        let mut head = whole.split_to(4096);
        assert!(!head.regain());
        drop(whole);
        head.truncate(512);
        assert_eq!(head.len(), 512);
        assert!(head.regain());
        assert_eq!(head.len(), 8192);
    }

    #[test]
    fn strangers_are_not_joined() {
        let mut one = Buffer::aligned(512).unwrap();
        assert!(one.unsplit(Buffer::aligned(512).unwrap()).is_err());
    }

    #[test]
    fn a_vector_is_taken_over_as_it_lies() {
        let vec = vec![3_u8; 100];
        let address = vec.as_ptr() as usize;
        let buffer = Buffer::from(vec);
        assert_eq!((buffer.address(), buffer.len(), buffer[99]), (address, 100, 3));
        assert!(Buffer::from(Vec::new()).is_empty());
    }

    #[test]
    fn memory_of_an_owner_is_released_after_its_last_part() {
        struct Pool(Box<[u8]>, #[expect(dead_code, reason = "its count is observed")] Arc<()>);
        // SAFETY: the allocation of a box stays in place when the box is moved, and belongs to the box alone.
        unsafe impl MemoryOwner for Pool {
            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }
        let alive = Arc::new(());
        let mut whole = Buffer::from_owner(Pool(vec![5; 8192].into(), Arc::clone(&alive)));
        let mut head = whole.split_to(4096);
        (head[0], whole[4095]) = (1, 2);
        drop(whole);
        assert_eq!((Arc::strong_count(&alive), head[0], head[4095]), (2, 1, 5));
        let pool = head.into_owner::<Pool>().unwrap();
        assert_eq!((pool.0[0], pool.0[8191]), (1, 2));
        drop(pool);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_shared_slice_is_read_into_only_while_it_is_unique() {
        let slice: Arc<[u8]> = vec![0; 100].into();
        let other = Arc::downgrade(&slice);
        let slice = Buffer::from_unique(slice).unwrap_err();
        drop(other);
        let mut buffer = Buffer::from_unique(slice).unwrap();
        buffer[99] = 7;
        let mut buffer = buffer.into_owner::<Vec<u8>>().unwrap_err();
        let part = buffer.split_to(10);
        let mut buffer = buffer.into_owner::<Arc<[u8]>>().unwrap_err();
        drop(part);
        assert!(!buffer.regain());
        let slice = buffer.into_owner::<Arc<[u8]>>().unwrap();
        assert_eq!((slice.len(), slice[99]), (100, 7));
    }
}
