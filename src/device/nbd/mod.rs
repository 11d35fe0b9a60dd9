//! An export of an NBD server as a device. The server may store the export on Ceph, S3, iSCSI or any other storage.
//!
//! If the server permits several connections (`CAN_MULTI_CONN`), a flush over one connection covers the writes of all connections. Each
//! queue then has a separate connection. Without this permission, a flush covers only the writes of its own connection, so all queues share
//! one connection.
//!
//! `connection` implements the protocol: it keeps many requests in flight, and checks each reply. `link` and `recovery` handle lost
//! connections and send requests again. Each connection belongs to a numbered generation, and a lost connection begins a new generation. A
//! reply over a connection of an older generation is ignored, so repeated writes cannot overwrite newer acknowledged data. Several threads
//! can share a connection. A thread then also receives the replies to the other threads, and signals their eventfds. Before the first write
//! over a new connection, the volume's [`Fence`] (the MMP block of ext4) checks whether the volume still owns the device.

mod address;
mod connection;
mod flushes;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod link;
mod mailbox;
mod queue;
mod recovery;
mod retained;
mod session;
mod stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
mod tls;
mod wire;

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use self::address::{Address, Server, Tls};
use self::handshake::Export;
use self::link::Link;
use self::queue::{Client, Extent, MAX_EXTENTS, Window};
use self::session::{Fenced, Session};
use self::wire::ExportFlags;
use super::{
    AnyQueue, Device, DeviceQueue as _, Fence, InRange, Limits, QueueOptions, ThroughFlushes,
};
use crate::bio::Dev;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::units::DevOffset;

/// The largest request in bytes. A larger request would delay the requests that follow it.
const MAX_REQUEST: u32 = 1 << 20;
/// The smallest unit of requests. No file system has a smaller unit.
const SECTOR: u32 = 512;

/// An export of an NBD server.
pub struct Nbd {
    session: Arc<Session>,
    /// The connection for all calls of [`Device`]. If the server permits only one connection, all queues use this connection too.
    link: Arc<Link>,
    /// Clients of `link` that no call is using at the moment.
    idle: Mutex<Vec<Client>>,
    known: Mutex<Known>,
    window: Window,
    limits: Limits,
    is_writable: bool,
}

/// The server's last answer to a request for block status.
struct Known {
    extents: Vec<Extent>,
    /// The generation of the connections at the time of the request for block status. After a connection was lost, the generation is
    /// higher, and another server may serve the export.
    generation: u64,
    /// The number of bytes that the next request for block status covers. The server computes the extents of this whole range.
    range: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self { extents: Vec::new(), generation: 0, range: 64 << 20 }
    }
}

/// Returns the first range of data at or after a position. `extents` contains the status of the blocks.
fn data_of(extents: &[Extent], at: DevOffset) -> Range<DevOffset> {
    let rest = extents.iter().skip_while(|extent| extent.range.end <= at.0);
    let mut data = rest.skip_while(|extent| extent.is_zeros);
    let Some(first) = data.next() else {
        let end = DevOffset(extents.last().map_or(at.0, |extent| extent.range.end));
        return end..end;
    };
    let last = data.take_while(|extent| !extent.is_zeros).last().unwrap_or(first);
    DevOffset(first.range.start.max(at.0))..DevOffset(last.range.end)
}

impl fmt::Debug for Nbd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nbd").field("address", &self.session.address).finish_non_exhaustive()
    }
}

impl Export {
    /// The unit of requests in bytes.
    fn unit(&self) -> u32 {
        self.blocks.minimum.max(SECTOR)
    }

    /// The longest request in bytes, a multiple of the unit.
    fn max_request(&self) -> usize {
        let unit = self.unit();
        (self.blocks.maximum.min(MAX_REQUEST).max(unit) / unit * unit) as usize
    }

    fn has(&self, flag: ExportFlags) -> bool {
        self.flags.contains(flag)
    }

    fn limits(&self) -> Limits {
        Limits {
            read_only: self.has(ExportFlags::READ_ONLY),
            logical_block: self.unit(),
            physical_block: self.blocks.preferred.clamp(self.unit(), 1 << 16),
            dma_align: 4,
            max_transfer: self.max_request() as u32,
            fua: self.has(ExportFlags::SEND_FUA),
            through_flushes: match self.has(ExportFlags::SEND_FLUSH) {
                // A write-through request may cause the server to flush, and the server may not report a failure of this flush.
                true => ThroughFlushes::Always,
                false => ThroughFlushes::Never,
            },
            volatile_cache: self.has(ExportFlags::SEND_FLUSH),
            // The kernel copies the data of a write before it sends them, so the program may change the memory during the write.
            stable_writes: false,
            nowait: true,
            poll: false,
            direct: true,
            rereads: false,
            atomic_write: 0,
        }
    }
}

impl Nbd {
    /// Connects to an export.
    ///
    /// # Errors
    /// `NotFound` if the server has no such export; `ReadOnly` if the export refuses writes; `Unsupported` if the export is opened for
    /// writing, the server has no flush command, and the address does not contain `?flush=none`; `Io` with the errno of the connection;
    /// `Corrupt` for a server that violates the protocol.
    pub fn open(address: &Address, write: bool) -> Result<Self> {
        let (session, socket) = Session::open(address)?;
        let export = session.export;
        let refused = |kind, what| Err(Error::new(kind, what).at(address));
        if write && export.has(ExportFlags::READ_ONLY) {
            return refused(ErrorKind::ReadOnly, "the server does not permit writing");
        }
        if write && !export.has(ExportFlags::SEND_FLUSH) && !address.without_flush {
            let what = "the server has no flush command, so written data may not be durable: with ?flush=none in the address, each completed write counts as durable";
            return refused(ErrorKind::Unsupported, what);
        }
        // A write must consist of whole units of the server. So if the last unit of an export is shorter than the others, this unit can be
        // read but not written.
        let unit = if write { export.unit() } else { export.blocks.minimum.max(1) };
        let size = export.size / u64::from(unit) * u64::from(unit);
        let link = Arc::new(Link::over(&session, socket));
        Ok(Self {
            session,
            link,
            idle: Mutex::default(),
            known: Mutex::default(),
            window: Window { base: 0, size, whole: size },
            limits: export.limits(),
            is_writable: write,
        })
    }

    /// Restricts the device to the part of `size` bytes that begins at byte `base`.
    ///
    /// # Errors
    /// `InvalidInput` for a part that is not within the export, or that begins within a block of the server.
    pub fn part(mut self, base: u64, size: u64) -> Result<Self> {
        let unit = u64::from(self.limits.logical_block);
        let is_within = base.checked_add(size).is_some_and(|end| end <= self.window.size);
        if !is_within || !base.is_multiple_of(unit) {
            let what = format!(
                "the range of {size} bytes at {base} ends past the export or begins within a block"
            );
            return Err(Error::invalid(what).at(&self.session.address));
        }
        self.window = Window { base, size, ..self.window };
        self.idle = Mutex::default();
        self.known = Mutex::default();
        Ok(self)
    }

    /// The notices for the user, one line each.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if self.is_writable {
            let address = &self.session.address;
            notices.push(format!(
                "{address}: NBD cannot show whether other programs write to the export"
            ));
            if !self.session.export.has(ExportFlags::SEND_FLUSH) {
                notices.push(format!("{address}: the server has no flush command, so each completed write counts as durable"));
            }
        }
        notices
    }

    /// The address of the export.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.session.address
    }

    fn client(&self, link: &Arc<Link>, depth: usize) -> Result<Client> {
        let export = &self.session.export;
        let client = Client::new(link, self.window, export, self.is_writable, depth);
        client.map_err(|errno| Error::io(errno, "create a queue").at(&self.session.address))
    }

    /// Runs `call` over the connection that all queues share (the common link), with a client that no other call is using. `what` names the
    /// operation in an error.
    fn call<T>(
        &self,
        what: impl fmt::Display,
        call: impl FnOnce(&mut Client) -> Result<T, Errno>,
    ) -> Result<T> {
        let idle = self.idle.lock().pop();
        let mut client = match idle {
            Some(client) => client,
            None => self.client(&self.link, 1)?,
        };
        let result = call(&mut client);
        self.idle.lock().push(client);
        result.map_err(|errno| {
            let why = self.session.end().map(|why| format!(": {why}")).unwrap_or_default();
            Error::io(errno, format!("{what}{why}")).at(&self.session.address)
        })
    }
}

impl Device for Nbd {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.window.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let what = format_args!("read of {} bytes at {}", buf.len(), at.0);
        self.call(what, |client| client.read_all(buf, at))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let what = format_args!("write of {len} bytes at {}", at.0);
        self.call(what, |client| client.write_all(bufs, at, fua))
    }

    fn flush(&self) -> Result<()> {
        self.call("flush", |client| client.flush_now(Dev::OWN))
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let what = format_args!("discard of {len} bytes at {}", at.0);
        self.call(what, |client| client.trim(at, len))
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let what = format_args!("write of {len} zero bytes at {}", at.0);
        self.call(what, |client| client.write_zeroes(at, len))
    }

    fn data_within(&self, at: DevOffset, _: InRange) -> Result<Range<DevOffset>> {
        let end = self.end();
        if self.session.export.allocation.is_none() || at == end {
            return Ok(at..end);
        }
        let ask = |len: u64, one| {
            let what = format_args!("block status at {}", at.0);
            match self.call(what, |client| client.status(at, len.min(end.0 - at.0), one)) {
                Ok(extents) => Ok(Some(extents)),
                Err(error) if self.session.end().is_some() => Err(error),
                // If the server cannot report the status of blocks, all bytes count as data.
                Err(_) => Ok(None),
            }
        };
        // If the device is open for writing, the server is asked for only one extent, because the device's own writes would soon make a
        // longer answer outdated.
        if self.is_writable {
            let first = ask(u64::MAX, true)?;
            return Ok(first.map_or(at..end, |extents| data_of(&extents, at)));
        }
        let generation = self.session.generation.load(Ordering::Acquire);
        let range = {
            let known = self.known.lock();
            if known.generation == generation
                && known.extents.iter().any(|extent| extent.range.contains(&at.0))
            {
                return Ok(data_of(&known.extents, at));
            }
            known.range
        };
        // The lock is not held during the request for block status, so other threads can meanwhile search the stored answer for their
        // ranges.
        let Some(extents) = ask(range, false)? else { return Ok(at..end) };
        let data = data_of(&extents, at);
        // The length of the next request is adjusted so that the answer has about as many extents as can be stored.
        let covered = extents.last().map_or(0, |extent| extent.range.end - at.0);
        let range = if extents.len() >= MAX_EXTENTS {
            covered
        } else if extents.len() < MAX_EXTENTS / 4 {
            range.saturating_mul(4)
        } else {
            range
        };
        *self.known.lock() = Known { extents, generation, range };
        Ok(data)
    }

    fn set_fence(&self, fence: Option<Arc<dyn Fence>>) {
        *self.session.fence.lock() = fence.map(|fence| {
            let (at, len) = fence.place();
            Fenced { at: self.window.base + at.0, len, fence }
        });
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let own = self.session.export.has(ExportFlags::CAN_MULTI_CONN);
        let own = own.then(|| Link::new(&self.link)).and_then(Result::ok).map(Arc::new);
        // The queue tries to make a connection of its own. This can fail if the server limits its clients or is briefly unreachable. The
        // queue then uses the connection that all queues share (the common link).
        let link = own.unwrap_or_else(|| Arc::clone(&self.link));
        Ok(AnyQueue::other(self.client(&link, options.slots())?))
    }
}
