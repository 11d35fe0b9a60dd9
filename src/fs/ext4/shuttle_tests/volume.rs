//! Tests of a complete volume: operations, syncs and checkpoints, with a power failure at any time.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use shuttle::thread;

use crate::device::{Ram, yielding};
use crate::error::ErrorKind;
use crate::fs::ext4::{Ext4, MkfsOptions, ROOT, mkfs};
use crate::fs::{Clock, Credentials, FileSystem, NewFile, Timestamp, Writer};
use crate::sync::{explore, run};
use crate::units::{FileBlock, FilePos};

const BLOCK: usize = 1024;
/// The length of a file's content. The content does not fit into an inode, but fits into one block.
const LEN: usize = 600;

const NAMES: [&[u8]; 3] = [b"old", b"one", b"two"];

struct Model {
    fs: Arc<Ext4>,
    ram: Arc<Ram>,
    /// For each name in `NAMES`, whether a sync has made the change of the name durable. The change is the removal of the name `old`, or
    /// the creation of one of the other names.
    synced: [AtomicBool; 3],
}

/// The content of a file: the last letter of its name, repeated.
fn content(name: &[u8]) -> [u8; LEN] {
    [name[2]; LEN]
}

fn open(ram: &Arc<Ram>) -> Arc<Ext4> {
    let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 5 });
    Ext4::open_for_writing(Arc::new(yielding(Arc::clone(ram))), &Arc::default(), clock).unwrap()
}

/// Creates a file. The file stays empty if there is no space.
fn make(fs: &Arc<Ext4>, name: &[u8]) {
    let who = Credentials::default();
    let number = fs.create(ROOT, name, NewFile::Regular, 0o644, &who).unwrap();
    match fs.write(number, FilePos(0), &content(name)) {
        Ok(written) => assert_eq!(written, LEN),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
    }
}

/// A closed volume that contains the file `old`. If `full` is set, another file uses all remaining space. The volume for each value of
/// `full` is created only once.
fn volume(full: bool) -> Arc<Ram> {
    static MADE: [OnceLock<Arc<Ram>>; 2] = [const { OnceLock::new() }; 2];
    let made = &MADE[usize::from(full)];
    if let Some(made) = made.get() {
        return Arc::new(made.snapshot());
    }
    let ram = Arc::new(Ram::new(4 << 20));
    let options = MkfsOptions {
        block_size: Some(BLOCK as u32),
        journal_size: Some(1 << 20),
        uuid: Some([7; 16]),
        time: Some(1_700_000_000),
        zeroed: true,
        ..MkfsOptions::default()
    };
    mkfs(&*ram, &options).unwrap();
    let fs = open(&ram);
    make(&fs, NAMES[0]);
    if full {
        let who = Credentials::default();
        let rest = fs.create(ROOT, b"rest", NewFile::Regular, 0o644, &who).unwrap();
        let mut end = 0;
        while let Ok(more) = fs.write(rest, FilePos(end), &[b'r'; 64 * BLOCK]) {
            end += more as u64;
        }
    }
    fs.close().unwrap();
    Arc::new(made.get_or_init(|| ram).snapshot())
}

impl Model {
    fn new() -> Arc<Self> {
        Self::on(volume(false))
    }

    fn full() -> Arc<Self> {
        Self::on(volume(true))
    }

    fn on(ram: Arc<Ram>) -> Arc<Self> {
        Arc::new(Self { fs: open(&ram), ram, synced: Default::default() })
    }

    fn make_and_sync(&self, which: usize) {
        make(&self.fs, NAMES[which]);
        self.fs.sync().unwrap();
        self.synced[which].store(true, SeqCst);
    }

    fn remove_and_sync(&self) {
        self.fs.unlink(ROOT, NAMES[0]).unwrap();
        self.fs.sync().unwrap();
        self.synced[0].store(true, SeqCst);
    }

    /// Recovers a snapshot of the device and checks the content. The snapshot represents the device after a power failure.
    fn fail_power(&self) {
        let synced = self.synced.each_ref().map(|synced| synced.load(SeqCst));
        let fs = Ext4::open(Arc::new(self.ram.snapshot()), &Arc::default()).unwrap();
        let report = fs.check(&mut |_| ()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        for (name, synced) in NAMES.iter().zip(synced) {
            let there = match fs.lookup(ROOT, name) {
                Ok(inode) => {
                    // The file may be empty, if it was created but not written yet.
                    if inode.size() > 0 {
                        let block =
                            inode.fs_block(FileBlock(0)).unwrap().expect("the block is mapped");
                        let found = fs.blocks.read_device(block).unwrap();
                        assert_eq!(
                            found[..LEN],
                            content(name),
                            "a read returns data of other writers"
                        );
                    }
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    false
                }
            };
            assert!(!synced || there == (*name != NAMES[0]), "the synced name {name:?} exists");
        }
    }

    fn checkpoint(&self) {
        let log = &self.fs.writing().unwrap().log;
        log.lock().as_mut().unwrap().checkpoint(&self.fs.blocks).unwrap();
    }
}

#[test]
fn synced_changes_are_there_whenever_power_fails() {
    explore(10, || {
        let model = Model::new();
        let fails: fn(&Model) = |model| (0..3).for_each(|_| model.fail_power());
        let home: fn(&Model) = |model| (0..2).for_each(|_| model.checkpoint());
        run(
            &model,
            &[
                Model::remove_and_sync,
                |model| model.make_and_sync(1),
                |model| model.make_and_sync(2),
                home,
                fails,
            ],
        );
        model.fail_power();
        model.fs.close().unwrap();
        model.fail_power();
    });
}

/// The block of a removed file may be allocated again only after the removal is committed. On this full volume, a new file can only get
/// such a block.
#[test]
fn a_freed_block_is_had_again_only_when_that_is_committed() {
    static REUSED: AtomicBool = AtomicBool::new(false);
    explore(10, || {
        let model = Model::full();
        let first = |name| model.fs.lookup(ROOT, name)?.fs_block(FileBlock(0));
        let freed = first(NAMES[0]).unwrap();
        run(
            &model,
            &[
                |model| model.fs.unlink(ROOT, NAMES[0]).unwrap(),
                |model| model.fs.sync().unwrap(),
                |model| {
                    make(&model.fs, NAMES[1]);
                    model.fail_power();
                },
            ],
        );
        if first(NAMES[1]).unwrap() == freed {
            REUSED.store(true, SeqCst);
        }
    });
    assert!(REUSED.load(SeqCst), "no schedule reached the state that the test needs");
}

/// A thread opens an inode that it has decoded before. Meanwhile another thread removes the file and reuses its inode number. The open must
/// give the same file or an error.
#[test]
fn an_inode_in_hand_is_never_another_file() {
    static BOTH: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    explore(10, || {
        let model = Model::new();
        run(
            &model,
            &[
                |model| {
                    model.fs.unlink(ROOT, NAMES[0]).unwrap();
                    make(&model.fs, NAMES[1]);
                },
                |model| {
                    let Ok(decoded) = model.fs.lookup(ROOT, NAMES[0]) else { return };
                    thread::yield_now();
                    let opened = model.fs.hold_decoded(decoded.stat());
                    BOTH[usize::from(opened.is_ok())].store(true, SeqCst);
                    match opened {
                        Ok((held, _)) => held.inode().unwrap().check_is(decoded.stat()).unwrap(),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                    }
                },
            ],
        );
    });
    assert!(
        BOTH.iter().all(|seen| seen.load(SeqCst)),
        "a schedule reached only one of the two results"
    );
}

/// If a sync after the creation of a name returned success, the name must exist after the close. Two threads create names during the close.
/// The commit of the close may therefore overlap with another commit.
#[test]
fn a_close_beside_operations_keeps_what_was_promised() {
    explore(10, || {
        let model = Model::new();
        let spawn = |first: u8| {
            let fs = Arc::clone(&model.fs);
            thread::spawn(move || {
                let who = Credentials::default();
                let sync = |number: &u8| {
                    let made = fs.create(ROOT, &[b'n', *number], NewFile::Fifo, 0o644, &who);
                    made.and_then(|_| fs.sync()).is_ok()
                };
                (first..first + 4).take_while(sync).collect::<Vec<_>>()
            })
        };
        let threads = [spawn(b'a'), spawn(b'k')];
        model.fs.close().unwrap();
        let promised = threads.map(|thread| thread.join().unwrap()).concat();
        let fs = Ext4::open(Arc::new(model.ram.snapshot()), &Arc::default()).unwrap();
        for number in promised {
            assert!(fs.lookup(ROOT, &[b'n', number]).is_ok(), "the close lost synced names");
        }
    });
}
