//! Tests request pools on a volume in memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ironmap::device::Ram;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::units::FilePos;
use ironmap::{Buffer, DioFlags, Error, ErrorKind, FileOptions, ReadAt, Volume, VolumeOptions};
use ironmap_async::{AsyncFile, Pool, PoolOptions};

const BLOCK: usize = 4096;

fn volume() -> Volume {
    let ram = Arc::new(Ram::new(64 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    VolumeOptions::new().write(true).open_on(ram).unwrap()
}

/// The content of the block `at` in the version `version` of a file.
fn block(at: usize, version: u8) -> Buffer {
    let mut buffer = Buffer::aligned(BLOCK).unwrap();
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (at * 31 + index) as u8 ^ version;
    }
    buffer
}

async fn written(pool: &Pool, path: &str, blocks: usize) -> AsyncFile {
    let options = FileOptions::new().write(true).create(true);
    let file = pool.open_with(path, options).await.unwrap();
    for at in 0..blocks {
        let (count, _) =
            file.write_at(block(at, 0), (at * BLOCK) as u64, DioFlags::empty()).await.unwrap();
        assert_eq!(count, BLOCK);
    }
    file
}

/// Handles move between tasks and threads. Every request gets its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_several_threads_share_a_pool() {
    for threads in [1, 3] {
        let pool = Pool::new(volume(), PoolOptions::new().threads(threads).depth(8)).unwrap();
        let file = written(&pool, "/file", 64).await;
        let tasks = (0..64_usize).map(|task| {
            let file = file.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let at = (task * 7 + round * 13) % 64;
                    let memory = Buffer::aligned(BLOCK).unwrap();
                    let (count, buffer) = file.read_at(memory, (at * BLOCK) as u64).await.unwrap();
                    assert_eq!((count, &buffer[..]), (BLOCK, &block(at, 0)[..]));
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let ranges =
            (0..64).map(|at| (FilePos(at * BLOCK as u64), Buffer::aligned(BLOCK).unwrap()));
        let answers = file.read_ranges(ranges.collect()).await;
        for (at, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap().1[..], block(at, 0)[..]);
        }
        file.sync().await.unwrap();
    }
}

/// Appends of many tasks get consecutive positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_follow_each_other() {
    let pool = Pool::new(volume(), PoolOptions::new()).unwrap();
    let options = FileOptions::new().append(true).create(true);
    let file = pool.open_with("/log", options).await.unwrap();
    let tasks = (0..100).map(|at| {
        let file = file.clone();
        tokio::spawn(async move { file.append(block(at, 0), DioFlags::DSYNC).await.unwrap().0.0 })
    });
    let mut positions = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        positions.push(task.await.unwrap());
    }
    positions.sort_unstable();
    let expected: Vec<_> = (0..100).map(|at| (at * BLOCK) as u64).collect();
    assert_eq!(positions, expected);
}

/// If a future is dropped before its request is complete, the pool still carries out the request. The dropped future does not block a later
/// truncation, which locks the whole file.
#[test]
fn dropped_futures_leave_no_request_behind() {
    let volume = volume();
    let pool = Pool::new(volume.clone(), PoolOptions::new().depth(4)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let file = runtime.block_on(written(&pool, "/file", 64));
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..2000_usize {
        let at = round % 64;
        let mut read = file.read_at(Buffer::aligned(BLOCK).unwrap(), (at * BLOCK) as u64);
        if round % 2 == 0 {
            // The future is polled once before the drop, so that it contains a waker.
            if let Poll::Ready(answer) = Pin::new(&mut read).poll(&mut context) {
                let (_, buffer) = answer.unwrap();
                assert!([0, 1].iter().any(|version| buffer[..] == block(at, *version)[..]));
            }
        }
        drop(read);
        drop(file.write_at(block(at, 1), (at * BLOCK) as u64, DioFlags::empty()));
    }
    // When a runtime ends, it drops its tasks and their futures.
    let tasks = file.clone();
    runtime.spawn(async move {
        loop {
            let _ = tasks.read_at(Buffer::aligned(BLOCK).unwrap(), 0).await;
        }
    });
    drop(runtime);
    let number = file.file().inode();
    drop((file, pool));
    volume.fs().writable().unwrap().truncate(number, 0).unwrap();
    volume.close().unwrap();
}

/// If one task panics, the other tasks continue, and the pool can still be used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_panics_disturbs_no_other() {
    let pool = Pool::new(volume(), PoolOptions::new().threads(1).depth(2)).unwrap();
    let file = written(&pool, "/file", 4).await;
    for _ in 0..50 {
        let panics = file.clone();
        let task = tokio::spawn(async move {
            let _pending = panics.read_at(Buffer::aligned(BLOCK).unwrap(), 0);
            panic!("as the test wants it");
        });
        assert!(task.await.unwrap_err().is_panic());
        let (_, buffer) = file.read_at(Buffer::aligned(BLOCK).unwrap(), 0).await.unwrap();
        assert_eq!(buffer[..], block(0, 0)[..]);
    }
}

/// A request that fails returns its buffer together with the error.
#[tokio::test]
async fn a_request_that_fails_returns_its_memory() {
    let pool = Pool::new(volume(), PoolOptions::new()).unwrap();
    let missing = pool.open("/missing").await;
    assert_eq!(missing.err().unwrap().kind(), ErrorKind::NotFound);
    drop(written(&pool, "/file", 1).await);
    let file = pool.open("/file").await.unwrap();
    let failed = file.write_at(block(0, 0), 0, DioFlags::empty()).await.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::ReadOnly);
    assert_eq!(failed.buffer.unwrap()[..], block(0, 0)[..]);
}

/// Tokio's traits can read, write and seek a file of a volume like a file of the host.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_stream_is_a_file_of_tokio() {
    use ironmap_async::Stream;
    use std::io::SeekFrom;
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    let pool = Pool::new(volume(), PoolOptions::new()).unwrap();
    let options = FileOptions::new().write(true).create(true);
    let file = pool.open_with("/file", options).await.unwrap();
    let content: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
    let mut stream = Stream::new(file.clone());
    for piece in content.chunks(70_001) {
        stream.write_all(piece).await.unwrap();
    }
    stream.flush().await.unwrap();
    let mut stream = Stream::new(file);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    assert!(all == content, "{} bytes", all.len());
    for (to, at) in [
        (SeekFrom::Start(123_456), 123_456),
        (SeekFrom::Current(-1000), 122_461),
        (SeekFrom::End(-5), 999_998),
        (SeekFrom::Start(0), 0),
    ] {
        assert_eq!(stream.seek(to).await.unwrap(), at);
        let mut five = [0; 5];
        stream.read_exact(&mut five).await.unwrap();
        assert_eq!(five, content[at as usize..at as usize + 5]);
    }
    // Data are written to the stream after a read, and are read again. The second read returns the written data.
    stream.seek(SeekFrom::Start(10)).await.unwrap();
    stream.write_all(b"between").await.unwrap();
    stream.seek(SeekFrom::Start(8)).await.unwrap();
    let mut bytes = [0; 11];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes[2..9], b"between");
}

/// A function runs with the queue of a thread. If the function panics, only its caller gets an error. The pool has a single thread here,
/// and this thread serves the next request.
#[tokio::test]
async fn a_function_runs_on_a_thread_of_the_pool() {
    let pool = Pool::new(volume(), PoolOptions::new().threads(1)).unwrap();
    let file = written(&pool, "/file", 64).await;
    let lost: Result<(), Error> = pool.run(|_| panic!("as the test wants")).await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Busy);
    let inner = file.file().clone();
    let read = pool.run(move |queue| {
        let mut memory: Vec<_> = (0..64).map(|_| Buffer::aligned(BLOCK).unwrap()).collect();
        let reads = memory.iter_mut().enumerate();
        let mut reads: Vec<_> =
            reads.map(|(at, page)| ReadAt::new(&inner, page, (at * BLOCK) as u64)).collect();
        queue.read_many(&mut reads);
        reads.into_iter().try_for_each(|read| read.result.map(drop))?;
        Ok::<_, Error>(memory)
    });
    for (at, page) in read.await.unwrap().into_iter().enumerate() {
        assert_eq!(page[..], block(at, 0)[..]);
    }
}
