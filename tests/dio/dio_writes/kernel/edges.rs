//! Single requests at the limits of the on-disk format and of the system calls.

use ironmap::Engine;
use ironmap::dio::DioFlags;
use ironmap::fs::InodeFlags;

use super::Twins;
use super::sides::{Kernel, Ours};
use super::step::Write;
use crate::common::command::run;
use crate::common::skip::Need;
use crate::dio_writes::model::open;
use crate::require;

const LIMIT: u64 = 0xFFFF_FFFF * 4096;

/// These requests fail with the kernel's errno and have no effect:
///
/// - requests past the limit of the format;
/// - requests without bytes;
/// - requests with partial sectors;
/// - invalid atomic requests.
#[test]
fn requests_that_the_kernel_refuses_get_its_errno() {
    require!([Need::Root, Need::NoJournalBeneath("all of its writes are atomic")]);
    let twins = Twins::new("-t ext4 -b 4096");
    let volume = open(twins.device.node().as_ref(), Engine::Psync);
    let (kernel, mut ours) =
        (Kernel::open(twins.mount.dir(), "written"), Ours::open(&volume, "written"));
    let (before, size) = (kernel.content(), kernel.size());
    let mut differ = Vec::new();
    let atomic = DioFlags::ATOMIC;
    for (pos, len, flags) in [
        (LIMIT, 512, DioFlags::empty()),
        (LIMIT + 4096, 4096, DioFlags::empty()),
        (1 << 62, 4096, DioFlags::empty()),
        ((1 << 63) - 4096, 512, DioFlags::empty()),
        (0, 0, DioFlags::empty()),
        (1, 0, DioFlags::empty()),
        (LIMIT, 0, DioFlags::empty()),
        (1 << 20, 0, DioFlags::SYNC),
        (0, 0, DioFlags::NOWAIT),
        (1, 512, DioFlags::empty()),
        (0, 511, DioFlags::empty()),
        (4095, 4097, DioFlags::empty()),
        (0, 4096, atomic),
        (0, 512, atomic),
        (0, 3 * 512, atomic),
    ] {
        for owned in [false, true] {
            let write = Write { flags, owned, ..Write::plain(pos, len) };
            let bytes = vec![0x77; len as usize];
            let (kernel, ours) = (kernel.write(&write, &bytes), ours.write(&write, &bytes));
            if kernel != ours {
                differ.push(format!("{write:?}: {ours:?}, the kernel {kernel:?}"));
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    // A position above the maximum of `off_t` gives EINVAL from the system call, and EFBIG from ironmap. The reason is that ironmap returns
    // EFBIG for every position past the limit of the on-disk format.
    for (pos, len) in [((1 << 63) - 4096, 4096), (1 << 63, 512), (u64::MAX - 511, 512)] {
        let (write, bytes) = (Write::plain(pos, len), vec![0x77; len as usize]);
        assert_eq!((kernel.write(&write, &bytes), ours.write(&write, &bytes)), (Err(22), Err(27)));
    }
    // Linux writes the part of the range below the limit. ironmap refuses the whole write, because such a large position is more likely a
    // mistake.
    let (write, bytes) = (Write::plain(LIMIT - 4096, 8192), vec![0x77; 8192]);
    assert_eq!(ours.write(&write, &bytes), Err(27));
    assert_eq!((ours.size(), kernel.size()), (size, size));
    assert!(ours.content() == before && kernel.content() == before);
}

/// A write to an immutable file is refused, even if the file was opened before the flag was set. For an append-only file, Linux checks the
/// flag only during the open.
#[test]
fn immutable_files_are_refused_as_the_kernel_does() {
    require!([Need::Root]);
    let twins = Twins::new("-t ext4 -b 4096");
    let volume = open(twins.device.node().as_ref(), Engine::Psync);
    let (kernel, mut ours) =
        (Kernel::open(twins.mount.dir(), "written"), Ours::open(&volume, "written"));
    run("chattr", &["+i".as_ref(), kernel.path.as_os_str()]);
    let number = ours.number();
    let flags = volume.fs().inode(number).unwrap().flags();
    volume.fs().writable().unwrap().set_flags(number, flags | InodeFlags::IMMUTABLE).unwrap();
    for (pos, len) in [(0, 4096), (0, 0), (512, 512), (1 << 20, 4096)] {
        let (write, bytes) = (Write::plain(pos, len), vec![0x77; len as usize]);
        assert_eq!(ours.write(&write, &bytes), kernel.write(&write, &bytes), "{len} at {pos}");
    }
    run("chattr", &["-i".as_ref(), kernel.path.as_os_str()]);
    volume.fs().writable().unwrap().set_flags(number, flags).unwrap();
}
