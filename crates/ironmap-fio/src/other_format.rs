//! Tests jobs on files of a file system format that exists only in tests. A job may use only the features that every format supports.

#[path = "../../../tests/mem_fs/format/mod.rs"]
#[allow(dead_code, reason = "these tests use only a part of the module")]
mod format;

use std::sync::Arc;

use ironmap::device::Ram;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Engine, ErrorKind, FileOptions};

use self::format::{Kind, MemFs};
use crate::job::{Job, Op, Queued, Request};
use crate::options::{Options, Source};
use crate::shared;

const BLOCK: usize = 4096;

fn options(name: &str, depth: u32) -> Options {
    Options {
        source: Source::Volume(name.to_owned()),
        engine: Engine::Auto,
        writes: true,
        file: FileOptions::new().direct(true),
        durable: DioFlags::empty(),
        depth,
        max_block: 2 * BLOCK,
        pad: 0,
        fixed_buffers: false,
        simple: true,
    }
}

fn request(op: Op, file: usize, block: u64) -> Request {
    let pos = FilePos(block * BLOCK as u64);
    Request { op, index: 0, file, pos, address: 0, len: BLOCK }
}

/// A job carries out queued and synchronous requests, holes and syncs on files of any format, and reports a missing file.
#[test]
fn a_job_reads_and_writes_files_of_another_format() {
    let fs = MemFs::new(Arc::new(Ram::new(8 << 20)), Kind::WHOLE);
    let volume = fs.volume();
    volume.create_dir_all("/dir").unwrap();
    volume.write("/dir/file", vec![1; 16 * BLOCK]).unwrap();
    shared::give("memory", volume);
    let mut job = Job::open(options("memory", 4)).unwrap();
    assert_eq!(job.open_file(b"/dir/none").unwrap_err().kind(), ErrorKind::NotFound);
    let file = job.open_file(b"/dir/file").unwrap();

    for index in 0..4 {
        let memory = job.memory(index);
        memory.fill(10 + index as u8);
        let address = memory.address();
        let write = Request { index, address, ..request(Op::Write, file, index as u64) };
        assert!(job.owns(&write) && matches!(job.submit(&write), Queued::InFlight));
    }
    let mut ended = Vec::new();
    while ended.len() < 4 {
        for number in 0..job.reap(1, 3).unwrap() {
            let end = job.end(number).unwrap();
            ended.push((end.index, end.result));
        }
    }
    ended.sort_unstable_by_key(|(index, _)| *index);
    assert_eq!(ended, [0, 1, 2, 3].map(|index| (index, Ok(BLOCK))));

    let mut run = |request: Request, memory: &mut [u8]| {
        let Queued::Completed(result) = job.run(&request, memory) else { panic!("{request:?}") };
        result.unwrap()
    };
    let mut memory = vec![7; BLOCK];
    assert_eq!(run(request(Op::Write, file, 5), &mut memory), BLOCK);
    assert_eq!(run(request(Op::Trim, file, 6), &mut []), BLOCK);
    assert_eq!(run(request(Op::DataSync, file, 0), &mut []), 0);
    assert_eq!(run(request(Op::Sync, file, 0), &mut []), 0);
    let expected = [10, 11, 12, 13, 1, 7, 0, 1];
    for (block, byte) in expected.into_iter().enumerate() {
        assert_eq!(run(request(Op::Read, file, block as u64), &mut memory), BLOCK);
        assert!(memory.iter().all(|it| *it == byte), "block {block}");
    }
    job.close_file(file);
    job.close().unwrap();

    let content = fs.opened_again().read("/dir/file").unwrap();
    let blocks: Vec<u8> = content.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(blocks, [&expected[..], &[1; 8]].concat());
}
