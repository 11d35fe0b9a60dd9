//! The end of a mount that is waited for: `ironmap umount`.

use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::units::InodeNo;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Mount;
use crate::failure::Failure;

/// An attribute of the root's that is on no volume: the number of the process that serves it.
const SERVER: &str = "system.ironmap.server";

/// Unmounts a volume that ironmap mount serves, and waits until it is closed
///
/// umount and fusermount3 -u return before that: the kernel waits for no server. Behind this command everything is on the device, and the
/// volume can be used otherwise. Who may not unmount needs fusermount3, as for mounting.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap umount /mnt && e2fsck -f disk.img")]
pub(crate) struct Args {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let dir = &args.dir;
    let failed = |errno: Errno| Failure::host(dir.display(), errno);
    let server = match server_of(dir) {
        Ok(server) => Some(server),
        // It was killed: there is nobody to wait for.
        Err(Errno::NOTCONN) => None,
        Err(Errno::OPNOTSUPP | Errno::NODATA) => {
            let place = dir.display();
            return Err(Failure::new(format!("{place}: not a volume that ironmap has mounted")));
        }
        Err(errno) => return Err(failed(errno)),
    };
    // Before it is unmounted: behind that the number may be another process's.
    let process = server.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let process = process.transpose().map_err(failed)?;
    unmount(dir, UnmountFlags::empty())?;
    if let Some(process) = process {
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None).map_err(failed)?;
    }
    Ok(())
}

fn server_of(dir: &Path) -> rustix::io::Result<Pid> {
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(dir, SERVER, &mut value)?;
    let text = std::str::from_utf8(&value[..len]).ok();
    text.and_then(|text| Pid::from_raw(text.parse().ok()?)).ok_or(Errno::NODATA)
}

/// Unmounts as the superuser, or by fusermount3, which knows only how to detach.
pub(super) fn unmount(dir: &Path, how: UnmountFlags) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        let done = rustix::mount::unmount(dir, how);
        return done.map_err(|errno| Failure::host(dir.display(), errno));
    }
    let lazily = how.contains(UnmountFlags::DETACH).then_some("-z");
    let done = Command::new("fusermount3").arg("-u").args(lazily).arg("--").arg(dir).output();
    let done = done.map_err(|error| Failure::host("fusermount3", error))?;
    if done.status.success() {
        return Ok(());
    }
    Err(said_by_fusermount(&String::from_utf8_lossy(&done.stderr)))
}

/// What fusermount3 says, in one line.
pub(super) fn said_by_fusermount(text: &str) -> Failure {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Failure::new(lines.join("; "))
}

impl Mount {
    /// The value of an attribute that only a mount has.
    pub(super) fn own_xattr(&self, inode: InodeNo, name: &[u8]) -> Option<Vec<u8>> {
        let asked = inode == ironmap::fs::ext4::ROOT && name == SERVER.as_bytes();
        asked.then(|| std::process::id().to_string().into_bytes())
    }
}
