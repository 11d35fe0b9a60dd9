//! Shows that `ironmap bench` makes the same requests to the kernel as fio. `./x fio` measures both and prints the results side by side.

use crate::require;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use crate::common::image::{Image, scratch};
use crate::common::skip::Need;

const IRONMAP: &str = env!("CARGO_BIN_EXE_ironmap");

/// The system calls of a program on a file, as strace reports them.
struct Seen {
    /// Whether the file was opened for direct I/O.
    direct: bool,
    /// The number of requests.
    requests: u64,
    /// The system call, the requested length and the result of each request.
    kinds: BTreeSet<(String, u64, i64)>,
    /// The offset of the first requested byte, and the offset after the last one.
    reach: (u64, u64),
}

impl Seen {
    fn of(path: &Path, program: &str, args: &[&OsStr]) -> Self {
        let dir = scratch();
        let log = dir.path().join("log");
        let strace: [&OsStr; 6] = [
            "-f".as_ref(),
            "-s0".as_ref(),
            "-P".as_ref(),
            path.as_ref(),
            "-o".as_ref(),
            log.as_ref(),
        ];
        let all: Vec<&OsStr> =
            strace.into_iter().chain([program.as_ref()]).chain(args.iter().copied()).collect();
        crate::common::command::run("strace", &all);
        let log = std::fs::read_to_string(&log).unwrap();
        let mut seen =
            Self { direct: false, requests: 0, kinds: BTreeSet::new(), reach: (u64::MAX, 0) };
        for line in log.lines() {
            seen.direct |= line.contains("O_DIRECT");
            // An example of a line: `21319 pread64(3, ""..., 4096, 16859136) = 4096`
            let call = line.split_once(' ').map_or(line, |(_, call)| call.trim_start());
            let Some((name, rest)) =
                call.split_once('(').filter(|(name, _)| name.starts_with("pread"))
            else {
                assert!(!call.starts_with("read"), "{call}");
                continue;
            };
            let (args, result) = rest.rsplit_once(") ").unwrap();
            let mut last = args.rsplit(", ").map(|arg| arg.parse::<u64>());
            let (Some(Ok(at)), Some(Ok(len))) = (last.next(), last.next()) else {
                // The bench probes once whether the device supports NOWAIT. This probe is the only call to preadv2.
                assert_eq!(name, "preadv2", "{call}");
                continue;
            };
            let result = result.trim_start_matches(['=', ' ']).parse().unwrap();
            if len < 4096 && seen.requests == 0 {
                // Before the first request, the bench probes the alignment that requests need.
                continue;
            }
            seen.requests += 1;
            seen.kinds.insert((name.to_owned(), len, result));
            assert_eq!(at % len, 0, "{call}");
            seen.reach = (seen.reach.0.min(at), seen.reach.1.max(at + len));
        }
        seen
    }
}

/// Each request of the bench is one system call. fio's psync engine makes the same calls, on the same range, with the same flags of the
/// open. The target is a raw device, or a file that the kernel serves.
#[test]
fn requests_are_those_of_fio() {
    require!([Need::Root, Need::Tool("fio"), Need::Tool("strace")]);
    const SIZE: u64 = 16 << 20;
    let image = Image::mke2fs("64M", &["-t", "ext4", "-b", "4096"]);
    let mount = image.mount("rw");
    let file = mount.dir().join("file");
    std::fs::write(&file, vec![0xAD; SIZE as usize]).unwrap();
    rustix::fs::sync();
    for (kind, path) in [("raw", Path::new(mount.device())), ("kernel", &file)] {
        let target = format!("{kind}:{}", path.display());
        let options = "bench --size 16m --engine psync --runtime 0.05 --rounds 1";
        let args: Vec<&OsStr> =
            options.split(' ').chain([&target[..]]).map(AsRef::as_ref).collect();
        let ours = Seen::of(path, IRONMAP, &args);
        let options = "--name=job --readonly --size=16m --rw=randread --bs=4k --direct=1 --ioengine=psync --norandommap \
                       --number_ios=2000 --output-format=json";
        let name = format!("--filename={}", path.display());
        let args: Vec<&OsStr> =
            options.split_whitespace().chain([&name[..]]).map(AsRef::as_ref).collect();
        let theirs = Seen::of(path, "fio", &args);
        assert_eq!(theirs.requests, 2000, "{kind}");
        assert_eq!(ours.kinds, theirs.kinds, "{kind}");
        assert!(ours.direct && theirs.direct, "{kind}");
        for (from, to) in [ours.reach, theirs.reach] {
            // The programs make so many random requests that some requests must be near the beginning of the range, and some near its end.
            assert!(
                from < SIZE / 16 && to > SIZE - SIZE / 16 && to <= SIZE,
                "{kind}: {from} to {to}"
            );
        }
    }
}
