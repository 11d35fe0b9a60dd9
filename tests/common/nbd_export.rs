//! Serves a device of this process as an export of an NBD server, and opens the export as a device.
//!
//! Two threads per connection carry out requests. The requests can complete in any order that the protocol permits. A flush covers all
//! writes that were answered before the flush was sent.

use std::io::{IoSlice, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use ironmap::device::nbd::{Address, Nbd};
use ironmap::device::{AnyQueue, Device, Fence, InRange, Limits, QueueOptions};
use ironmap::units::DevOffset;
use ironmap::{Buffer, Errno, Error};
use tempfile::TempDir;

use super::image::scratch_in;

/// The features that the server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All features: extended headers, FUA, trim, zeros, several connections.
    Extended,
    /// Only flushes, and only simple replies.
    Plain,
}

const HAS_FLAGS: u16 = 1 << 0;
const READ_ONLY: u16 = 1 << 1;
const FLUSH: u16 = 1 << 2;
const FUA: u16 = 1 << 3;
const TRIM: u16 = 1 << 5;
const WRITE_ZEROES: u16 = 1 << 6;
const MULTI_CONN: u16 = 1 << 8;
const FAST_ZERO: u16 = 1 << 11;

/// Flags of an NBD request.
const WITH_FUA: u16 = 1 << 0;
const WITH_FAST_ZERO: u16 = 1 << 4;

/// The client of an export. When the client is dropped, the server stops and then drops its device.
#[derive(Debug)]
pub(crate) struct OverNbd {
    client: Option<Nbd>,
    server: Server,
}

#[derive(Debug)]
struct Server {
    dir: TempDir,
    ends: Arc<Mutex<Option<Vec<UnixStream>>>>,
    thread: Option<JoinHandle<()>>,
}

impl OverNbd {
    /// Serves a device and connects to its export.
    pub(crate) fn new(device: Arc<dyn Device>, form: Form) -> Self {
        let dir = scratch_in(Path::new("/dev/shm"));
        let write = device.is_writable();
        let server = Server::start(dir, device, form);
        let client = Nbd::open(&server.address(), write);
        Self { client: Some(client.expect("the export")), server }
    }

    pub(crate) fn address(&self) -> Address {
        self.server.address()
    }

    fn client(&self) -> &Nbd {
        self.client.as_ref().expect("it is not dropped")
    }
}

impl Drop for OverNbd {
    fn drop(&mut self) {
        self.client = None;
        self.server.stop();
    }
}

impl Server {
    fn start(dir: TempDir, device: Arc<dyn Device>, form: Form) -> Self {
        let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
        let ends = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming() {
                    let stream = stream.expect("a connection");
                    let mut ends = shared.lock().unwrap();
                    // The server stops when the last connection is closed.
                    let Some(ends) = &mut *ends else { return };
                    ends.push(stream.try_clone().expect("a descriptor"));
                    let device = &*device;
                    // A client may disconnect at any time.
                    scope.spawn(move || serve(stream, device, form).unwrap_or_default());
                }
            });
        });
        Self { dir, ends, thread: Some(thread) }
    }

    fn address(&self) -> Address {
        let socket = self.dir.path().join("socket");
        format!("nbd+unix:///?socket={}", socket.display()).parse().expect("an address")
    }

    fn stop(&mut self) {
        let ends = self.ends.lock().unwrap().take();
        for end in ends.into_iter().flatten() {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
        drop(UnixStream::connect(self.dir.path().join("socket")));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server");
        }
    }
}

/// A request as the server received it from the client.
struct Asked {
    command: u16,
    flags: u16,
    cookie: [u8; 8],
    at: u64,
    len: u64,
    data: Option<Buffer>,
}

fn serve(mut stream: UnixStream, device: &dyn Device, form: Form) -> Result<()> {
    negotiate(&mut stream, device, form)?;
    let replies = Mutex::new(stream.try_clone()?);
    let (orders, received) = mpsc::channel();
    let received = Mutex::new(received);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(asked) = { received.lock().unwrap().recv() } {
                    let result = carry_out(device, &asked);
                    // The client may have disconnected already.
                    let _ = answer(&replies, form, &asked, result);
                }
            });
        }
        let result = (|| {
            while let Some(asked) = next(&mut stream, form)? {
                let _ = orders.send(asked);
            }
            Ok(())
        })();
        drop(orders);
        result
    })
}

fn read<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn negotiate(stream: &mut UnixStream, device: &dyn Device, form: Form) -> Result<()> {
    const GO: u32 = 7;
    const EXTENDED_HEADERS: u32 = 11;
    const UNSUPPORTED: u32 = (1 << 31) + 1;
    stream.write_all(&[&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat())?;
    read::<4>(stream)?;
    loop {
        read::<8>(stream)?;
        let option = u32::from_be_bytes(read(stream)?);
        let len = u32::from_be_bytes(read(stream)?);
        stream.read_exact(&mut vec![0; len as usize])?;
        let mut reply = |kind: u32, content: &[u8]| {
            let magic = 0x0003_E889_0455_65A9_u64.to_be_bytes();
            let (option, len) = (option.to_be_bytes(), (content.len() as u32).to_be_bytes());
            stream.write_all(&[&magic[..], &option, &kind.to_be_bytes(), &len, content].concat())
        };
        match option {
            EXTENDED_HEADERS if form == Form::Extended => reply(1, &[])?,
            GO => {
                let Limits { logical_block, .. } = *device.limits();
                let flags = abilities(device, form).to_be_bytes();
                reply(3, &[&[0, 0][..], &device.size().to_be_bytes(), &flags].concat())?;
                let sizes = [logical_block, logical_block.max(4096), 1 << 20];
                let sizes: Vec<u8> = sizes.into_iter().flat_map(u32::to_be_bytes).collect();
                reply(3, &[&[0, 3][..], &sizes].concat())?;
                return reply(1, &[]);
            }
            _ => reply(UNSUPPORTED, &[])?,
        }
    }
}

fn abilities(device: &dyn Device, form: Form) -> u16 {
    let access = if device.is_writable() { 0 } else { READ_ONLY };
    let more = match form {
        Form::Extended => FUA | TRIM | WRITE_ZEROES | MULTI_CONN | FAST_ZERO,
        Form::Plain => 0,
    };
    HAS_FLAGS | FLUSH | access | more
}

/// Reads the next request of a connection. Returns `None` if the client has disconnected.
fn next(stream: &mut UnixStream, form: Form) -> Result<Option<Asked>> {
    const WRITE: u16 = 1;
    const DISCONNECT: u16 = 2;
    read::<4>(stream)?;
    let flags = u16::from_be_bytes(read(stream)?);
    let command = u16::from_be_bytes(read(stream)?);
    let cookie = read(stream)?;
    let at = u64::from_be_bytes(read(stream)?);
    let len = match form {
        Form::Extended => u64::from_be_bytes(read(stream)?),
        Form::Plain => u64::from(u32::from_be_bytes(read(stream)?)),
    };
    let mut data = None;
    if command == WRITE {
        let mut buffer = Buffer::aligned(len as usize).expect("memory");
        stream.read_exact(&mut buffer)?;
        data = Some(buffer);
    }
    Ok((command != DISCONNECT).then_some(Asked { command, flags, cookie, at, len, data }))
}

fn carry_out(device: &dyn Device, asked: &Asked) -> ironmap::Result<Vec<u8>> {
    let Asked { at, len, flags, .. } = *asked;
    let (at, fua) = (DevOffset(at), flags & WITH_FUA != 0);
    match (asked.command, &asked.data) {
        (0, _) => {
            let mut data = vec![0; len as usize];
            device.read_exact_at(&mut data, at).map(|()| data)
        }
        (1, Some(data)) => device.write_all_at(&[IoSlice::new(data)], at, fua).map(|()| Vec::new()),
        (3, _) => device.flush().map(|()| Vec::new()),
        (4, _) => match device.discard(at, len) {
            Err(error) if error.errno() != Errno::EOPNOTSUPP => Err(error),
            _ => Ok(Vec::new()),
        },
        (6, _) => zero(device, at, len, fua, flags & WITH_FAST_ZERO != 0).map(|()| Vec::new()),
        _ => Err(Error::invalid("an unknown request")),
    }
}

fn zero(
    device: &dyn Device,
    at: DevOffset,
    len: u64,
    fua: bool,
    fast: bool,
) -> ironmap::Result<()> {
    match device.write_zeroes(at, len) {
        Err(error) if error.errno() == Errno::EOPNOTSUPP && !fast => {
            let zeros = Buffer::aligned(len as usize)?;
            device.write_all_at(&[IoSlice::new(&zeros)], at, fua)
        }
        Ok(()) if fua => device.flush(),
        result => result,
    }
}

fn answer(
    replies: &Mutex<UnixStream>,
    form: Form,
    asked: &Asked,
    result: ironmap::Result<Vec<u8>>,
) -> Result<()> {
    // The protocol defines numbers for only some errors. All other errors are sent as EIO.
    let number = |error: Error| match error.errno() {
        Errno(number @ (1 | 12 | 22 | 28 | 75 | 95)) => number as u32,
        _ => 5,
    };
    let result = result.map_err(number);
    let bytes = match (form, &result) {
        (Form::Plain, _) => {
            let (error, data) = match result {
                Ok(data) => (0, data),
                Err(number) => (number, Vec::new()),
            };
            let magic = 0x6744_6698_u32.to_be_bytes();
            [&magic[..], &error.to_be_bytes(), &asked.cookie, &data].concat()
        }
        (Form::Extended, Ok(data)) if data.is_empty() => chunk(asked, true, 0, &[]),
        (Form::Extended, Ok(data)) => {
            // The second half of the data is sent first, because the protocol permits chunks in any order.
            let (first, second) = data.split_at(data.len() / 2);
            let middle = asked.at + first.len() as u64;
            [part(asked, false, middle, second), part(asked, true, asked.at, first)].concat()
        }
        (Form::Extended, Err(number)) => {
            let content = [&number.to_be_bytes()[..], &2_u16.to_be_bytes(), b"no"].concat();
            chunk(asked, true, 1 << 15 | 1, &content)
        }
    };
    replies.lock().unwrap().write_all(&bytes)
}

/// A chunk of a reply with the data. If all bytes are zero, the chunk describes a hole instead.
fn part(asked: &Asked, last: bool, at: u64, data: &[u8]) -> Vec<u8> {
    let place = at.to_be_bytes();
    if data.iter().any(|byte| *byte != 0) {
        chunk(asked, last, 1, &[&place[..], data].concat())
    } else {
        chunk(asked, last, 2, &[&place[..], &(data.len() as u32).to_be_bytes()].concat())
    }
}

fn chunk(asked: &Asked, last: bool, kind: u16, content: &[u8]) -> Vec<u8> {
    let magic = 0x6E8A_278C_u32.to_be_bytes();
    let (last, kind) = (u16::from(last).to_be_bytes(), kind.to_be_bytes());
    let (at, len) = (asked.at.to_be_bytes(), (content.len() as u64).to_be_bytes());
    [&magic[..], &last, &kind, &asked.cookie, &at, &len, content].concat()
}

impl Device for OverNbd {
    fn limits(&self) -> &Limits {
        self.client().limits()
    }

    fn size(&self) -> u64 {
        self.client().size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> ironmap::Result<()> {
        self.client().read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        self.client().is_writable()
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> ironmap::Result<()> {
        self.client().write_all_at(bufs, at, fua)
    }

    fn flush(&self) -> ironmap::Result<()> {
        self.client().flush()
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> ironmap::Result<()> {
        self.client().discard(at, len)
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> ironmap::Result<()> {
        self.client().write_zeroes(at, len)
    }

    fn set_fence(&self, fence: Option<Arc<dyn Fence>>) {
        self.client().set_fence(fence);
    }

    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> ironmap::Result<AnyQueue> {
        self.client().queue_within(options, checked)
    }
}
