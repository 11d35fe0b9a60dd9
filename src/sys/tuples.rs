//! The protection information of a request: one tuple (guard, application tag, reference tag) for each sector. The tuples of a request use
//! one page of memory. This module also describes the tuples to the kernel. docs/PROVENANCE.md lists the sources.

use bitflags::bitflags;
use io_uring::squeue;

use super::Buffer;
use crate::error::Errno;

/// The number of bytes for the tuples of one request: one page. Even the simplest controller accepts one page as a single range of memory.
const PAGE: usize = 4096;
/// The type of the io_uring request attribute that describes tuples (protection information) to the kernel. The kernel defines only this
/// type of attribute.
const ATTRIBUTE_PI: u64 = 1;

bitflags! {
    /// The fields of a tuple that the device checks before it carries out the request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Checks: u16 {
        const GUARD = 0x1;
        const REFERENCE = 0x2;
    }
}

/// The attribute of an io_uring request with tuples (protection information): `struct io_uring_attr_pi`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attribute {
    flags: u16,
    application: u16,
    len: u32,
    address: u64,
    seed: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<Attribute>() == 32 && size_of::<squeue::Entry>() == 64);

/// The tuples (protection information) of one request. Later requests reuse the memory.
#[derive(Debug)]
pub(crate) struct Tuples {
    memory: Buffer,
    len: usize,
    checks: Checks,
    /// The number of the first protection interval of the request.
    first: u64,
    /// The io_uring attribute that describes the tuples. The kernel reads the attribute when it takes the request from the submission
    /// queue.
    attribute: Attribute,
}

impl Tuples {
    /// The largest number of bytes that the tuples of one request may have.
    pub(crate) const ROOM: usize = PAGE;

    /// Allocates the tuples of `count` requests in one allocation.
    pub(crate) fn slab(count: usize) -> Result<Vec<Self>, Errno> {
        let bytes = count.checked_mul(PAGE).ok_or(Errno::ENOMEM)?;
        let mut whole = Buffer::aligned(bytes).map_err(|_| Errno::ENOMEM)?;
        let cut = |_| Self {
            memory: whole.split_to(PAGE),
            len: 0,
            checks: Checks::empty(),
            first: 0,
            attribute: Attribute::default(),
        };
        Ok((0..count).map(cut).collect())
    }

    /// Prepares the tuples for a request. `first` is the request's first protection interval. Returns the memory of the tuples, which is
    /// `len` bytes long.
    ///
    /// # Panics
    /// Panics if `len` exceeds [`ROOM`](Self::ROOM).
    pub(crate) fn begin(&mut self, first: u64, len: usize, checks: Checks) -> &mut [u8] {
        (self.first, self.len, self.checks) = (first, len, checks);
        &mut self.memory[..len]
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn checks(&self) -> Checks {
        self.checks
    }

    /// Returns the address and the length of the tuples, for an NVMe command.
    pub(super) fn range(&mut self) -> (u64, u32) {
        (self.memory.as_mut_ptr() as u64, self.len as u32)
    }

    /// Adds the address of these tuples to an entry of the ordinary size, in its last two words. The caller must keep the tuples at their
    /// address until the request has completed.
    #[inline]
    pub(super) fn attach(&mut self, entry: &mut squeue::Entry) {
        let (address, len) = self.range();
        let (flags, seed) = (self.checks.bits(), self.first);
        self.attribute = Attribute { flags, len, address, seed, ..Attribute::default() };
        let attribute = &raw const self.attribute as u64;
        let words = std::ptr::from_mut(entry).cast::<[u64; 8]>();
        // SAFETY: an entry is a `repr(C)` structure of 64 bytes, aligned for integers of 64 bits and fully initialised; any bytes are a
        // valid entry. The `io_uring` crate has no setter for these fields.
        let words = unsafe { &mut *words };
        (words[6], words[7]) = (attribute, ATTRIBUTE_PI);
    }
}

impl std::ops::Deref for Tuples {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// A value that is attached to a request. A ring stores the value, and returns it with the completion.
pub(crate) trait Passenger {
    /// Returns the tuples (protection information) of the request, if the request has any.
    #[inline(always)]
    fn tuples(&mut self) -> Option<&mut Tuples> {
        None
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    #[test]
    fn an_entry_has_its_attribute_where_the_kernel_has_it() {
        let mut tuples = Tuples::slab(2).unwrap().remove(1);
        tuples.begin(7, 16, Checks::GUARD | Checks::REFERENCE);
        let mut entry = opcode::Read::new(types::Fd(3), std::ptr::null_mut(), 512).build();
        tuples.attach(&mut entry);
        assert_eq!(tuples.attribute.address % PAGE as u64, 0);
        assert_eq!((tuples.attribute.flags, tuples.attribute.len), (3, 16));
        assert_eq!((tuples.attribute.seed, tuples.len()), (7, 16));
        // SAFETY: both types are plain bytes.
        let words: [u64; 8] = unsafe { std::mem::transmute(entry) };
        assert_eq!((words[6], words[7]), (&raw const tuples.attribute as u64, 1));
        assert_eq!((words[0] >> 32, words[3] as u32), (3, 512));
    }
}
