//! Images of ext4 and XFS volumes, and kernel mounts of these images. mke2fs and mkfs.xfs make the volumes. When the guard of an image or a
//! mount is dropped, the image or the mount is removed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::fs::FileSystem;
use ironmap::fs::ext4::Ext4;
use ironmap::{Location, Volume, VolumeOptions};
use tempfile::TempDir;

use super::beneath;
use super::command::{failure, output, run};
use super::loop_device::LoopDevice;

/// The maximum number of attempts for an operation that the kernel may refuse while another program (udev, blkid) uses the device. Each
/// attempt starts a process, which takes at least a millisecond.
const TRIES: usize = 500;

/// A temporary directory for this test. When the value is dropped, the directory is removed.
pub(crate) fn scratch() -> TempDir {
    scratch_in(&std::env::temp_dir())
}

/// A temporary directory below `dir`. Its name contains the process number of the test, so that `./x clean-up` can remove the directories
/// of ended processes.
pub(crate) fn scratch_in(dir: &Path) -> TempDir {
    let prefix = format!("ironmap-test-{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(dir).expect("a scratch directory")
}

/// Splits a string of options at white space.
pub(crate) fn words(options: &str) -> Vec<&str> {
    options.split_whitespace().collect()
}

/// The arguments for a run of xfs_repair that changes nothing. Without `force_geometry`, xfs_repair refuses to check a volume with one
/// group.
fn check_of(image: &Path) -> [&OsStr; 4] {
    let [no_changes, option, value] = ["-n", "-o", "force_geometry"].map(OsStr::new);
    [no_changes, option, value, image.as_os_str()]
}

/// The file system format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Ext4,
    Xfs,
}

/// An image file that contains a volume.
pub(crate) struct Image {
    dir: TempDir,
    format: Format,
}

impl Image {
    /// An image whose file does not exist yet.
    pub(crate) fn none() -> Self {
        Self::within(scratch())
    }

    /// An image in this directory, whose file does not exist yet.
    pub(crate) fn within(dir: TempDir) -> Self {
        Self { dir, format: Format::Ext4 }
    }

    /// An image for an XFS volume in this directory. The file does not exist yet.
    pub(crate) fn within_xfs(dir: TempDir) -> Self {
        Self { dir, format: Format::Xfs }
    }

    /// An empty volume of this size (in mke2fs's syntax, for example `64M`) with these options.
    pub(crate) fn mke2fs(size: &str, options: &[&str]) -> Self {
        Self::make(size, options, None)
    }

    /// A volume of this size. mke2fs fills it with a copy of a directory. This needs no root.
    pub(crate) fn populated(size: &str, options: &[&str], from: &Path) -> Self {
        Self::make(size, options, Some(from))
    }

    /// An empty volume of this size, in memory.
    pub(crate) fn in_memory(size: &str, options: &[&str]) -> Self {
        Self::within(scratch_in(Path::new("/dev/shm"))).fill(size, options, None)
    }

    /// An image for an XFS volume, in memory. The file does not exist yet.
    pub(crate) fn no_xfs() -> Self {
        Self { dir: scratch_in(Path::new("/dev/shm")), format: Format::Xfs }
    }

    /// Makes an XFS volume of this size (in the syntax of truncate(1)) in memory with these options. If mkfs.xfs refuses the options,
    /// returns its message.
    pub(crate) fn mkfs_xfs(size: &str, options: &[&str]) -> Result<Self, String> {
        Self::mkfs_xfs_by("mkfs.xfs", size, options)
    }

    /// An XFS volume that is made by the given `mkfs.xfs` program instead of the installed one.
    pub(crate) fn mkfs_xfs_by(program: &str, size: &str, options: &[&str]) -> Result<Self, String> {
        let image = Self::no_xfs();
        let path = image.path();
        let path = path.to_str().expect("a plain path");
        run("truncate", &["-s", size, path]);
        let mut args = vec!["-q", "-f"];
        args.extend(options);
        args.push(path);
        let result = output(program, &args);
        if result.status.success() { Ok(image) } else { Err(failure(program, &args, &result)) }
    }

    fn make(size: &str, options: &[&str], from: Option<&Path>) -> Self {
        Self::none().fill(size, options, from)
    }

    fn fill(self, size: &str, options: &[&str], from: Option<&Path>) -> Self {
        let image = self;
        // With these options, mke2fs writes the same bytes each time, and no kernel thread writes to the volume later.
        let fixed = ["-q", "-F", "-U", "1f0e3dad-9990-4a3a-8f8e-3a6d0b7c5e21"];
        let mut args: Vec<_> = fixed.iter().chain(options).map(Into::into).collect();
        if let Some(from) = from {
            args.extend(["-d".into(), from.as_os_str().to_owned()]);
        }
        args.extend([image.path().into(), size.into()]);
        run("mke2fs", &args);
        image
    }

    /// A copy of the image as it is at the time of the call. The image may be mounted.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self { dir: scratch(), format: self.format };
        let args = ["--sparse=always".into(), self.path(), copy.path()];
        run("cp", &args);
        copy
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// The content of a file in the volume.
    pub(crate) fn dump(&self, path: &str) -> Vec<u8> {
        let dump = self.beside("dump");
        self.debugfs(&format!("dump {path} {}\n", dump.display()));
        std::fs::read(dump).expect("debugfs has written it")
    }

    /// A path for another file in the image's directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn location(&self) -> Location {
        self.path().to_str().expect("a plain path").parse().expect("a location")
    }

    pub(crate) fn open(&self) -> ironmap::Result<Volume> {
        beneath::open(&self.location(), &VolumeOptions::default())
    }

    pub(crate) fn fs(&self) -> Arc<dyn FileSystem> {
        let volume = self.open().unwrap_or_else(|error| panic!("{error}"));
        Arc::clone(volume.fs())
    }

    pub(crate) fn ext4(&self) -> Arc<Ext4> {
        let volume = self.open().unwrap_or_else(|error| panic!("{error}"));
        Arc::clone(volume.ext4().expect("an ext4 volume"))
    }

    /// Fails the test if e2fsck or xfs_repair finds a fault in the volume.
    pub(crate) fn check(&self) {
        if self.format == Format::Xfs {
            return self.check_by("xfs_repair");
        }
        let said = run("e2fsck", &["-fn".as_ref(), self.path().as_os_str()]);
        // e2fsck reports wrong counts in the superblock only in its output, and not in its exit code.
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains("count wrong"), "{said}");
    }

    /// Asserts that this program finds no fault in an XFS volume.
    pub(crate) fn check_by(&self, xfs_repair: &str) {
        let path = self.path();
        run(xfs_repair, &check_of(&path));
    }

    /// Whether this program finds no fault in an XFS volume.
    pub(crate) fn passes(&self, xfs_repair: &str) -> bool {
        let path = self.path();
        output(xfs_repair, &check_of(&path)).status.success()
    }

    /// Runs e2fsck to complete changes that mke2fs or debugfs have made incompletely.
    pub(crate) fn repair(&self) {
        self.e2fsck("-fy");
    }

    /// Runs e2fsck to sort and hash every directory again.
    pub(crate) fn rebuild_directories(&self) {
        self.e2fsck("-fyD");
    }

    /// Runs e2fsck to replay the journal and do nothing else.
    pub(crate) fn repair_journal(&self) {
        self.run_e2fsck(&["-fy", "-E", "journal_only"]);
    }

    fn e2fsck(&self, how: &str) {
        self.run_e2fsck(&[how]);
    }

    fn run_e2fsck(&self, how: &[&str]) {
        let path = self.path();
        let mut args: Vec<&OsStr> = how.iter().map(AsRef::as_ref).collect();
        args.push(path.as_os_str());
        let result = output("e2fsck", &args);
        // Exit code 1 means that errors were corrected.
        assert!(
            matches!(result.status.code(), Some(0 | 1)),
            "{}",
            failure("e2fsck", &args, &result)
        );
    }

    pub(crate) fn tune2fs(&self, options: &str) {
        let path = self.path();
        let mut args = words(options);
        args.push(path.to_str().expect("a plain path"));
        run("tune2fs", &args);
    }

    /// Runs debugfs commands that change the volume, one per line. Returns the output. In the output, a line `debugfs: COMMAND` precedes
    /// each answer.
    pub(crate) fn debugfs(&self, commands: &str) -> String {
        self.run_debugfs(&["-w"], commands)
    }

    /// Returns the output of debugfs commands. debugfs opens the image read-only.
    pub(crate) fn ask_debugfs(&self, commands: &str) -> String {
        self.run_debugfs(&[], commands)
    }

    fn run_debugfs(&self, options: &[&str], commands: &str) -> String {
        let script = self.beside("debugfs-commands");
        std::fs::write(&script, commands).expect("the commands");
        let mut args = vec!["-f".into(), script.into_os_string()];
        args.extend(options.iter().map(Into::into));
        args.push(self.path().into_os_string());
        String::from_utf8_lossy(&run("debugfs", &args)).into_owned()
    }

    /// The physical numbers of blocks of a file or directory. The path may also be an inode number, for example `<8>`.
    pub(crate) fn bmap(&self, path: &str, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
        let commands: String = blocks.map(|block| format!("bmap {path} {block}\n")).collect();
        let answers = self.ask_debugfs(&commands);
        // debugfs prints each command on a separate line, which is not a number. The parser skips such lines.
        let blocks =
            answers.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<_>>();
        assert_eq!(blocks.len(), commands.lines().count(), "{answers}");
        blocks
    }

    /// Overwrites bytes in a block of a file or directory.
    pub(crate) fn poke(&self, path: &str, block: u64, offset: u64, bytes: &[u8]) {
        let physical = self.bmap(path, std::iter::once(block))[0];
        self.poke_block(physical, offset, bytes);
    }

    /// Overwrites bytes in a block of the volume.
    pub(crate) fn poke_block(&self, block: u64, offset: u64, bytes: &[u8]) {
        self.file()
            .write_all_at(bytes, block * self.block_size() + offset)
            .expect("write the image");
    }

    /// The content of a block of the volume.
    pub(crate) fn block(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.block_size() as usize];
        self.file().read_exact_at(&mut bytes, block * self.block_size()).expect("read the image");
        bytes
    }

    /// The block size according to the superblock. Other parts of the volume may be damaged.
    pub(crate) fn block_size(&self) -> u64 {
        let mut log = [0; 4];
        self.file().read_exact_at(&mut log, 1024 + 0x18).expect("read the superblock");
        1024 << u32::from_le_bytes(log)
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.path()).expect("open the image")
    }

    /// Mounts the volume with the kernel through a loop device. Needs root.
    pub(crate) fn mount(&self, options: &str) -> LoopMount {
        self.try_mount(options).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Mounts the image. If the kernel refuses, returns the message of mount(8).
    pub(crate) fn try_mount(&self, options: &str) -> Result<LoopMount, String> {
        LoopMount::new(self, options)
    }
}

/// A kernel mount of an image. When this value is dropped, the image is unmounted and the loop device is detached.
pub(crate) struct LoopMount {
    // The loop device, which is detached after the unmount.
    device: LoopDevice,
    dir: PathBuf,
}

impl LoopMount {
    fn new(image: &Image, options: &str) -> Result<Self, String> {
        let mount =
            Self { device: LoopDevice::new(image.path()), dir: image.dir.path().join("mnt") };
        std::fs::create_dir_all(&mount.dir).expect("a mount point");
        let format = match image.format {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
        };
        let dir = mount.dir.to_str().expect("a plain path");
        let args = ["-t", format, "-o", options, mount.device(), dir];
        let result = output("mount", &args);
        if result.status.success() { Ok(mount) } else { Err(failure("mount", &args, &result)) }
    }

    /// The loop device.
    pub(crate) fn device(&self) -> &str {
        self.device.node()
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file until the volume has no free blocks. The kernel reserves more blocks for data in memory than the data need, so the file is
    /// synced and the write repeated before the volume counts as full.
    pub(crate) fn fill(&self, name: &str) {
        let mut full = File::create(self.dir.join(name)).expect("a new file");
        let mut write = |len: usize| {
            let result = full.write_all(&vec![0xA5; len]);
            let is_full = |error: &std::io::Error| error.kind() == ErrorKind::StorageFull;
            assert!(result.as_ref().err().is_none_or(is_full), "{result:?}");
            result.is_ok()
        };
        loop {
            while write(1 << 16) {}
            File::open(self.dir.join(name)).and_then(|full| full.sync_all()).expect("a sync");
            if !write(4096) {
                return;
            }
        }
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.starts_with(&format!("{} ", self.device())))
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap_or_default();
        for _ in 0..TRIES {
            if !self.is_mounted() || output("umount", &[dir]).status.success() {
                break;
            }
        }
        if self.is_mounted() {
            output("umount", &["--lazy", dir]);
        }
    }
}
