//! A read of a host file (a file of a mounted file system) directly from the device needs one system call. The check of the lease needs no
//! further call. strace counts the calls.

use crate::common::again::{again, name_of, role};
use crate::common::image::scratch;
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note_part};
use crate::require;
use ironmap::bio::Buffer;
use ironmap::device::Engine;
use ironmap::units::FilePos;
use ironmap::{FileOptions, Host, HostOptions, QueueOptions};

const SEED: u64 = 0x5_ca11;
const READS: usize = 1000;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Reads a file between two calls of `getppid`. In the log of strace, these calls mark the beginning and the end of the reads.
fn reads(path: &str) {
    for engine in [Engine::Psync, Engine::IoUring] {
        let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
        let mut queue = host.queue(&QueueOptions::default()).unwrap();
        let file = host.open_with(path, FileOptions::default()).unwrap();
        let (mut rng, mut buffer) = (Rng::new(SEED), Buffer::aligned(BLOCK).unwrap());
        file.read_at(&mut queue, &mut buffer, FilePos(0)).unwrap();
        let _ = rustix::process::getppid();
        for _ in 0..READS {
            let pos = FilePos(rng.below(BLOCKS) * BLOCK as u64);
            assert!(matches!(file.read_at(&mut queue, &mut buffer, pos), Ok(BLOCK)));
        }
        let _ = rustix::process::getppid();
        assert_eq!(queue.stats().kernel_served, 0, "not raw");
    }
}

#[test]
fn a_raw_read_is_one_system_call() {
    if let Some(path) = role() {
        return reads(&path);
    }
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("strace")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(BLOCKS as usize * BLOCK));
    let dir = scratch();
    let log = dir.path().join("log");
    let beneath = ["strace", "-f", "-qq", "-o", log.to_str().unwrap()];
    if !crate::common::command::output("strace", &["true"]).status.success() {
        return note_part("a_raw_read_is_one_system_call", "all", "strace may not trace here");
    }
    let program = std::env::current_exe().unwrap();
    let test = name_of(module_path!(), "a_raw_read_is_one_system_call");
    again(&beneath, &program, &test, path.to_str().unwrap());
    let log = std::fs::read_to_string(log).unwrap();
    // The log consists of lines `TID CALL(ARGUMENTS...`. Only lines of the reading thread are counted.
    let tid =
        log.lines().find(|line| line.contains(" getppid(")).unwrap().split(' ').next().unwrap();
    let own = log.lines().filter_map(|line| line.strip_prefix(tid)?.trim_start().split_once('('));
    let calls: Vec<_> = own.map(|(name, _)| name).collect();
    let between: Vec<_> = calls.split(|name| *name == "getppid").collect();
    assert_eq!(between.len(), 5, "two engines");
    for reads in [between[1], between[3]] {
        let other = reads.iter().find(|name| **name != "pread64");
        assert_eq!((reads.len(), other), (READS, None));
    }
}
