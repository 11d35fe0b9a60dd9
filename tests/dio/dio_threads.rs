//! One file and several threads, each with its own queue.

use crate::common::fixture::{FRAGMENTED, Fixture, HOLES, SOLID, Stack, TAIL, UNWRITTEN, open};
use crate::common::ranges::{Room, bytes, part};
use crate::common::rng::Rng;
use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{File, QueueOptions, Volume};

const SEED: u64 = 0x7_42ead5;
const NONE: DioFlags = DioFlags::empty();

/// Several threads share handles. When the threads start, the map is not in memory. Every way to read returns the bytes of the file.
#[test]
fn threads_share_a_file() {
    let fixture = Fixture::new(4096, SEED);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        let files = [SOLID, FRAGMENTED, HOLES, UNWRITTEN, TAIL]
            .map(|name| (open(&volume, name, false), fixture.content(name)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, files) = (&volume, &files);
                scope.spawn(move || reads(volume, files, thread));
            }
        });
        assert!(volume.events().take().0.is_empty(), "{stack}");
    }
}

fn reads(volume: &Volume, files: &[(File, &[u8])], thread: u64) {
    let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
    let mut rng = Rng::new(SEED ^ thread);
    let mut sent = Vec::new();
    for round in 0..300 {
        let (file, content) = &files[rng.below(files.len() as u64) as usize];
        let pos = rng.below(content.len() as u64);
        let (pos, len) = match rng.below(2) {
            0 => (pos / 4096 * 4096, 4096),
            _ => (pos, rng.below(50_000) as usize),
        };
        let expected = part(content, pos, len);
        let shown = format!("thread {thread}, seed {SEED:#x}, round {round}: {len} at {pos}");
        if rng.below(2) == 0 {
            let mut room = Room::new(len);
            let count = file.read_at(&mut queue, room.at(0, len), FilePos(pos)).expect(&shown);
            assert_eq!(&room.at(0, len)[..count], expected, "{shown}");
            continue;
        }
        let buffer = Buffer::aligned(len).unwrap();
        file.submit_read(&mut queue, buffer, FilePos(pos), NONE, sent.len() as u64).expect(&shown);
        sent.push(expected);
        while let Some(done) = queue.pop() {
            let expected = sent[done.token as usize];
            assert_eq!(done.result.expect(&shown), expected.len(), "{shown}");
            assert!(bytes(&done.memory).starts_with(expected), "{shown}");
        }
    }
    while queue.outstanding() > 0 {
        queue.wait(1).unwrap();
        while let Some(done) = queue.pop() {
            let expected = sent[done.token as usize];
            assert_eq!(done.result.unwrap(), expected.len(), "thread {thread}");
            assert!(bytes(&done.memory).starts_with(expected), "thread {thread}");
        }
    }
}

/// A volume and a file can be shared between threads. A buffer can be sent to another thread.
#[test]
fn shared_types_are_sync() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Volume>();
    shareable::<File>();
    shareable::<Buffer>();
}
