//! Tests a pool on a kernel that refuses io_uring, as in many containers. The filter of system calls cannot be removed, so this program has
//! only one test.

#[path = "../../../tests/common/sys.rs"]
mod sys;

use std::sync::{Arc, Barrier};

use ironmap::fs::ext4::MkfsOptions;
use ironmap::{Buffer, Engine, Errno, Error, Host, HostOptions, NoIoUring, Volume, VolumeOptions};
use ironmap_async::{Pool, PoolOptions};

/// Without io_uring, a pool has a thread for each request that can be in flight, and the report of the pool says so. The test has sixteen
/// requests in flight, which all wait for each other.
#[tokio::test]
async fn a_pool_without_io_uring_keeps_requests_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let device = ironmap::tools::device(&*image).unwrap();
    ironmap::tools::make(&*device, &MkfsOptions::new()).unwrap();
    drop(device);
    let volume = VolumeOptions::new().write(true).open(&*image).unwrap();
    let content: Vec<u8> = (0..64_u8).flat_map(|block| vec![block; 4096]).collect();
    volume.write("/file", &content).unwrap();
    volume.close().unwrap();
    drop(volume);

    sys::forbid_io_uring();
    let pool = Pool::new(Volume::open(&*image).unwrap(), PoolOptions::new()).unwrap();
    let report = pool.report();
    assert_eq!((report.engine, report.threads, report.depth), (Engine::Psync, 16, 1), "{report}");
    let refused = Some(NoIoUring::Refused(Errno::EPERM));
    assert_eq!(report.no_io_uring, refused);
    assert!(
        report.to_string().contains("refuses io_uring: Operation not permitted (EPERM)"),
        "{report}"
    );
    let barrier = Arc::new(Barrier::new(16));
    let together: Vec<_> = (0..16)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            pool.run(move |_| {
                barrier.wait();
                Ok::<_, Error>(())
            })
        })
        .collect();
    for one in together {
        one.await.unwrap();
    }
    let file = pool.open("/file").await.unwrap();
    let reads: Vec<_> = (0..64_u64)
        .map(|block| file.read_at(Buffer::aligned(4096).unwrap(), block * 4096))
        .collect();
    for (block, read) in (0..).zip(reads) {
        let (count, buffer) = read.await.unwrap();
        assert!(count == 4096 && buffer.iter().all(|byte| *byte == block), "block {block}");
    }

    let fewer = Pool::new(Volume::open(&*image).unwrap(), PoolOptions::new().depth(4)).unwrap();
    assert_eq!(fewer.report().threads, 4);
    let named = VolumeOptions::new().engine(Engine::Psync).open(&*image).unwrap();
    assert_eq!(Pool::new(named, PoolOptions::new()).unwrap().report().no_io_uring, None);
    let exactly = Pool::new(Volume::open(&*image).unwrap(), PoolOptions::new().threads(3)).unwrap();
    assert_eq!(exactly.report().threads, 3);

    let host = Pool::new(Host::new(&HostOptions::new()).unwrap(), PoolOptions::new()).unwrap();
    assert_eq!((host.report().engine, host.report().threads), (Engine::Psync, 16));
    assert_eq!(host.report().no_io_uring, refused);
    let file = host.open(dir.path().join("image")).await.unwrap();
    let (count, buffer) = file.read_at(Buffer::aligned(4096).unwrap(), 0).await.unwrap();
    assert!(count == 4096 && buffer[1080..1082] == [0x53, 0xEF], "the magic of the superblock");
}
