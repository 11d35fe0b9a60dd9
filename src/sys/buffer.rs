//! Memory for the data of requests. A queue owns the memory while a request is in flight, and returns it with the completion.

use std::alloc::{self, Layout};
use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The alignment of every [`Buffer`] that this crate allocates, in bytes. It is sufficient for every device that Linux supports.
pub(crate) const ALIGNMENT: usize = 4096;

/// One allocation. It is freed when the last buffer that was cut from it is dropped.
struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a Region only frees its allocation, once. The bytes are accessed through Buffers, each of which owns its range exclusively.
unsafe impl Send for Region {}
// SAFETY: as above; nothing is read or written through a shared Region.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if self.layout.size() != 0 {
            // SAFETY: this module or a Vec<u8> allocated `base` with this layout. No Buffer of this region exists, since each Buffer has an
            // Arc of its region.
            unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

/// A range of bytes for the data of a request. It moves into a queue with the request, and back to the caller with the completion.
///
/// The memory stays at its address when the `Buffer` is moved, and no other code can access it. So the kernel may read and write the memory
/// while the request that owns it is in flight. A buffer can be split in two and joined again without copying.
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    region: Arc<Region>,
    /// The registration of the allocation.
    registered: Option<Registered>,
}

/// The number of a ring, unique in the process. Every move of a request copies the number, so its type is small.
pub(crate) type RingNumber = NonZeroU32;

/// A place in a ring's table of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(super) ring: RingNumber,
    pub(super) place: u16,
}

// Two buffers fit in a cache line, because requests are moved several times.
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
        Ok(Self { base, len, region: Arc::new(Region { base, layout }), registered: None })
    }

    /// Splits off the first `at` bytes into a buffer of their own; `self` keeps the remaining bytes. Nothing is copied.
    ///
    /// # Panics
    /// If `at` exceeds the length.
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

    /// Extends the buffer to the whole allocation again. Returns false if other buffers share the allocation, or if it came from a vector,
    /// whose unused capacity may be uninitialised.
    pub(crate) fn regain(&mut self) -> bool {
        match Arc::get_mut(&mut self.region) {
            Some(region) if region.layout.align() == ALIGNMENT => {
                (self.base, self.len) = (region.base, region.layout.size());
                true
            }
            _ => false,
        }
    }

    /// The address of the first byte, for example to check its alignment.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// The place in the table of a ring, if the buffer is registered with that ring.
    #[inline]
    pub(super) fn place_in(&self, ring: RingNumber) -> Option<u16> {
        self.registered.filter(|registered| registered.ring == ring).map(|it| it.place)
    }

    pub(super) fn set_registered(&mut self, registered: Option<Registered>) {
        self.registered = registered;
    }

    /// The address of the first byte, for code in another language that borrows the memory. The address never changes. It is valid while
    /// the buffer exists and no request owns the memory.
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
        // SAFETY: the range is initialised, lies in one allocation that `region` keeps alive, and is only written through `&mut self` or by
        // the kernel while the Buffer itself is inside a ring.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and only this Buffer owns the range.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl From<Vec<u8>> for Buffer {
    /// Takes over the vector's memory without a copy. The memory may be unaligned.
    fn from(vec: Vec<u8>) -> Self {
        let mut vec = std::mem::ManuallyDrop::new(vec);
        let (len, capacity) = (vec.len(), vec.capacity());
        let base = NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let layout = Layout::array::<u8>(capacity).unwrap_or(Layout::new::<()>());
        Self { base, len, region: Arc::new(Region { base, layout }), registered: None }
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
}
