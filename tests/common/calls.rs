//! All ways to read a file. For a file of a mounted file system, each way must return the same bytes as a read through the kernel.

use std::io::IoSliceMut;
use std::path::Path;

use ironmap::bio::Memory;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, File, FileOptions, Host, Queue, Result};

use super::ranges::{Room, UNTOUCHED, bytes, fault, part, pieces, shape, split};
use super::rng::Rng;

/// The call that a test uses to read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Flat,
    Vectored,
    Owned,
    OwnedVectored,
}

pub(crate) const CALLS: [Call; 4] = [Call::Flat, Call::Vectored, Call::Owned, Call::OwnedVectored];

/// The maximum length of a read.
const LONGEST: u64 = 300_000;
/// An alignment that every device accepts, in bytes.
const ALIGNED: u64 = 4096;

/// A file of a mounted file system that is opened twice: once for requests with any alignment, and once for aligned requests only.
pub(crate) struct Both {
    pub(crate) any: File,
    pub(crate) strict: File,
}

impl Both {
    pub(crate) fn open(host: &Host, path: &Path) -> Self {
        Self::open_with(host, path, FileOptions::default())
    }

    pub(crate) fn open_with(host: &Host, path: &Path, options: FileOptions) -> Self {
        let open = |strict| host.open_with(path, options.direct(strict)).unwrap();
        Self { any: open(false), strict: open(true) }
    }

    /// The name of the reason why reads of this file go through the kernel. If they go directly to the device, the result is `raw`.
    pub(crate) fn served(&self) -> &'static str {
        let name = |file: &File| file.host().unwrap().refusal.map_or("raw", |why| why.name());
        let names = (name(&self.any), name(&self.strict));
        assert_eq!(names.0, names.1, "two handles of one file");
        names.0
    }

    /// Reads the file with every call, at the edges of the file and at random positions. Compares the bytes with `content`, which was read
    /// through the kernel.
    pub(crate) fn check(&self, queue: &mut Queue, content: &[u8], seed: u64, rounds: usize) {
        let rng = &mut Rng::new(seed ^ content.len() as u64);
        let size = content.len() as u64;
        let unit = ALIGNED as usize;
        let edges = [(0, 1), (size, 1), (size.saturating_sub(1), 10), (size + 12345, 5000)];
        for round in 0..rounds.max(CALLS.len() * edges.len()) {
            let way = CALLS[round % CALLS.len()];
            let nowait = rng.below(4) == 0;
            let (pos, len) = match edges.get(round / CALLS.len()) {
                Some(edge) => *edge,
                None => {
                    let longest = 1 << rng.below(LONGEST.ilog2().into());
                    (rng.below(size + ALIGNED), 1 + rng.below(longest))
                }
            };
            let flags = if nowait { DioFlags::NOWAIT } else { DioFlags::empty() };
            let (pos, len, offset, file) = if rng.below(2) == 0 {
                (pos, len as usize, rng.below(9) as usize, &self.any)
            } else {
                let len = len.next_multiple_of(ALIGNED);
                (pos / ALIGNED * ALIGNED, len as usize, 0, &self.strict)
            };
            let cuts = pieces(rng, len, if offset == 0 { ALIGNED as usize } else { 1 });
            let served = queue.stats().kernel_served;
            let (result, memory) = read(way, queue, file, (pos, offset, len), &cuts, flags);
            let place =
                || format!("seed {seed:#x}, round {round}: {way:?}, {flags:?}, {len} at {pos}");
            match result {
                Ok(count) => {
                    // After a direct read by the kernel, the memory for the part past the end of the file has undefined content. So only
                    // the returned bytes are compared.
                    let raw = queue.stats().kernel_served == served;
                    let seen = if raw { &memory[..] } else { &memory[..count] };
                    let fault = fault(seen, count, part(content, pos, len), unit);
                    assert_eq!(fault, None, "{}", place());
                }
                Err(error) => {
                    assert!(
                        nowait && error.kind() == ErrorKind::WouldBlock,
                        "{}: {error}",
                        place()
                    );
                    assert!(memory.iter().all(|byte| *byte == UNTOUCHED), "{}", place());
                }
            }
        }
    }
}

/// Reads once. Returns the result, and the content of the memory after the read. A request that owns its buffer must complete once and
/// return the whole buffer.
pub(crate) fn read(
    way: Call,
    queue: &mut Queue,
    file: &File,
    (pos, offset, len): (u64, usize, usize),
    cuts: &[usize],
    flags: DioFlags,
) -> (Result<usize>, Vec<u8>) {
    let mut room = Room::new(offset + len);
    let pos = FilePos(pos);
    let memory = match way {
        Call::Flat => {
            let result = file.read_at_with(queue, room.at(offset, len), pos, flags);
            return (result, room.at(offset, len).to_vec());
        }
        Call::Vectored => {
            let mut rest = room.at(offset, len);
            let mut slices = Vec::new();
            for cut in cuts {
                let (head, tail) = rest.split_at_mut(*cut);
                slices.push(IoSliceMut::new(head));
                rest = tail;
            }
            let result = file.read_vectored_at(queue, &mut slices, pos, flags);
            return (result, room.at(offset, len).to_vec());
        }
        Call::Owned => Memory::Flat(room.into_buffer(offset, len)),
        Call::OwnedVectored => Memory::Vectored(split(room.into_buffer(offset, len), cuts)),
    };
    let before = shape(&memory);
    let (result, memory) = match file.submit_read(queue, memory, pos, flags, 4) {
        Err(rejected) => (Err(rejected.error), rejected.memory),
        Ok(()) => {
            queue.wait(1).expect("wait");
            let done = queue.pop().expect("a completion");
            assert_eq!(done.token, 4);
            (done.result, done.memory)
        }
    };
    assert_eq!(queue.outstanding(), 0, "one request, one completion");
    assert!(queue.pop().is_none(), "one request, one completion");
    assert_eq!(shape(&memory), before, "{way:?}: the memory came back changed");
    (result, bytes(&memory))
}
