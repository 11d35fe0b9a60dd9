//! A server that exports the parts of a disk. The server handles the requests of one connection concurrently.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::device::nbd::Nbd;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::common::image::scratch_in;
use crate::disk::Disk;

const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 1 << 2;
const CAN_MULTI_CONN: u16 = 1 << 8;

/// A running server. Each of its threads ends when its connection ends.
pub(crate) struct Server(TempDir);

impl Server {
    /// Serves a part of a disk, over one connection or several connections.
    pub(crate) fn start(disk: &Arc<Disk>, part: usize, several: bool) -> Self {
        let dir = scratch_in(std::path::Path::new("/dev/shm"));
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let disk = Arc::clone(disk);
        let flags = HAS_FLAGS | SEND_FLUSH | if several { CAN_MULTI_CONN } else { 0 };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (disk, stream) = (Arc::clone(&disk), stream.unwrap());
                // The thread ends when the client disconnects.
                std::thread::spawn(move || serve(stream, &disk, part, flags));
            }
        });
        Self(dir)
    }

    pub(crate) fn open(&self) -> Nbd {
        let socket: PathBuf = self.0.path().join("socket");
        let address = format!("nbd+unix:///?socket={}&timeout=20", socket.display());
        Nbd::open(&address.parse().unwrap(), true).unwrap()
    }
}

fn negotiate(stream: &mut UnixStream, size: u64, flags: u16) -> std::io::Result<()> {
    stream.write_all(&[&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat())?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes(head[12..].try_into().unwrap());
        stream.read_exact(&mut vec![0; len as usize])?;
        let mut reply = |kind: u32, content: &[u8]| {
            let magic = 0x0003_E889_0455_65A9_u64.to_be_bytes();
            let len = (content.len() as u32).to_be_bytes();
            let parts = [&magic[..], &head[8..12], &kind.to_be_bytes(), &len, content];
            stream.write_all(&parts.concat())
        };
        if u32::from_be_bytes(head[8..12].try_into().unwrap()) == 7 {
            reply(3, &[&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())?;
            return reply(1, &[]);
        }
        reply((1 << 31) + 1, &[])?;
    }
}

fn serve(mut stream: UnixStream, disk: &Arc<Disk>, part: usize, flags: u16) -> std::io::Result<()> {
    negotiate(&mut stream, disk.size(part), flags)?;
    let replies = Arc::new(Mutex::new(stream.try_clone()?));
    loop {
        let mut head = [0; 28];
        stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes(head[24..].try_into().unwrap()) as usize;
        let at = u64::from_be_bytes(head[16..24].try_into().unwrap());
        let cookie: [u8; 8] = head[8..16].try_into().unwrap();
        let answer = move |replies: &Mutex<UnixStream>, error: u32, data: &[u8]| {
            let head = [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie];
            replies.lock().write_all(&[&head.concat(), data].concat())
        };
        match u16::from_be_bytes([head[6], head[7]]) {
            0 => answer(&replies, 0, &disk.read(part, at, len))?,
            1 => {
                let mut data = vec![0; len];
                stream.read_exact(&mut data)?;
                disk.write(part, at, &data);
                answer(&replies, 0, &[])?;
            }
            2 => return Ok(()),
            3 => {
                let (disk, replies) = (Arc::clone(disk), Arc::clone(&replies));
                std::thread::spawn(move || {
                    let error = disk.flush().map_or_else(|errno| errno.0 as u32, |()| 0);
                    // The client may have closed the connection, so an error is ignored.
                    let _ = answer(&replies, error, &[]);
                });
            }
            _ => answer(&replies, 22, &[])?,
        }
    }
}
