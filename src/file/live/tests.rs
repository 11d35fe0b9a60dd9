//! Tests of the modification times that writes set.

use std::sync::Arc;

use crate::bio::Buffer;
use crate::device::Ram;
use crate::fs::ext4::{MkfsOptions, ROOT};
use crate::fs::{Clock, Credentials, NewFile, Timestamp};
use crate::units::{FilePos, InodeNo};
use crate::{FileOptions, Queue, QueueOptions, Volume};

/// Returns a volume that uses the system's clock, and the inode number of a file in it.
fn volume() -> (Volume, InodeNo) {
    let ram = Arc::new(Ram::new(8 << 20));
    crate::tools::make(&*ram, &MkfsOptions::default()).unwrap();
    let volume = Volume::writable_on(ram, Clock::System).unwrap();
    let (fs, who) = (volume.fs(), Credentials::default());
    let number =
        fs.writable().unwrap().create(ROOT, b"file", NewFile::Regular, 0o644, &who).unwrap();
    fs.writable().unwrap().write(number, FilePos(0), &[0x11; 64 << 10]).unwrap();
    fs.sync().unwrap();
    (volume, number)
}

fn now() -> Timestamp {
    Clock::System.now()
}

/// Waits until the clock shows another time, and returns that time.
fn tick() -> Timestamp {
    let before = now();
    loop {
        match now() {
            after if after != before => return after,
            _ => std::hint::spin_loop(),
        }
    }
}

fn queue(volume: &Volume) -> Queue {
    volume.queue(&QueueOptions::default()).unwrap()
}

/// After several writes, a query returns a modification time that is not before the last write. The writes may use any queue, even a queue
/// that was dropped. A second query returns the same time.
#[test]
fn a_write_is_seen_to_be_as_young_as_it_is() {
    let (volume, number) = volume();
    let modified = || volume.fs().inode(number).unwrap().stat().modified;
    let file =
        volume.open_inode(volume.fs().inode(number).unwrap(), FileOptions::new().write(true));
    let file = file.unwrap();
    let (mut first, mut second) = (queue(&volume), Some(queue(&volume)));
    let block = || Buffer::aligned(4096).unwrap();
    for round in 0..12 {
        let before = tick();
        file.write_at(&mut first, &block(), FilePos(0)).unwrap();
        if let Some(second) = &mut second {
            file.write_at(second, &block(), FilePos(0)).unwrap();
        }
        assert!(modified() >= before, "round {round}");
        file.write_at(&mut first, &block(), FilePos(0)).unwrap();
        // The previous write has set the time, so the next write only marks the inode.
        let noted = tick();
        match &mut second {
            Some(second) if round % 2 == 0 => {
                file.write_at(second, &block(), FilePos(0)).unwrap();
                file.write_at(second, &block(), FilePos(0)).unwrap();
            }
            _ => {
                file.submit_write(
                    &mut first,
                    block(),
                    FilePos(0),
                    crate::dio::DioFlags::empty(),
                    1,
                )
                .unwrap();
                first.wait(1).unwrap();
                first.pop().unwrap().result.unwrap();
            }
        }
        if round == 6 {
            second = None;
        }
        let seen = modified();
        assert!(seen >= noted, "round {round}");
        tick();
        assert_eq!(modified(), seen, "round {round}");
    }
    drop((first, file));
    volume.close().unwrap();
}

/// If a write only marks the inode, the timer's next run sets the modification time. A later query does not change it.
#[test]
fn a_noted_write_is_no_younger_than_the_timers_last_look() {
    let (volume, number) = volume();
    let fs = volume.fs();
    let file =
        volume.open_inode(fs.inode(number).unwrap(), FileOptions::new().write(true)).unwrap();
    let mut queue = queue(&volume);
    let block = Buffer::aligned(4096).unwrap();
    file.write_at(&mut queue, &block, FilePos(0)).unwrap();
    let noted = tick();
    file.write_at(&mut queue, &block, FilePos(0)).unwrap();
    volume.ext4().unwrap().leave_stamps();
    let after = tick();
    let modified = fs.inode(number).unwrap().stat().modified;
    assert!(noted <= modified && modified < after, "{noted:?} {modified:?} {after:?}");
    drop((queue, file));
    volume.close().unwrap();
}
