//! Tests of threads that read and write the same sectors, with a power cut at any moment. A model checker chooses the order in which the
//! threads run.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use super::{FormatOptions, Integrity, IntegrityOptions, Mode, format};
use crate::bio::Buffer;
use crate::device::{AnyQueue, Device, InRange, Limits, QueueOptions, Ram};
use crate::error::{Error, Result};
use crate::sync::explore;
use crate::units::DevOffset;

const SECTOR: u64 = 512;
const SIZE: u64 = 16 << 10;

/// A device in memory. Between any two sectors of a request, other threads may run.
#[derive(Debug)]
struct Slow(Arc<Ram>);

impl Device for Slow {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        for (sector, at) in buf.chunks_mut(SECTOR as usize).zip((at.0..).step_by(SECTOR as usize)) {
            thread::yield_now();
            self.0.read_exact_at(sector, DevOffset(at))?;
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let mut at = at.0;
        for sector in bufs.iter().flat_map(|buf| buf.chunks(SECTOR as usize)) {
            thread::yield_now();
            self.0.write_all_at(&[IoSlice::new(sector)], DevOffset(at), fua)?;
            at += SECTOR;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        for at in (at.0..at.0 + len).step_by(SECTOR as usize) {
            thread::yield_now();
            self.0.discard(DevOffset(at), SECTOR)?;
        }
        Ok(())
    }

    fn queue_within(&self, _: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Err(Error::unsupported("the model has no queues"))
    }
}

struct Model {
    data: Arc<Ram>,
    tags: Arc<Ram>,
    device: Integrity,
}

/// Reads sectors, and returns the first byte of each sector. Fails if the bytes of a sector are not all equal.
fn sectors(device: &Integrity, first: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; (count * SECTOR) as usize];
    device.read_exact_at(&mut bytes, DevOffset(first * SECTOR)).unwrap();
    let fill = |sector: &[u8]| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
        sector[0]
    };
    bytes.chunks(SECTOR as usize).map(fill).collect()
}

impl Model {
    fn new(mode: Mode, generations: bool) -> Self {
        let (data, tags) = (Arc::new(Ram::new(SIZE)), Arc::new(Ram::new(1 << 20)));
        let options = FormatOptions {
            interval: SECTOR as u32,
            mode,
            generations: generations && mode == Mode::Bitmap,
            region: Some(4096),
            journal: Some(64 << 10),
            ..FormatOptions::default()
        };
        let (below, beside) = (data.clone() as Arc<dyn Device>, tags.clone() as Arc<dyn Device>);
        format(&below, Some(&beside), &options, &mut |_, _| {}).unwrap();
        // With these options, each access to a block of tags evicts another block, and every flush clears the map.
        let open = IntegrityOptions {
            cache: 0,
            clean_after: Duration::ZERO,
            ..IntegrityOptions::default()
        };
        let (below, beside) = (Arc::new(Slow(data.clone())), Arc::new(Slow(tags.clone())));
        let device = Integrity::open_with(below, Some(beside), &open).unwrap().device;
        Self { data, tags, device }
    }

    fn write(&self, first: u64, count: u64, fill: u8) {
        let mut buffer = Buffer::aligned((count * SECTOR) as usize).unwrap();
        buffer.fill(fill);
        let at = DevOffset(first * SECTOR);
        self.device.write_all_at(&[IoSlice::new(&buffer)], at, false).unwrap();
    }

    fn read(&self, first: u64, count: u64, allowed: &[u8]) {
        let found = sectors(&self.device, first, count);
        assert!(found.iter().all(|fill| allowed.contains(fill)), "{found:?}");
    }

    /// Cuts the power and recovers the device. After the recovery, all sectors must match their tags. `stretch` is a range of sectors
    /// (first, count). In journal mode, no write to this range may be torn.
    fn power_cut(&self, mode: Mode, stretch: (u64, u64)) {
        // No other thread can run between these two snapshots.
        let (data, tags) = (Arc::new(self.data.snapshot()), Arc::new(self.tags.snapshot()));
        let device = Integrity::open(data, Some(tags)).unwrap().device;
        device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
        let found: BTreeSet<_> = sectors(&device, stretch.0, stretch.1).into_iter().collect();
        assert!(mode == Mode::Bitmap || found.len() == 1, "a write is torn: {found:?}");
    }

    /// Closes the device after all threads of the model have ended. The closed device must need no recovery, and all sectors must match
    /// their tags.
    fn end(self) {
        let Self { data, tags, device } = self;
        drop(device);
        let opened = Integrity::open(data, Some(tags)).unwrap();
        assert!(!opened.recovered.crashed && opened.recovered.regions == 0);
        opened.device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
    }
}

/// Creates a device, runs threads on it, and waits until all threads have ended.
fn run(mode: Mode, generations: bool, threads: &[fn(&Model)]) {
    let model = Arc::new(Model::new(mode, generations));
    crate::sync::run(&model, threads);
    let model = Arc::into_inner(model).expect("the threads end without an error");
    model.end();
}

#[test]
fn readers_see_what_one_of_overlapping_writers_gives() {
    explore(20, || {
        run(
            Mode::Bitmap,
            false,
            &[
                |model| model.write(0, 3, 1),
                |model| model.write(1, 3, 2),
                |model| model.read(0, 4, &[0, 1, 2]),
            ],
        );
    });
}

#[test]
fn a_flush_clears_no_region_that_is_written() {
    explore(20, || {
        run(
            Mode::Bitmap,
            true,
            &[
                |model| {
                    model.write(0, 1, 1);
                    model.device.flush().unwrap();
                },
                |model| {
                    model.write(1, 9, 2);
                    model.device.flush().unwrap();
                },
                |model| model.power_cut(Mode::Bitmap, (0, 1)),
            ],
        );
    });
}

#[test]
fn a_scrub_finds_nothing_beside_writers() {
    explore(20, || {
        run(
            Mode::Bitmap,
            true,
            &[
                |model| model.write(0, 2, 1),
                |model| {
                    model.write(1, 2, 2);
                    model.device.flush().unwrap();
                },
                |model| {
                    let found = &mut |found| panic!("{found:?}");
                    model.device.scrub(found, &mut |_, _| {}).unwrap();
                },
            ],
        );
    });
}

#[test]
fn discards_beside_writes_leave_nothing_that_does_not_fit() {
    for mode in [Mode::Bitmap, Mode::Journal] {
        explore(20, move || {
            run(
                mode,
                true,
                &[
                    |model| {
                        model.write(0, 2, 1);
                        model.write(1, 2, 1);
                    },
                    |model| {
                        model.device.discard(DevOffset(SECTOR), 9 * SECTOR).unwrap();
                        model.device.flush().unwrap();
                        model.read(0, 3, &[0, 1]);
                    },
                    |model| model.power_cut(Mode::Bitmap, (0, 1)),
                ],
            );
        });
    }
}

#[test]
fn the_journal_tears_no_write() {
    explore(40, || {
        run(
            Mode::Journal,
            false,
            &[
                |model| model.write(0, 2, 1),
                |model| {
                    model.write(0, 2, 2);
                    model.read(0, 3, &[0, 1, 2]);
                },
                |model| model.power_cut(Mode::Journal, (0, 2)),
            ],
        );
    });
}
