//! Batches of reads into borrowed memory.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::Fallocate;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, File, FileOptions, Host, HostOptions, Queue, QueueOptions, ReadAt};

use crate::common::fixture::{FILES, Fixture, SOLID, Stack, open};
use crate::common::mounted::Mounted;
use crate::common::ranges::part;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::dio_writes::bench::{BLOCK, Bench};
use crate::require;

const SEED: u64 = 0x9ead_3a11;

/// One batch of random reads: the file, position and length of each read, and whether adjacent reads are merged.
struct Chosen {
    reads: Vec<(usize, u64, usize)>,
    merge: bool,
}

impl Chosen {
    /// In half of the batches, all reads cover aligned blocks. Some of these blocks are adjacent. In the other half, the reads have any
    /// position and length.
    fn new(rng: &mut Rng, sizes: &[u64]) -> Self {
        let (aligned, merge) = (rng.below(2) == 0, rng.below(2) == 0);
        let mut reads: Vec<(usize, u64, usize)> = Vec::new();
        for _ in 0..rng.below(150) {
            let file = rng.below(sizes.len() as u64) as usize;
            let pos = rng.below(sizes[file] + 5000);
            let chosen = match reads.last() {
                Some((file, pos, len)) if rng.below(3) == 0 => (*file, pos + *len as u64, *len),
                _ if aligned => (file, pos / BLOCK * BLOCK, (1 + rng.below(4)) as usize * 4096),
                _ => (file, pos, rng.below(40_000) as usize),
            };
            reads.push(chosen);
        }
        Self { reads, merge }
    }

    /// Carries out the batch, and compares each read with the content of its file.
    fn compare(&self, queue: &mut Queue, files: &[(File, &[u8])], shown: &str) {
        let total = self.reads.iter().map(|(_, _, len)| len.next_multiple_of(4096)).sum::<usize>();
        let mut memory = Buffer::aligned(total.max(4096)).unwrap();
        memory.fill(0xAA);
        let mut rest = &mut memory[..];
        let mut reads = Vec::new();
        for (file, pos, len) in &self.reads {
            let (room, behind) = rest.split_at_mut(len.next_multiple_of(4096));
            rest = behind;
            reads.push(ReadAt::new(&files[*file].0, &mut room[..*len], *pos));
        }
        match self.merge {
            true => queue.read_merged(&mut reads),
            false => queue.read_many(&mut reads),
        }
        for (read, (file, pos, len)) in reads.iter().zip(&self.reads) {
            let expected = part(files[*file].1, *pos, *len);
            let shown = format!("{shown}, file {file}, {len} at {pos}");
            let count = *read.result.as_ref().expect(&shown);
            assert_eq!(&read.buf[..count], expected, "{shown}");
        }
    }
}

/// Each read of a batch returns the same as a single read of the same range. The reads cover holes, unwritten extents, inline data, several
/// extents, every alignment, and positions past the end of the file.
#[test]
fn each_read_of_a_batch_is_as_a_read_alone() {
    let fixture = Fixture::new(BLOCK, SEED);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
        let files = FILES.map(|name| (open(&volume, name, false), fixture.content(name)));
        let sizes = files.iter().map(|(_, content)| content.len() as u64).collect::<Vec<_>>();
        let mut rng = Rng::new(SEED);
        for round in 0..40 {
            let shown = format!("{stack}, seed {SEED:#x}, batch {round}");
            Chosen::new(&mut rng, &sizes).compare(&mut queue, &files, &shown);
        }
        assert!(queue.stats().simple_hits > 0, "{stack}: no read was placed");
    }
}

/// A batch of reads can run on a queue with requests in flight. The batch does not consume their completions.
#[test]
fn a_batch_leaves_queued_requests_in_their_places() {
    let fixture = Fixture::new(BLOCK, SEED);
    for stack in Stack::REAL {
        let volume = fixture.volume(stack);
        let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
        let (file, content) = (open(&volume, SOLID, true), fixture.content(SOLID));
        for token in 0..8 {
            let buffer = Buffer::aligned(4096).unwrap();
            let pos = FilePos(token * 3 * BLOCK);
            file.submit_read(&mut queue, buffer, pos, DioFlags::empty(), token).unwrap();
        }
        let files = [(file, content)];
        let reads = (0..100).map(|index| (0, index * BLOCK, 4096)).collect();
        Chosen { reads, merge: false }.compare(&mut queue, &files, &stack.to_string());
        queue.wait(8).unwrap();
        for _ in 0..8 {
            let done = queue.pop().expect("a queued read");
            let token = done.token;
            let (count, buffer) = done.into_buffer().unwrap();
            assert_eq!(&buffer[..count], part(content, token * 3 * BLOCK, 4096), "{stack}");
        }
        assert_eq!(queue.outstanding(), 0);
    }
}

/// In a batch, two reads fail: a read of a file of another volume, and a misaligned read through a handle that accepts only the alignment
/// of `O_DIRECT`. The other reads of the batch succeed.
#[test]
fn a_read_that_is_refused_does_not_touch_its_neighbours() {
    let fixture = Fixture::new(BLOCK, SEED);
    for stack in Stack::ALIGNED {
        let (volume, other) = (fixture.volume(stack), fixture.volume(stack));
        let mut queue = volume.queue(&QueueOptions::new()).unwrap();
        let (file, foreign) = (open(&volume, SOLID, true), open(&other, SOLID, true));
        let mut memory = Buffer::aligned(4 * 4096).unwrap();
        let mut pages = memory.chunks_mut(4096);
        let mut page = || pages.next().unwrap();
        let mut reads = [
            ReadAt::new(&file, page(), 0),
            ReadAt::new(&foreign, page(), 0),
            ReadAt::new(&file, &mut page()[..1000], 4096),
            ReadAt::new(&file, page(), 8192),
        ];
        queue.read_many(&mut reads);
        let refused = |read: &ReadAt<'_>| read.result.as_ref().unwrap_err().kind();
        assert_eq!(refused(&reads[1]), ErrorKind::InvalidInput, "{stack}");
        assert_eq!(refused(&reads[2]), ErrorKind::InvalidInput, "{stack}");
        assert!(matches!((&reads[0].result, &reads[3].result), (Ok(4096), Ok(4096))), "{stack}");
    }
}

/// Another thread moves the content of a file. Each read of a batch returns one block of the file, and never a block that was freed.
#[test]
fn a_batch_holds_the_content_of_its_files() {
    let bench = Bench::new("-t ext4 -b 4096");
    let file = bench.written("file", 64);
    let mut queue = bench.queue();
    for block in 0..64 {
        file.write_all_at(&mut queue, &[7; BLOCK as usize], block * BLOCK).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = Buffer::aligned(64 * BLOCK as usize).unwrap();
            let mut queue = bench.queue();
            while !stop.load(SeqCst) {
                let pages = memory.chunks_mut(BLOCK as usize).enumerate();
                let mut reads: Vec<_> =
                    pages.map(|(at, page)| ReadAt::new(&file, page, at as u64 * BLOCK)).collect();
                queue.read_many(&mut reads);
                for read in reads {
                    let count = read.result.unwrap();
                    let byte = read.buf.first().copied().unwrap_or_default();
                    assert!(count == 0 || count == BLOCK as usize, "{count} bytes");
                    assert!(count == 0 || byte == 0 || byte == 7, "a block with {byte}");
                    assert!(read.buf[..count].iter().all(|other| *other == byte), "two blocks");
                }
            }
        });
        let changes = (0..200).try_for_each(|round| {
            let writer = bench.fs().writable().unwrap();
            let at = FilePos(round % 32 * BLOCK);
            writer.fallocate(file.inode(), Fallocate::Collapse, at, BLOCK)?;
            // The freed block is immediately overwritten with other content, by a write to another file.
            let other = bench.create(&format!("other{round}"));
            let other = bench.open(other, false);
            other.write_all_at(&mut queue, &[9; BLOCK as usize], 0)?;
            other.sync(&mut queue)?;
            writer.fallocate(file.inode(), Fallocate::Insert, at, BLOCK)
        });
        stop.store(true, SeqCst);
        changes.unwrap();
    });
    drop(file);
    bench.close();
}

/// Another program writes to a file of a mounted file system, and so breaks the lease with which ironmap reads the file from the device. A
/// batch of reads of the file is still correct.
#[test]
fn a_batch_of_a_host_file_survives_the_end_of_its_lease() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(100 * 4096);
    let (path, fixed) = (mounted.write("file", &content), mounted.write("fixed", &content));
    let host = Host::new(&HostOptions::new()).unwrap();
    let mut queue = host.queue(&QueueOptions::new()).unwrap();
    let options = FileOptions::new().direct(true);
    let files =
        [path.clone(), fixed].map(|path| (host.open_with(&path, options).unwrap(), &content[..]));
    let reads: Vec<_> =
        (0..100).flat_map(|block| [(0, block * BLOCK, 4096), (1, block * BLOCK, 4096)]).collect();
    for round in 0..20 {
        if round % 4 == 1 {
            // The program that breaks the lease writes the same bytes again. So the content does not change.
            let writer = std::fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&writer, &content, 0).unwrap();
        }
        let chosen = Chosen { reads: reads.clone(), merge: round % 2 == 0 };
        chosen.compare(&mut queue, &files, &format!("round {round}"));
    }
    assert!(queue.stats().simple_hits > 0, "no read was raw");
}
