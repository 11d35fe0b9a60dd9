//! Tests loads on files of a file system format that exists only in tests. A load may use only the features that every format supports.

#[path = "../../../tests/mem_fs/format/mod.rs"]
#[allow(dead_code, reason = "these tests use only a part of the module")]
mod format;

use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::Ram;

use self::format::{Kind, MemFs};
use crate::figures::Measured;
use crate::load::run_on;
use crate::plan::Plan;
use crate::positions::Rw;
use crate::prepare;
use crate::target::{TargetSpec, Variant};

const NAME: &str = "memory";
const LEN: usize = 2 << 20;
const OLD: u8 = 0xa5;

fn plan(rw: Rw, depth: u32, jobs: usize) -> Plan {
    let file = |simple| TargetSpec::Vol {
        volume: NAME.to_owned(),
        path: "/dir/file".to_owned(),
        variant: Variant { simple, ..Variant::USUAL },
    };
    Plan {
        targets: vec![file(true), file(false)],
        engine: "auto".to_owned(),
        rw,
        reads: 70,
        block: 4096,
        files: 1,
        content: None,
        dsync: false,
        fsync: 0,
        depth,
        jobs,
        batch_submit: depth as usize,
        batch_complete: 1,
        fixed_buffers: false,
        touch: true,
        assume_no_dedupe: false,
        size: None,
        runtime_ms: 5,
        cpus: Vec::new(),
        only: None,
    }
}

/// The number of reads and writes that took the library's simple path, the fast code for a request that fits in one bio.
fn simple_hits(measured: &Measured) -> u64 {
    let simple = |name: &str| matches!(name, "simple_hits" | "overwrites");
    let counts = measured.counters.iter().filter(|(name, _)| simple(name));
    counts.map(|(_, count)| count).sum()
}

/// Runs each kind of work, synchronous and queued, with one and two threads. If the variant enables the simple path, the fast code for a
/// request that fits in one bio, the requests take this path. The requests change only written extents.
#[test]
fn files_of_another_format_are_measured() {
    let fs = MemFs::new(Arc::new(Ram::new(4 * LEN as u64)), Kind::WHOLE);
    let mut new = vec![0; 4096];
    prepare::fill(&mut new);
    let volume = fs.volume();
    volume.create_dir_all("/dir").unwrap();
    volume.write("/dir/file", vec![OLD; LEN]).unwrap();
    for rw in [Rw::Read, Rw::Randread, Rw::Randwrite, Rw::RandMixed] {
        for (depth, jobs) in [(1, 1), (8, 1), (4, 2)] {
            let volumes: Vec<(String, Volume)> = vec![(NAME.to_owned(), fs.opened_again())];
            let measured = run_on(&plan(rw, depth, jobs), volumes).unwrap();
            let [simple, generic] = &measured[..] else { panic!("{measured:?}") };
            assert!(simple.ns > 0.0 && generic.ratio > 0.0, "{rw:?} {depth} {measured:?}");
            assert!(simple_hits(simple) > 100, "{rw:?} {depth}: {simple:?}");
            assert_eq!(simple_hits(generic), 0, "{rw:?} {depth}: {generic:?}");
        }
    }
    let content = fs.opened_again().read("/dir/file").unwrap();
    assert_eq!(content.len(), LEN);
    let blocks = content.chunks(4096);
    let written = blocks.clone().filter(|block| *block == new).count();
    let old = blocks.filter(|block| block.iter().all(|byte| *byte == OLD)).count();
    assert!(written > 0 && written + old == LEN / 4096, "{written} written, {old} old");
}
