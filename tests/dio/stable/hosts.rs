//! Tests [`StablePages`] with files of mounted file systems. The setting has an effect if the reads bypass the kernel's file system and the
//! device computes checksums over the data.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ironmap::device::{BlockFile, Device, OpenMode, Psync, Uring, UringOptions};
use ironmap::dio::{DioFlags, StablePages};
use ironmap::{FileOptions, Host, QueueOptions};

use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;
use crate::stable::checking::checking;
use crate::stable::scribble::{KINDS, Op, memory, run};
use crate::stable::scribbler::Range;

const SEED: u64 = 0x57ab1e;

/// If a read directly from the device fails, ironmap reads through the kernel's file system instead, and the caller does not see the
/// failure. So the test also checks whether any read went through the kernel's file system.
#[test]
fn raw_reads_into_scribbled_memory_do_not_fail() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(4 << 20));
    rustix::fs::sync();
    for ring in [false, true] {
        let mode = OpenMode { exclusive: false, ..OpenMode::default() };
        let file = Arc::new(BlockFile::open(Path::new(mounted.device()), &mode).unwrap());
        let below: Arc<dyn Device> = if ring {
            Arc::new(Uring::new(file, UringOptions::default()))
        } else {
            Arc::new(Psync::new(file))
        };
        let (device, checks) = checking(below);
        let host = Host::on(device).unwrap();
        for way in StablePages::ALL {
            let stable_pages = Some(way);
            let options = FileOptions::new().direct(true).stable_pages(stable_pages);
            let file = host.open_with(&path, options).unwrap();
            for kind in KINDS {
                for size in [4096, 1 << 20] {
                    let what = format!("ring {ring}, {way:?}, {kind:?} of {size}");
                    let mut queue = host.queue(&QueueOptions::new().depth(16)).unwrap();
                    let mut requests = vec![memory(kind, size), memory(kind, size)];
                    let ranges: Vec<_> = requests.iter_mut().flatten().map(Range::of).collect();
                    let before = checks.mismatches.load(Ordering::Relaxed);
                    let (results, _kept) = checks.rounds.during(&ranges, || {
                        run((Op::Read, kind), &mut queue, &file, requests, DioFlags::empty())
                    });
                    assert!(results.iter().all(Result::is_ok), "{what}: {results:?}");
                    let (stats, trusts) = (queue.stats(), way == StablePages::ZeroCopy);
                    assert_eq!(stats.kernel_served > 0, trusts, "{what}: {stats:?}");
                    let met = checks.mismatches.load(Ordering::Relaxed) > before;
                    assert_eq!(met, way != StablePages::Bounce, "{what}: mismatches");
                }
            }
        }
    }
}
