//! Files that ironmap must not read from the device. ironmap detects each reason, names it, and reads the file through the kernel. Every
//! way to read returns the right bytes without an error.

use crate::require;
use std::fs::OpenOptions as OsOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::calls::Both;
use crate::common::command::{output, run};
use crate::common::image::scratch;
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note_part};
use ironmap::fs::host::Refusal;
use ironmap::units::FilePos;
use ironmap::{FileOptions, Host, HostOptions, Queue, QueueOptions};

const SEED: u64 = 0x4ef_05a1;
const ROUNDS: usize = 200;
/// A size that is not a multiple of any block size.
const SIZE: usize = 700_001;

fn host() -> (Host, Queue) {
    let host = Host::new(&HostOptions::default()).unwrap();
    let queue = host.queue(&QueueOptions::default()).unwrap();
    (host, queue)
}

fn content(len: usize) -> Vec<u8> {
    Rng::new(SEED).bytes(len)
}

/// Opens a file, checks whether ironmap reads it from the device or through the kernel, and reads it with every call.
fn check(path: &Path, options: FileOptions, served: &str) {
    let (host, mut queue) = host();
    let both = Both::open_with(&host, path, options);
    assert_eq!(both.served(), served, "{:?}", both.any.host());
    let expected = std::fs::read(path).unwrap();
    both.check(&mut queue, &expected, SEED, ROUNDS);
    assert_eq!(both.served(), served, "after reads: {:?}", both.any.host());
    assert_eq!(queue.stats().kernel_served == 0, served == "raw");
    assert!(host.events().take().0.is_empty(), "a refusal is no error");
}

fn assert_served(path: &Path, served: &str) {
    check(path, FileOptions::default(), served);
}

/// Another process that has a file open for writing, or has the file mapped for writing.
struct Writer(Child);

impl Writer {
    fn start(path: &Path, mapped: bool) -> Self {
        let child = Command::new("xfs_io")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        if mapped {
            let mut commands = child.stdin.as_ref().unwrap();
            commands.write_all(b"mmap -rw 0 4096\nclose\n").unwrap();
        }
        let mut writer = Self(child);
        while writer.holds(path) != (!mapped, mapped) {
            assert!(writer.0.try_wait().unwrap().is_none(), "xfs_io ended");
            std::thread::yield_now();
        }
        writer
    }

    /// Whether the process has the file open, and whether it has the file mapped.
    fn holds(&self, path: &Path) -> (bool, bool) {
        let proc = PathBuf::from(format!("/proc/{}", self.0.id()));
        let fds = std::fs::read_dir(proc.join("fd")).unwrap();
        let open = fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path));
        let maps = std::fs::read_to_string(proc.join("maps")).unwrap();
        (open, maps.contains(path.to_str().unwrap()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// If any process can write to a file, ironmap does not read the file from the device. Such a process can write through another descriptor,
/// or through a mapping whose descriptor was closed.
#[test]
fn writers() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    for mounted in [Mounted::ext4(), Mounted::xfs()] {
        let path = mounted.write("file", &content(SIZE));
        let ours = OsOptions::new().read(true).write(true).open(&path).unwrap();
        assert_served(&path, "writers");
        drop(ours);
        assert_served(&path, "raw");
        for mapped in [false, true] {
            let other = Writer::start(&path, mapped);
            assert_served(&path, "writers");
            drop(other);
            assert_served(&path, "raw");
        }
    }
}

/// With data=journal, the newest data of a file may be only in the journal. So ironmap does not read such a file from the device. The test
/// covers each way to set data=journal.
#[test]
fn ext4_with_journalled_data() {
    require!([Need::Root, Need::Tool("losetup")]);
    let by_option = Mounted::new("mke2fs -t ext4", 64, "data=journal");
    assert_served(&by_option.write("file", &content(SIZE)), "data_journal");
    // `chattr +j` sets the same flag, but may be refused even for root.
    let by_flag = Mounted::new("mke2fs -t ext4", 64, "noatime");
    let path = by_flag.write("file", &content(SIZE));
    for (flags, served) in [("0x84000", "data_journal"), ("0x80000", "raw")] {
        let command = format!("set_inode_field /file flags {flags}");
        by_flag.remount(|device| drop(run("debugfs", &["-w", "-R", &command, device])), "noatime");
        assert_served(&path, served);
    }
}

/// ironmap respects the default data mode in the superblock, although mountinfo does not show it. A mount option overrides the default.
#[test]
fn ext4_with_journalled_data_by_default() {
    require!([Need::Root, Need::Tool("losetup")]);
    for defaults in [["-o", "journal_data"], ["-E", "mount_opts=data=journal"]] {
        let mounted = Mounted::new("mke2fs -t ext4", 64, "noatime");
        let path = mounted.write("file", &content(SIZE));
        mounted.remount(
            |device| drop(run("tune2fs", &[&defaults[..], &[device]].concat())),
            "noatime",
        );
        assert_served(&path, "data_journal");
        if defaults[0] == "-o" {
            mounted.remount(|_| {}, "data=ordered");
            assert_served(&path, "raw");
        }
    }
}

#[test]
fn ext4_inline_data() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::new("mke2fs -t ext4 -O inline_data -I 256", 64, "noatime");
    assert_served(&mounted.write("tiny", b"in the inode"), "inline");
    assert_served(&mounted.write("large", &content(SIZE)), "raw");
}

/// ironmap does not read encrypted files from the device, because the device contains the encrypted data. Only this test has the key.
#[test]
fn encrypted_files() {
    let needs =
        [Need::Root, Need::Tool("losetup"), Need::Tool("xfs_io"), Need::KernelExt4("encryption")];
    require!(needs);
    let mounted = Mounted::new("mke2fs -t ext4 -b 4096 -O encrypt", 64, "noatime");
    let root = mounted.dir().to_str().unwrap();
    let dir = mounted.path("dir");
    std::fs::create_dir(&dir).unwrap();
    let key = mounted.dir().join("key");
    std::fs::write(&key, content(64)).unwrap();
    let added = Command::new("xfs_io")
        .args(["-c", "add_enckey", root])
        .stdin(std::fs::File::open(&key).unwrap())
        .output()
        .unwrap();
    let added = String::from_utf8(added.stdout).unwrap();
    let Some(id) = added.split_whitespace().find(|word| word.len() == 32) else {
        return note_part("encrypted_files", "all", &added);
    };
    run("xfs_io", &["-c", &format!("set_encpolicy -v 2 {id}"), dir.to_str().unwrap()]);
    assert_served(&mounted.write("dir/file", &content(SIZE)), "encrypted");
    assert_served(&mounted.write("plain", &content(SIZE)), "raw");
}

/// On XFS with reflink, deduplication can move data of a file without a writer. ironmap reads a file from the device only if its data
/// cannot move: the file has the immutable flag, or the caller guarantees that the data do not move.
#[test]
fn xfs_with_reflink() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    let mounted = Mounted::xfs_with_reflink();
    let path = mounted.write("file", &content(SIZE));
    assert_served(&path, "dedupe");
    let promise = FileOptions::new().assume_no_dedupe(true);
    check(&path, promise, "raw");
    // If the caller guarantees that data do not move, ironmap reads a file from the device even if the file has shared extents.
    let shared = mounted.path("shared");
    run("cp", &["--reflink=always".as_ref(), path.as_os_str(), shared.as_os_str()]);
    check(&shared, promise, "raw");
    let (host, _queue) = host();
    let report = host.open_with(&shared, promise).unwrap().host().unwrap();
    assert!(report.shared, "{report:?}");

    run("chattr", &["+i".as_ref(), path.as_os_str()]);
    assert_served(&path, "raw");
    // The immutable flag can be cleared while ironmap has the file open. ironmap then stops reading the file from the device.
    let (host, mut queue) = self::host();
    let file = host.open_with(&path, FileOptions::default()).unwrap();
    assert!(file.host().unwrap().is_raw());
    run("chattr", &["-i".as_ref(), path.as_os_str()]);
    let (mut bytes, start) = (vec![0; 4096], Instant::now());
    while file.host().unwrap().refusal != Some(Refusal::Dedupe) {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", file.host());
        file.read_at(&mut queue, &mut bytes, FilePos(0)).unwrap();
    }
    assert_served(&path, "dedupe");
}

/// ironmap does not read a file on the realtime device directly. FIEMAP reports positions on the realtime device, not on the data device.
#[test]
fn xfs_realtime() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let dir = scratch();
    let image = dir.path().join("realtime");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let device = LoopDevice::new(&image);
    let device = device.node();
    let mkfs = format!("mkfs.xfs -m reflink=0,rmapbt=0 -d rtinherit=1 -r rtdev={device}");
    let mounted = match Mounted::try_new(512, &mkfs, 320, &format!("rtdev={device}")) {
        Ok(mounted) => mounted,
        Err(refusal) => return note_part("xfs_realtime", "all", &refusal),
    };
    assert_served(&mounted.write("file", &content(SIZE)), "realtime");
}

/// ironmap does not read a file with fs-verity from the device, because only the kernel verifies its data.
#[test]
fn verity() {
    require!([
        Need::Root,
        Need::Tool("losetup"),
        Need::Tool("fsverity"),
        Need::KernelExt4("verity")
    ]);
    let mounted = Mounted::new("mke2fs -t ext4 -b 4096 -O verity", 64, "noatime");
    let path = mounted.write("file", &content(SIZE));
    run("fsverity", &["enable".as_ref(), path.as_os_str()]);
    assert_served(&path, "verity");
}

/// On some file systems, FIEMAP does not always report the position of the data. ironmap reads files of these file systems through the
/// kernel.
#[test]
fn other_file_systems() {
    require!([Need::Root, Need::Tool("losetup")]);
    let content = content(SIZE);
    for kind in ["tmpfs", "ramfs", "overlay"] {
        let dir = scratch();
        let below = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (mount, lower, upper, work) = (below("mnt"), below("l"), below("u"), below("w"));
        std::fs::write(lower.join("lower"), &content).unwrap();
        let shown = |path: &Path| path.display().to_string();
        let options = match kind {
            "overlay" => format!(
                "lowerdir={},upperdir={},workdir={}",
                shown(&lower),
                shown(&upper),
                shown(&work)
            ),
            _ => "mode=700".to_owned(),
        };
        let args = ["-t", kind, "-o", &options, "none", mount.to_str().unwrap()];
        let mounted = Unmounted::new(&mount, "mount", &args);
        std::fs::write(mount.join("file"), &content).unwrap();
        assert_served(&mount.join("file"), "file_system");
        if kind == "overlay" {
            assert_served(&mount.join("lower"), "file_system");
        }
        drop(mounted);
    }
}

#[test]
fn btrfs() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.btrfs")]);
    let mounted = Mounted::new("mkfs.btrfs", 128, "noatime");
    assert_served(&mounted.write("file", &content(SIZE)), "file_system");
}

#[test]
fn f2fs() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.f2fs")]);
    if !std::fs::read_to_string("/proc/filesystems").unwrap().contains("f2fs") {
        return note_part("f2fs", "all", "this kernel has no f2fs");
    }
    let mounted = Mounted::new("mkfs.f2fs", 128, "noatime");
    assert_served(&mounted.write("file", &content(SIZE)), "file_system");
}

/// ironmap does not mistake a fuse2fs mount for ext4. The type of such a mount looks like ext4, but fuse2fs itself has the volume open.
#[test]
fn fuse() {
    require!([Need::Root, Need::Tool("fuse2fs"), Need::Tool("mke2fs")]);
    let dir = scratch();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
    std::fs::create_dir(&mount).unwrap();
    run("mke2fs", &["-q", "-t", "ext4", image.to_str().unwrap(), "64M"]);
    let args = [image.to_str().unwrap(), mount.to_str().unwrap()];
    let _mounted = Unmounted::new(&mount, "fuse2fs", &args);
    std::fs::write(mount.join("file"), content(SIZE)).unwrap();
    assert_served(&mount.join("file"), "file_system");
}

/// A mounted directory. Dropping this value unmounts it.
struct Unmounted(PathBuf);

impl Unmounted {
    fn new(mount: &Path, program: &str, args: &[&str]) -> Self {
        run(program, args);
        Self(mount.to_owned())
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        for _ in 0..500 {
            if output("umount", &[&self.0]).status.success() {
                return;
            }
        }
    }
}
