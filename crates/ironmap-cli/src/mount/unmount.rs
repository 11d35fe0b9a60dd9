//! The command `ironmap umount`. It waits for the end of a mount.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::Error;
use ironmap::sorting::Sorting;
use ironmap::units::InodeNo;
use ironmap_image::{Failure, Reason, Report};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::Mount;

/// An extended attribute of the root. The volume does not contain it. The value contains the process ID of the server, and `rw` or `ro`. It
/// also contains the server's descriptor of a pipe. The pipe reports the end of the mount.
const SERVER: &str = "system.ironmap.server";

/// The time after which the command looks for the processes that still use the mount.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The report of a server that has closed the volume without a failure: all data are on the device. After a failure, the report is the
/// error message, or it is empty.
const CLOSED: &str = "closed";

/// Unmounts a volume that ironmap mount serves, and waits until it is closed
///
/// umount and fusermount3 -u do not wait for the server. When this command returns, everything is on the device, and other programs can use
/// the volume. The exit code is 4 if the last commit failed, or if the server program was killed. A user without the right to unmount needs
/// fusermount3, as for mounting.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap umount /mnt && e2fsck -f disk.img")]
pub(crate) struct Args {
    /// The mount point
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let dir = &args.dir;
    let failed = |errno: Errno| Failure::host(dir.display(), errno);
    let daemon = match Daemon::of(dir) {
        Ok(daemon) => daemon,
        Err(Errno::NOTCONN) => return unmount_killed(dir),
        Err(errno) => return Err(not_served(dir, errno)),
    };
    // The process is opened before the unmount. After the server has ended, another process may get the same process ID.
    let (mut ending, process) = daemon.watch()?;
    let device = rustix::fs::stat(dir).map_err(failed)?.st_dev;
    unmount(dir, UnmountFlags::empty())?;
    if let Some(place) = place_of(device) {
        // DIR was one of several mounts of the volume (a bind mount). The volume is still mounted at another directory, so the server does
        // not end.
        report.note(format_args!("{}: the volume is still mounted at {place}", dir.display()));
        return Ok(());
    }
    wait_for_copies(dir, &ending, device, report).map_err(failed)?;
    let mut message = String::new();
    ending.read_to_string(&mut message).map_err(|error| Failure::host(dir.display(), error))?;
    // The server keeps its files open until it ends. Therefore this command waits for the end of the process.
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).map_err(failed)?;
    match message.as_str() {
        CLOSED => Ok(()),
        "" => Err(not_closed(dir.display())),
        why => Err(lost_with(why)),
    }
}

/// The failure to commit the last changes of a mounted volume. Programs that wrote to the volume do not get an error.
pub(super) fn lost(volume: impl Display, error: &Error) -> Failure {
    Failure::with(
        Reason::Corrupt,
        format!(
            "{volume}: closed with an error; changes that were not synced may be lost: {error}"
        ),
    )
}

/// The failure to commit the last changes. `message` comes from the process that served the volume.
fn lost_with(message: &str) -> Failure {
    Failure::with(Reason::Corrupt, message)
}

/// The failure for a mounted volume whose server ended without a report.
fn not_closed(place: impl Display) -> Failure {
    Failure::with(
        Reason::Corrupt,
        format!(
            "{place}: the server ended without closing the volume: changes that were not synced are lost; the next opening of the volume recovers all other changes"
        ),
    )
}

/// Waits until a mount ends. If the volume is still mounted in other mount namespaces, prints the processes in these namespaces.
fn wait_for_copies(dir: &Path, ending: &File, device: u64, report: &Report) -> Result<(), Errno> {
    let mut named = false;
    while poll(&mut [PollFd::new(ending, PollFlags::IN)], (!named).then_some(&SOON))? == 0 {
        let holders = holders(device);
        if !holders.is_empty() {
            named = true;
            report.note(format_args!(
                "{}: the volume is still mounted in other mount namespaces; ironmap waits until these processes release it: {}",
                dir.display(),
                holders.join(", ")
            ));
        }
    }
    Ok(())
}

/// Processes with a mount namespace in which the file system is mounted, as `PID (NAME)`.
fn holders(device: u64) -> Vec<String> {
    let number = number_of(device);
    let numbered = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let table = fs::read(entry.path().join("mountinfo")).ok()?;
        place_in(&table, &number)?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        Some((pid, name))
    };
    let found = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(numbered);
    let mut found: Vec<_> = found.collect();
    found.order();
    found.iter().map(|(pid, name)| format!("{pid} ({})", name.trim().escape_debug())).collect()
}

fn not_ours(dir: &Path) -> Failure {
    let found = mount_at(dir).ok().flatten();
    let (what, hint) = match found {
        Some(mount) => (format!("{} is mounted there", mount.kind), "umount(8) unmounts it"),
        None => ("nothing is mounted there".to_owned(), "/proc/mounts lists the mounts"),
    };
    Failure::new(format!(
        "{}: this is not a volume that ironmap has mounted: {what}: {hint}",
        dir.display()
    ))
}

/// Unmounts a volume whose server was killed. There is no process to wait for, and the volume was not closed.
fn unmount_killed(dir: &Path) -> Result<(), Failure> {
    let mount = ended_at(dir)?;
    unmount(dir, UnmountFlags::empty())?;
    mount.end(dir)
}

/// The report on a volume whose server was killed.
pub(super) fn ended(dir: &Path) -> Result<(), Failure> {
    ended_at(dir)?.end(dir)
}

/// The mount of a volume whose server was killed.
pub(super) fn ended_at(dir: &Path) -> Result<MountedAt, Failure> {
    let mount = mount_at(dir).map_err(|error| Failure::host(dir.display(), error))?;
    mount.filter(|mount| mount.ours).ok_or_else(|| not_ours(dir))
}

/// The entry of a mount in `/proc/mounts`.
pub(super) struct MountedAt {
    ours: bool,
    /// The type of the file system.
    kind: String,
    read_only: bool,
}

impl MountedAt {
    /// Returns a failure if the volume was open for writing. The killed server has not closed the volume.
    fn end(&self, dir: &Path) -> Result<(), Failure> {
        if self.read_only { Ok(()) } else { Err(not_closed(dir.display())) }
    }
}

/// Returns the mount at a directory. The function does not access the directory, because the server of the mount may not answer.
fn mount_at(dir: &Path) -> io::Result<Option<MountedAt>> {
    let absolute = absolute(dir)?;
    let mounts = fs::read("/proc/self/mounts")?;
    // If several mounts have the same path, the last one hides the others.
    let found = mounts.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (unescaped(place) == absolute.as_os_str().as_bytes()).then(|| MountedAt {
            ours: kind.ends_with(b".ironmap"),
            kind: String::from_utf8_lossy(kind).into_owned(),
            read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
        })
    });
    Ok(found)
}

/// Returns the absolute path of a directory. The function does not access the directory itself.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let dir = resolve_links(dir)?;
    Ok(match (dir.parent(), dir.file_name()) {
        (Some(above), Some(name)) if above.as_os_str().is_empty() => {
            Path::new(".").canonicalize()?.join(name)
        }
        (Some(above), Some(name)) => above.canonicalize()?.join(name),
        _ => dir.canonicalize()?,
    })
}

/// The path where a file system is mounted. `None` if it is not mounted.
fn place_of(device: u64) -> Option<String> {
    place_in(&fs::read("/proc/self/mountinfo").ok()?, &number_of(device))
}

/// A device number in the form of `mountinfo`.
fn number_of(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The path where a file system is mounted, from the `mountinfo` of a process.
fn place_in(table: &[u8], number: &str) -> Option<String> {
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let is_it = fields.next()? == number.as_bytes();
        let place = fields.nth(1)?;
        is_it.then(|| String::from_utf8_lossy(&unescaped(place)).into_owned())
    })
}

/// Resolves a path whose last component may be a symbolic link.
fn resolve_links(dir: &Path) -> io::Result<PathBuf> {
    /// The maximum number of symbolic links in a path, as in the kernel.
    const MOST: usize = 40;
    // Removes a final slash. With the slash, the kernel would follow the link and access the mount. The server of the mount may not answer.
    let mut dir = dir.components().as_path().to_owned();
    for _ in 0..MOST {
        let Ok(target) = fs::read_link(&dir) else { return Ok(dir) };
        dir = dir.parent().unwrap_or(Path::new("")).join(target.components().as_path());
    }
    Err(Errno::LOOP.into())
}

/// Decodes a field of `/proc/mounts`, in which white space and backslashes are octal escapes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind.first_chunk::<3>().filter(|_| byte == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &behind[3..];
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}

/// The failure: no program serves a mount at this directory.
pub(super) fn not_served(dir: &Path, errno: Errno) -> Failure {
    match errno {
        Errno::OPNOTSUPP | Errno::NODATA => not_ours(dir),
        errno => Failure::host(dir.display(), errno),
    }
}

/// The program that serves a mount.
pub(super) struct Daemon {
    pid: Pid,
    /// The server's descriptor number of the pipe that reports the end.
    ending: u32,
    /// Whether the server has the volume open for writing.
    pub(super) writes: bool,
}

impl Daemon {
    pub(super) fn serving(dir: &Path) -> Result<Self, Failure> {
        Self::of(dir).map_err(|errno| not_served(dir, errno))
    }

    pub(super) fn of(dir: &Path) -> rustix::io::Result<Self> {
        let mut value = [0; 32];
        let len = rustix::fs::getxattr(dir, SERVER, &mut value)?;
        let text = std::str::from_utf8(&value[..len]).ok();
        let daemon = text.and_then(|text| {
            let mut words = text.split(' ');
            let pid = Pid::from_raw(words.next()?.parse().ok()?)?;
            let ending = words.next()?.parse().ok()?;
            Some(Self { pid, ending, writes: words.next()? == "rw" })
        });
        daemon.ok_or(Errno::NODATA)
    }

    /// Opens the pipe that reports the end, and a handle of the server's process.
    fn watch(&self) -> Result<(File, OwnedFd), Failure> {
        let ending = format!("/proc/{}/fd/{}", self.pid, self.ending);
        let pipe = File::open(&ending).map_err(|error| Failure::host(&ending, error))?;
        let process = pidfd_open(self.pid, PidfdFlags::empty());
        Ok((pipe, process.map_err(|errno| Failure::host(&ending, errno))?))
    }
}

/// The pipe that reports the end of a mount. Waiting programs open the reading end of the pipe, and read until the server closes the
/// writing end.
pub(super) struct Ending {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Ending {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    /// The value of the root's attribute. Programs that wait for the end use this value to find the pipe.
    pub(super) fn place(&self, writes: bool) -> String {
        let how = if writes { "rw" } else { "ro" };
        format!("{} {} {how}", std::process::id(), self.reader.as_raw_fd())
    }

    pub(super) fn report(mut self, ended: &Result<(), Failure>) {
        let message = match ended {
            Ok(()) => CLOSED.to_owned(),
            Err(failure) => failure.to_string(),
        };
        // The write does not block, because the pipe is empty and its reading end is open in this process.
        let _ = self.writer.write_all(message.as_bytes());
    }
}

/// Unmounts. The superuser uses a system call. Other users use fusermount3, which supports only the flag to detach.
pub(super) fn unmount(dir: &Path, how: UnmountFlags) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return rustix::mount::unmount(dir, how).map_err(|errno| match errno {
            Errno::BUSY => busy(dir),
            errno => Failure::host(dir.display(), errno),
        });
    }
    let lazily = how.contains(UnmountFlags::DETACH).then_some("-z");
    let done = Command::new("fusermount3").arg("-u").args(lazily).arg("--").arg(dir).output();
    let done = done.map_err(|error| Failure::host("fusermount3", error))?;
    if done.status.success() {
        return Ok(());
    }
    Err(said_by_fusermount(&String::from_utf8_lossy(&done.stderr)))
}

/// The failure to unmount a mount in use. Names programs with an open file or a working directory in the mount.
fn busy(dir: &Path) -> Failure {
    /// The maximum number of programs that the failure names.
    const NAMED: usize = 8;
    // Paths are compared as text. An access to the mount could block, because the server may not answer.
    let place = absolute(dir).ok();
    let is_there = |link: PathBuf| {
        let path = fs::read_link(link).ok();
        path.zip(place.as_ref()).is_some_and(|(path, place)| path.starts_with(place))
    };
    let uses = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut paths = ["cwd", "root", "exe"].iter().map(|name| process.join(name));
        paths.any(is_there) || files.into_iter().any(|file| is_there(file.path()))
    };
    let program = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        uses(&entry.path()).then(|| format!("{} (pid {pid})", name.trim().escape_debug()))
    };
    let found = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(program);
    let users: Vec<_> = found.take(NAMED).collect();
    let by = match &users[..] {
        [] => "by a mount below this directory, or by a program that is not visible in /proc"
            .to_owned(),
        users => format!("by {}", users.join(", ")),
    };
    let what = format!("{}: Device or resource busy: used {by}", dir.display());
    Failure::new(what).because("`umount -l` of util-linux detaches a mount that is in use")
}

/// The message of fusermount3, in one line.
pub(super) fn said_by_fusermount(text: &str) -> Failure {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Failure::new(lines.join("; "))
}

impl Mount {
    /// Returns the value of an attribute of a mount. The volume does not contain this attribute.
    pub(super) fn own_xattr(&self, inode: InodeNo, name: &[u8]) -> Option<Vec<u8>> {
        let asked = inode == self.fs().root() && name == SERVER.as_bytes();
        asked.then(|| self.ending.clone().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn white_space_of_a_mount_point_is_octal() {
        assert_eq!(unescaped(b"/mnt/a\\040b\\134c"), b"/mnt/a b\\c");
        assert_eq!(unescaped(b"/mnt\\9\\04"), b"/mnt\\9\\04");
    }
}
