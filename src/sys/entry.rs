//! The layout of a request in the submission queue of a ring.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{cqueue, opcode, squeue, types};

use super::buffer::RingNumber;
use super::nvme::{self, Action, Command, NamespaceId};
use super::{Buffer, Memory, Tuples};

/// The longest transfer of one request, in bytes. The kernel cuts longer transfers to this length.
const MAX_LEN: usize = 0x7FFF_F000;

/// The size of the entries of a ring's submission queue.
pub(crate) trait Width {
    type Submission: squeue::EntryMarker;
    type Completion: cqueue::EntryMarker;
    /// Whether an entry of this size can contain a command to an NVMe namespace.
    const COMMANDS: bool;

    /// Returns the entry of an NVMe command. The caller may call it only if [`COMMANDS`](Self::COMMANDS) is true. `place` is the index of
    /// the command's data memory in the ring's table of registered memory.
    fn command(
        file: RingFile,
        operation: u32,
        command: Command,
        place: Option<u16>,
    ) -> Self::Submission;
}

/// Entries of the ordinary size.
#[derive(Debug)]
pub struct Narrow;

/// Entries of twice the ordinary size, for NVMe passthrough. All requests of the ring use this size.
#[derive(Debug)]
pub struct Wide;

impl Width for Narrow {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;
    const COMMANDS: bool = false;

    fn command(_: RingFile, _: u32, _: Command, _: Option<u16>) -> squeue::Entry {
        unreachable!("the field is only valid if COMMANDS is true")
    }
}

impl Width for Wide {
    type Submission = squeue::Entry128;
    type Completion = cqueue::Entry32;
    const COMMANDS: bool = true;

    #[inline]
    fn command(
        file: RingFile,
        operation: u32,
        command: Command,
        place: Option<u16>,
    ) -> squeue::Entry128 {
        opcode::UringCmd80::new(file.fd(), operation)
            .cmd(command.bytes())
            .buf_index(place)
            .build()
            .flags(file.flags)
    }
}

/// The file of a request: an index in the ring's table of registered files, or a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingFile {
    pub(super) number: i32,
    pub(super) flags: squeue::Flags,
    /// Whether the file is an NVMe character device. Requests to such a device are NVMe commands.
    pub(super) namespace: Option<NamespaceId>,
}

impl RingFile {
    /// A file that is not registered. If its descriptor is closed, later requests fail or use another file that has been assigned the
    /// descriptor's number.
    pub(crate) fn descriptor(file: BorrowedFd<'_>) -> Self {
        Self { number: file.as_raw_fd(), flags: squeue::Flags::empty(), namespace: None }
    }

    /// Marks the file as an NVMe character device. The ring must have wide entries. If one command cannot [carry](nvme::carries) a
    /// transfer, the transfer fails.
    pub(crate) fn with_namespace(self, namespace: NamespaceId) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    fn fd(self) -> types::Fd {
        types::Fd(self.number)
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingOp {
    Read,
    Write,
    /// A flush (`fdatasync`). It needs no memory for data.
    Flush,
}

/// A request to a ring, without the memory for its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) file: RingFile,
    pub(crate) op: RingOp,
    pub(crate) at: u64,
    /// The flags for `preadv2` or `pwritev2`.
    pub(crate) rw_flags: i32,
}

impl Request {
    /// Returns the submission queue entry of a request whose memory the ring owns. If the memory has several ranges, the list of the ranges
    /// is written to `iovecs`. Old kernels may read this list until the request completes. If the request has tuples (protection
    /// information), the entry also contains their address.
    #[inline(always)]
    pub(super) fn owned<W: Width>(
        self,
        memory: &mut Memory,
        iovecs: &mut Vec<libc::iovec>,
        ring: RingNumber,
        tuples: Option<&mut Tuples>,
    ) -> W::Submission {
        match memory {
            Memory::Flat(buffer) => {
                let place = buffer.place_in(ring);
                self.flat::<W>(buffer.as_mut_ptr(), buffer.len(), place, tuples)
            }
            Memory::Vectored(buffers) => self.owned_parts::<W>(buffers, iovecs, tuples),
        }
    }

    #[inline(never)]
    fn owned_parts<W: Width>(
        self,
        buffers: &mut [Buffer],
        iovecs: &mut Vec<libc::iovec>,
        tuples: Option<&mut Tuples>,
    ) -> W::Submission {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        *iovecs = buffers.iter_mut().map(Buffer::iovec).collect();
        self.vectored::<W>(iovecs.as_ptr(), iovecs.len(), len, tuples)
    }

    /// Returns the submission queue entry of a request whose memory the caller lends.
    pub(super) fn lent<W: Width>(
        self,
        bufs: &mut [IoSliceMut<'_>],
        tuples: Option<&mut Tuples>,
    ) -> W::Submission {
        if let [one] = bufs {
            return self.flat::<W>(one.as_mut_ptr(), one.len(), None, tuples);
        }
        let len = bufs.iter().map(|buf| buf.len()).sum();
        // The pointer can be cast, because the documentation of `IoSliceMut` guarantees ABI compatibility with iovec.
        self.vectored::<W>(bufs.as_ptr().cast(), bufs.len(), len, tuples)
    }

    #[inline(always)]
    fn flat<W: Width>(
        self,
        pointer: *mut u8,
        len: usize,
        place: Option<u16>,
        tuples: Option<&mut Tuples>,
    ) -> W::Submission {
        let Self { file, op, at, rw_flags } = self;
        if W::COMMANDS
            && let Some(namespace) = file.namespace
        {
            let memory = (pointer as u64, len as u32);
            let command = Command::io(namespace, self.action(), at, len, memory, tuples);
            let place = place.filter(|_| op != RingOp::Flush);
            return W::command(file, nvme::URING_IO, command, place);
        }
        let (fd, len) = (file.fd(), len.min(MAX_LEN) as u32);
        let mut entry = match (op, place) {
            (RingOp::Flush, _) => return self.flush::<W>(),
            (RingOp::Write, Some(place)) => opcode::WriteFixed::new(fd, pointer, len, place)
                .offset(at)
                .rw_flags(rw_flags)
                .build(),
            (RingOp::Write, None) => {
                opcode::Write::new(fd, pointer, len).offset(at).rw_flags(rw_flags).build()
            }
            (RingOp::Read, Some(place)) => opcode::ReadFixed::new(fd, pointer, len, place)
                .offset(at)
                .rw_flags(rw_flags)
                .build(),
            (RingOp::Read, None) => {
                opcode::Read::new(fd, pointer, len).offset(at).rw_flags(rw_flags).build()
            }
        };
        if let Some(tuples) = tuples {
            tuples.attach(&mut entry);
        }
        entry.flags(file.flags).into()
    }

    fn vectored<W: Width>(
        self,
        iovecs: *const libc::iovec,
        count: usize,
        len: usize,
        tuples: Option<&mut Tuples>,
    ) -> W::Submission {
        let Self { file, op, at, rw_flags } = self;
        if W::COMMANDS
            && let Some(namespace) = file.namespace
        {
            let memory = (iovecs as u64, count as u32);
            let command = Command::io(namespace, self.action(), at, len, memory, tuples);
            return W::command(file, nvme::URING_IO_VEC, command, None);
        }
        let (fd, count) = (file.fd(), count as u32);
        let mut entry = match op {
            RingOp::Flush => return self.flush::<W>(),
            RingOp::Write => {
                opcode::Writev::new(fd, iovecs, count).offset(at).rw_flags(rw_flags).build()
            }
            RingOp::Read => {
                opcode::Readv::new(fd, iovecs, count).offset(at).rw_flags(rw_flags).build()
            }
        };
        if let Some(tuples) = tuples {
            tuples.attach(&mut entry);
        }
        entry.flags(file.flags).into()
    }

    fn flush<W: Width>(self) -> W::Submission {
        let entry = opcode::Fsync::new(self.file.fd()).flags(types::FsyncFlags::DATASYNC).build();
        entry.flags(self.file.flags).into()
    }

    fn action(self) -> Action {
        match self.op {
            RingOp::Flush => Action::Flush,
            RingOp::Read => Action::Read,
            RingOp::Write if self.rw_flags & libc::RWF_DSYNC != 0 => Action::WriteThrough,
            RingOp::Write => Action::Write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::{Slot, Slots};
    use super::super::tuples::{Checks, Passenger};
    use super::*;

    /// The file in the entries of this test. No request to it is submitted.
    const FILE: RingFile = RingFile { number: 3, flags: squeue::Flags::empty(), namespace: None };

    impl Passenger for Tuples {
        fn tuples(&mut self) -> Option<&mut Tuples> {
            Some(self)
        }
    }

    fn request(op: RingOp) -> Request {
        Request { file: FILE, op, at: 0, rw_flags: 0 }
    }

    fn number() -> RingNumber {
        RingNumber::MIN
    }

    /// Simulates the kernel's read: writes 0, 1, 2, ... to the request's memory, whose addresses are in the entry, and also writes the
    /// tuples. Returns the number of bytes of data.
    fn carry_out(entry: &squeue::Entry) -> usize {
        // SAFETY: an entry is 64 bytes without padding.
        let words: [u64; 8] = unsafe { std::mem::transmute_copy(entry) };
        let (operation, len) = (words[0] as u8, words[3] as u32 as usize);
        let address = std::ptr::with_exposed_provenance_mut::<u8>(words[2] as usize);
        let one = [libc::iovec { iov_base: address.cast(), iov_len: len }];
        let ranges = match operation {
            opcode::Read::CODE => &one[..],
            // SAFETY: the address is that of the request's list, which contains this number of ranges. No code changes the list before the
            // request ends.
            opcode::Readv::CODE => unsafe { std::slice::from_raw_parts(address.cast(), len) },
            other => panic!("operation {other}"),
        };
        let mut count = 0;
        for range in ranges {
            for at in 0..range.iov_len {
                // SAFETY: the byte is within the memory of the request.
                let byte = unsafe { range.iov_base.cast::<u8>().add(at) };
                // SAFETY: only the kernel may access the byte until the request ends.
                unsafe { byte.write(count as u8) };
                count += 1;
            }
        }
        if words[7] != 0 {
            let attribute = std::ptr::with_exposed_provenance::<[u32; 4]>(words[6] as usize);
            // SAFETY: the pointer is that of the attribute of the request's tuples. The attribute contains 4 bytes of flags, the length in
            // 4 bytes, and the address in 8 bytes.
            let [_, len, low, high] = unsafe { attribute.read() };
            let tuples = u64::from(high) << 32 | u64::from(low);
            let tuples = std::ptr::with_exposed_provenance_mut::<u8>(tuples as usize);
            // SAFETY: only the kernel may access the memory of the tuples until the request ends.
            unsafe { tuples.write_bytes(0xAB, len as usize) };
        }
        count
    }

    /// Reads fill each form of memory that a request can own, even if the ring's slots and other requests are moved in memory during the
    /// read.
    #[test]
    fn an_entry_has_the_addresses_of_its_requests_memory() {
        let memories = || {
            let mut whole = Buffer::aligned(300).unwrap();
            let (first, second) = (whole.split_to(64), whole.split_to(100));
            drop(whole);
            [
                Memory::Flat(Buffer::from(vec![0xEE; 100])),
                Memory::Vectored(vec![second, first]),
                Memory::Vectored(vec![]),
            ]
        };
        let (mut slots, mut entries) = (Slots::new(4), Vec::new());
        let tuples = Tuples::slab(3).unwrap();
        for (memory, mut tuples) in memories().into_iter().zip(tuples) {
            tuples.begin(7, 16, Checks::empty());
            let Ok((index, Slot { request: slot, iovecs, .. })) = slots.put(memory, tuples) else {
                panic!("the queue has a free entry")
            };
            let (memory, tuples) = slot.as_mut().unwrap();
            let request = request(RingOp::Read);
            let entry = request.owned::<Narrow>(memory, iovecs, number(), tuples.tuples());
            entries.push((index, entry));
        }
        slots.next_batch();
        let mut slots = Box::new(slots);
        for (index, entry) in entries.into_iter().rev() {
            let len = slots.memory_len(index);
            assert_eq!(carry_out(&entry), len);
            let (memory, tuples) = slots.end(index, Option::take).flatten().unwrap();
            let bytes = memory.buffers().iter().flat_map(|buffer| buffer.iter().copied());
            assert!(bytes.eq((0..len).map(|at| at as u8)));
            assert_eq!(tuples[..], [0xAB; 16]);
        }
    }

    #[test]
    fn lent_memory_is_read_into_by_the_addresses_of_its_entry() {
        let mut memory = [0xEE; 100];
        let (first, second) = memory.split_at_mut(60);
        let mut bufs = [IoSliceMut::new(second), IoSliceMut::new(first)];
        let entry = request(RingOp::Read).lent::<Narrow>(&mut bufs, None);
        assert_eq!(carry_out(&entry), 100);
        assert_eq!((bufs[0][39], bufs[1][0]), (39, 40));
        let mut one = [IoSliceMut::new(&mut memory)];
        assert_eq!(carry_out(&request(RingOp::Read).lent::<Narrow>(&mut one, None)), 100);
        assert_eq!((memory[0], memory[99]), (0, 99));
    }

    #[test]
    fn registered_memory_is_named_by_its_place_in_its_own_ring_only() {
        let mut buffer = Buffer::aligned(64).unwrap();
        let place = super::super::buffer::Registered { ring: number(), place: 5 };
        buffer.set_registered(Some(place));
        let mut memory = Memory::Flat(buffer);
        let mut code = |ring, op| {
            let entry = request(op).owned::<Narrow>(&mut memory, &mut Vec::new(), ring, None);
            // SAFETY: an entry is 64 bytes without padding.
            let words: [u64; 8] = unsafe { std::mem::transmute_copy(&entry) };
            (words[0] as u8, words[5] as u16)
        };
        assert_eq!(code(number(), RingOp::Read), (opcode::ReadFixed::CODE, 5));
        assert_eq!(code(number(), RingOp::Write), (opcode::WriteFixed::CODE, 5));
        assert_eq!(code(RingNumber::MAX, RingOp::Read), (opcode::Read::CODE, 0));
        assert_eq!(code(RingNumber::MAX, RingOp::Write), (opcode::Write::CODE, 0));
    }
}
