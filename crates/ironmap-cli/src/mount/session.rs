//! Runs the command `ironmap mount`: mounts a volume, serves it, and closes it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use fuser::Session;
use ironmap::fs::{Capabilities, OnError, Writer};
use ironmap::{Error, ErrorKind, Location, Volume, VolumeOptions};
use ironmap_image::{Failure, Report};
use rustix::mount::MountFlags;

use super::adapter::Server;
use super::daemon::{self, Ready};
use super::end::End;
use super::unmount::{Ending, lost, said_by_fusermount};
use super::{Log, Mount, Options, remount};
use crate::{interrupt, target};

/// The flag `MS_BIND`. It restricts a remount to the flags of the mount itself. rustix defines this flag only for another call.
const OF_MOUNT_ALONE: MountFlags = MountFlags::from_bits_retain(4096);

/// The device file of FUSE.
const FUSE: &str = "/dev/fuse";

/// Mounts a volume, so that all programs can use it
///
/// This program serves the volume through FUSE, with all features of the library: journal, direct I/O, extended attributes, ACLs. After the
/// mount, the program runs in the background. Unmount with fusermount3 -u, umount or a signal; the volume is then clean. If the program is
/// installed as /sbin/mount.fuse.ironmap, mount -t fuse.ironmap and /etc/fstab can use the program.
///
/// sync -f and syncfs(2) commit nothing on such a mount: use ironmap sync DIR.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
ironmap mount [OPTIONS] <VOLUME> <DIR>
       ironmap mount -o remount,OPTION... <DIR>")]
#[command(after_help = "\
Examples:
  ironmap mount disk.img /mnt
  ironmap mount -f -r /dev/sdb1 /mnt
  ironmap mount -o allow_other,noatime disk.img@p2 /mnt
  ironmap mount -o remount,ro /mnt

Options of -o:
  ro, rw                    read only, or for writing (default)
  allow_other               all users have access, if permissions allow it; by default only the mounting user
  uid=N, gid=N              the owner and group to show for all files
  fsname=NAME               the source in /proc/mounts, by default the volume
  noatime, relatime (default), strictatime, nodiratime
  nosymfollow               the kernel follows no symbolic link of the volume; for root
  sync                      each change is durable when its system call returns
  dirsync                   each change of a directory's names is durable when its system call returns
  writeback_cache           the kernel collects written data, and sends it later
  threads=N                 number of threads that wait for the device
  remount                   change the mount at DIR: ro, rw, dev, suid, exec, symfollow and their opposites
  dev, suid, exec and their opposites

Options of ext4:
  errors=continue, remount-ro, panic
                            accepted if the volume has this setting; ironmap tune -e changes the setting
  discard, nodiscard (default)
                            whether freed blocks are discarded on the device
  commit=N                  commit changes after N seconds (default: 5); 0: only for a sync
  noload, norecovery        with ro: read the volume without its journal
  acl, user_xattr, data=ordered, barrier, delalloc, auto_da_alloc, stripe=N, init_itable, ...
                            accepted without effect: always on, or specific to the kernel's ext4
  data=journal, nobarrier, noacl, usrquota, grpid, resuid=N, minixdf, dax, ...
                            refused; the message names an alternative")]
pub(crate) struct Args {
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Read only, as -o ro; overrides -o
    #[arg(short, long = "read-only", overrides_with = "read_write")]
    read_only: bool,
    /// For writing, as -o rw; overrides -o
    #[arg(short = 'w', long = "rw", visible_alias = "read-write", overrides_with = "read_only")]
    read_write: bool,
    /// Print no notes
    #[arg(short, long)]
    quiet: bool,
    /// Print the volume and the directory after the mount
    #[arg(short, long)]
    verbose: bool,
    /// Options, separated by commas
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Report the mount on standard output: for the program in the foreground
    #[arg(long, hide = true, requires = "foreground")]
    tell: bool,
    /// As mount -s: ignore unknown options
    #[arg(long, hide = true)]
    sloppy: bool,
    /// As mount -f: everything except the mount itself
    #[arg(long, hide = true)]
    fake: bool,
    /// The volume; not needed for a remount
    #[arg(value_name = "VOLUME")]
    volume: OsString,
    /// An empty directory, or the root of a mount for a remount
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut options = Options::default();
    options.sloppy = args.sloppy;
    for text in &args.options {
        options.parse(text).map_err(Failure::usage)?;
    }
    if args.read_only || args.read_write {
        options.read_only = Some(args.read_only);
    }
    if options.remount {
        // A remount does not need the argument VOLUME: the server of the mount at DIR has the volume open.
        let dir = args.dir.as_deref().unwrap_or(Path::new(&args.volume));
        return if args.fake { Ok(()) } else { remount::run(dir, &options) };
    }
    let volume = target::parse_volume(&args.volume).map_err(Failure::usage)?;
    let Some(dir) = &args.dir else {
        return Err(Failure::usage("DIR is missing: write ironmap mount VOLUME DIR"));
    };
    if args.fake {
        return Ok(());
    }
    if !args.foreground {
        daemon::start()?;
        return args.say_mounted(report);
    }
    serve_volume(args, &volume, dir, options, report)
}

impl Args {
    /// Prints the message of mount -v.
    fn say_mounted(&self, report: &Report) -> Result<(), Failure> {
        let (true, Some(dir)) = (self.verbose, &self.dir) else { return Ok(()) };
        report.say(format_args!("{} mounted on {}", self.volume.display(), dir.display()))
    }
}

/// Mounts a volume, and serves it until the unmount.
fn serve_volume(
    args: &Args,
    location: &Location,
    dir: &Path,
    options: Options,
    report: &mut Report,
) -> Result<(), Failure> {
    let dir = &directory(dir)?;
    let volume = open_volume(args, location, &options, report)?;
    let (name, writes) = (location.to_string(), !options.is_read_only());
    let ending = Ending::new().map_err(|error| Failure::host("create a pipe", error))?;
    let Mounted { session, end, log } = attach(location, dir, &volume, options, &ending)?;
    if writes && args.verbose && !args.quiet {
        report.note(format_args!(
            "sync -f and syncfs(2) do not commit changes on this mount, because FUSE does not forward these calls: use ironmap sync {}",
            dir.display()
        ));
    }
    if args.tell {
        Ready.report(&log).map_err(|error| Failure::host("standard output", error))?;
    } else if let Err(failure) = args.say_mounted(report) {
        report.error(&failure);
    }
    // After this call, the volume must be closed explicitly. A drop would not report errors.
    let served = end.served(serve(session)).map_err(|error| Failure::host(dir.display(), error));
    if served.is_err() {
        end.cut();
    }
    let closed = volume.close().map_err(|error| lost(&name, &error));
    for line in volume.fs().take_notices() {
        report.warning(format!("{name}: {line}"));
        log.to_system(format_args!("{name}: {line}"));
    }
    let ended = closed.and(served).inspect_err(|failure| log.to_system(failure));
    ending.report(&ended);
    ended
}

/// The absolute path of the mount's directory. A background process changes its working directory, so a relative path would lead to another
/// directory.
fn directory(dir: &Path) -> Result<PathBuf, Failure> {
    let absolute = dir.canonicalize().map_err(|error| Failure::host(dir.display(), error))?;
    if !absolute.is_dir() {
        return Err(Failure::host(absolute.display(), rustix::io::Errno::NOTDIR));
    }
    Ok(absolute)
}

/// Opens the volume of a mount, and applies the options that concern the volume.
fn open_volume(
    args: &Args,
    location: &Location,
    options: &Options,
    report: &mut Report,
) -> Result<Volume, Failure> {
    let no_load = options.no_load || report.context().no_load();
    if no_load && !options.is_read_only() {
        return Err(Failure::usage("-o noload is only possible with -o ro"));
    }
    let mut open = VolumeOptions::new().write(!options.is_read_only()).no_load(no_load);
    if let Some(interval) = options.commit {
        open = open.commit(interval);
    }
    let opened = report.context().with_opening(open).open(location);
    let volume = opened.map_err(|error| Failure::open(&error))?;
    if !args.quiet {
        volume.notices().iter().for_each(|notice| report.note(notice));
        tell_owner(options, &volume, report);
    }
    report.context().tell_faults(location, volume.faults());
    check_changes(options, &volume).map_err(|error| Failure::at(location, &error))?;
    check_policy(options, &volume)?;
    if options.discard && !options.is_read_only() {
        let set = volume.fs().writable().and_then(|writer| writer.set_discard(true));
        set.map_err(|error| Failure::at(location, &error))?;
    }
    for line in volume.fs().take_notices() {
        report.warning(format!("{location}: {line}"));
    }
    Ok(volume)
}

/// A mount that no thread serves yet.
struct Mounted {
    session: Session<Server>,
    end: Arc<End>,
    log: Arc<Log>,
}

/// Mounts an open volume at a directory. After that, a signal unmounts the volume.
fn attach(
    location: &Location,
    dir: &Path,
    volume: &Volume,
    options: Options,
    ending: &Ending,
) -> Result<Mounted, Failure> {
    let failed = |error: io::Error| Failure::host(dir.display(), error);
    // Programs with any working directory read the path in /proc/mounts. Therefore the path must be absolute.
    let absolute = |path: &Path| path.is_relative().then(|| path.canonicalize().ok()).flatten();
    let shown = location.with_paths(&absolute).to_string();
    let is_root = rustix::process::geteuid().is_root();
    let config = options.for_kernel(&shown, is_root);
    let beyond = options.beyond_fuser(&config);
    if beyond.is_some() && !is_root {
        return Err(Failure::usage("-o nosymfollow: only root can set this option"));
    }
    let (threads, writes) = (options.threads(), !options.is_read_only());
    let mount = Mount::new(volume.clone(), options, ending.place(writes));
    let mount = mount.map_err(|error| Failure::at(location, &error))?;
    let (notifier, device) = (Arc::clone(&mount.notifier), Arc::clone(&mount.device));
    let log = Arc::clone(&mount.log);
    let server = Server::new(mount, threads);
    let (connection, mount) = (server.connection(), server.mount());
    let session = Session::new(server, dir, &config);
    let session = session.map_err(|error| not_mounted(dir, error))?;
    if let Some(flags) = beyond {
        // No thread serves the mount yet, so this call must not send a request to the server. It changes only the flags of the mount.
        let set = rustix::mount::mount_remount(dir, flags | OF_MOUNT_ALONE, "");
        set.map_err(|errno| failed(errno.into()))?;
    }
    let _ = notifier.set(session.notifier());
    let to_kernel = session.as_fd().try_clone_to_owned();
    let _ = connection.set(to_kernel.map_err(|error| Failure::host(FUSE, error))?);
    let end = Arc::new(End::of(dir, connection).map_err(|errno| failed(errno.into()))?);
    let _ = device.set(end.device());
    let by_signal = Arc::clone(&end);
    let wait_for_pages = move || {
        if let Some(mount) = mount.upgrade() {
            mount.wait_for_all_pages();
        }
    };
    interrupt::on_signal(move || by_signal.by_signal(wait_for_pages.clone()))
        .map_err(|error| Failure::new(format!("cannot install signal handlers: {error}")))?;
    Ok(Mounted { session, end, log })
}

/// Refuses a mount for writing if the library cannot change the metadata of the format. Otherwise, most programs would fail in the middle
/// of their work.
fn check_changes(options: &Options, volume: &Volume) -> Result<(), Error> {
    let fs = volume.fs();
    if options.is_read_only() || fs.capabilities().contains(Capabilities::METADATA) {
        return Ok(());
    }
    let what = format!("a mount cannot write a volume of {}: add -o ro", fs.format());
    Err(Error::new(ErrorKind::ReadOnly, what))
}

/// Prints a warning if the user is not the owner of the volume. The kernel checks permissions as on every file system. Most accesses of
/// this user are denied.
fn tell_owner(options: &Options, volume: &Volume, report: &Report) {
    let fs = volume.fs();
    let user = rustix::process::geteuid();
    let owner = fs.inode(fs.root()).map(|root| root.stat().uid);
    if let Ok(owner) = owner
        && options.uid.is_none()
        && !user.is_root()
        && owner != user.as_raw()
    {
        let user = user.as_raw();
        report.note(format_args!(
            "user {owner} owns the root, so user {user} cannot access most files: with -o uid={user}, user {user} owns all files of the mount"
        ));
    }
}

/// Refuses an `errors=` that differs from the volume's own setting. The volume's setting always applies.
fn check_policy(options: &Options, volume: &Volume) -> Result<(), Failure> {
    let set = volume.fs().writer().map_or(OnError::RemountReadOnly, Writer::on_error);
    let asked = options.errors.unwrap_or(set);
    if asked == set {
        return Ok(());
    }
    let (set, asked) = (set.name(), asked.name());
    Err(Failure::usage(format!(
        "-o errors={asked}: the setting of the volume is {set}; ironmap tune -e {asked} changes the setting"
    )))
}

/// The failure to mount the volume. The error is a message of fusermount3, or the errno of `mount`, or the errno of `open` for /dev/fuse.
fn not_mounted(dir: &Path, error: io::Error) -> Failure {
    if error.raw_os_error().is_none() {
        return said_by_fusermount(&error.to_string());
    }
    match File::options().read(true).write(true).open(FUSE) {
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    ": mount as root, or give users access (chmod 666 /dev/fuse)"
                }
                io::ErrorKind::NotFound => {
                    ": the kernel has no FUSE, or the container lacks the device (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
                }
                _ => "",
            };
            Failure::new(format!("{}{hint}", Failure::host(FUSE, error)))
        }
        Ok(_) => Failure::host(dir.display(), error),
    }
}

/// Serves until the connection has ended.
///
/// When fuser 0.18 drops a session, it unmounts the directory. After an umount, this would remove another mount at the same directory.
/// Therefore this function takes the thread out of the session, and does not drop the rest.
fn serve(session: Session<Server>) -> io::Result<()> {
    let mut session = ManuallyDrop::new(session.spawn()?);
    let serving = mem::replace(&mut session.guard, thread::spawn(|| Ok(())));
    serving.join().map_err(|_| io::Error::other("the thread that serves the mount has panicked"))?
}
