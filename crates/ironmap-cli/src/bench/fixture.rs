//! Makes the devices for a bench. They are removed at the end of the bench, also after a failure or an interrupt.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use ironmap::{Error, Result};

use super::beneath::Beneath;
use ironmap_load::errors::{go_on, io};
use ironmap_load::plan::Content;
use ironmap_load::prepare::{FILL, ToWrite};
use ironmap_load::target::{TargetSpec, Variant};

/// The size of a fixture's device, and the size of its file. The bench reads this file.
const DEVICE_BYTES: u64 = 1 << 30;
const FILE_BYTES: u64 = 512 << 20;
/// The kind and the location of a fixture's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FixtureKind {
    /// Compressed RAM disks (root): the fastest block device of an ordinary machine.
    Zram,
    /// Loop devices over files in memory (root): block devices that support NOWAIT.
    Loop,
    /// Loop devices with the file system on a partition (root). The disk and the partition have separate page caches.
    Partition,
    /// Image files in memory. Root is not needed, but there are no host: and kernel: targets.
    Shm,
    /// Image files in the directory for temporary files. If this directory is on a disk, the processors are idle while they wait for the
    /// disk.
    Disk,
}

impl FixtureKind {
    fn is_file(self) -> bool {
        matches!(self, Self::Shm | Self::Disk)
    }

    /// The directory of this process's files.
    fn dir(self) -> PathBuf {
        let temporary = std::env::temp_dir();
        let parent = if self == Self::Disk { &temporary } else { Path::new("/dev/shm") };
        parent.join(format!("{PREFIX}{}", std::process::id()))
    }
}

/// The file system of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FsKind {
    /// ext4 with blocks of 4 KiB.
    Ext4,
    /// XFS with blocks of 4 KiB. There is no vol: target for writes.
    Xfs,
}

/// The names of all fixture directories begin with `PREFIX`. The directory `ZRAM_MARKS` contains a file for each zram device. `./x
/// clean-up` removes the fixture directories and the zram devices.
const PREFIX: &str = "ironmap-bench-";
const ZRAM_MARKS: &str = "/run/ironmap-bench-zram";

/// The byte at which the partition of a disk begins.
const PARTITION_START: u64 = 1 << 20;
const SECTOR: u64 = 512;

/// Two devices with the same content. The targets raw: and vol: use the first device. The second device is mounted, for the targets host:
/// and kernel:.
pub(super) struct Fixture {
    fs: FsKind,
    /// The files that the bench writes. `None` if the bench only reads.
    writes: Option<ToWrite>,
    dir: PathBuf,
    free: Device,
    over: Option<Over>,
    mounted: Option<Mounted>,
}

impl Fixture {
    /// Makes the devices and the file system. If the bench only reads, also makes the file.
    pub(super) fn new(kind: FixtureKind, fs: FsKind, writes: Option<ToWrite>) -> Result<Self> {
        if kind.is_file() && fs == FsKind::Xfs {
            return Err(Error::invalid(
                "XFS must be mounted: use --fixture zram, loop or partition",
            ));
        }
        let dir = kind.dir();
        std::fs::create_dir(&dir).map_err(|error| io(&error, dir.display().to_string()))?;
        let guard = RemoveDir(dir.clone());
        let tree = dir.join("tree");
        std::fs::create_dir(&tree).map_err(|error| io(&error, tree.display().to_string()))?;
        let free = Device::new(kind, &dir.join("free"))?;
        let mounted = if kind.is_file() {
            // An image file is not mounted. mke2fs copies the file into the image.
            if writes.is_none() {
                fill(&tree.join("f"), FILE_BYTES)?;
            }
            run("mke2fs", &mke2fs_args(free.path(), Some(&tree)))?;
            None
        } else {
            let twin = Device::new(kind, &dir.join("mounted"))?;
            for device in [&free, &twin] {
                fill(device.path(), DEVICE_BYTES)?;
                match fs {
                    FsKind::Ext4 => run("mke2fs", &mke2fs_args(&device.volume(), None))?,
                    FsKind::Xfs => {
                        let args = ["-q", "-f", "-K"].map(String::from);
                        let volume = device.volume().display().to_string();
                        run("mkfs.xfs", &[&args[..], &[volume]].concat())?;
                    }
                }
            }
            let file = tree.join("f");
            for device in [&free, &twin] {
                let mount = Mount::new(fs, &device.volume(), &tree)?;
                match writes {
                    None => write_file(&file)?,
                    // ironmap cannot create files on XFS. The kernel creates them.
                    Some(wanted) if fs == FsKind::Xfs => wanted.make(&file)?,
                    Some(_) => {}
                }
                drop(mount);
            }
            let mount = Mount::new(fs, &twin.volume(), &tree)?;
            if fs == FsKind::Xfs && writes.is_none() {
                // On XFS with reflink, deduplication could move the file's data. An immutable file cannot be deduplicated.
                run("chattr", &["+i".into(), file.display().to_string()])?;
            }
            Some(Mounted { file, _mount: mount, device: twin })
        };
        std::mem::forget(guard);
        Ok(Self { fs, writes, dir, free, over: None, mounted })
    }

    /// Makes one device with an ext4 volume on an integrity layer. `block` is the length of the bench's requests in bytes.
    pub(super) fn over(
        kind: FixtureKind,
        beneath: Beneath,
        block: u64,
        writes: bool,
    ) -> Result<Self> {
        let dir = kind.dir();
        let tree = dir.join("tree");
        std::fs::create_dir_all(&tree).map_err(|error| io(&error, tree.display().to_string()))?;
        let guard = RemoveDir(dir.clone());
        let free = Device::new(kind, &dir.join("free"))?;
        let tags = Device::new(kind, &dir.join("tags"))?;
        if !writes {
            fill(&tree.join("f"), FILE_BYTES)?;
        }
        run("mke2fs", &mke2fs_args(&free.volume(), Some(&tree)))?;
        let _ = std::fs::remove_file(tree.join("f"));
        let name = beneath.format(&free.volume(), tags.path(), block)?;
        std::mem::forget(guard);
        let over = Some(Over { name, _tags: tags });
        Ok(Self { fs: FsKind::Ext4, writes: None, dir, free, over, mounted: None })
    }

    /// Notes about the targets.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        let mut notes = Vec::new();
        if self.writes.is_some() && self.mounted.is_some() {
            notes.push("raw: measures an unmounted copy of the device, because the mounted device has cached pages");
        } else if self.mounted.is_some() {
            notes.push(
                "the first raw: measures an unmounted copy of the device, which has no cached pages; the last raw: measures the mounted device",
            );
        }
        if self.fs == FsKind::Xfs && self.writes.is_none() {
            notes.push(
                "XFS: the bench makes the file immutable, because host: requires this on XFS with reflink",
            );
        }
        notes
    }

    /// Returns the targets. raw: is always one of them. vol: needs a file system that ironmap can read or write. host: and kernel: need a
    /// mounted file system.
    pub(super) fn targets(&self) -> Vec<TargetSpec> {
        let raw = |path: PathBuf| TargetSpec::Raw { path, offset: None };
        let volume = self.free.volume();
        if let Some(over) = &self.over {
            let (volume, path) = (over.name.clone(), "/f".into());
            return vec![TargetSpec::Vol { volume, path, variant: Variant::USUAL }];
        }
        let mut targets = vec![raw(self.free.path().to_owned())];
        // With a partition, raw: opens the whole disk. This fails while the volume on the partition is open.
        let is_unwritten = self.writes.is_some_and(|files| files.content == Content::Unwritten);
        if (self.fs == FsKind::Ext4 || !is_unwritten) && volume == self.free.path() {
            let volume = volume.display().to_string();
            targets.push(TargetSpec::Vol { volume, path: "/f".into(), variant: Variant::USUAL });
        }
        if let Some(Mounted { file, device, .. }) = &self.mounted {
            if self.writes.is_some() {
                targets.push(TargetSpec::Kernel { path: file.clone() });
            } else {
                targets.push(TargetSpec::Host { path: file.clone(), variant: Variant::USUAL });
                targets.push(TargetSpec::Kernel { path: file.clone() });
                targets.push(raw(device.volume()));
            }
        }
        targets
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.mounted = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A device on which volumes are made, and the directory where they are mounted.
pub(super) struct Scratch {
    device: Device,
    dir: RemoveDir,
}

impl Scratch {
    pub(super) fn new(kind: FixtureKind) -> Result<Self> {
        let dir = kind.dir();
        let tree = dir.join("tree");
        std::fs::create_dir_all(&tree).map_err(|error| io(&error, tree.display().to_string()))?;
        let dir = RemoveDir(dir);
        Ok(Self { device: Device::new(kind, &dir.0.join("scratch"))?, dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.device.path()
    }

    /// Makes an ext4 volume with space for `inodes` inodes.
    pub(super) fn mke2fs(&self, inodes: usize) -> Result<()> {
        let mut args = mke2fs_args(self.path(), None);
        args.splice(0..0, ["-N".to_owned(), inodes.to_string()]);
        run("mke2fs", &args)
    }

    pub(super) fn mount(&self) -> Result<Mount> {
        Mount::new(FsKind::Ext4, self.path(), &self.dir.0.join("tree"))
    }
}

/// The layer over the device.
struct Over {
    /// The name by which the layer is opened.
    name: String,
    _tags: Device,
}

// The mount is declared first, because fields are dropped in the order of their declaration. The unmount must precede the removal of the
// device.
struct Mounted {
    file: PathBuf,
    _mount: Mount,
    device: Device,
}

struct RemoveDir(PathBuf);

impl Drop for RemoveDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

enum Device {
    Zram { number: String, path: PathBuf },
    Loop { path: PathBuf, partitioned: bool },
    File { path: PathBuf },
}

impl Device {
    fn new(kind: FixtureKind, file: &Path) -> Result<Self> {
        let sized = || {
            let made = std::fs::File::create(file).and_then(|made| made.set_len(DEVICE_BYTES));
            made.map_err(|error| io(&error, file.display().to_string()))
        };
        match kind {
            FixtureKind::Shm | FixtureKind::Disk => {
                sized()?;
                Ok(Self::File { path: file.to_owned() })
            }
            FixtureKind::Loop | FixtureKind::Partition => {
                sized()?;
                let partitioned = kind == FixtureKind::Partition;
                let scan: &[&str] = if partitioned { &["--partscan"] } else { &[] };
                let file = file.display().to_string();
                let name = output("losetup", &[scan, &["--find", "--show", &file]].concat())?;
                let device = Self::Loop { path: name.clone().into(), partitioned };
                if partitioned {
                    // addpart tells the kernel about the partition. The kernel does not need support for partition tables.
                    let length = (DEVICE_BYTES - PARTITION_START) / SECTOR;
                    let start = (PARTITION_START / SECTOR).to_string();
                    run("addpart", &[name, "1".into(), start, length.to_string()])?;
                }
                Ok(device)
            }
            FixtureKind::Zram => {
                let add = "/sys/class/zram-control/hot_add";
                let number = std::fs::read_to_string(add)
                    .map_err(|error| io(&error, add))?
                    .trim()
                    .to_owned();
                let size = format!("/sys/block/zram{number}/disksize");
                let mark = Path::new(ZRAM_MARKS).join(format!("zram{number}"));
                let device = Self::Zram { path: format!("/dev/zram{number}").into(), number };
                std::fs::create_dir_all(ZRAM_MARKS)
                    .and_then(|()| std::fs::write(&mark, std::process::id().to_string()))
                    .map_err(|error| io(&error, mark.display().to_string()))?;
                std::fs::write(&size, DEVICE_BYTES.to_string())
                    .map_err(|error| io(&error, size))?;
                Ok(device)
            }
        }
    }

    fn path(&self) -> &Path {
        let (Self::Zram { path, .. } | Self::Loop { path, .. } | Self::File { path }) = self;
        path
    }

    /// The path of the device with the file system.
    fn volume(&self) -> PathBuf {
        match self {
            Self::Loop { path, partitioned: true } => format!("{}p1", path.display()).into(),
            _ => self.path().to_owned(),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        match self {
            Self::Zram { number, .. } => {
                retry(|| std::fs::write(format!("/sys/block/zram{number}/reset"), "1").is_ok());
                // Another program, such as udev, may open a new device for a moment. Therefore the removal is retried.
                let remove = "/sys/class/zram-control/hot_remove";
                if retry(|| std::fs::write(remove, number.as_str()).is_ok()) {
                    let _ = std::fs::remove_file(format!("{ZRAM_MARKS}/zram{number}"));
                }
            }
            // The removal of the loop device also removes its partitions.
            Self::Loop { path, .. } => {
                retry(|| run("losetup", &["--detach".into(), path.display().to_string()]).is_ok());
            }
            Self::File { path } => {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

pub(super) struct Mount {
    dir: PathBuf,
}

impl Mount {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn new(fs: FsKind, device: &Path, dir: &Path) -> Result<Self> {
        let kind = match fs {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        };
        let (device, mounted) = (device.display().to_string(), dir.display().to_string());
        run("mount", &["-t".into(), kind.into(), "-o".into(), "noatime".into(), device, mounted])?;
        Ok(Self { dir: dir.to_owned() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The kernel closes the files of a process with io_uring a short time after the process has ended. Therefore the unmount is
        // retried.
        retry(|| run("umount", &[self.dir.display().to_string()]).is_ok());
    }
}

/// Repeats an action on a device or mount that may be busy for a moment. Gives up after two seconds. Returns whether the action succeeded.
fn retry(mut attempt: impl FnMut() -> bool) -> bool {
    for _ in 0..20 {
        if attempt() {
            return true;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    false
}

fn mke2fs_args(device: &Path, tree: Option<&Path>) -> Vec<String> {
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let mut args: Vec<String> =
        ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", options].map(String::from).into();
    if let Some(tree) = tree {
        args.extend(["-d".into(), tree.display().to_string()]);
    }
    args.push(device.display().to_string());
    args
}

/// Fills a device, or a new file, from its start.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    use std::io::Write;
    let chunk = FILL.to_le_bytes().repeat(1 << 18);
    let open = || std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let written = open().and_then(|mut file| {
        for _ in 0..bytes / chunk.len() as u64 {
            if go_on().is_err() {
                return Err(std::io::Error::from_raw_os_error(ironmap::Errno::EINTR.0));
            }
            file.write_all(&chunk)?;
        }
        file.sync_all()
    });
    written.map_err(|error| io(&error, path.display().to_string()))
}

/// Writes the file for reads, in as few extents as possible.
fn write_file(path: &Path) -> Result<()> {
    run("fallocate", &["--length".into(), FILE_BYTES.to_string(), path.display().to_string()])?;
    fill(path, FILE_BYTES)
}

pub(super) fn run(program: &str, args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    output(program, &args).map(drop)
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|error| io(&error, program.to_owned()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::invalid(format!("{program} {}: {said}", args.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
