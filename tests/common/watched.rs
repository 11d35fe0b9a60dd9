//! Makes a device of a test appear as a file, so that the kernel's own file system can run on this file. The kernel sends each read, write
//! and fsync through `/dev/fuse`. The mount consists of a single file, so only the requests for a file are implemented.
//!
//! Each write is submitted to a queue of the device, and the kernel gets the answer when the queue completes the write. If the device
//! delays completions, several writes are in flight at the same time, even during a flush. The kernel sends several requests at the same
//! time only if the loop device over the file uses direct I/O.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{BoundedQueue, Device, DeviceQueue};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Errno, QueueOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};

use super::mounted::unmount;

/// The maximum size of a write request, in bytes.
const MAX_WRITE: u32 = 1 << 20;
/// The maximum number of requests that the kernel sends without waiting for replies.
const IN_FLIGHT: u32 = 16;
/// Two lengths in bytes: the header of a request, and the header of a reply.
const HEADER: usize = 40;
const REPLY_HEADER: usize = 16;

/// The requests of `linux/fuse.h` that are implemented.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
}

/// A device that appears as a file until this value is dropped. All programs must close the file before the drop.
pub(crate) struct Watched {
    path: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Watched {
    /// Creates a file at `path`, and mounts a FUSE file system of a single file on it. A thread carries out the kernel's requests for this
    /// file on `device`.
    pub(crate) fn new(device: Arc<dyn Device>, path: &Path) -> Self {
        File::create(path).expect("the mount point");
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0\0", fuse.as_raw_fd());
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).expect("options");
        mount("ironmap-test", path, "fuse", MountFlags::empty(), options).expect("mount the file");
        let server = std::thread::spawn(move || serve(fuse, &*device));
        Self { path: path.to_owned(), server: Some(server) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if unmount(&self.path)
            && let Some(server) = self.server.take()
        {
            let _ = server.join();
        }
    }
}

/// Answers requests until the file is unmounted.
fn serve(fuse: File, device: &dyn Device) {
    let queue = device.queue(&QueueOptions::new().depth(IN_FLIGHT)).expect("a queue");
    let mut server = Server { fuse, device, queue };
    let mut request = vec![0; HEADER + 4096 + MAX_WRITE as usize];
    loop {
        // New requests are read before completions, so that writes stay in flight while the kernel sends more requests. The loop waits for
        // completions only if there is no new request.
        if server.queue.in_flight() > 0 && !(server.queue.room() > 0 && server.is_asked()) {
            server.queue.wait(1).expect("the device completes writes");
        } else {
            match server.fuse.read(&mut request) {
                Ok(len) => server.take(&request[..len]),
                // The kernel withdrew the request before this program read it.
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT.0) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // ENODEV from a read of `/dev/fuse` means that the file is unmounted.
                Err(_) => return,
            }
            server.queue.commit().expect("the device takes writes");
        }
        server.answer_writes();
    }
}

struct Server<'d> {
    fuse: File,
    device: &'d dyn Device,
    queue: BoundedQueue,
}

impl Server<'_> {
    /// Whether a request from the kernel can be read without waiting.
    fn is_asked(&self) -> bool {
        let mut fds = [PollFd::new(&self.fuse, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// Answers a request. Writes are an exception: they are answered when they complete.
    fn take(&mut self, request: &[u8]) {
        let (header, body) = request.split_at(HEADER);
        let unique = u64_at(header, 8);
        if u32_at(header, 4) == opcode::WRITE {
            let bio = write(unique, u64_at(body, 8), &body[40..]);
            self.queue.submit(bio).map_err(drop).expect("a place in the queue");
        } else if let Some(reply) = self.answer(u32_at(header, 4), body) {
            self.reply(unique, reply);
        }
    }

    fn answer_writes(&mut self) {
        while let Some(done) = self.queue.pop() {
            let BioEnd::Whole { token, .. } = done.bio.end else { continue };
            let count = |count| [count as u32, 0].map(u32::to_ne_bytes).concat();
            self.reply(token, done.result.map(count));
        }
    }

    fn reply(&mut self, unique: u64, reply: Result<Vec<u8>, Errno>) {
        let (errno, payload) = match reply {
            Ok(payload) => (0, payload),
            Err(errno) => (-errno.0, Vec::new()),
        };
        let mut reply = Vec::with_capacity(REPLY_HEADER + payload.len());
        reply.extend(((REPLY_HEADER + payload.len()) as u32).to_ne_bytes());
        reply.extend(errno.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(payload);
        // The error is ignored, because the process that sent the request may have ended.
        let _ = self.fuse.write(&reply);
    }

    /// The reply to a request, or `None` if the request gets no reply.
    fn answer(&mut self, opcode: u32, body: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        Some(match opcode {
            opcode::INIT => Ok(init(body)),
            opcode::GETATTR => Ok(attributes(self.device.size())),
            // With FOPEN_DIRECT_IO, the kernel sends each write immediately, and does not collect writes in the page cache.
            opcode::OPEN => Ok([0, 0, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect()),
            opcode::READ => {
                let (at, len) = (u64_at(body, 8), u64::from(u32_at(body, 16)));
                let len = len.min(self.device.size().saturating_sub(at));
                let mut bytes = vec![0; len as usize];
                let read = self.device.read_exact_at(&mut bytes, DevOffset(at));
                read.map(|()| bytes).map_err(|error| error.errno())
            }
            opcode::FSYNC => self.queue.flush_now(Dev::OWN).map(|()| Vec::new()),
            opcode::FLUSH | opcode::RELEASE | opcode::DESTROY => Ok(Vec::new()),
            opcode::FORGET | opcode::INTERRUPT => return None,
            _ => Err(Errno::ENOSYS),
        })
    }
}

fn write(unique: u64, at: u64, data: &[u8]) -> Bio {
    let mut buffer = Buffer::aligned(data.len()).expect("memory");
    buffer.copy_from_slice(data);
    let end = BioEnd::Whole { token: unique, inode: InodeNo(0), pos: FilePos(at) };
    let (op, flags, memory) = (BioOp::Write, BioFlags::empty(), Memory::Flat(buffer));
    Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory, end }
}

/// The reply to the first request. It offers version 7.31 of the protocol, which all current kernels support. Writes have at most
/// [`MAX_WRITE`] bytes.
fn init(body: &[u8]) -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIO: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let flags = (BIG_WRITES | ASYNC_DIO | MAX_PAGES) & u32_at(body, 12);
    let (background, pages) = (IN_FLIGHT | 12 << 16, MAX_WRITE / 4096);
    let mut reply =
        [7, 31, 1 << 17, flags, background, MAX_WRITE, 1, pages].map(u32::to_ne_bytes).concat();
    reply.resize(64, 0);
    reply
}

/// The attributes of a regular file that root owns.
fn attributes(size: u64) -> Vec<u8> {
    let (validity, inode) = (3600_u64, 1_u64);
    let mut reply = [validity, 0, inode, size, size / 512, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let (mode, links, block_size) = (0o100_600, 1, 4096);
    reply.extend([0, 0, 0, mode, links, 0, 0, 0, block_size, 0].map(u32::to_ne_bytes).concat());
    reply
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
