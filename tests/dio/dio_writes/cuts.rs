//! Appends while other operations truncate the file or move its content. Each append begins at the current end of the file.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ironmap::dio::DioFlags;
use ironmap::fs::Fallocate;
use ironmap::units::FilePos;
use ironmap::{File, Queue};

use crate::dio_writes::bench::{BLOCK, Bench, NONE, content, memory};

const EXT4: &str = "-t ext4 -b 4096";
const APPENDERS: u64 = 3;
/// The maximum number of appends between two truncations.
const MOST_UNCUT: u64 = 500;

/// The call that an appending thread uses to write.
#[derive(Clone, Copy, Debug)]
enum Call {
    Lent,
    Queued,
    /// A length that is not a multiple of the sector size.
    Odd,
}

const CALLS: [Call; 3] = [Call::Lent, Call::Queued, Call::Odd];

impl Call {
    fn len(self) -> u64 {
        if matches!(self, Self::Odd) { BLOCK + 100 } else { BLOCK }
    }

    /// Appends a record that begins with this number.
    fn append(self, file: &File, queue: &mut Queue, number: u64) -> u64 {
        let mut record = memory(self.len(), 0x22);
        record[..8].copy_from_slice(&number.to_le_bytes());
        let at = match self {
            Self::Lent | Self::Odd => file.append(queue, &record, NONE).unwrap(),
            Self::Queued => {
                let at = file.submit_append(queue, record, NONE, 7).unwrap();
                queue.wait(1).unwrap();
                queue.pop().unwrap().result.unwrap();
                at
            }
        };
        at.0
    }
}

/// After a file is truncated, later appends are written at the new end.
#[test]
fn appends_come_back_to_the_end_of_a_file_that_was_cut() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let file = bench.written("file", 1);
        let (begun, ended, ended_before_cut) = <(AtomicU64, AtomicU64, AtomicU64)>::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..APPENDERS {
                scope.spawn(|| {
                    let mut queue = bench.queue();
                    while !stop.load(SeqCst) {
                        let before = ended_before_cut.load(SeqCst);
                        // The scheduler can delay the truncating thread. The appending threads wait for it, so that they do not fill the
                        // volume.
                        if ended.load(SeqCst) > before + MOST_UNCUT {
                            std::thread::yield_now();
                            continue;
                        }
                        begun.fetch_add(1, SeqCst);
                        let at = way.append(&file, &mut queue, 0);
                        // The maximum number of appends since the file was last empty.
                        let most = begun.load(SeqCst) - before;
                        ended.fetch_add(1, SeqCst);
                        assert!(
                            before == 0 || at <= most * way.len(),
                            "{way:?}: at {at} of {most}"
                        );
                    }
                });
            }
            let cut: ironmap::Result<()> = (0..100).try_for_each(|_| {
                let before = ended.load(SeqCst);
                bench.fs().writable().unwrap().truncate(file.inode(), 0)?;
                ended_before_cut.store(before, SeqCst);
                // The file must have content when it is truncated.
                while ended.load(SeqCst) < before + 4 && !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
                Ok(())
            });
            stop.store(true, SeqCst);
            cut.unwrap();
        });
        drop(file);
        bench.close();
    }
}

/// An operation that moves content also moves the end of the file. No append is written into the moved content.
#[test]
fn no_append_is_lost_where_content_moves() {
    for way in CALLS {
        let bench = Bench::new(EXT4);
        let file = bench.written("file", 1);
        let (next, inserted) = (AtomicU64::new(1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..APPENDERS {
                scope.spawn(|| {
                    let mut queue = bench.queue();
                    while !inserted.load(SeqCst) {
                        let number = next.fetch_add(1, SeqCst);
                        way.append(&file, &mut queue, number);
                        if number > 1500 {
                            break;
                        }
                    }
                });
            }
            let insert = (0..60).try_for_each(|_| {
                bench.fs().writable().unwrap().fallocate(
                    file.inode(),
                    Fallocate::Insert,
                    FilePos(0),
                    BLOCK,
                )
            });
            inserted.store(true, SeqCst);
            insert.unwrap();
        });
        let bytes = content(&file, &mut bench.queue());
        let len = way.len() as usize;
        let records = bytes[61 * BLOCK as usize..].chunks(len);
        let found = records.map(|record| u64::from_le_bytes(record[..8].try_into().unwrap()));
        let found: Vec<_> = found.collect();
        let numbers = BTreeSet::from_iter(&found);
        assert_eq!(
            (numbers.len(), found.len() as u64),
            (found.len(), next.load(SeqCst) - 1),
            "{way:?}"
        );
        drop(file);
        bench.close();
    }
}

/// If a file has no extents (indirect blocks) or has inline content, the code of the file system carries out the appends, not the
/// direct-I/O core. Each append gets a separate range.
#[test]
fn appends_that_the_file_system_writes_come_one_after_the_other() {
    for mkfs in ["-t ext3 -b 4096", "-t ext4 -b 4096 -I 256 -O inline_data"] {
        let bench = Bench::new(mkfs);
        let file = bench.open(bench.create("file"), false);
        std::thread::scope(|scope| {
            for thread in 0..APPENDERS {
                let (bench, file) = (&bench, &file);
                scope.spawn(move || {
                    let mut queue = bench.queue();
                    for round in 0..40 {
                        let record = [1 + thread as u8; 24];
                        let flags = if round % 8 == 0 { DioFlags::DSYNC } else { NONE };
                        file.append(&mut queue, &record, flags).unwrap();
                    }
                });
            }
        });
        let bytes = content(&file, &mut bench.queue());
        assert_eq!(bytes.len() as u64, APPENDERS * 40 * 24, "{mkfs}");
        for record in bytes.chunks(24) {
            assert!(record[0] != 0 && record.iter().all(|byte| *byte == record[0]), "{mkfs}");
        }
        drop(file);
        bench.close();
    }
}
