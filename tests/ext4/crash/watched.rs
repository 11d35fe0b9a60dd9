//! A file whose content is a device of ours, so that the kernel's own file system can be run on top of it: the kernel asks for
//! each read, write and fsync through `/dev/fuse`. The mount is a single file: of the protocol only its requests are needed.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use ironmap::Errno;
use ironmap::device::Device;
use ironmap::units::DevOffset;
use rustix::mount::{MountFlags, mount};

use crate::common::mounted::unmount;

/// The largest write that is asked for in one piece.
const MAX_WRITE: u32 = 1 << 20;
/// Each request begins with so much of a header, each reply with so much.
const HEADER: usize = 40;
const REPLY_HEADER: usize = 16;

/// The requests of `linux/fuse.h` that are answered.
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

/// A device that is to be seen as a file, until the drop. All users of the file must have closed it by then.
pub(crate) struct Watched {
    path: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Watched {
    /// Lets a device be seen as a file at `path`, which is made.
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
fn serve(mut fuse: File, device: &dyn Device) {
    let mut request = vec![0; HEADER + 4096 + MAX_WRITE as usize];
    // ENODEV is the end. ENOENT: a request was taken back before it could be read.
    loop {
        let len = match fuse.read(&mut request) {
            Ok(len) => len,
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.0) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let request = &request[..len];
        let (header, body) = request.split_at(HEADER);
        let Some(reply) = answer(u32_at(header, 4), body, device) else { continue };
        let (errno, payload) = match reply {
            Ok(payload) => (0, payload),
            Err(errno) => (-errno.0, Vec::new()),
        };
        let mut reply = Vec::with_capacity(REPLY_HEADER + payload.len());
        reply.extend(((REPLY_HEADER + payload.len()) as u32).to_ne_bytes());
        reply.extend(errno.to_ne_bytes());
        reply.extend(&header[8..16]);
        reply.extend(payload);
        // The process that asked may be gone.
        let _ = fuse.write(&reply);
    }
}

/// The reply to a request, or none where none is wanted.
fn answer(opcode: u32, body: &[u8], device: &dyn Device) -> Option<Result<Vec<u8>, Errno>> {
    let errno = |error: ironmap::Error| error.errno();
    Some(match opcode {
        opcode::INIT => Ok(init(body)),
        opcode::GETATTR => Ok(attributes(device.size())),
        // Each write comes at once, and is not gathered in the page cache: FOPEN_DIRECT_IO.
        opcode::OPEN => Ok([0, 0, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect()),
        opcode::READ => {
            let (at, len) = (u64_at(body, 8), u64::from(u32_at(body, 16)));
            let len = len.min(device.size().saturating_sub(at));
            let mut bytes = vec![0; len as usize];
            device.read_exact_at(&mut bytes, DevOffset(at)).map(|()| bytes).map_err(errno)
        }
        opcode::WRITE => {
            let (at, data) = (u64_at(body, 8), &body[40..]);
            let written = device.write_all_at(&[IoSlice::new(data)], DevOffset(at), false);
            let count = [data.len() as u32, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
            written.map(|()| count).map_err(errno)
        }
        opcode::FSYNC => device.flush().map(|()| Vec::new()).map_err(errno),
        opcode::FLUSH | opcode::RELEASE | opcode::DESTROY => Ok(Vec::new()),
        opcode::FORGET | opcode::INTERRUPT => return None,
        _ => Err(Errno::ENOSYS),
    })
}

/// Version 7.31, which every kernel of these years speaks: one write of up to [`MAX_WRITE`] bytes.
fn init(body: &[u8]) -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    const MAX_PAGES: u32 = 1 << 22;
    let flags = (BIG_WRITES | MAX_PAGES) & u32_at(body, 12);
    let (background, pages) = (16 | 12 << 16, MAX_WRITE / 4096);
    let mut reply =
        [7, 31, 1 << 17, flags, background, MAX_WRITE, 1, pages].map(u32::to_ne_bytes).concat();
    reply.resize(64, 0);
    reply
}

/// Of a regular file of root's.
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
