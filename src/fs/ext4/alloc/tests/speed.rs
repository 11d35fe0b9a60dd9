//! What an allocation costs, in time of the processor: `cargo test --release --lib alloc::tests::speed -- --ignored --nocapture`.

use rustix::time::{ClockId, clock_gettime};

use super::image::Image;
use crate::fs::ext4::alloc::Freed;
use crate::fs::ext4::{Ext4, ROOT};
use crate::units::FsBlock;

const OPERATIONS: u32 = 100_000;

fn timed(what: &str, mut work: impl FnMut()) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let start = now();
    for _ in 0..OPERATIONS {
        work();
    }
    println!("{what}: {} ns", (now() - start) / i64::from(OPERATIONS));
}

#[test]
#[ignore = "a measurement"]
fn of_single_blocks() {
    for (options, size) in
        [("-t ext4", "2G"), ("-t ext4 -O ^metadata_csum", "2G"), ("-t ext4 -O ^has_journal", "2T")]
    {
        println!("{options} {size}");
        let image = Image::new(options, size);
        let opening = std::time::Instant::now();
        let fs = image.open();
        println!("opened in {:?}", opening.elapsed());
        let start = fs.superblock().group_start(fs.superblock().groups / 2);
        timed("a block changed in a transaction of its own", || change(&fs, start));
        let mut goal = start;
        let mut got = Vec::new();
        timed("allocated, each at the end of the one before", || {
            let (start, _) = fs.transact(2, |h| fs.allocate_blocks(h, goal, 1)).unwrap();
            goal = FsBlock(start.0 + 1);
            got.push(start);
        });
        timed("allocated, all with the same goal", || {
            got.push(fs.transact(2, |h| fs.allocate_blocks(h, start, 1)).unwrap().0);
        });
        timed("freed", || {
            let block = got.pop().unwrap();
            fs.transact(2, |h| fs.free_blocks(h, block, 1, Freed::Data)).unwrap();
        });
        timed("inodes allocated", || {
            fs.transact(3, |h| fs.allocate_inode(h, ROOT, false)).unwrap();
        });
    }
}

/// What the two changes of an allocation cost without it.
fn change(fs: &Ext4, block: FsBlock) {
    fs.transact(2, |h| {
        fs.update_group(h, 0, |_| Ok(()))?;
        let place = crate::error::Place::new("test");
        h.update(block, place, |bytes| {
            bytes[0] ^= 1;
            Ok(())
        })
    })
    .unwrap();
}
