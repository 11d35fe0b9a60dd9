//! NOWAIT requests never wait, and a refused request has no effect. On devices without poll queues, the flag HIPRI (polling for
//! completions) has no effect.

use crate::common::fixture::{FILES, FRAGMENTED, Fixture, INLINE, SOLID, Stack, open};
use crate::common::ranges::{Room, UNTOUCHED, bytes, part, shape};
use ironmap::bio::{Buffer, Memory};
use ironmap::device::Faults;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{Errno, ErrorKind, QueueOptions};

const SEED: u64 = 0x0e_a6a1;
const START: FilePos = FilePos(0);

/// A NOWAIT request is refused if the map of the file is not in memory. The request sends nothing to the device and changes no memory.
/// After another read has loaded the map, the NOWAIT request returns the data.
#[test]
fn a_map_that_is_not_in_memory_is_not_waited_for() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    for name in FILES {
        let len = 16 * 4096;
        let content = part(fixture.content(name), 0, len);
        let file = open(&volume, name, false);
        let has_map = !matches!(name, INLINE | "empty");
        for owned in [false, true].into_iter().filter(|_| has_map) {
            sim.set_faults(Faults::default());
            if owned {
                let buffer = Room::new(len).into_buffer(0, len);
                let address = buffer.address();
                let rejected = file
                    .submit_read(&mut queue, buffer, START, DioFlags::NOWAIT, 1)
                    .expect_err("a map to be read");
                assert_eq!(rejected.error.kind(), ErrorKind::WouldBlock, "{name}");
                assert_eq!(shape(&rejected.memory), [(address, len)], "{name}");
                assert!(bytes(&rejected.memory).iter().all(|byte| *byte == UNTOUCHED), "{name}");
                assert_eq!(queue.outstanding(), 0, "{name}");
            } else {
                let mut room = Room::new(len);
                let memory = room.at(0, len);
                let result = file.read_at_with(&mut queue, memory, START, DioFlags::NOWAIT);
                assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock, "{name}");
                assert!(memory.iter().all(|byte| *byte == UNTOUCHED), "{name}");
            }
            assert_eq!(sim.requests(), 0, "{name}");
        }
        let mut room = Room::new(len);
        if has_map {
            // If the device has tags (checksums of sectors), this read of the whole file also loads the tags.
            file.read_at(&mut queue, room.at(0, len), START).expect("a read that may wait");
        }
        let count = file.read_at_with(&mut queue, room.at(0, len), START, DioFlags::NOWAIT);
        assert_eq!(count.unwrap(), content.len(), "{name}");
        assert_eq!(&room.at(0, len)[..content.len()], content, "{name}");
    }
    assert!(volume.events().take().0.is_empty(), "EAGAIN is no error");
}

/// If the queue has no free slot, a NOWAIT request is refused and its memory is returned. With a free slot, the same request succeeds. Both
/// rules apply to the short code path for simple requests and to the general path.
#[test]
fn a_full_queue_is_not_waited_for() {
    let fixture = Fixture::new(4096, SEED);
    for stack in [Stack::Psync, Stack::Uring, Stack::Dax, Stack::Null, Stack::Sim] {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::new().depth(4)).unwrap();
        let solid = open(&volume, SOLID, true);
        let fragmented = open(&volume, FRAGMENTED, true);
        let mut room = Room::new(4096);
        for file in [&solid, &fragmented] {
            file.read_at(&mut queue, room.at(0, 4096), START).expect("the map");
        }
        for token in 0..4 {
            let buffer = Buffer::aligned(4096).unwrap();
            solid.submit_read(&mut queue, buffer, START, DioFlags::NOWAIT, token).expect("room");
        }
        // The cases are a request of one bio, and requests of several bios.
        for (file, len) in [(&solid, 4096), (&solid, 8192), (&fragmented, 64 * 4096)] {
            let buffer = Room::new(len).into_buffer(0, len);
            let before = vec![(buffer.address(), len)];
            let rejected = file
                .submit_read(&mut queue, buffer, START, DioFlags::NOWAIT, 9)
                .expect_err("no slot is free");
            assert_eq!(rejected.error.kind(), ErrorKind::WouldBlock, "{stack}");
            assert_eq!(shape(&rejected.memory), before, "{stack}");
            assert!(bytes(&rejected.memory).iter().all(|byte| *byte == UNTOUCHED), "{stack}");
        }
        assert_eq!(queue.outstanding(), 4, "{stack}");
        let mut seen = 0;
        while seen < 4 {
            queue.wait(1).unwrap();
            while let Some(done) = queue.pop() {
                assert!(done.token < 4, "{stack}: a refused request completed");
                seen += 1;
            }
        }
        // A NOWAIT request with more bios than the queue has slots is refused. If it were accepted, the submission would have to wait until
        // some bios of the same request complete.
        let len = 64 * 4096;
        let buffer = Buffer::aligned(len).unwrap();
        let refused = fragmented.submit_read(&mut queue, buffer, START, DioFlags::NOWAIT, 9);
        assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::WouldBlock, "{stack}");
        // Without NOWAIT, the same request is accepted and waits for free slots.
        let buffer = Buffer::aligned(len).unwrap();
        fragmented.submit_read(&mut queue, buffer, START, DioFlags::empty(), 9).expect("it waits");
        queue.wait(1).unwrap();
        let done = queue.pop().expect("a completion");
        assert_eq!((done.token, done.result.unwrap()), (9, len), "{stack}");
        if stack != Stack::Null {
            assert_eq!(bytes(&done.memory), part(fixture.content(FRAGMENTED), 0, len), "{stack}");
        }
    }
}

/// A device that cannot serve a request without waiting returns EAGAIN. The caller gets this error. No event reports it.
#[test]
fn a_busy_device_is_no_error() {
    let fixture = Fixture::new(4096, SEED);
    let (sim, volume) = fixture.sim(Faults::default());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let file = open(&volume, FRAGMENTED, true);
    let mut room = Room::new(64 * 4096);
    file.read_at(&mut queue, room.at(0, 64 * 4096), START).expect("the map");
    for len in [4096, 64 * 4096] {
        sim.set_faults(Faults {
            fail_after: Some(0),
            errno: Some(Errno::EAGAIN),
            ..Faults::default()
        });
        let result = file.read_at_with(&mut queue, room.at(0, len), START, DioFlags::NOWAIT);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
        let memory = Memory::Flat(Buffer::aligned(len).unwrap());
        let before = shape(&memory);
        file.submit_read(&mut queue, memory, START, DioFlags::NOWAIT, 5).expect("room");
        queue.wait(1).unwrap();
        let done = queue.pop().expect("a completion");
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(shape(&done.memory), before);
        assert!(volume.events().take().0.is_empty(), "EAGAIN is no event");
        sim.set_faults(Faults::default());
        let count = file.read_at_with(&mut queue, room.at(0, len), START, DioFlags::NOWAIT);
        assert_eq!(count.unwrap(), len);
        assert_eq!(room.at(0, len), part(fixture.content(FRAGMENTED), 0, len));
    }
}

/// On devices without poll queues, the flag HIPRI (polling for completions) changes nothing.
#[test]
fn hipri_is_cleared_where_nothing_polls() {
    let fixture = Fixture::new(4096, SEED);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        assert!(!volume.device().limits().poll, "{stack}");
        let mut queue = volume.queue(&QueueOptions::default()).unwrap();
        for name in [SOLID, FRAGMENTED, "holes"] {
            let file = open(&volume, name, true);
            for len in [4096, 4096, 64 * 4096] {
                let expected = part(fixture.content(name), 0, len);
                let mut room = Room::new(len);
                let result = file.read_at_with(&mut queue, room.at(0, len), START, DioFlags::HIPRI);
                assert_eq!(result.unwrap(), len, "{stack}, {name}");
                assert_eq!(room.at(0, len), expected, "{stack}, {name}");
                let buffer = Buffer::aligned(len).unwrap();
                file.submit_read(&mut queue, buffer, START, DioFlags::HIPRI, 0).expect("a read");
                queue.wait(1).unwrap();
                let done = queue.pop().expect("a completion");
                assert_eq!(done.result.unwrap(), len, "{stack}, {name}");
                assert_eq!(bytes(&done.memory), expected, "{stack}, {name}");
            }
        }
    }
}
