//! Images that are made: their names, the images that they replace, and images that are never completed.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use crate::common::process::until;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, pattern, succeed, text, tool, xattr};

/// All commands that make a missing image or archive. NEW is the image.
const MAKERS: [&str; 12] = [
    "mkfs NEW 16M",
    "mkfs -d tree NEW",
    "mkfs --shrink -d tree NEW",
    "mkfs qcow2:NEW 16M",
    "clone data NEW",
    "clone data qcow2:NEW",
    "clone --compress deflate data qcow2:NEW",
    "disk NEW 16M -p linux-generic:rest",
    "disk qcow2:NEW 16M -p linux-generic:rest",
    "verity make data NEW",
    "tar volume:/ -f NEW",
    "cp volume:/file NEW",
];

fn sources() -> Bench {
    let bench = Bench::empty();
    fs::write(bench.path("data"), pattern(4 << 20, 1)).unwrap();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), pattern(70_000, 2)).unwrap();
    bench.succeed(["mkfs", "-q", "-d", "tree", "volume", "16M"]);
    bench
}

/// The arguments of a command in which `new` replaces NEW.
fn args(command: &str, new: &str) -> Vec<String> {
    command.split(' ').map(|word| word.replace("NEW", new)).collect()
}

/// In the file system of the device nodes, a missing name counts as a missing device, and no command makes a file with this name. Other
/// file systems that are mounted below /dev can contain images.
#[test]
fn the_name_of_a_missing_device_never_becomes_a_file() {
    let device = |path: &str| fs::metadata(path).map(|found| found.dev()).ok();
    let nodes = fs::metadata("/dev/null").is_ok_and(|null| null.file_type().is_char_device());
    if !nodes || device("/dev") == device("/") {
        println!("SKIP the_name_of_a_missing_device_never_becomes_a_file: /dev is not mounted");
        return;
    }
    let bench = sources();
    let name = format!("ironmap-none-{}", std::process::id());
    // A symbolic link to a missing device also counts as a missing device.
    std::os::unix::fs::symlink(format!("/dev/{name}"), bench.path("link")).unwrap();
    let link = bench.path("link").display().to_string();
    let missing = format!("/dev/{name}");
    for command in MAKERS {
        for new in [&missing, &link] {
            let output = bench.run(args(command, new));
            let is_made = fs::remove_file(&missing).is_ok();
            assert!(!is_made, "{command} with {new} made a file in /dev");
            assert!(!output.status.success(), "{command} with {new}");
            let said = text(&output.stderr);
            let is_clear = ["does not exist", "No such file"].iter().any(|it| said.contains(it));
            assert!(is_clear && said.lines().count() == 1, "{command}: {said}");
        }
    }
    if device("/dev/shm").is_none() || device("/dev/shm") == device("/dev") {
        println!("SKIP the_name_of_a_missing_device_never_becomes_a_file: no /dev/shm");
        return;
    }
    let shm = format!("/dev/shm/{name}");
    for command in MAKERS {
        let output = bench.run(args(command, &shm));
        let is_made = fs::remove_file(&shm).is_ok();
        assert!(output.status.success() && is_made, "{command}: {}", text(&output.stderr));
    }
}

/// A command that is killed leaves nothing under the final name of the image, so no program takes an incomplete image for a complete one.
/// The limit of the file size ends the commands in the middle of their writes.
#[test]
fn a_killed_command_leaves_no_incomplete_image() {
    let bench = sources();
    fs::write(bench.path("data"), pattern(64 << 20, 3)).unwrap();
    for command in ["clone data NEW", "clone data qcow2:NEW", "verity make data NEW"] {
        let mut shell = tool("sh");
        // The limit of the file size is 256 blocks of 512 bytes.
        shell.args(["-c", "ulimit -c 0; ulimit -f 256; exec \"$@\"", "sh", IRONMAP]);
        let output =
            shell.args(args(command, "new")).current_dir(bench.path(".")).output().unwrap();
        assert!(!output.status.success(), "{command}");
        assert!(!bench.path("new").exists(), "{command} left an incomplete image");
    }
}

/// A disk with one volume, which `ironmap disk` then replaces with the content of an archive that arrives through a pipe.
struct Replacement {
    bench: Bench,
    command: std::process::Child,
    /// The writing end of the pipe.
    pipe: fs::File,
}

impl Replacement {
    fn begin() -> Self {
        let bench = sources();
        bench.succeed(["disk", "-q", "disk.img", "64M", "-p", "linux-generic:rest:fs=ext4"]);
        fs::write(bench.path("archive.tar"), bench.succeed(["tar", "volume:/"])).unwrap();
        mknodat(CWD, bench.path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let mut command = bench.command();
        command.args(["disk", "-q", "--force", "disk.img", "64M"]);
        command.args(["-p", "linux-generic:rest:fs=ext4,files=pipe"]);
        command.stderr(std::process::Stdio::piped());
        let command = command.spawn().unwrap();
        // This call waits until the command opens the pipe. The command checks its sources after it has examined the disk.
        let pipe = OpenOptions::new().write(true).open(bench.path("pipe")).unwrap();
        Self { bench, command, pipe }
    }

    /// Waits until the new image exists under its temporary name. The command then waits for the archive.
    fn wait_for_image(&self) {
        until("the new image", || temporary(&self.bench) == 1);
    }

    fn is_locked(&self) -> bool {
        let output = self.bench.run(["mkdir", "disk.img@p1:/lost"]);
        !output.status.success() && text(&output.stderr).contains("locked by")
    }

    fn end(mut self) -> (Bench, std::process::Output) {
        self.pipe.write_all(&fs::read(self.bench.path("archive.tar")).unwrap()).unwrap();
        drop(self.pipe);
        (self.bench, self.command.wait_with_output().unwrap())
    }
}

/// The number of images with a temporary name.
fn temporary(bench: &Bench) -> usize {
    let names = fs::read_dir(bench.path(".")).unwrap().flatten();
    names.filter(|it| it.file_name().to_string_lossy().starts_with(".ironmap-")).count()
}

/// While `disk` makes a new image, the image that it will replace is locked, because a change of the old image would be lost.
#[test]
fn a_replaced_disk_is_locked() {
    let replacement = Replacement::begin();
    assert!(replacement.is_locked(), "before the new image is made");
    replacement.wait_for_image();
    assert!(replacement.is_locked(), "while the new image is made");
    let (bench, output) = replacement.end();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(bench.succeed(["cat", "disk.img@p1:/file"]) == pattern(70_000, 2));
    assert_eq!(temporary(&bench), 0);
}

/// If another program gives the final name to another file while the image is made, that file is not replaced.
#[test]
fn a_file_that_took_the_name_is_not_replaced() {
    let replacement = Replacement::begin();
    replacement.wait_for_image();
    let bench = &replacement.bench;
    fs::rename(bench.path("data"), bench.path("disk.img")).unwrap();
    let (bench, output) = replacement.end();
    assert!(text(&output.stderr).contains("another program has replaced the image"));
    assert!(fs::read(bench.path("disk.img")).unwrap() == pattern(4 << 20, 1));
    assert_eq!(temporary(&bench), 0, "the new image was not removed");
}

/// The new image of a disk has the permissions, the owner, the ACL and the other extended attributes of the image that it replaces.
#[test]
fn a_replaced_disk_keeps_its_attributes() {
    require!([Need::Root, Need::Tool("setfacl"), Need::Tool("getfacl")]);
    let bench = sources();
    for (kind, disk) in [("", "disk.img"), ("qcow2:", "disk.qcow2")] {
        let location = format!("{kind}{disk}");
        let make = ["disk", "-q", "--force", &location, "16M", "-p", "linux-generic:rest"];
        bench.succeed(make);
        let path = bench.path(disk);
        chown(&path, Some(1234), Some(5678)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        succeed(tool("setfacl").args(["-m", "u:4321:rw"]).arg(&path));
        let has_user = setxattr(&path, "user.note", b"kept", XattrFlags::empty()).is_ok();
        let acl = |path: &Path| text(&succeed(tool("getfacl").arg("-p").arg(path)).stdout);
        let (before, inode) = (acl(&path), path.metadata().unwrap().ino());
        bench.succeed(make);
        let found = path.metadata().unwrap();
        assert_ne!(found.ino(), inode);
        assert_eq!((found.uid(), found.gid()), (1234, 5678));
        assert_eq!(acl(&path), before);
        assert!(!has_user || xattr(&path, "user.note").as_deref() == Some(b"kept"));
    }
}

/// A new archive has the permissions and the extended attributes of the file that it replaces.
#[test]
fn a_replaced_archive_keeps_its_attributes() {
    require!([Need::Tool("setfacl"), Need::Tool("getfacl")]);
    let bench = sources();
    let path = bench.path("archive");
    fs::write(&path, "old").unwrap();
    succeed(tool("setfacl").args(["-m", "u:4321:rw"]).arg(&path));
    let has_user = setxattr(&path, "user.note", b"kept", XattrFlags::empty()).is_ok();
    let acl = || text(&succeed(tool("getfacl").arg("-p").arg(&path)).stdout);
    let before = acl();
    bench.succeed(["tar", "-f", "archive", "volume:/"]);
    assert!(fs::read(&path).unwrap().len() > 70_000);
    assert_eq!(acl(), before);
    assert!(!has_user || xattr(&path, "user.note").as_deref() == Some(b"kept"));
}
