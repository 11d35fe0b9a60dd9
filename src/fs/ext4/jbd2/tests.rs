//! What the log's writer leaves, recovered by e2fsck and by the reading side: oracles that know nothing of it.

use crate::error::Place;
use crate::fs::ext4::for_tests::{Image, output};
use crate::fs::ext4::{Ext4, ROOT};
use crate::units::FsBlock;

fn set_owner(fs: &Ext4, uid: u16) {
    fs.transact(4, |handle| {
        fs.update_inode(handle, ROOT, |inode| {
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
fn what_was_synced_is_recovered_after_a_crash() {
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

/// Free blocks at the end of the volume, which nobody else uses.
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
        // It is data now, written past the journal.
        let data = crate::sys::Buffer::aligned(fs.superblock().block_size.bytes()).unwrap();
        let data = crate::fs::ext4::block::Block::new(data);
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
        fs.update_inode(handle, ROOT, |inode| {
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
