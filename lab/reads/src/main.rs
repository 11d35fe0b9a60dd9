//! `reads ENGINE TARGET DEPTH BUFFERS COUNT` makes random reads of 4 KiB. lab/marker.c counts the instructions between the markers.
//!
//! TARGET is a device, VOLUME:/FILE, or a file of a mounted file system (host:/FILE or kernel:/FILE). DEPTH 0 means synchronous calls.
//! BUFFERS is `fixed` (registered with the ring) or `plain`. The program prints a line "reads ... COUNT" before each window of counted
//! instructions.

mod marker;

use std::process::ExitCode;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{BlockFile, BoundedQueue, DeviceQueue, OpenMode, open_engine};
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{
    Engine, Error, File, FileOptions, Host, HostOptions, Queue, QueueOptions, Result, VolumeOptions,
};

const BLOCK: u64 = 4096;
/// The length of the range that is read, in bytes. The length is the same for a device and for a file.
const RANGE: u64 = 64 << 20;
/// The number of windows in which reads are counted. There are several windows, because the time that the program waits for the device
/// differs between windows.
const WINDOWS: u32 = 3;

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Target {
    Device(BoundedQueue),
    File(File, Queue),
}

impl Target {
    fn open(text: &str, engine: Engine, options: &QueueOptions) -> Result<Self> {
        let strict = FileOptions::new().direct(true);
        let (volume, path) = match text.split_once(":/") {
            None => return Self::device(text, engine, options),
            Some(("kernel", path)) => return Self::device(&format!("/{path}"), engine, options),
            Some(("host", path)) => {
                let host = Host::new(&HostOptions::new().engine(engine))?;
                let file = host.open_with(format!("/{path}"), strict)?;
                return Ok(Self::File(file, host.queue(options)?));
            }
            Some(of_volume) => of_volume,
        };
        let volume = VolumeOptions::new().engine(engine).open(volume)?;
        let inode = volume.fs().resolve(format!("/{path}").as_bytes(), Follow::All)?;
        let file = volume.open_inode(inode, strict)?;
        Ok(Self::File(file, volume.queue(options)?))
    }

    fn device(path: &str, engine: Engine, options: &QueueOptions) -> Result<Self> {
        let mode = OpenMode { exclusive: false, ..OpenMode::default() };
        let opened = open_engine(BlockFile::open(path.as_ref(), &mode)?, engine)?;
        Ok(Self::Device(opened.device.queue(options)?))
    }

    fn buffers(&mut self, count: usize, fixed: bool) -> Result<Vec<Buffer>> {
        match self {
            _ if !fixed => (0..count).map(|_| Buffer::aligned(BLOCK as usize)).collect(),
            Self::Device(queue) => queue
                .register_buffers(count, BLOCK as usize)
                .map_err(|errno| Error::io(errno, "register buffers")),
            Self::File(_, queue) => queue.register_buffers(count, BLOCK as usize),
        }
    }

    #[inline]
    fn read_now(&mut self, buffer: &mut [u8], at: u64) -> Result<usize> {
        match self {
            Self::Device(queue) => queue
                .read_now(Dev::OWN, buffer, DevOffset(at), BioFlags::empty())
                .map_err(|errno| Error::io(errno, format!("read at {at}"))),
            Self::File(file, queue) => file.read_at(queue, buffer, FilePos(at)),
        }
    }

    #[inline]
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()> {
        match self {
            Self::Device(queue) => {
                let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(at) };
                let (op, flags, memory) = (BioOp::Read, BioFlags::empty(), Memory::Flat(buffer));
                let bio = Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory, end };
                queue.submit(bio).map_err(|_| Error::invalid("no slot is free"))
            }
            Self::File(file, queue) => file
                .submit_read(queue, buffer, FilePos(at), DioFlags::empty(), 0)
                .map_err(|rejected| rejected.error),
        }
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        match self {
            Self::Device(queue) => queue.wait(min).map_err(|errno| Error::io(errno, "wait")),
            Self::File(_, queue) => queue.wait(min),
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Result<(Memory, usize)>> {
        match self {
            Self::Device(queue) => queue.pop().map(|done| match done.result {
                Ok(count) => Ok((done.bio.memory, count)),
                Err(errno) => Err(Error::io(errno, "read")),
            }),
            Self::File(_, queue) => {
                let done = queue.pop()?;
                Some(done.result.map(|count| (done.memory, count)))
            }
        }
    }

    /// A batch is a quarter of the depth, as in fio's examples: 32 for a depth of 128.
    fn run(&mut self, count: u64, free: &mut Vec<Buffer>, sync: bool, at: &mut u64) -> Result<()> {
        let mut next = || {
            *at ^= *at << 13;
            *at ^= *at >> 7;
            *at ^= *at << 17;
            *at % (RANGE / BLOCK) * BLOCK
        };
        if sync {
            for _ in 0..count {
                whole(self.read_now(&mut free[0], next())?)?;
            }
            return Ok(());
        }
        let (depth, batch) = (free.len(), (free.len() / 4).max(1));
        let (mut submitted, mut done) = (0, 0);
        while done < count {
            let mut queued = 0;
            while submitted < count
                && queued < batch
                && let Some(buffer) = free.pop()
            {
                self.submit(buffer, next())?;
                submitted += 1;
                queued += 1;
            }
            let open = depth - free.len();
            // If too few buffers are free for the next batch, the program waits for requests in flight.
            self.wait(if free.len() < batch || submitted == count { batch.min(open) } else { 0 })?;
            while let Some(popped) = self.pop() {
                let (memory, len) = popped?;
                whole(len)?;
                free.extend(memory.into_buffers());
                done += 1;
            }
        }
        Ok(())
    }
}

fn whole(len: usize) -> Result<()> {
    if len as u64 == BLOCK { Ok(()) } else { Err(Error::invalid(format!("{len} bytes read"))) }
}

fn run(args: &[String]) -> Result<()> {
    let [engine, target, depth, buffers, count] = args else {
        return Err(Error::invalid("usage: reads ENGINE TARGET DEPTH fixed|plain COUNT"));
    };
    let number =
        |text: &str| text.parse::<u32>().map_err(|error| Error::invalid(error.to_string()));
    let (depth, requests) = (number(depth)?, u64::from(number(count)?));
    let slots = depth.max(1);
    let mut open = Target::open(target, engine.parse()?, &QueueOptions::new().depth(slots))?;
    let mut free = open.buffers(slots as usize, buffers == "fixed")?;
    let mut state = 0x9E37_79B9_7F4A_7C15;
    open.run(requests / 4, &mut free, depth == 0, &mut state)?;
    for _ in 0..WINDOWS {
        println!("reads {}", args.join(" "));
        marker::begin();
        let result = open.run(requests, &mut free, depth == 0, &mut state);
        marker::end();
        result?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reads {}: {error}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}
