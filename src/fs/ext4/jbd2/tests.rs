//! Tests of the log writer. e2fsck and ironmap's reader recover the logs that the writer has written. e2fsck and the reader are independent
//! of the writer.

use std::sync::Arc;

use crate::device::{Device, Faults, Ram, Sim};
use crate::error::{ErrorKind, Place};
use crate::fs::ext4::for_tests::{Alone, Image, output};
use crate::fs::ext4::{Ext4, ROOT};
use crate::fs::{Clock, FileSystem};
use crate::units::FsBlock;

fn set_owner(fs: &Arc<Ext4>, uid: u16) {
    fs.transact(4, |handle| {
        handle.update_inode(&Alone(ROOT), |inode| {
            inode.fields()?.i_uid.set(uid);
            Ok(())
        })
    })
    .unwrap();
}

const KINDS: [&str; 6] = [
    "-t ext4",
    "-t ext4 -b 1024",
    "-t ext4 -O ^metadata_csum,^64bit",
    "-t ext4 -O ^64bit",
    "-t ext3",
    "-t ext3 -b 1024 -J size=1",
];

#[test]
fn synced_changes_are_recovered_after_a_crash() {
    for kind in KINDS {
        let image = Image::new(kind, "64M");
        let fs = image.open();
        set_owner(&fs, 7);
        fs.sync().unwrap();
        set_owner(&fs, 8);
        let crashed = image.copy();
        let seen = crashed.open_to_read();
        assert_eq!(seen.inode(ROOT).unwrap().stat().uid, 7, "{kind}");
        drop(seen);
        crashed.recover();
        let shown = crashed.debugfs("stat <2>");
        assert!(shown.contains("User:     7"), "{kind}: {shown}");
        fs.close().unwrap();
        drop(fs);
        image.recover();
        assert!(image.debugfs("stat <2>").contains("User:     8"), "{kind}");
    }
}

#[test]
fn the_log_goes_round_and_every_commit_can_be_recovered() {
    for kind in ["-t ext4 -b 1024 -J size=1", "-t ext3 -b 1024 -J size=1"] {
        let image = Image::new(kind, "64M");
        let fs = image.open();
        for round in 0..2000_u16 {
            set_owner(&fs, round);
            fs.sync().unwrap();
            if round % 97 == 0 {
                let crashed = image.copy();
                assert_eq!(crashed.open_to_read().inode(ROOT).unwrap().stat().uid, round.into());
                crashed.recover();
                let again = crashed.open();
                assert_eq!(again.inode(ROOT).unwrap().stat().uid, round.into());
                set_owner(&again, round + 1);
                again.close().unwrap();
                crashed.recover();
            }
        }
    }
}

/// A block near the end of the volume that no file and no structure uses.
fn spare(fs: &Ext4) -> FsBlock {
    FsBlock(fs.superblock().blocks_count - 40)
}

#[test]
fn a_copy_that_looks_like_a_block_of_the_journal_is_escaped() {
    for kind in KINDS {
        let image = Image::new(kind, "64M");
        let fs = image.open();
        let block = spare(&fs);
        let magic = 0xC03B_3998_u32.to_be_bytes();
        fs.transact(4, |handle| handle.create(block, |bytes| bytes[..4].copy_from_slice(&magic)))
            .unwrap();
        fs.sync().unwrap();
        let seen = image.copy().open_to_read();
        assert_eq!(seen.blocks.read(block, Place::new("test")).unwrap()[..4], magic, "{kind}");
        drop(seen);
        let again = image.copy().open();
        assert_eq!(again.blocks.read_device(block).unwrap()[..4], magic, "{kind}");
    }
}

#[test]
fn a_block_that_was_freed_is_not_replayed() {
    for kind in KINDS {
        let image = Image::new(kind, "64M");
        let fs = image.open();
        let block = spare(&fs);
        fs.transact(4, |handle| handle.create(block, |bytes| bytes.fill(0x11))).unwrap();
        fs.sync().unwrap();
        fs.transact(4, |handle| {
            handle.forget(block);
            Ok(())
        })
        .unwrap();
        fs.sync().unwrap();
        // The freed block is reused for the data of a file. Data are written without the journal. A recovery must not replay the old copy
        // of the block over these data.
        let data = crate::sys::Buffer::aligned(fs.superblock().block_size.bytes()).unwrap();
        let data = crate::fs::block::Block::new(data);
        fs.blocks.write_home(&[(block, data)]).unwrap();
        set_owner(&fs, 9);
        fs.sync().unwrap();
        let again = image.copy().open();
        assert!(again.blocks.read_device(block).unwrap().iter().all(|byte| *byte == 0), "{kind}");
        fs.close().unwrap();
        assert!(fs.blocks.read_device(block).unwrap().iter().all(|byte| *byte == 0), "{kind}");
    }
}

#[test]
fn many_threads_share_commits() {
    let image = Image::new("-t ext4", "64M");
    let fs = image.open();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let fs = &fs;
            scope.spawn(move || {
                let block = FsBlock(spare(fs).0 + thread);
                for round in 0..200_u8 {
                    fs.transact(4, |handle| handle.create(block, |bytes| bytes.fill(round)))
                        .unwrap();
                    fs.sync().unwrap();
                }
            });
        }
    });
    let again = image.copy().open();
    for thread in 0..8 {
        let block = FsBlock(spare(&again).0 + thread);
        assert!(again.blocks.read_device(block).unwrap().iter().all(|byte| *byte == 199));
    }
}

#[test]
fn an_operation_that_fails_half_way_makes_the_volume_read_only() {
    let image = Image::new("-t ext4", "64M");
    let fs = image.open();
    set_owner(&fs, 7);
    fs.sync().unwrap();
    let failed: crate::error::Result<()> = fs.transact(4, |handle| {
        handle.update_inode(&Alone(ROOT), |inode| {
            inode.fields()?.i_uid.set(8);
            Ok(())
        })?;
        Err(Place::new("test").corrupt("half way"))
    });
    assert!(failed.is_err());
    let refused = fs.transact(4, |_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("half way"), "{refused}");
    assert!(fs.sync().is_err());
    drop(fs);
    assert_eq!(image.open_to_read().inode(ROOT).unwrap().stat().uid, 7);
    let out = output("e2fsck", &["-fy", image.path().to_str().unwrap()]);
    assert!(out.status.code().unwrap() <= 1, "{}", String::from_utf8_lossy(&out.stdout));
    image.recover();
}

fn open(device: Arc<dyn Device>) -> crate::Result<Arc<Ext4>> {
    Ext4::open_for_writing(device, &Arc::default(), Clock::System)
}

/// A crash can occur while a volume is being opened. The log may then contain old transactions. No recovery treats these transactions as
/// successors of new transactions.
#[test]
fn an_opening_that_was_interrupted_brings_nothing_old_back() {
    for kind in ["-t ext4 -b 1024 -J size=1", "-t ext3 -b 1024 -J size=1"] {
        let image = Image::new(kind, "8M");
        let fs = image.open();
        // All transactions have the same length. An old transaction therefore begins directly after the end of a new one.
        for uid in 1..=6 {
            set_owner(&fs, uid);
            fs.sync().unwrap();
        }
        let crashed = Ram::from_image(&std::fs::read(image.path()).unwrap());
        let mut cuts = 0;
        loop {
            let ram = Arc::new(crashed.snapshot());
            let faults = Faults { fail_after: Some(cuts), ..Faults::default() };
            if open(Arc::new(Sim::new(ram.clone(), faults))).is_ok() {
                break;
            }
            let again = open(ram.clone()).unwrap();
            set_owner(&again, 77);
            again.sync().unwrap();
            let seen = Ext4::open(Arc::new(ram.snapshot()), &Arc::default()).unwrap();
            assert_eq!(seen.inode(ROOT).unwrap().stat().uid, 77, "{kind}, request {cuts}");
            cuts += 1;
        }
        assert!(cuts > 10, "{kind}: {cuts}");
    }
}

/// An error may be recorded only in the journal's superblock. The next opening of the volume copies this error to the file system's
/// superblock, as Linux and e2fsck do.
#[test]
fn an_error_that_the_journal_tells_of_is_kept() {
    let image = Image::new("-t ext4 -b 1024 -O ^metadata_csum", "8M");
    let said = image.debugfs("bmap <8> 0");
    let block: u64 = said.split_whitespace().next().unwrap().parse().unwrap();
    let errno = |value: Option<i32>| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().read(true).write(true).open(image.path()).unwrap();
        let mut bytes = value.unwrap_or(0).to_be_bytes();
        match value {
            Some(_) => file.write_all_at(&bytes, block * 1024 + 0x20).unwrap(),
            None => file.read_exact_at(&mut bytes, block * 1024 + 0x20).unwrap(),
        }
        i32::from_be_bytes(bytes)
    };
    errno(Some(-5));
    let fs = image.open();
    fs.close().unwrap();
    drop(fs);
    assert_eq!(errno(None), 0);
    let said = output("dumpe2fs", &["-h", image.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("clean with errors"), "{said}");
}

/// The flush of a checkpoint may cover data that any thread has written. After a failed flush, the next sync of every thread must fail.
#[test]
fn a_checkpoint_that_fails_ends_the_volume() {
    let image = Image::new("-t ext4 -b 1024 -J size=1", "8M");
    let ram = Arc::new(Ram::from_image(&std::fs::read(image.path()).unwrap()));
    let sim = Arc::new(Sim::new(ram, Faults::default()));
    let fs = open(sim.clone()).unwrap();
    for uid in 0..200 {
        set_owner(&fs, uid);
        fs.sync().unwrap();
    }
    sim.set_faults(Faults { fail_after: Some(0), ..Faults::default() });
    assert!(fs.make_room().is_err(), "the log is more than half full");
    sim.set_faults(Faults::default());
    assert_eq!(fs.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// The changes of an operation that has panicked are incomplete. They are never committed.
#[test]
fn an_operation_that_panics_ends_the_volume() {
    let image = Image::new("-t ext4 -b 1024", "8M");
    let fs = image.open();
    let block = spare(&fs);
    let half = std::panic::AssertUnwindSafe(|| {
        fs.transact::<()>(4, |handle| {
            handle.create(block, |bytes| bytes.fill(0x11))?;
            panic!("on purpose")
        })
    });
    assert!(std::panic::catch_unwind(half).is_err());
    assert_eq!(fs.sync().unwrap_err().kind(), ErrorKind::ReadOnly);
    drop(fs);
    image.recover();
    let fs = image.open();
    assert!(fs.blocks.read_device(block).unwrap().iter().all(|byte| *byte == 0));
}
