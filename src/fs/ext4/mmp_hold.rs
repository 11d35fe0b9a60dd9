//! Multiple mount protection of a volume that is open for writing: it counts on, so that other nodes keep off, and looks whether one did
//! not.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

use super::disk::mmp::{RawMmp, SEQ_CLEAN};
use super::mmp;
use super::superblock::Superblock;
use crate::device::Device;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::Events;
use crate::fs::Clock;
use crate::sys::Buffer;
use crate::units::FsBlock;

/// Sequence numbers above this have meanings of their own.
const SEQ_MAX: u32 = 0xE24D_4D4F;

/// The protection of a volume, until it is dropped. A thread of its own keeps it up.
pub(crate) struct MmpHold {
    count: Arc<Count>,
    thread: Option<JoinHandle<()>>,
}

struct Count {
    device: Arc<dyn Device>,
    events: Arc<Events>,
    sb: Superblock,
    block: FsBlock,
    clock: Clock,
    state: Mutex<State>,
    told: Condvar,
    /// Another node has taken the volume.
    lost: AtomicBool,
}

struct State {
    seq: u32,
    ended: bool,
}

impl MmpHold {
    /// Takes a volume whose last holder is gone: [`mmp::check`] has seen to that. Waits as long as two nodes need to see each other.
    ///
    /// # Errors
    /// `Busy` where another node took it at the same time; `Io`.
    pub(super) fn take(
        device: &Arc<dyn Device>,
        sb: &Superblock,
        events: &Arc<Events>,
        clock: Clock,
    ) -> Result<Option<Self>> {
        let Some(block) = sb.mmp_block else { return Ok(None) };
        let interval = Duration::from_secs(u64::from(sb.mmp_interval.max(1)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seq = now.subsec_nanos() ^ std::process::id().rotate_left(16);
        let count = Arc::new(Count {
            device: Arc::clone(device),
            events: Arc::clone(events),
            sb: sb.clone(),
            block,
            clock,
            state: Mutex::new(State { seq: seq % SEQ_MAX, ended: false }),
            told: Condvar::new(),
            lost: AtomicBool::new(false),
        });
        count.write(seq % SEQ_MAX)?;
        std::thread::sleep(mmp::patience(sb.mmp_interval));
        if !count.is_ours(seq % SEQ_MAX)? {
            return Err(Error::new(ErrorKind::Busy, "another node took it at the same time (mmp)"));
        }
        let own = Arc::clone(&count);
        let spawned = std::thread::Builder::new()
            .name("ironmap-mmp".to_owned())
            .spawn(move || own.run(interval));
        let thread = spawned.map_err(|error| {
            Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0)), "thread")
        })?;
        Ok(Some(Self { count, thread: Some(thread) }))
    }

    /// `Busy` where another node has taken the volume, or the device no longer answers: nothing may be written any more.
    pub(super) fn check(&self) -> Result<()> {
        if self.count.lost.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Busy, "another node has taken the volume (mmp)"));
        }
        Ok(())
    }
}

impl Drop for MmpHold {
    fn drop(&mut self) {
        self.count.state.lock().ended = true;
        self.count.told.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.check().is_ok() {
            let _ = self.count.write(SEQ_CLEAN);
        }
    }
}

impl Count {
    fn run(&self, interval: Duration) {
        let mut state = self.state.lock();
        loop {
            self.told.wait_for(&mut state, interval);
            if state.ended {
                return;
            }
            let next = (state.seq + 1) % SEQ_MAX;
            let counted = self.is_ours(state.seq).unwrap_or(false) && self.write(next).is_ok();
            if !counted {
                self.lost.store(true, Ordering::Relaxed);
                return;
            }
            state.seq = next;
        }
    }

    fn is_ours(&self, seq: u32) -> Result<bool> {
        Ok(mmp::read(&*self.device, &self.sb, self.block)?.mmp_seq.get() == seq)
    }

    fn write(&self, seq: u32) -> Result<()> {
        let at = self.sb.block_size.offset_of(self.block);
        let mut buffer = Buffer::aligned(self.sb.block_size.bytes())?;
        self.device.read_exact_at(&mut buffer, at)?;
        if let Ok((raw, _)) = RawMmp::mut_from_prefix(&mut buffer) {
            raw.mmp_seq.set(seq);
            raw.mmp_time.set(self.clock.now().seconds as u64);
            put(&mut raw.mmp_nodename, rustix::system::uname().nodename().to_bytes());
            put(&mut raw.mmp_bdevname, b"ironmap");
            raw.mmp_check_interval.set(self.sb.mmp_interval.max(1));
            mmp::seal_mmp(self.sb.seed, raw);
        }
        let written = self.device.write_all_at(&[IoSlice::new(&buffer)], at, true);
        self.events.durability().doubt_failed(&written);
        written
    }
}

/// Writes a name, padded with zeros.
fn put(field: &mut [u8], name: &[u8]) {
    field.fill(0);
    let len = name.len().min(field.len() - 1);
    field[..len].copy_from_slice(&name[..len]);
}
