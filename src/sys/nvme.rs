//! Commands to an NVMe namespace through its generic character device (`/dev/ngXnY`): their layout for the kernel, and the meaning of their
//! status. docs/PROVENANCE.md lists the sources.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::tuples::{Checks, Tuples};
use crate::error::Errno;

/// The numbers of the io_uring operations that pass a command to an NVMe namespace: the first for a command with one range of memory, the
/// second for a command with a list of ranges.
pub(super) const URING_IO: u32 = opcode::read_write::<Command>(b'N', 0x80) as u32;
pub(super) const URING_IO_VEC: u32 = opcode::read_write::<Command>(b'N', 0x81) as u32;
const IOCTL_ID: Opcode = opcode::none(b'N', 0x40);
const IOCTL_ADMIN: Opcode = opcode::read_write::<Command>(b'N', 0x41);
const IOCTL_IO64: Opcode = opcode::read_write::<Command64>(b'N', 0x48);

const IDENTIFY: u8 = 0x06;
/// The bit of command dword 12 for force unit access.
const FUA: u32 = 1 << 30;
/// The bits of command dword 12 that make the device check reference tags and guards.
const CHECK_REFERENCE: u32 = 1 << 26;
const CHECK_GUARD: u32 = 1 << 28;
/// The longest transfer in bytes. No controller supports longer transfers. The limit fits into 31 bits.
const MAX_LEN: usize = 1 << 30;
/// The mask for the status bits that contain type and code. The other bits of a status describe whether the command can be retried.
const STATUS: i32 = 0x7FF;

/// The properties of a namespace that are needed to build a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceId {
    pub(crate) number: u32,
    /// The base-2 logarithm of the logical block size in bytes.
    pub(crate) shift: u32,
    /// The number of metadata bytes of each block. The metadata contain a tuple. A transfer uses separate memory for the metadata.
    pub(crate) metadata: u32,
}

/// An NVMe command in the layout of the kernel. It is passed to `ioctl`, or put into an entry of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    /// The number of bytes at `address`. For a list of ranges, the number of ranges.
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    /// The result of a command that was passed to `ioctl`.
    result: u32,
}

/// A command for the `ioctl` that returns a 64-bit result.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Command64 {
    command: Command,
    result: u64,
}

const _: () = assert!(size_of::<Command>() == 72 && size_of::<Command64>() == 80);

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Flush,
    Read,
    Write,
    /// A write whose data are on the medium when the write completes (force unit access).
    WriteThrough,
}

impl Command {
    /// Returns a command that transfers `len` bytes, starting at position `at`. Its memory is `data_len` bytes at `address`, or a list of
    /// `data_len` ranges at `address`. If one command cannot transfer `len` bytes, the kernel refuses the returned command with EINVAL, so
    /// the device accesses only memory that the kernel has mapped for it.
    #[inline]
    pub(super) fn io(
        namespace: NamespaceId,
        action: Action,
        at: u64,
        len: usize,
        (address, data_len): (u64, u32),
        tuples: Option<&mut Tuples>,
    ) -> Self {
        let base = Self { namespace: namespace.number, ..Self::default() };
        let (opcode, fua) = match action {
            Action::Flush => return base,
            Action::Write => (0x01, 0),
            Action::WriteThrough => (0x01, FUA),
            Action::Read => (0x02, 0),
        };
        let (block, blocks) = (at >> namespace.shift, len >> namespace.shift);
        let tuples_len = tuples.as_ref().map_or(0, |tuples| tuples.len());
        if !carries(namespace, at, len) || tuples_len != blocks * namespace.metadata as usize {
            return Self::default();
        }
        // This field contains the number of blocks minus one.
        let cdw12 = (blocks as u32 - 1) | fua;
        let (cdw10, cdw11) = (block as u32, (block >> 32) as u32);
        let plain = Self { opcode, address, data_len, cdw10, cdw11, cdw12, ..base };
        tuples.map_or(plain, |tuples| plain.with_tuples(tuples))
    }

    /// Adds the tuples to the command, with the checks that the device makes and the expected reference tag of the first block. `cdw14`
    /// contains the lower 32 bits of the tag. For tuples with a 64-bit guard, `cdw3` contains 16 more bits.
    fn with_tuples(self, tuples: &mut Tuples) -> Self {
        let (metadata, metadata_len) = tuples.range();
        let (first, checks) = (tuples.first(), tuples.checks());
        let check = |which, bit| if checks.contains(which) { bit } else { 0 };
        let checks = check(Checks::GUARD, CHECK_GUARD) | check(Checks::REFERENCE, CHECK_REFERENCE);
        let (cdw3, cdw14) = ((first >> 32) as u32 & 0xFFFF, first as u32);
        Self { metadata, metadata_len, cdw3, cdw12: self.cdw12 | checks, cdw14, ..self }
    }

    /// Returns the bytes of the command that an entry of a ring contains.
    #[inline]
    pub(super) fn bytes(self) -> [u8; 80] {
        // SAFETY: both are plain bytes without padding, of the same length.
        unsafe { std::mem::transmute(Command64 { command: self, result: 0 }) }
    }
}

/// Whether one command can transfer these bytes. They must be whole blocks, and the number of blocks must fit into a field of 16 bits.
#[inline]
pub(crate) fn carries(namespace: NamespaceId, at: u64, len: usize) -> bool {
    let mask = (1 << namespace.shift) - 1;
    let blocks = len >> namespace.shift;
    (at | len as u64) & mask == 0 && (1..=0x1_0000).contains(&blocks) && len <= MAX_LEN
}

/// Converts the result of a command for `len` bytes to the form of a system call's result: the number of bytes, or a negative errno.
#[inline]
pub(super) fn outcome(result: i32, len: usize) -> i32 {
    // The kernel reports EINTR for a cancelled command, for example after a reset of the controller.
    const CANCELLED: i32 = -Errno::EINTR.0;
    match result {
        0 => len as i32,
        CANCELLED => -Errno::EAGAIN.0,
        failure @ ..0 => failure,
        status => -errno(status).0,
    }
}

/// Returns the errno for an NVMe status, or EIO if no other errno fits.
#[cold]
fn errno(status: i32) -> Errno {
    match status & STATUS {
        0x001 => Errno::EOPNOTSUPP,     // invalid opcode
        0x002 => Errno::EINVAL,         // invalid field
        0x00B => Errno::ENODEV,         // invalid namespace
        0x020 => Errno::EROFS,          // namespace is write protected
        0x080 => Errno::ENXIO,          // logical block out of range
        0x081 => Errno::ENOSPC,         // capacity exceeded
        0x281 => Errno::ENODATA,        // unrecovered read error
        0x282..=0x284 => Errno::EILSEQ, // guard, application tag, reference tag
        _ => Errno::EIO,
    }
}

/// Runs an `ioctl` on a character device, and returns its result. For a command, the result is the device's status; 0 means success.
struct Call<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: each operation is used with the structure that the kernel reads and writes for this operation.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Call<'_, OPCODE, T> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// Returns the number of a character device's namespace.
pub(crate) fn namespace_number(device: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: the operation takes no argument.
    let number = unsafe { ioctl(device, Call::<IOCTL_ID, ()>(&mut ())) }?;
    u32::try_from(number).map_err(|_| Errno::EINVAL)
}

/// Returns the properties of a namespace or of its controller, from Identify.
pub(crate) fn identify(
    device: BorrowedFd<'_>,
    namespace: Option<u32>,
) -> Result<[u8; 4096], Errno> {
    let mut structure = [0_u8; 4096];
    let mut command = Command {
        opcode: IDENTIFY,
        namespace: namespace.unwrap_or(0),
        address: structure.as_mut_ptr() as u64,
        data_len: structure.len() as u32,
        cdw10: u32::from(namespace.is_none()),
        ..Command::default()
    };
    // SAFETY: the command writes only to `structure`, and within its length.
    match unsafe { ioctl(device, Call::<IOCTL_ADMIN, Command>(&mut command)) }? {
        0 => Ok(structure),
        status => Err(errno(status)),
    }
}

/// Reads with one system call. Fails with EINVAL if one command cannot transfer the bytes.
#[inline(always)]
pub(crate) fn read_now(
    device: BorrowedFd<'_>,
    namespace: NamespaceId,
    buf: &mut [u8],
    at: u64,
) -> Result<usize, Errno> {
    let memory = (buf.as_mut_ptr() as u64, buf.len() as u32);
    let command = Command::io(namespace, Action::Read, at, buf.len(), memory, None);
    let mut command = Command64 { command, result: 0 };
    // SAFETY: the command writes only to `buf`, within its length.
    let status = unsafe { ioctl(device, Call::<IOCTL_IO64, Command64>(&mut command)) };
    match outcome(status.unwrap_or_else(|errno| -errno.raw_os_error()), buf.len()) {
        failure @ ..0 => Err(Errno(-failure)),
        count => Ok(count as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId { number: 7, shift: 9, metadata: 0 };

    #[test]
    fn a_command_carries_whole_blocks_and_at_most_as_many_as_it_can_count() {
        assert!(carries(NAMESPACE, 512, 512) && carries(NAMESPACE, 0, 512 << 16));
        for (at, len) in [(0, 0), (0, 511), (1, 512), (0, (512 << 16) + 512)] {
            assert!(!carries(NAMESPACE, at, len), "{len} at {at}");
            let command = Command::io(NAMESPACE, Action::Read, at, len, (0xABCD, len as u32), None);
            assert_eq!(command.bytes(), [0; 80], "namespace 0 is refused");
        }
    }

    #[test]
    fn a_command_has_its_fields_where_the_kernel_and_the_specification_have_them() {
        let at = 0x1_2345_6789_u64 << 9;
        let command = Command::io(NAMESPACE, Action::WriteThrough, at, 4096, (0xABCD, 4096), None);
        let bytes = command.bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], word(4)), (0x01, 7));
        assert_eq!((word(24), word(36)), (0xABCD, 4096));
        assert_eq!((word(40), word(44), word(48)), (0x2345_6789, 1, 7 | 1 << 30));
        assert_eq!((URING_IO, IOCTL_IO64), (0xC048_4E80, 0xC050_4E48));
    }

    #[test]
    fn a_command_with_tuples_names_them_and_what_to_check() {
        let mut tuples = Tuples::slab(1).unwrap().remove(0);
        tuples.begin(0x1_2345_6789, 64, Checks::GUARD | Checks::REFERENCE);
        let at = 0x1_2345_6789_u64 << 9;
        let namespace = NamespaceId { metadata: 8, ..NAMESPACE };
        let memory = (0xABCD, 4096);
        let mut write =
            |len| Command::io(namespace, Action::Write, at, len, memory, Some(&mut tuples)).bytes();
        assert_eq!(write(8192), [0; 80], "a buffer for eight tuples is too small for sixteen");
        let bytes = write(4096);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), tuples.range().0);
        assert_eq!((word(32), word(36)), (64, 4096));
        // The PRINFO field is in command dword 12. Bit 26 checks the reference tag, and bit 28 checks the guard.
        assert_eq!((word(48), word(56), word(12)), (7 | 0b101 << 26, 0x2345_6789, 1));
        let without = Command::io(namespace, Action::Read, at, 4096, memory, None);
        assert_eq!(
            without.bytes(),
            [0; 80],
            "without tuple memory the device would write to an unknown address"
        );
    }

    #[test]
    fn a_status_is_an_errno() {
        assert_eq!(outcome(0, 4096), 4096);
        assert_eq!(outcome(-11, 4096), -11);
        // This status also has the bit "Do not retry" set.
        assert_eq!(outcome(0x4080, 4096), -Errno::ENXIO.0);
        assert_eq!(outcome(0x7FF, 4096), -Errno::EIO.0);
    }
}
