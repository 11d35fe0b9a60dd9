//! Tests of threads that read, write and convert one file. A model checker chooses the order in which the threads run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use shuttle::thread;

use crate::bio::Buffer;
use crate::device::{Device, Ram, yielding};
use crate::dio::DioFlags;
use crate::fs::ext4::{MkfsOptions, ROOT};
use crate::fs::{Clock, Credentials, Fallocate, NewFile};
use crate::sync::{explore, run};
use crate::units::FilePos;
use crate::{File, FileOptions, Queue, QueueOptions, Volume};

const BLOCK: usize = 1024;
/// The number of blocks that the threads of a model may write. These blocks are allocated and unwritten.
const BLOCKS: usize = 4;

/// Returns a device with a volume, in which one file has only unwritten blocks. The volume is made once, and each model gets a copy.
fn base() -> Ram {
    static MADE: OnceLock<Ram> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return made.snapshot();
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
    crate::tools::make(&*ram, &options).unwrap();
    let volume = Volume::writable_on(ram.clone(), Clock::System).unwrap();
    let (fs, who) = (volume.fs(), Credentials::default());
    let number =
        fs.writable().unwrap().create(ROOT, b"file", NewFile::Regular, 0o644, &who).unwrap();
    let all = Fallocate::Allocate { keep_size: false };
    fs.writable().unwrap().fallocate(number, all, FilePos(0), (BLOCKS * BLOCK) as u64).unwrap();
    volume.close().unwrap();
    MADE.get_or_init(|| ram.snapshot()).snapshot()
}

struct Model {
    volume: Volume,
    file: File,
    /// For each block: whether a write has completed.
    written: [AtomicBool; BLOCKS],
    appended: AtomicU64,
}

impl Model {
    fn new() -> Arc<Self> {
        let device: Arc<dyn Device> = Arc::new(yielding(Arc::new(base())));
        let volume = Volume::writable_on(device, Clock::System).unwrap();
        let inode = volume.fs().lookup(ROOT, b"file").unwrap();
        let file = volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
        Arc::new(Self { volume, file, written: Default::default(), appended: AtomicU64::new(0) })
    }

    fn queue(&self) -> Queue {
        self.volume.queue(&QueueOptions::new().depth(4)).unwrap()
    }

    fn write(&self, queue: &mut Queue, block: usize) {
        let mut buf = Buffer::aligned(BLOCK).unwrap();
        buf.fill(block as u8 + 1);
        let pos = FilePos((block * BLOCK) as u64);
        assert_eq!(self.file.write_at(queue, &buf, pos).unwrap(), BLOCK);
        self.written[block].store(true, SeqCst);
    }

    /// Reads a block and checks its content. If a write to the block completed before the read, the block must contain the written data. If
    /// no write has completed, the block must contain zeros or the data of a concurrent write.
    fn read(&self, queue: &mut Queue, block: usize) {
        let written = self.written[block].load(SeqCst);
        let mut buf = Buffer::aligned(BLOCK).unwrap();
        let pos = FilePos((block * BLOCK) as u64);
        assert_eq!(self.file.read_at(queue, &mut buf, pos).unwrap(), BLOCK);
        let found = buf[0];
        assert!(buf.iter().all(|byte| *byte == found), "half a write");
        assert!(found == block as u8 + 1 || found == 0 && !written, "{found} where {written}");
    }

    fn append(&self, queue: &mut Queue) {
        let mut buf = Buffer::aligned(BLOCK).unwrap();
        buf.fill(100 + self.appended.fetch_add(1, SeqCst) as u8);
        let at = self.file.append(queue, &buf, DioFlags::empty()).unwrap();
        let mut read = Buffer::aligned(BLOCK).unwrap();
        assert_eq!(self.file.read_at(queue, &mut read, at).unwrap(), BLOCK);
        assert!(read[..] == buf[..], "an append is not at the position that its call returned");
    }
}

#[test]
fn no_reader_takes_what_was_written_for_zeros() {
    explore(10, || {
        let model = Model::new();
        run(
            &model,
            &[
                |model| {
                    let mut queue = model.queue();
                    (0..2).for_each(|block| model.write(&mut queue, block));
                },
                |model| {
                    let mut queue = model.queue();
                    (0..2).for_each(|_| model.file.sync(&mut queue).unwrap());
                },
                |model| {
                    let mut queue = model.queue();
                    (0..6).for_each(|round| model.read(&mut queue, round % 2));
                },
            ],
        );
    });
}

/// Concurrent appends never overlap, even if another thread punches a hole and syncs at the same time.
#[test]
fn appends_do_not_overlap() {
    explore(10, || {
        let model = Model::new();
        run(
            &model,
            &[
                |model| {
                    let mut queue = model.queue();
                    (0..2).for_each(|_| model.append(&mut queue));
                },
                |model| {
                    let mut queue = model.queue();
                    (0..2).for_each(|_| model.append(&mut queue));
                },
                |model| {
                    let (fs, number) = (model.volume.fs(), model.file.inode());
                    fs.writable()
                        .unwrap()
                        .fallocate(number, Fallocate::Punch, FilePos(0), BLOCK as u64)
                        .unwrap();
                    model.file.sync(&mut model.queue()).unwrap();
                },
            ],
        );
        assert_eq!(model.file.size(), ((BLOCKS + 4) * BLOCK) as u64);
    });
}

/// One thread writes data, while another thread drops the last handle of the file. The data are not lost.
#[test]
fn a_close_keeps_what_others_have_written() {
    explore(5, || {
        // The device of this test does not switch threads at each request. So one thread can do all of its work between two steps of the
        // other thread.
        let volume = Volume::writable_on(Arc::new(base()), Clock::System).unwrap();
        let open = |volume: &Volume| {
            let inode = volume.fs().lookup(ROOT, b"file").unwrap();
            volume.open_inode(inode, FileOptions::new().write(true)).unwrap()
        };
        let write = move |volume: &Volume, block: usize| {
            let mut buf = Buffer::aligned(BLOCK).unwrap();
            buf.fill(block as u8 + 1);
            let mut queue = volume.queue(&QueueOptions::new().depth(1)).unwrap();
            let file = open(volume);
            file.write_at(&mut queue, &buf, FilePos((block * BLOCK) as u64)).unwrap();
        };
        let threads = [BLOCKS, BLOCKS + 1].map(|first| {
            let volume = volume.clone();
            thread::spawn(move || (0..2).for_each(|round| write(&volume, first + 2 * round)))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (file, mut buf) = (open(&volume), Buffer::aligned(4 * BLOCK).unwrap());
        let mut queue = volume.queue(&QueueOptions::new().depth(1)).unwrap();
        file.read_at(&mut queue, &mut buf, FilePos((BLOCKS * BLOCK) as u64)).unwrap();
        for (at, block) in buf.chunks(BLOCK).enumerate() {
            assert!(block.iter().all(|byte| *byte == (BLOCKS + at) as u8 + 1), "block {at}");
        }
    });
}
