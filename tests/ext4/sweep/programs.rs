//! The programs that judge a superblock: the kernel, e2fsck and ironmap. A system call mounts the loop device, so a mount starts no
//! process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ironmap::VolumeOptions;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::command::output;
use crate::common::image::{Image, scratch_in};
use crate::common::loop_device::LoopDevice;

/// The limit of processor time for e2fsck, because e2fsck runs endlessly on some damaged volumes.
const LIMIT: &str = "--cpu=4";
/// The maximum number of attempts to unmount. An attempt fails while another program has the loop device open.
const TRIES: usize = 500;
const CHUNK: usize = 4096;

/// The verdict of a program: whether it refuses to read, whether it refuses to write, and whether its check finds a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) reading: bool,
    pub(super) writing: bool,
    pub(super) check: bool,
    /// The messages of the program.
    pub(super) text: String,
}

impl Verdict {
    pub(super) fn is_sound(&self) -> bool {
        !self.reading && !self.writing && !self.check
    }
}

/// Two copies of a volume in memory. The kernel uses one copy through a loop device. e2fsck and ironmap use the other copy.
pub(super) struct Bench {
    // This field is dropped first, so that the device is detached before its file is removed.
    device: LoopDevice,
    kernels: Image,
    programs: Image,
    dir: PathBuf,
}

impl Bench {
    /// Memory for two copies of a volume of at most `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        let image = || Image::within(scratch_in("/dev/shm".as_ref()));
        let (kernels, programs) = (image(), image());
        fs::write(kernels.path(), vec![0; len]).unwrap();
        fs::write(programs.path(), b"").unwrap();
        let dir = kernels.beside("mnt");
        fs::create_dir(&dir).unwrap();
        Self { device: LoopDevice::new(kernels.path()), kernels, programs, dir }
    }

    /// The verdict of the kernel. If the kernel mounts the volume, e2fsck checks it.
    pub(super) fn linux(&self, bytes: &[u8]) -> Verdict {
        let refuses = |flags| {
            // The changes are written through the loop device, so that the page cache of the loop device has the same bytes as the file.
            write_changes(&self.kernels.path(), self.device.node().as_ref(), bytes);
            self.refuses(flags)
        };
        let writing = refuses(MountFlags::empty());
        // A volume that the kernel mounts for writing can also be mounted read-only. So the read-only mount is tried only if the kernel
        // refuses the first mount.
        if writing && refuses(MountFlags::RDONLY) {
            return Verdict { reading: true, writing, check: true, text: String::new() };
        }
        self.put(bytes);
        let path = self.programs.path();
        let args = [LIMIT.as_ref(), "e2fsck".as_ref(), "-fn".as_ref(), path.as_os_str()];
        let said = output("prlimit", &args);
        let text = String::from_utf8_lossy(&said.stdout).into_owned()
            + &String::from_utf8_lossy(&said.stderr);
        Verdict { reading: false, writing, check: !said.status.success(), text }
    }

    /// Whether the kernel refuses to mount the volume with these flags. If the flags request a mount for writing and the kernel mounts the
    /// volume read-only, this counts as a refusal.
    fn refuses(&self, flags: MountFlags) -> bool {
        if mount(self.device.node(), &self.dir, "ext4", flags, None).is_err() {
            return true;
        }
        let mounted = statvfs(&self.dir).unwrap().f_flag;
        let ended = (0..TRIES).any(|_| unmount(&self.dir, UnmountFlags::empty()).is_ok());
        assert!(ended, "{} stays mounted", self.dir.display());
        mounted.contains(StatVfsMountFlags::RDONLY) && !flags.contains(MountFlags::RDONLY)
    }

    /// The verdict of ironmap. If ironmap needs a backup superblock, the volume counts as refused.
    pub(super) fn ironmap(&self, bytes: &[u8]) -> Verdict {
        self.put(bytes);
        let judged = catch_unwind(AssertUnwindSafe(|| self.judged()));
        // A panic is caught and becomes a verdict, so that the message of the test contains the case.
        judged.unwrap_or_else(|_| Verdict { text: "it panics".to_owned(), ..Verdict::default() })
    }

    fn judged(&self) -> Verdict {
        let mut verdict = Verdict::default();
        match self.programs.open() {
            Err(error) => {
                (verdict.reading, verdict.check) = (true, true);
                verdict.text = error.to_string();
            }
            Ok(volume) => {
                let fs = volume.ext4().unwrap();
                let found = fs.check(&mut |_| {});
                verdict.check = found.as_ref().map_or(true, |report| !report.is_clean());
                let lines = found.map(|report| report.findings);
                let lines = lines.iter().flatten().map(ToString::to_string);
                verdict.text = lines.collect::<Vec<_>>().join("\n");
                let left = fs.take_left();
                verdict.reading = left.iter().any(|line| line.contains("superblock is damaged"));
                verdict.text += &left.join("\n");
            }
        }
        let options = VolumeOptions::new().write(true);
        let opened = crate::common::beneath::open(&self.programs.location(), &options);
        let written = opened.and_then(|volume| volume.close());
        verdict.writing = written.is_err();
        if let Err(error) = written {
            verdict.text += &format!("\nwriting: {error}");
        }
        verdict
    }

    fn put(&self, bytes: &[u8]) {
        let path = self.programs.path();
        File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64).unwrap();
        write_changes(&path, &path, bytes);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // If the test has failed, the volume may still be mounted.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// Compares `bytes` with the previous content of the file `to`, and writes only the chunks that differ.
pub(super) fn write_changes(old: &Path, to: &Path, bytes: &[u8]) {
    let old = fs::read(old).unwrap();
    let to = File::options().write(true).open(to).unwrap();
    for (at, (old, new)) in old.chunks(CHUNK).zip(bytes.chunks(CHUNK)).enumerate() {
        if old != new {
            to.write_all_at(new, (at * CHUNK) as u64).unwrap();
        }
    }
}
