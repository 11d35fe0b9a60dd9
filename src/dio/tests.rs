//! Tests of cases that cannot be produced at will with a real volume or device: failures of single conditions of the simple path, injected
//! errors, and short transfers.

use std::io::IoSlice;
use std::sync::LazyLock;

use super::*;
use crate::bio::Buffer;
use crate::device::{Device, Faults, Immediate, Null, QueueOptions, Sim, Transfer};
use crate::error::Errno;
use crate::iomap::{Iomap, IomapFlags, IomapType};
use crate::units::{DevOffset, FilePos};

const BLOCK: usize = 4096;
static GEOMETRY: LazyLock<Geometry> =
    LazyLock::new(|| Geometry::new(Null::new(1 << 30).limits(), BLOCK as u64));
const NONE: DioFlags = DioFlags::empty();

/// A file with one mapping.
struct Fake {
    iomap: Iomap,
    resident: bool,
}

impl Fake {
    fn mapped() -> Self {
        let iomap = Iomap {
            pos: FilePos(0),
            len: 8 * BLOCK as u64,
            addr: DevOffset(1 << 20),
            kind: IomapType::Mapped,
            flags: IomapFlags::empty(),
        };
        Self { iomap, resident: true }
    }
}

impl MapFile for Fake {
    fn map(&self, _pos: FilePos, _len: u64) -> Result<Iomap> {
        Ok(self.iomap)
    }

    fn map_resident(&self, _pos: FilePos) -> Option<Iomap> {
        self.resident.then_some(self.iomap)
    }

    fn read_inline(&self, _buf: &mut [u8], _pos: FilePos) -> Result<()> {
        Ok(())
    }
}

fn target(map: &Fake) -> Target<'_, Fake> {
    Target {
        map,
        dev: Dev::OWN,
        geometry: &GEOMETRY,
        inode: InodeNo(12),
        size: 8 * BLOCK as u64,
        strict: &true,
        live: None,
    }
}

fn state() -> State {
    let mut state = State::new(4, Arc::default());
    state.admit(Null::new(1 << 30).limits());
    state
}

fn buffer(len: usize) -> Buffer {
    Buffer::aligned(len).unwrap()
}

/// A device whose first transfers return the given results. All later transfers succeed in full.
struct Script(VecDeque<Result<usize, Errno>>);

impl Transfer for Script {
    fn read(&mut self, buf: &mut [u8], _at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        self.0.pop_front().unwrap_or(Ok(buf.len()))
    }

    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.read(&mut vec![0; len], at, flags)
    }

    fn write(&mut self, _: &[IoSlice<'_>], _: DevOffset, _: BioFlags) -> Result<usize, Errno> {
        Err(Errno::EROFS)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

fn script(results: impl IntoIterator<Item = Result<usize, Errno>>) -> Immediate<Script> {
    Immediate::new(Script(results.into_iter().collect()), 4)
}

fn submit(queue: &mut impl DeviceQueue, state: &mut State, len: usize, token: u64) {
    let map = Fake::mapped();
    let request = Request::read(FilePos(0), len, NONE).token(token);
    submit_read(queue, state, &target(&map), buffer(len).into(), &request).unwrap();
}

/// Each condition of the simple path is checked separately, and has its own reason.
#[test]
fn every_gate_of_the_simple_path_closes() {
    let gate = |state: &State, map: &Fake, pos, len, address, flags| {
        simple::gate(state, &target(map), &Request::read(FilePos(pos), len, flags), address)
    };
    let (on, mut off) = (state(), state());
    off.set_simple(false);
    let open = Fake::mapped();
    let with = |change: fn(&mut Fake)| {
        let mut map = Fake::mapped();
        change(&mut map);
        map
    };
    assert_eq!(gate(&on, &open, 512, 512, 4096, DioFlags::NOWAIT), Ok(DevOffset((1 << 20) + 512)));
    assert_eq!(gate(&off, &open, 0, 512, 4096, NONE), Err(NotSimple::Disabled));
    for flag in [DioFlags::FORCE_WAIT, DioFlags::BOUNCE] {
        assert_eq!(gate(&on, &open, 0, 512, 4096, flag), Err(NotSimple::Flags));
    }
    for len in [0, BLOCK + 512, usize::MAX] {
        assert_eq!(gate(&on, &open, 0, len, 4096, NONE), Err(NotSimple::Length));
    }
    for pos in [8 * BLOCK as u64, 8 * BLOCK as u64 - 512, u64::MAX] {
        assert_eq!(gate(&on, &open, pos, 1024, 4096, NONE), Err(NotSimple::PastSize));
    }
    for (pos, len, address) in [(1, 512, 4096), (0, 511, 4096), (0, 512, 4097)] {
        assert_eq!(gate(&on, &open, pos, len, address, NONE), Err(NotSimple::Misaligned));
    }
    let absent = with(|map| map.resident = false);
    assert_eq!(gate(&on, &absent, 0, 512, 4096, NONE), Err(NotSimple::NotResident));
    for kind in [IomapType::Hole, IomapType::Unwritten, IomapType::Inline] {
        let mut map = Fake::mapped();
        map.iomap.kind = kind;
        assert_eq!(gate(&on, &map, 0, 512, 4096, NONE), Err(NotSimple::NotMapped));
    }
    let short = with(|map| map.iomap.len = 512);
    assert_eq!(gate(&on, &short, 0, 1024, 4096, NONE), Err(NotSimple::SeveralExtents));
    let protected = with(|map| map.iomap.flags = IomapFlags::INTEGRITY);
    assert_eq!(gate(&on, &protected, 0, 512, 4096, NONE), Err(NotSimple::Integrity));
}

/// The shortcut of the generic path refuses a mapping whose data must be verified, as the simple path does.
#[test]
fn a_piece_with_integrity_takes_no_short_cut() {
    let mut map = Fake::mapped();
    let piece = |map: &Fake| generic::one_piece(&target(map), FilePos(0), 8192, false);
    assert_eq!(piece(&map).unwrap(), Some(DevOffset(1 << 20)));
    map.iomap.flags = IomapFlags::INTEGRITY;
    assert_eq!(piece(&map).unwrap(), None);
}

/// If the device returns EAGAIN, a request without NOWAIT is repeated. After too many attempts, the request fails with EIO and reports an
/// event. A request with NOWAIT fails at once.
#[test]
fn eagain_is_retried_for_waiting_requests() {
    let busy = |count| vec![Err(Errno::EAGAIN); count];
    for len in [512, 2 * BLOCK] {
        let map = Fake::mapped();
        let read = |results, flags| {
            let (mut queue, mut state) = (script(results), state());
            let mut memory = buffer(len);
            let request = Request::read(FilePos(0), len, flags);
            let now = read_now(&mut queue, &mut state, &target(&map), &mut memory, &request);
            (now.map_err(|error| error.kind()), state.events.take().0.len(), queue)
        };
        let (result, events, _) = read(busy(50), NONE);
        assert_eq!((result, events), (Ok(len), 0));
        let (result, events, _) = read(busy(1000), NONE);
        assert_eq!((result, events), (Err(ErrorKind::Io(Errno::EIO)), 1));
        let (result, events, mut queue) = read(busy(1), DioFlags::NOWAIT);
        assert_eq!((result, events), (Err(ErrorKind::WouldBlock), 0));
        assert_eq!(
            queue.read_now(Dev::OWN, &mut [0], DevOffset(0), BioFlags::empty()),
            Ok(1),
            "asked once"
        );

        for (count, expected, events) in [(50, Ok(len), 0), (1000, Err(Errno::EIO), 1)] {
            let (mut queue, mut state) = (script(busy(count)), state());
            submit(&mut queue, &mut state, len, 7);
            wait(&mut queue, &mut state, 1).unwrap();
            let result = pop_as(&mut queue, &mut state, |done| done).unwrap().result;
            assert_eq!(result.map_err(|error| error.kind()), expected.map_err(ErrorKind::Io));
            assert_eq!(state.events.take().0.len(), events);
        }
    }
}

/// After `wait`, the requested number of completions can be popped, even if transfers are short or complete late.
#[test]
fn wait_gives_as_many_completions_as_it_says() {
    for seed in 0..50 {
        let faults = Faults { seed, short_one_in: Some(1), latency: 3, ..Faults::default() };
        let sim = Sim::new(Arc::new(Null::new(1 << 30)), faults);
        let (mut queue, mut state) = (sim.queue(&QueueOptions::new().depth(4)).unwrap(), state());
        for token in 0..4 {
            submit(&mut queue, &mut state, BLOCK, token);
        }
        let mut tokens = Vec::new();
        for min in [3, 1] {
            wait(&mut queue, &mut state, min).unwrap();
            for _ in 0..min {
                let done = pop_as(&mut queue, &mut state, |done| done).expect("a completion");
                assert_eq!(done.result.unwrap(), BLOCK);
                tokens.push(done.token);
            }
        }
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3]);
        assert!(pop_as(&mut queue, &mut state, |done| done).is_none());
    }
}
