//! Tests of the cache of changed blocks. The cache stores a version of a block for each transaction that has changed it. Several threads
//! change, read and drop the versions of one block, and write them to the block's home location.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use shuttle::thread;

use crate::device::{Device, Ram, yielding};
use crate::error::Place;
use crate::fs::ext4::blocks::Blocks;
use crate::fs::ext4::jbd2::tid::Member;
use crate::sync::{explore, run};
use crate::units::{BlockSize, FsBlock};

const BLOCK: FsBlock = FsBlock(3);
const SHIFT: u8 = 10;
const PLACE: Place = Place::new("counter");

struct Model {
    blocks: Blocks,
    device: Arc<dyn Device>,
    /// The block contains a counter. This is the highest value of the counter that any thread has read or written.
    seen: AtomicU64,
}

impl Model {
    fn new() -> Arc<Self> {
        let device: Arc<dyn Device> = Arc::new(yielding(Arc::new(Ram::new(8 << SHIFT))));
        let blocks = Blocks::new(Arc::clone(&device), Self::size(), 8, Arc::default());
        Arc::new(Self { blocks, device, seen: AtomicU64::new(0) })
    }

    fn size() -> BlockSize {
        BlockSize::from_shift(SHIFT).unwrap()
    }

    fn number(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(*bytes.first_chunk().unwrap())
    }

    /// Reads the counter in the block. The value must be at least the highest value that any thread had seen before the read.
    fn look(&self) -> u64 {
        let least = self.seen.load(SeqCst);
        let found = Self::number(&self.blocks.read(BLOCK, PLACE).unwrap());
        assert!(found >= least, "{found} was read, but {least} was written before");
        self.seen.fetch_max(found, SeqCst);
        found
    }

    fn count(&self, tid: u64) {
        let add = |bytes: &mut [u8]| {
            let number = Self::number(bytes) + 1;
            // A reader must never get these bytes. A reader that gets them has read an incomplete change.
            bytes[..4].fill(0xFF);
            thread::yield_now();
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            Ok(number)
        };
        let (number, _) = self.blocks.update(BLOCK, &Member::in_test(tid), PLACE, add).unwrap();
        self.seen.fetch_max(number, SeqCst);
    }

    /// Writes the version of transaction `tid` to the block's home location, as a checkpoint does. The transaction has been committed, so
    /// this version no longer changes.
    fn write_home(&self, tid: u64) {
        if let Some(version) = self.blocks.dirty().of_transaction(BLOCK, Member::in_test(tid).tid())
        {
            self.blocks.write_home(&[(BLOCK, version.clone())]).unwrap();
            self.blocks.written(BLOCK, &version);
        }
    }

    fn at_home(&self) -> u64 {
        let mut bytes = [0; 1 << SHIFT];
        self.device.read_exact_at(&mut bytes, Self::size().offset_of(BLOCK)).unwrap();
        Self::number(&bytes)
    }
}

#[test]
fn no_change_is_lost_and_no_reader_goes_back() {
    explore(2, || {
        let model = Model::new();
        let change: fn(&Model) = |model| (0..3).for_each(|_| model.count(1));
        let home: fn(&Model) = |model| (0..3).for_each(|_| model.write_home(1));
        let read: fn(&Model) = |model| {
            for _ in 0..6 {
                model.look();
            }
        };
        run(&model, &[change, change, home, read, read]);
        assert_eq!(model.look(), 6, "the block contains all changes");
        model.write_home(1);
        assert!(model.blocks.dirty().get(BLOCK).is_none(), "the block is not dirty");
        assert_eq!(model.at_home(), 6);
        assert_eq!(model.look(), 6);
    });
}

/// A thread may read a block that another thread has just freed. This late read must not bring the freed content back into the cache.
#[test]
fn a_late_reader_does_not_bring_back_what_a_freed_block_held() {
    explore(1, || {
        let model = Model::new();
        let made = Arc::new(AtomicBool::new(false));
        model.count(1);
        let late: fn(&Model) = |model| (0..2).for_each(|_| drop(model.blocks.read(BLOCK, PLACE)));
        let again = {
            let (model, made) = (Arc::clone(&model), Arc::clone(&made));
            thread::spawn(move || {
                model.blocks.forget(BLOCK, &Member::in_test(2));
                let fill = |bytes: &mut [u8]| bytes[0] = 100;
                model.blocks.create(BLOCK, &Member::in_test(2), fill).unwrap();
                made.store(true, SeqCst);
                model.write_home(2);
            })
        };
        let after = {
            let (model, made) = (Arc::clone(&model), Arc::clone(&made));
            thread::spawn(move || {
                for _ in 0..3 {
                    let made = made.load(SeqCst);
                    let found = Model::number(&model.blocks.read(BLOCK, PLACE).unwrap());
                    assert!(!made || found == 100, "{found} is the block's earlier content");
                }
            })
        };
        run(&model, &[late]);
        again.join().unwrap();
        after.join().unwrap();
        model.write_home(2);
        let found = Model::number(&model.blocks.read(BLOCK, PLACE).unwrap());
        assert_eq!((found, model.at_home()), (100, 100));
    });
}
