//! Random requests to an export. A model predicts the content of the export.

use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done, Memory};
use ironmap::device::nbd::{Address, Nbd};
use ironmap::device::{BoundedQueue, Device, DeviceQueue, QueueOptions};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::command::run;
use crate::common::image::scratch_in;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::fake::{FLUSH, Fake};
use crate::require;
use crate::server::Server;

/// The size of the exports.
pub(crate) const SIZE: usize = 4 << 20;

pub(crate) fn content(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(SIZE)
}

/// A request in flight: its range, and the bytes if it is a write.
struct Flying {
    at: usize,
    len: usize,
    data: Option<Vec<u8>>,
}

/// Sends requests to a device through several queues. The value stores the bytes that the device must have after these requests.
pub(crate) struct Load {
    device: Arc<Nbd>,
    queues: Vec<BoundedQueue>,
    flying: Vec<Vec<Option<Flying>>>,
    pub(crate) model: Vec<u8>,
    rng: Rng,
    /// The number of steps (random requests) that were run so far.
    pub(crate) done: Arc<AtomicU64>,
}

const DEPTH: usize = 12;

impl Load {
    pub(crate) fn new(device: Nbd, model: Vec<u8>, seed: u64) -> Self {
        let device = Arc::new(device);
        let options = QueueOptions::new().depth(DEPTH as u32);
        let queues: Vec<_> = (0..3).map(|_| device.queue(&options).unwrap()).collect();
        let flying = queues.iter().map(|_| (0..DEPTH).map(|_| None).collect()).collect();
        Self { device, queues, flying, model, rng: Rng::new(seed), done: Arc::default() }
    }

    fn is_busy(&self, at: usize, len: usize) -> bool {
        let all = self.flying.iter().flatten().flatten();
        all.into_iter().any(|other| at < other.at + other.len && other.at < at + len)
    }

    /// Chooses a range of whole units that no request in flight uses.
    fn range(&mut self) -> (usize, usize) {
        let unit = self.device.limits().logical_block as usize;
        loop {
            let len = unit * (1 + self.rng.below((64 << 10) / unit as u64) as usize);
            let len = if self.rng.below(3) > 0 { len.min(4096.max(unit)) } else { len };
            let at = self.rng.below(((SIZE - len) / unit) as u64) as usize * unit;
            if !self.is_busy(at, len) {
                return (at, len);
            }
        }
    }

    /// Runs `count` steps. Each step is a random request.
    pub(crate) fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let queue = self.rng.below(3) as usize;
            match self.rng.below(20) {
                0 => self.device.flush().unwrap(),
                1 => self.read_any(),
                2 if self.rng.below(2) == 0 => self.zero(),
                2 => self.write_at_once(),
                3..=5 => {
                    self.queues[queue].commit().unwrap();
                    self.complete(queue);
                }
                6..=8 => {
                    self.queues[queue].wait(1).unwrap();
                    self.complete(queue);
                }
                _ => self.submit(queue),
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        for queue in 0..self.queues.len() {
            self.queues[queue].wait(DEPTH).unwrap();
            self.complete(queue);
            assert_eq!(self.queues[queue].in_flight(), 0);
        }
    }

    fn submit(&mut self, queue: usize) {
        let Some(slot) = self.flying[queue].iter().position(Option::is_none) else { return };
        let (at, len) = self.range();
        let is_write = self.rng.below(2) == 0;
        let data = is_write.then(|| self.rng.bytes(len));
        let bytes = data.clone().unwrap_or_else(|| vec![0; len]);
        let memory = if self.rng.below(3) == 0 {
            let (first, second) = bytes.split_at(len / 3);
            Memory::Vectored(vec![Buffer::from(first.to_vec()), Buffer::from(second.to_vec())])
        } else {
            Memory::Flat(Buffer::from(bytes))
        };
        let durable = is_write && self.rng.below(4) == 0;
        let bio = Bio {
            op: if is_write { BioOp::Write } else { BioOp::Read },
            flags: if durable { BioFlags::DSYNC } else { BioFlags::empty() },
            dev: Dev::OWN,
            at: DevOffset(at as u64),
            memory,
            end: BioEnd::Part { request: slot as u32, part: 0 },
        };
        self.flying[queue][slot] = Some(Flying { at, len, data });
        self.queues[queue].submit(bio).unwrap();
    }

    fn complete(&mut self, queue: usize) {
        while let Some(Done { bio, result }) = self.queues[queue].pop() {
            let BioEnd::Part { request, .. } = bio.end else { panic!("{:?}", bio.end) };
            let Flying { at, len, data } = self.flying[queue][request as usize].take().unwrap();
            assert_eq!(result, Ok(len), "{:?} at {at}", bio.op);
            let found: Vec<u8> =
                bio.memory.buffers().iter().flat_map(|buffer| buffer.iter().copied()).collect();
            match data {
                Some(data) => self.model[at..at + len].copy_from_slice(&data),
                None => assert!(found == self.model[at..at + len], "read of {len} at {at}"),
            }
        }
    }

    /// Reads a range with any alignment.
    fn read_any(&mut self) {
        let (at, len) = self.range();
        let (skip, less) = (self.rng.below(100) as usize, self.rng.below(100) as usize);
        let mut bytes = vec![0; len - skip - less];
        self.device.read_exact_at(&mut bytes, DevOffset((at + skip) as u64)).unwrap();
        assert!(bytes == self.model[at + skip..at + len - less], "read at {at}");
    }

    fn write_at_once(&mut self) {
        let (at, len) = self.range();
        let data = self.rng.bytes(len);
        let (first, second) = data.split_at(len / 2);
        let bufs = [IoSlice::new(first), IoSlice::new(second)];
        let fua = self.rng.below(2) == 0;
        self.device.write_all_at(&bufs, DevOffset(at as u64), fua).unwrap();
        self.model[at..at + len].copy_from_slice(&data);
    }

    /// Writes zeros. If the server supports requests for zeros, uses such a request.
    fn zero(&mut self) {
        let (at, len) = self.range();
        match self.device.write_zeroes(DevOffset(at as u64), len as u64) {
            Ok(()) => self.model[at..at + len].fill(0),
            Err(error) => assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}"),
        }
    }

    /// Flushes the device. Returns the content that the disk must have after this flush.
    pub(crate) fn end(self) -> Vec<u8> {
        self.device.flush().unwrap();
        self.model
    }
}

/// A request that is submitted to a queue and uses this memory.
pub(crate) fn bio(op: BioOp, flags: BioFlags, at: u64, memory: Vec<u8>) -> Bio {
    let memory = Memory::Flat(Buffer::from(memory));
    let end = BioEnd::Part { request: 0, part: 0 };
    Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory, end }
}

fn random_requests(server: &mut Server, seed: u64, name: &str) {
    let model = std::fs::read(server.disk()).unwrap();
    let mut load = Load::new(server.open(true).unwrap(), model, seed);
    load.steps(600);
    let model = load.end();
    server.stop();
    assert!(std::fs::read(server.disk()).unwrap() == model, "{name}, seed {seed}");
}

/// An export contains the data that were written to it. nbdkit runs with filters that change its features, and the form and delay of its
/// replies.
#[test]
fn an_export_holds_what_was_written() {
    require!([Need::Tool("nbdkit")]);
    for (seed, args) in [
        "file DISK",
        "file DISK -t 1",
        "--filter=fua file DISK",
        "--filter=fua file DISK fuamode=emulate",
        "--filter=fua file DISK fuamode=discard",
        "--filter=fua file DISK fuamode=force",
        "--filter=noparallel file DISK serialize=requests",
        "--filter=nozero --filter=noextents file DISK",
        "--filter=nozero file DISK zeromode=emulate",
        "--filter=nozero file DISK zeromode=notrim fastzeromode=slow",
        "--filter=nozero file DISK zeromode=plugin fastzeromode=none",
        "--filter=multi-conn file DISK multi-conn-mode=disable",
        "--filter=multi-conn file DISK multi-conn-mode=emulate",
        "--filter=blocksize-policy file DISK blocksize-minimum=4096 blocksize-preferred=4096 \
         blocksize-maximum=64K blocksize-error-policy=error",
        "--filter=blocksize-policy file DISK blocksize-minimum=512 blocksize-preferred=1M \
         blocksize-maximum=1M blocksize-error-policy=error",
        "--filter=delay file DISK rdelay=2ms wdelay=1ms",
        "--filter=rate file DISK rate=800M burstiness=1",
        "--filter=cache file DISK",
        "--filter=cow file DISK cow-on-read=true --filter=cache cache=writethrough",
        "--no-sr file DISK",
        "--mask-handshake=1 file DISK",
    ]
    .into_iter()
    .enumerate()
    {
        let mut server = Server::nbdkit(args, &content(seed as u64));
        if args.contains("cow") {
            // The server loses its cache. So the disk contains only the writes that were flushed.
            let mut load = Load::new(server.open(true).unwrap(), content(seed as u64), 1);
            load.steps(300);
            load.end();
            continue;
        }
        random_requests(&mut server, seed as u64, args);
    }
}

/// If the server can write zeros fast, ironmap sends one request for zeros. For other servers, ironmap sends several requests, each for as
/// many zeros as the server can write within the time-out.
#[test]
fn zeros_are_not_sent() {
    require!([Need::Tool("nbdkit")]);
    for (filter, requests) in [
        ("", 1),
        // The server refuses the first request. Then ironmap requests the zeros in parts of 8 MiB.
        ("--filter=nozero zeromode=plugin fastzeromode=slow", 4),
        ("--filter=nozero zeromode=plugin fastzeromode=none", 3),
    ] {
        let args = format!("--filter=log memory 24M logfile=DIR/requests {filter}");
        let server = Server::nbdkit(&args, &[]);
        let device = server.open(true).unwrap();
        let mut model = vec![0xA5; 24 << 20];
        device.write_all_at(&[IoSlice::new(&model)], DevOffset(0), false).unwrap();
        let zeros = 4096..(24 << 20) - 4096;
        device.write_zeroes(DevOffset(4096), zeros.len() as u64).unwrap();
        model[zeros].fill(0);
        let mut found = vec![1; 24 << 20];
        device.read_exact_at(&mut found, DevOffset(0)).unwrap();
        assert!(found == model, "{filter}");
        let log = std::fs::read_to_string(server.path("requests")).unwrap();
        let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        let counts = [" Zero id=", "fua=1", " Write id="].map(count);
        assert_eq!(counts, [requests, requests, 24], "{filter}: {log}");
    }
}

/// A server reports support for zeros and then refuses a request for zeros. ironmap returns EOPNOTSUPP, so that the caller writes the zeros
/// as data, and the session continues.
#[test]
fn refused_zeros_are_left_to_the_caller() {
    const ZEROS: u16 = 6;
    for number in [22, 75, 95] {
        // The server supports flush, FUA, zeros, and fast zeros.
        let fake =
            Fake::start(1 << 20, FLUSH | 1 << 3 | 1 << 6 | 1 << 11, move |_, mut connection| {
                while let Some(asked) = connection.next() {
                    match asked.command {
                        ZEROS => connection.answer(&asked, number, &[]),
                        _ => connection.succeed(&asked),
                    }
                }
            });
        let device = Nbd::open(&fake.address(""), true).unwrap();
        // This write is not flushed. An error of a durable request can mean that the server has lost such data, and then the session ends.
        // The refusal of zeros, which is an error too, must not end the session.
        device.write_all_at(&[IoSlice::new(&[1; 4096])], DevOffset(0), false).unwrap();
        let error = device.write_zeroes(DevOffset(4096), 8192).unwrap_err();
        assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{number}: {error}");
        device.write_all_at(&[IoSlice::new(&[0; 4096])], DevOffset(0), true).unwrap();
        device.flush().unwrap();
    }
}

/// If an export grows, ironmap uses only its old size, even over new connections. To a server that accepts only one client, ironmap makes
/// only one connection.
#[test]
fn exports_grow_and_clients_are_counted() {
    require!([Need::Tool("nbdkit")]);
    let server = Server::nbdkit("file DISK", &content(2));
    let device = server.open(true).unwrap();
    std::fs::OpenOptions::new().write(true).open(server.disk()).unwrap().set_len(8 << 20).unwrap();
    let limited = Server::nbdkit("--filter=limit file DISK limit=1", &content(2));
    for device in [device, limited.open(true).unwrap()] {
        let mut load = Load::new(device, content(2), 2);
        load.steps(200);
        load.end();
    }
}

/// A part of an export can end within a block of the server. The part can be read to its end, and not beyond.
#[test]
fn the_end_of_a_part_is_read() {
    require!([Need::Tool("nbdkit")]);
    let args = "--filter=blocksize-policy file DISK blocksize-minimum=4096 blocksize-preferred=4096 \
                blocksize-error-policy=error";
    let server = Server::nbdkit(args, &content(1));
    let part = |base| server.open(false).unwrap().part(base, 4096 + 512);
    assert_eq!(part(512).unwrap_err().kind(), ErrorKind::InvalidInput);
    let part = part(8192).unwrap();
    let expected = &content(1)[12288..12800];
    let mut found = [0; 512];
    part.read_exact_at(&mut found, DevOffset(4096)).unwrap();
    assert!(found == *expected);
    part.read_exact_at(&mut found, DevOffset(4097)).unwrap_err();
    let mut block = [0; 4096];
    // Like a queue that a volume uses, this queue relies on its caller to check ranges.
    let mut queue = part.queue(&QueueOptions::new()).unwrap().unbounded();
    let read = queue.read_now(Dev::OWN, &mut block, DevOffset(4096), BioFlags::empty());
    assert_eq!(read, Ok(512));
    assert!(block[..512] == *expected && block[512..] == [0; 3584]);
}

#[test]
fn an_export_of_qemu_holds_what_was_written() {
    require!([Need::Tool("qemu-nbd")]);
    for args in ["-t -e 8 -k SOCKET -f raw DISK", "-t -e 1 -k SOCKET -f raw DISK"] {
        let mut server = Server::start("qemu-nbd", args, &content(7));
        random_requests(&mut server, 7, args);
    }
}

#[test]
fn an_export_of_nbd_server_holds_what_was_written() {
    require!([Need::Tool("nbd-server")]);
    // This server uses TCP, because nbd-server 3.24 ends every negotiation on a local socket.
    let dir = scratch_in(Path::new("/dev/shm"));
    let (disk, config, pid) =
        (dir.path().join("disk"), dir.path().join("config"), dir.path().join("pid"));
    std::fs::write(&disk, content(8)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\n[disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
        disk.display()
    );
    std::fs::write(&config, text).unwrap();
    let server = Background(pid);
    let path = |path: &Path| path.display().to_string();
    run("nbd-server", &["-p", &path(&server.0), "-C", &path(&config)]);
    let address: Address = format!("nbd://127.0.0.1:{port}/disk").parse().unwrap();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::yield_now();
    }
    let device = Nbd::open(&address, true).unwrap();
    let mut load = Load::new(device, content(8), 8);
    load.steps(600);
    let model = load.end();
    assert!(std::fs::read(&disk).unwrap() == model);
    let missing: Address = format!("nbd://127.0.0.1:{port}/other").parse().unwrap();
    assert_eq!(Nbd::open(&missing, true).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Starts a server in the background. The server writes its process number to a file.
struct Background(PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.0).ok();
        let pid = pid.and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}
