//! Requests whose position, length or number of buffers is at a limit. A read from the device and a read by the kernel have the same
//! result.

use crate::require;
use std::fs::OpenOptions as OsOptions;

use crate::common::calls::{Both, CALLS, read};
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use ironmap::device::Engine;
use ironmap::dio::DioFlags;
use ironmap::{ErrorKind, Host, HostOptions, QueueOptions};

const SEED: u64 = 0x0dd;
/// `IOV_MAX` of Linux, plus one.
const SEGMENTS: usize = 1025;

type Answers = Vec<(String, Result<usize, ErrorKind>)>;

fn answers(host: &Host, both: &Both) -> Answers {
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let few = |len: usize| vec![len / 2, len - len / 2];
    let requests = [
        (0, 0, 0, vec![0]),
        (1, 1, 0, vec![0]),
        (0, 0, 4096, few(4096)),
        (1, 0, 4096, few(4096)),
        (0, 1, 4096, few(4096)),
        (512, 0, 511, few(511)),
        (700_001, 0, 4096, few(4096)),
        (700_416, 0, 4096, few(4096)),
        (700_417, 3, 4096, few(4096)),
        (i64::MAX as u64 - 4095, 0, 4096, few(4096)),
        (i64::MAX as u64, 0, 4096, few(4096)),
        (1 << 63, 0, 4096, few(4096)),
        (u64::MAX - 4095, 0, 4096, few(4096)),
        (u64::MAX, 0, 4096, few(4096)),
        (0, 0, SEGMENTS * 512, vec![512; SEGMENTS]),
        (3, 0, SEGMENTS * 5, vec![5; SEGMENTS]),
    ];
    let mut answers = Vec::new();
    for (pos, offset, len, cuts) in requests {
        for way in CALLS {
            for (strict, file) in [(false, &both.any), (true, &both.strict)] {
                let (result, _) =
                    read(way, &mut queue, file, (pos, offset, len), &cuts, DioFlags::empty());
                let asked =
                    format!("{way:?}, {len} at {pos}, {} pieces, strict {strict}", cuts.len());
                answers.push((asked, result.map_err(|error| error.kind())));
            }
        }
    }
    answers
}

#[test]
fn odd_requests_are_answered_alike_raw_and_by_the_kernel() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(700_001));
    for engine in [Engine::Psync, Engine::IoUring] {
        let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
        let both = Both::open(&host, &path);
        assert_eq!(both.served(), "raw");
        let raw = answers(&host, &both);
        let writer = OsOptions::new().write(true).open(&path).unwrap();
        assert_ne!(both.served(), "raw");
        let kernel = answers(&host, &both);
        drop(writer);
        let differ: Vec<_> =
            raw.iter().zip(&kernel).filter(|(raw, kernel)| raw != kernel).collect();
        assert!(differ.is_empty(), "{engine}, raw and kernel: {differ:?}");
        assert!(host.events().take().0.is_empty(), "{engine}: nothing has failed");
    }
}
