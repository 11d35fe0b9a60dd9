//! Arrays of Linux MD, read without the kernel's MD driver. The module `kernel` compares with arrays that the kernel made in a virtual
//! machine. The other tests run everywhere: their arrays consist of superblocks that mdadm reads too.

#[path = "../common/mod.rs"]
mod common;

mod forged;
mod kernel;
mod refusals;
mod shape;

use std::sync::Arc;

use common::rng::Rng;
use ironmap::bio::{BioFlags, Buffer, Dev};
use ironmap::device::{DeviceQueue, QueueOptions, Ram};
use ironmap::md::{Array, Member, assemble};
use ironmap::units::DevOffset;

/// Makes the list of members from images. The members have the names `0`, `1` and so on.
fn members(images: &[Vec<u8>], without: &[usize]) -> Vec<Member> {
    let left = (0..images.len()).filter(|index| !without.contains(index));
    let member = |index: usize| Member {
        name: index.to_string(),
        device: Arc::new(Ram::from_image(&images[index])),
    };
    left.map(member).collect()
}

/// Asserts that an array has this content: by one call, by calls at random positions, and by a queue.
fn assert_content(array: &Array, expected: &[u8], what: &str, seed: u64) {
    let device = array.device();
    assert_eq!(device.size(), expected.len() as u64, "{what}");
    let mut all = vec![0; expected.len()];
    device.read_exact_at(&mut all, DevOffset(0)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let differs = all.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(differs, None, "{what}: the first byte that differs");
    let mut rng = Rng::new(seed);
    let mut queue = device.queue(&QueueOptions::new()).unwrap();
    for _ in 0..20 {
        let at = rng.below(expected.len() as u64);
        let len = rng.below(expected.len() as u64 - at).min(300_000) as usize;
        let end = at as usize + len;
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, DevOffset(at)).unwrap();
        assert!(bytes == expected[at as usize..end], "{what}: {len} bytes at {at}");
        let at = at & !511;
        let mut buffer = Buffer::aligned(4096).unwrap();
        let len = buffer.len().min(expected.len() - at as usize) & !511;
        let count = queue.read_now(Dev::OWN, &mut buffer[..len], DevOffset(at), BioFlags::empty());
        assert_eq!(count, Ok(len), "{what}: the queue at {at}");
        assert!(buffer[..len] == expected[at as usize..][..len], "{what}: the queue at {at}");
    }
}

/// All sets of `count` numbers below `of`.
fn choices(of: usize, count: usize) -> Vec<Vec<usize>> {
    let all = (0..1_u32 << of).filter(|set| set.count_ones() as usize == count);
    all.map(|set| (0..of).filter(|index| set >> index & 1 == 1).collect()).collect()
}

/// The error with which ironmap refuses to assemble an array from these members.
fn refusal(members: Vec<Member>) -> ironmap::Error {
    match assemble(members) {
        Ok(array) => panic!("{array} was assembled"),
        Err(error) => error,
    }
}
