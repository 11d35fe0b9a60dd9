//! A device and its queue, written as another program would write them, with only public items of the crate. The device stores its sectors
//! in a vector, and its queue stores the requests in a list.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};

use ironmap::bio::{Bio, BioFlags, BioOp, Dev, Done};
use ironmap::device::{AnyQueue, DeviceQueue, Drained, InRange, LentPart, Limits, ThroughFlushes};
use ironmap::fs::Clock;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::units::DevOffset;
use ironmap::{Buffer, Device, DioFlags, Errno, FileOptions, Files, QueueOptions, Result, Volume};

type Sectors = Arc<Mutex<Vec<u8>>>;

/// Calls `change` with the range of a request. The range must be within the device.
fn with(sectors: &Sectors, at: DevOffset, len: usize, change: impl FnOnce(&mut [u8])) {
    let mut sectors = sectors.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut sectors[at.0 as usize..][..len]);
}

struct Vector {
    sectors: Sectors,
    limits: Limits,
}

impl Vector {
    fn new(size: usize) -> Self {
        let limits = Limits {
            read_only: false,
            logical_block: 512,
            physical_block: 512,
            dma_align: 1,
            max_transfer: 1 << 20,
            fua: true,
            through_flushes: ThroughFlushes::Never,
            volatile_cache: false,
            stable_writes: false,
            nowait: false,
            poll: false,
            direct: true,
            rereads: false,
            atomic_write: 0,
        };
        Self { sectors: Arc::new(Mutex::new(vec![0; size])), limits }
    }
}

impl Device for Vector {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.sectors.lock().unwrap().len() as u64
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        with(&self.sectors, at, buf.len(), |sectors| buf.copy_from_slice(sectors));
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        mut at: DevOffset,
        _: bool,
        _: InRange,
    ) -> Result<()> {
        for buf in bufs {
            with(&self.sectors, at, buf.len(), |sectors| sectors.copy_from_slice(buf));
            at.0 += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let _ = options;
        let sectors = Arc::clone(&self.sectors);
        Ok(AnyQueue::other(Waiting { sectors, waiting: VecDeque::new(), done: VecDeque::new() }))
    }
}

/// A queue in which each bio stays in flight until the next call of `wait`.
struct Waiting {
    sectors: Sectors,
    waiting: VecDeque<Bio>,
    done: VecDeque<Done>,
}

const DEPTH: usize = 8;

impl Waiting {
    fn carry(&self, bio: &mut Bio) -> usize {
        let (mut at, mut count) = (bio.at, 0);
        for buf in bio.memory.buffers_mut() {
            with(&self.sectors, at, buf.len(), |sectors| match bio.op {
                BioOp::Read => buf.copy_from_slice(sectors),
                BioOp::Write => sectors.copy_from_slice(buf),
                BioOp::Flush => {}
            });
            at.0 += buf.len() as u64;
            count += buf.len();
        }
        count
    }
}

impl DeviceQueue for Waiting {
    fn read_now(
        &mut self,
        _: Dev,
        buf: &mut [u8],
        at: DevOffset,
        _: BioFlags,
    ) -> Result<usize, Errno> {
        with(&self.sectors, at, buf.len(), |sectors| buf.copy_from_slice(sectors));
        Ok(buf.len())
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        for part in parts {
            let mut at = part.at;
            for buf in &mut part.bufs {
                let count = self.read_now(dev, buf, at, flags).unwrap_or(0);
                at.0 += count as u64;
            }
            part.result = Ok((at.0 - part.at.0) as usize);
        }
    }

    fn write_now(
        &mut self,
        _: Dev,
        bufs: &[IoSlice<'_>],
        mut at: DevOffset,
        _: BioFlags,
    ) -> Result<usize, Errno> {
        let begin = at;
        for buf in bufs {
            with(&self.sectors, at, buf.len(), |sectors| sectors.copy_from_slice(buf));
            at.0 += buf.len() as u64;
        }
        Ok((at.0 - begin.0) as usize)
    }

    fn flush_now(&mut self, _: Dev) -> Result<(), Errno> {
        Ok(())
    }

    fn room(&self) -> usize {
        DEPTH - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.done.len()
    }

    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        self.waiting.push_back(bio);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        while self.done.len() < min {
            let Some(mut bio) = self.waiting.pop_front() else { break };
            let result = Ok(self.carry(&mut bio));
            self.done.push_back(Done { bio, result });
        }
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        self.waiting.clear();
        Drained::Ended
    }

    fn pop(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
}

/// A volume works on a device that another program implements. Metadata, synchronous requests and queued requests all use this device and
/// its queue. Afterwards e2fsck finds no fault.
#[test]
fn a_device_and_its_queue_can_be_implemented_outside() {
    let device = Arc::new(Vector::new(16 << 20));
    ironmap::tools::make(&*device, &MkfsOptions::new()).unwrap();
    let below = Arc::clone(&device) as Arc<dyn Device>;
    let volume = Volume::writable_on(below, Clock::default()).unwrap();
    let mut queue = volume.queue(&QueueOptions::new().depth(DEPTH as u32)).unwrap();
    let file = volume.open_with("/f", FileOptions::new().write(true).create(true)).unwrap();
    for block in 0..64u8 {
        file.write_all_at(&mut queue, &[block; 4096], u64::from(block) << 12).unwrap();
    }
    file.sync(&mut queue).unwrap();
    for block in (0..64u64).rev() {
        let buffer = Buffer::aligned(4096).unwrap();
        file.submit_read(&mut queue, buffer, block << 12, DioFlags::empty(), block).unwrap();
        if queue.outstanding() == DEPTH {
            complete(&mut queue);
        }
    }
    complete(&mut queue);
    drop((file, queue));
    volume.close().unwrap();
    drop(volume);
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), &*device.sectors.lock().unwrap()).unwrap();
    let path = image.path().to_str().unwrap();
    let checked = crate::common::command::output("e2fsck", &["-fn", path]);
    assert!(checked.status.success(), "{checked:?}");
}

fn complete(queue: &mut ironmap::Queue) {
    while queue.outstanding() > 0 {
        queue.wait(1).unwrap();
        while let Some(completion) = queue.pop() {
            let block = completion.token as u8;
            let (count, buffer) = completion.into_buffer().unwrap();
            assert_eq!((count, &buffer[..]), (4096, &[block; 4096][..]));
        }
    }
}
