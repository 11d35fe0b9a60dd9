//! Sets fields of inodes, and compares them with debugfs's output and with ironmap's own reads.

use crate::fs::ext4::attr::{Body, NewInode, Times};
use crate::fs::ext4::for_tests::{Alone, Image};
use crate::fs::{FileSystem, InodeFlags, Timestamp};
use crate::units::InodeNo;

fn new_inode(mode: u32, body: Body<'_>) -> NewInode<'_> {
    let time = Timestamp { seconds: 5_000_000_000, nanoseconds: 123_456_789 };
    NewInode {
        mode,
        uid: 70_001,
        gid: 80_002,
        links: 1,
        flags: InodeFlags::APPEND,
        time,
        generation: 77,
        project: 0,
        body,
    }
}

/// A new inode contains the values with which it was created. The test runs for each inode size, with owner ids above 16 bits. The times
/// are after 2038 if the inode has space for such times.
#[test]
fn a_new_inode_is_what_it_was_made_with() {
    for (options, wide) in
        [("-t ext4 -I 128", false), ("-t ext4 -I 256", true), ("-t ext4 -b 1024 -I 1024", true)]
    {
        let image = Image::with_files(options, &[]);
        let fs = image.open();
        let bodies = [
            (0o100_640, Body::Mapped),
            (0o120_777, Body::Target(b"where/it/leads")),
            (0o020_600, Body::Device(4, 64)),
            (0o060_600, Body::Device(4000, 300_000)),
            (0o010_644, Body::Nothing),
        ];
        for (number, (mode, body)) in (13..).map(InodeNo).zip(bodies) {
            fs.transact(1, |h| h.init_inode(&Alone(number), &new_inode(mode, body))).unwrap();
            let inode = fs.inode(number).unwrap();
            let stat = inode.stat();
            assert_eq!((stat.mode, stat.uid, stat.gid, stat.links), (mode, 70_001, 80_002, 1));
            assert_eq!((stat.generation, stat.blocks), (77, 0));
            let expected = if wide { 5_000_000_000 } else { i64::from(i32::MAX) };
            assert_eq!(stat.modified.seconds, expected);
            assert_eq!(stat.created.map(|time| time.nanoseconds), wide.then_some(123_456_789));
            match body {
                Body::Target(target) => assert_eq!(inode.read_link().unwrap(), target),
                Body::Device(major, minor) => assert_eq!(stat.device, Some((major, minor))),
                Body::Mapped => assert!(inode.flags().contains(InodeFlags::EXTENTS)),
                Body::Nothing => assert_eq!(inode.flags(), InodeFlags::APPEND),
            }
        }
        let long = vec![b'x'; 60];
        let refused = new_inode(0o120_777, Body::Target(&long));
        assert!(fs.transact(1, |h| h.init_inode(&Alone(InodeNo(20)), &refused)).is_err());
        fs.close().unwrap();
        drop(fs);
        let file = image.debugfs("stat <13>");
        assert!(file.contains("User: 70001   Group: 80002") && file.contains("Mode:  0640"));
        assert!(file.contains("Generation: 77") && file.contains("Flags: 0x80020"), "{file}");
        if wide {
            // For each time stamp, debugfs shows the second word: two bits of the epoch, and the nanoseconds.
            assert!(file.contains("mtime: 0x2a05f200:1d6f3455"), "{file}");
            assert!(file.contains("Size of extra inode fields: 32"), "{file}");
        }
        assert!(image.debugfs("stat <14>").contains("Fast link dest: \"where/it/leads\""));
        assert!(image.debugfs("stat <15>").contains("04:64 (hex 04:40)"));
        assert!(image.debugfs("stat <16>").contains("4000:300000"));
    }
}

/// Every field that is set can be read back, and no other field changes. `i_blocks` can increase and decrease.
#[test]
fn fields_are_set_one_by_one() {
    let image = Image::with_files("-t ext4 -I 256 -b 4096", &[]);
    let fs = image.open();
    let number = InodeNo(13);
    let new = new_inode(0o100_600, Body::Mapped);
    fs.transact(1, |h| h.init_inode(&Alone(number), &new)).unwrap();
    let before_the_epoch = Timestamp { seconds: -5, nanoseconds: 7 };
    fs.transact(1, |h| {
        h.update_inode(&Alone(number), |inode| {
            inode.set_mode(0o100_444)?;
            inode.set_owner(1, u32::MAX - 1)?;
            inode.set_size(5 << 32)?;
            inode.set_links(3)?;
            let modified = Some(before_the_epoch);
            inode.set_times(&Times { modified, ..Times::default() })?;
            inode.set_generation(78)?;
            inode.add_blocks(&fs.superblock, 1 << 40)?;
            inode.add_blocks(&fs.superblock, -2)
        })
    })
    .unwrap();
    let inode = fs.inode(number).unwrap();
    let stat = inode.stat();
    assert_eq!((stat.mode, stat.uid, stat.gid), (0o100_444, 1, u32::MAX - 1));
    assert_eq!((stat.size, stat.links, stat.generation), (5 << 32, 3, 78));
    assert_eq!((stat.modified, stat.accessed), (before_the_epoch, new.time));
    assert_eq!(stat.blocks, ((1 << 40) - 2) * 8);
    // The unit of `i_blocks` is 512 bytes. While the count exceeds 48 bits, the unit is a block.
    for (change, huge) in [(1 << 46, true), (-(1 << 46), false)] {
        fs.transact(1, |h| {
            h.update_inode(&Alone(number), |inode| inode.add_blocks(&fs.superblock, change))
        })
        .unwrap();
        let inode = fs.inode(number).unwrap();
        assert_eq!(inode.flags().contains(InodeFlags::HUGE_FILE), huge);
        let expected = (1 << 40) - 2 + change.max(0) as u64;
        assert_eq!(inode.stat().blocks, expected * 8);
    }
    let too_few = fs.transact(1, |h| {
        h.update_inode(&Alone(number), |inode| inode.add_blocks(&fs.superblock, -(1 << 41)))
    });
    assert_eq!(too_few.unwrap_err().kind(), crate::ErrorKind::Corrupt);
}
