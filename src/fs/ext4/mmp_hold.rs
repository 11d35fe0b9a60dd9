//! Multiple mount protection of a volume that is open for writing. A thread updates the sequence number in the MMP block, so that other
//! nodes do not use the volume. The thread also detects whether another node has taken the volume.

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use zerocopy::FromBytes;

use super::disk::mmp::{MAGIC, RawMmp, SEQ_CLEAN};
use super::mmp;
use super::superblock::Superblock;
use crate::device::{Device, Fence};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::Events;
use crate::fs::Clock;
use crate::sys::Buffer;
use crate::units::{DevOffset, FsBlock};

/// The maximum of ordinary sequence numbers. Higher numbers have special meanings.
const SEQ_MAX: u32 = 0xE24D_4D4F;
/// A node recognises this number of its newest sequence numbers as its own. The sequence number on the device can be older than the newest
/// one: each attempt to reconnect to the device writes a new number, and the device may then repeat an earlier write.
const OURS: u32 = 1024;

/// Protects a volume from use by other nodes until this value is dropped. A separate thread updates the sequence number in the MMP block.
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
    /// The newest sequence number that was written, or is about to be written.
    newest: Mutex<u32>,
    /// The lock and the condition variable are from std, for the reason given in `jbd2::timer`.
    ended: std::sync::Mutex<bool>,
    told: Condvar,
    /// Whether another node has begun to use the volume although this node was using it.
    lost: AtomicBool,
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Count").field("block", &self.block).finish_non_exhaustive()
    }
}

impl MmpHold {
    /// Takes a volume that no other node holds. The caller must have verified this with [`mmp::check`]. Two nodes may try to take the
    /// volume at the same time. The function therefore waits as long as two such nodes need to detect each other. During the wait, the
    /// function updates the sequence number, so that a third node also detects this node. Another node may have held the volume between the
    /// check and this call. Data that was read before this call may therefore be outdated.
    ///
    /// # Errors
    /// `Busy` if another node took the volume at the same time; `Io`.
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
            newest: Mutex::new(seq % SEQ_MAX),
            ended: std::sync::Mutex::new(false),
            told: Condvar::new(),
            lost: AtomicBool::new(false),
        });
        count.write(seq % SEQ_MAX)?;
        let own = Arc::clone(&count);
        let spawned = std::thread::Builder::new()
            .name("ironmap-mmp".to_owned())
            .spawn(move || own.run(interval));
        let thread = spawned.map_err(|error| {
            Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0)), "thread")
        })?;
        device.set_fence(Some(Arc::clone(&count) as Arc<dyn Fence>));
        let held = Self { count, thread: Some(thread) };
        std::thread::sleep(mmp::patience(sb.mmp_interval));
        if held.check().is_err() || !held.count.is_ours()? {
            return Err(Error::new(
                ErrorKind::Busy,
                "another node opened the volume at the same time (MMP)",
            ));
        }
        Ok(Some(held))
    }

    /// Returns the error `Busy` if another node has taken the volume, or if an update of the sequence number has failed. After this error,
    /// the caller must not write to the device.
    pub(super) fn check(&self) -> Result<()> {
        if self.count.lost.load(Ordering::Relaxed) { Err(taken()) } else { Ok(()) }
    }
}

fn taken() -> Error {
    Error::new(ErrorKind::Busy, "another node has overwritten the MMP block and uses the volume")
}

impl Drop for MmpHold {
    fn drop(&mut self) {
        *self.count.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.count.told.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // If this node was suspended for a long time, another node may have taken the volume. In this case this node must not mark the
        // volume as free.
        if self.check().is_ok() && self.count.is_ours().unwrap_or(false) {
            let _ = self.count.write(SEQ_CLEAN);
        }
        self.count.device.set_fence(None);
    }
}

impl Count {
    fn run(&self, interval: Duration) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let waited = self.told.wait_timeout(ended, interval);
            (ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *ended {
                return;
            }
            let counted = self.is_ours().unwrap_or(false) && self.write(self.next()).is_ok();
            if !counted {
                self.lost.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    fn is_ours(&self) -> Result<bool> {
        let raw = mmp::read(&*self.device, &self.sb, self.block)?;
        Ok(self.wrote(raw.mmp_seq.get()))
    }

    /// Whether a sequence number is one of the newest numbers that this node wrote.
    fn wrote(&self, seq: u32) -> bool {
        let newest = *self.newest.lock();
        let age = if seq <= newest { newest - seq } else { newest + (SEQ_MAX - seq.min(SEQ_MAX)) };
        seq < SEQ_MAX && age < OURS
    }

    /// Returns the next sequence number. From this call on, this node treats the number as its own.
    fn next(&self) -> u32 {
        let mut newest = self.newest.lock();
        *newest = (*newest + 1) % SEQ_MAX;
        *newest
    }

    fn write(&self, seq: u32) -> Result<()> {
        let at = self.sb.block_size.offset_of(self.block);
        let mut buffer = Buffer::aligned(self.sb.block_size.bytes())?;
        self.device.read_exact_at(&mut buffer, at)?;
        if let Ok((raw, _)) = RawMmp::mut_from_prefix(&mut buffer) {
            self.fill(raw, seq);
        }
        // No flush is needed: other nodes see the number even if it is only in the device's cache.
        let through = !self.events.durability().calls_flush();
        self.device.write_all_at(&[IoSlice::new(&buffer)], at, through)
    }
}

impl Count {
    fn fill(&self, raw: &mut RawMmp, seq: u32) {
        raw.mmp_seq.set(seq);
        raw.mmp_time.set(self.clock.now().seconds as u64);
        put(&mut raw.mmp_nodename, rustix::system::uname().nodename().to_bytes());
        put(&mut raw.mmp_bdevname, b"ironmap");
        raw.mmp_check_interval.set(self.sb.mmp_interval.max(1));
        mmp::seal_mmp(self.sb.seed, raw);
    }
}

/// After a reconnection, the device calls this fence before any other write. The fence updates the sequence number, so that other nodes see
/// that the volume is in use. If the number on the device is not one of this node's numbers, another node has taken the volume, and the
/// fence fails.
impl Fence for Count {
    fn place(&self) -> (DevOffset, usize) {
        (self.sb.block_size.offset_of(self.block), self.sb.block_size.bytes())
    }

    fn confirm(&self, block: &mut [u8]) -> Result<()> {
        let raw = RawMmp::mut_from_prefix(block).ok().map(|(raw, _)| raw);
        let raw = raw.filter(|raw| raw.mmp_magic.get() == MAGIC && self.wrote(raw.mmp_seq.get()));
        let Some(raw) = raw else {
            self.lost.store(true, Ordering::Relaxed);
            return Err(taken());
        };
        self.fill(raw, self.next());
        Ok(())
    }
}

/// Stores a name in a field. The remaining bytes of the field are zeros.
fn put(field: &mut [u8], name: &[u8]) {
    field.fill(0);
    let len = name.len().min(field.len() - 1);
    field[..len].copy_from_slice(&name[..len]);
}
